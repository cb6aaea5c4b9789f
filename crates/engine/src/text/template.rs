use super::files::{read_limited, read_object};
use super::template_env::{
    Refusal, add_template, environment, local_time, without_generation_tags,
};
use super::thought::{ThoughtState, ThoughtTags, find_tags};
use super::{TextError, Tokenizer};
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// The largest published templates are about 20 kB.
const MAX_SOURCE_BYTES: u64 = 1 << 20;
/// Far more than any context holds.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// For what fuel does not see.
const TIME_LIMIT: Duration = Duration::from_secs(3);
/// Bytes; more than the recursion limit of the environment can use.
const RENDER_STACK: usize = 16 << 20;
/// Its name inside the environment; no file of that name is ever opened.
const NAME: &str = "chat_template";

/// A model's own way to write a conversation as one text. Parsed once; rendering is sandboxed and limited in
/// instructions (about a second), depth and output (16 MiB).
pub struct ChatTemplate {
    env: Arc<Environment<'static>>,
    special: Map<String, Value>,
    tags: Vec<ThoughtTags>,
}

/// One turn of a conversation as the template sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnText {
    /// `system`, `user`, `assistant` or whatever the template knows.
    pub role: String,
    pub content: String,
    /// `reasoning_content` of the template; absent there when `None`.
    pub reasoning: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderOptions {
    /// Ends the text with the start of an assistant turn.
    pub add_generation_prompt: bool,
    /// Further variables of the template, e.g. `reasoning_effort`, `enable_thinking`, `tools`.
    pub extra: Map<String, Value>,
}

impl ChatTemplate {
    /// Looks in `chat_template.jinja`, then `chat_template` of `tokenizer_config.json`, then `chat_template.json`.
    ///
    /// Errors: [`TextError::TemplateMissing`], [`TextError::TemplateCorrupt`], [`TextError::TemplateSyntax`],
    /// [`TextError::TokenizerCorrupt`] for a damaged `tokenizer_config.json`, [`TextError::Io`].
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Self, TextError> {
        Self::with_clock(dir, tokenizer, local_time)
    }

    /// Like [`ChatTemplate::from_dir`]; `now` formats the current time with a `strftime` pattern.
    pub fn with_clock(
        dir: &Path,
        tokenizer: &Tokenizer,
        now: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Result<Self, TextError> {
        let (file, source) = find_source(dir)?;
        if source.len() as u64 > MAX_SOURCE_BYTES {
            let why = format!("larger than {MAX_SOURCE_BYTES} bytes");
            return Err(TextError::TemplateCorrupt { file, why });
        }
        if source.trim().is_empty() {
            return Err(TextError::TemplateCorrupt { file, why: "it is empty".into() });
        }
        let tags = find_tags(&tokenizer.added_texts(), &source);
        let special =
            tokenizer.named_special().map(|(name, text)| (name.to_owned(), json!(text))).collect();
        let mut env = environment(now);
        add_template(&mut env, NAME, without_generation_tags(&source)).map_err(|e| {
            TextError::TemplateSyntax { file, line: e.line().unwrap_or(0), why: reason(&e) }
        })?;
        Ok(Self { env: Arc::new(env), special, tags })
    }

    /// The prompt. Encode it without further special tokens: the template writes BOS itself where the model wants it.
    ///
    /// Errors: [`TextError::TemplateRefused`] for `raise_exception`, [`TextError::TemplateFailed`] for all else.
    pub fn render(
        &self,
        messages: &[TurnText],
        options: &RenderOptions,
    ) -> Result<String, TextError> {
        // transformers defines these two in any case, so `tools is none` must hold without tools.
        let mut context = Map::from_iter([
            ("tools".to_owned(), Value::Null),
            ("documents".to_owned(), Value::Null),
        ]);
        context.extend(self.special.clone());
        context.extend(options.extra.clone());
        context.insert("messages".into(), messages.iter().map(turn).collect());
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());

        // Fuel ends nearly everything, but not work inside one operation (a list doubled a hundred times is one value
        // to the engine). Such a thread is given up; the caller goes on.
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let env = Arc::clone(&self.env);
        let work = move || sender.send(render_now(&env, &context));
        let failed = |why: String| TextError::TemplateFailed { line: 0, why };
        let thread =
            std::thread::Builder::new().name("chat-template".into()).stack_size(RENDER_STACK);
        thread.spawn(work).map_err(|e| failed(e.to_string()))?;
        receiver.recv_timeout(TIME_LIMIT).unwrap_or_else(|e| {
            Err(failed(match e {
                RecvTimeoutError::Timeout => "it runs for too long".into(),
                RecvTimeoutError::Disconnected => "the template engine failed".into(),
            }))
        })
    }

    /// The think tags if the reply to this prompt starts inside a think block, i.e. the prompt ends with an opening
    /// tag. What a person wrote cannot do that: the template's own end of the turn comes after it.
    pub fn starts_in_thought(&self, rendered: &str) -> Option<&ThoughtTags> {
        let end = rendered.trim_end();
        self.tags.iter().find(|tags| end.ends_with(&tags.open))
    }

    /// Where a [`super::TextStream`] for the reply to this prompt has to start.
    pub fn thought_state(&self, rendered: &str) -> ThoughtState {
        match self.starts_in_thought(rendered) {
            Some(tags) => ThoughtState { tags: Some(tags.clone()), inside: true },
            None => ThoughtState { tags: self.tags.first().cloned(), inside: false },
        }
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("tags", &self.tags).finish_non_exhaustive()
    }
}

fn turn(turn: &TurnText) -> Value {
    let mut map = json!({ "role": turn.role, "content": turn.content });
    if let Some(reasoning) = &turn.reasoning {
        map["reasoning_content"] = json!(reasoning);
    }
    map
}

fn find_source(dir: &Path) -> Result<(PathBuf, String), TextError> {
    let file = dir.join("chat_template.jinja");
    let corrupt = |why: String| TextError::TemplateCorrupt { file: file.clone(), why };
    if let Some(bytes) = read_limited(&file, MAX_SOURCE_BYTES, corrupt)? {
        let text = String::from_utf8(bytes).map_err(|e| corrupt(e.to_string()))?;
        return Ok((file, text));
    }
    let file = dir.join("tokenizer_config.json");
    let config = read_object(&file, |why| TextError::TokenizerCorrupt { file: file.clone(), why })?;
    if let Some(source) = config.as_ref().and_then(template_in) {
        return Ok((file, source));
    }
    let file = dir.join("chat_template.json");
    let config = read_object(&file, |why| TextError::TemplateCorrupt { file: file.clone(), why })?;
    match config.as_ref().and_then(template_in) {
        Some(source) => Ok((file, source)),
        None => Err(TextError::TemplateMissing),
    }
}

/// `chat_template` as a text, or as a list of `{name, template}` of which "default" counts.
fn template_in(config: &Map<String, Value>) -> Option<String> {
    match config.get("chat_template")? {
        Value::String(source) => Some(source.clone()),
        Value::Array(list) => {
            let default = list.iter().find(|entry| entry["name"] == "default")?;
            default["template"].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

fn render_now(
    env: &Environment<'static>,
    context: &Map<String, Value>,
) -> Result<String, TextError> {
    let mut out = LimitedOutput { bytes: Vec::new(), is_full: false };
    let template = env.get_template(NAME).map_err(|e| render_error(&e))?;
    let result = template.render_captured_to(minijinja::value::Serde(context), &mut out).map(drop);
    if out.is_full {
        let why = format!("it writes more than {MAX_OUTPUT_BYTES} bytes");
        return Err(TextError::TemplateFailed { line: 0, why });
    }
    result.map_err(|e| render_error(&e))?;
    String::from_utf8(out.bytes)
        .map_err(|e| TextError::TemplateFailed { line: 0, why: e.to_string() })
}

struct LimitedOutput {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Write for LimitedOutput {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > MAX_OUTPUT_BYTES {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn render_error(error: &minijinja::Error) -> TextError {
    // A refusal inside a macro is wrapped in the errors of its callers.
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(refusal) = inner.downcast_ref::<Refusal>() {
            return TextError::TemplateRefused { why: refusal.0.clone() };
        }
        cause = inner.source();
    }
    let why = match error.kind() {
        ErrorKind::OutOfFuel => "it runs for too long".to_owned(),
        _ => reason(error),
    };
    TextError::TemplateFailed { line: error.line().unwrap_or(0), why }
}

fn reason(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
