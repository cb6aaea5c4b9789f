//! A minijinja environment that renders chat templates as the Python reference (transformers' sandboxed Jinja2) does,
//! with limits: a template is a stranger's program.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};

/// One unit is an instruction or 64 bytes made. Measured: a conversation of 1,000 turns takes below 100,000 units, and
/// an endless loop runs through all of it in well under a second. It also bounds memory, to 64 bytes per unit.
const FUEL: u64 = 4_000_000;
/// Macros cost several levels each. Low enough for a thread with a 2 MiB stack in a debug build.
const RECURSION_LIMIT: usize = 200;

/// Marks an error as the template's own refusal.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// `now` formats the current local time with a `strftime` pattern. Nothing is ever loaded from disk: without a loader
/// `include` and `import` know the given template only.
pub(super) fn environment(
    now: impl Fn(&str) -> String + Send + Sync + 'static,
) -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the default delimiters are valid"));
    // String methods (`format`, `split`, `strip`, ...), `items`, `get` and so on.
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_recursion_limit(RECURSION_LIMIT);
    env.set_fuel(Some(FUEL));
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", |why: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, why.clone()).with_source(Refusal(why)))
    });
    env.add_function("strftime_now", move |pattern: String| -> String { now(&pattern) });
    env
}

/// Characters of one tag outside its strings. Published templates stay below 2,000; the parser's depth and time grow
/// with it, beyond the reach of fuel.
const MAX_TAG_CHARS: usize = 8192;
/// The parser descends once per `elif`.
const MAX_ELIFS: usize = 1000;
/// Enough for the deepest expression that fits into a tag, in bytes.
const PARSER_STACK: usize = 64 << 20;

/// Parses a template where neither its depth nor its length can do harm.
pub(super) fn add_template(
    env: &mut Environment<'static>,
    name: &'static str,
    source: String,
) -> Result<(), Error> {
    if let Some(line) = line_of_long_tag(&source) {
        return Err(Error::new(
            ErrorKind::SyntaxError,
            format!("the tag that starts in line {line} is too long"),
        ));
    }
    if source.matches("elif").count() > MAX_ELIFS {
        return Err(Error::new(ErrorKind::SyntaxError, "it has too many elif branches"));
    }
    let parsed = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(PARSER_STACK);
        let work = thread.spawn_scoped(scope, || env.add_template_owned(name, source));
        work.map(|handle| handle.join())
    });
    match parsed {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Error::new(ErrorKind::SyntaxError, "the parser failed")),
        Err(e) => Err(Error::new(ErrorKind::SyntaxError, format!("no memory for the parser: {e}"))),
    }
}

/// The line of the first tag that is longer than [`MAX_TAG_CHARS`]. In doubt a tag goes on, so that none is missed.
fn line_of_long_tag(source: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let mut i = 0;
    while let Some(start) =
        bytes[i..].windows(2).position(|w| matches!(w, b"{{" | b"{%" | b"{#")).map(|at| i + at)
    {
        let end: &[u8] = match bytes[start + 1] {
            b'{' => b"}}",
            b'%' => b"%}",
            _ => b"#}",
        };
        i = start + 2;
        let (mut n_chars, mut depth) = (0, 0_usize);
        while i < bytes.len() && !(depth == 0 && bytes[i..].starts_with(end)) {
            match bytes[i] {
                _ if end == b"#}" => {}
                quote @ (b'"' | b'\'') => {
                    i += 1;
                    while i < bytes.len() && bytes[i] != quote {
                        i += if bytes[i] == b'\\' { 2 } else { 1 };
                    }
                    n_chars += 1;
                }
                b'{' | b'[' | b'(' => depth += 1,
                b'}' | b']' | b')' => depth = depth.saturating_sub(1),
                _ => n_chars += 1,
            }
            n_chars += usize::from(depth > 0);
            i += 1;
            if n_chars > MAX_TAG_CHARS {
                return Some(
                    source.as_bytes()[..start].iter().filter(|&&b| b == b'\n').count() + 1,
                );
            }
        }
        i = (i + 2).min(bytes.len());
    }
    None
}

/// The clock of [`environment`] outside tests. A pattern with an unknown letter is returned as it is.
pub(super) fn local_time(pattern: &str) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    match write!(text, "{}", chrono::Local::now().format(pattern)) {
        Ok(()) => text,
        Err(fmt::Error) => pattern.to_owned(),
    }
}

/// `{% generation %}` ... `{% endgeneration %}` only marks text for training masks. The pair becomes `if true` / `endif`,
/// which keeps the body, the whitespace-control dashes and the line numbers.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let end = start + len + 2;
        let tag = &rest[start..end];
        let word = tag[2..]
            .trim_end_matches("%}")
            .trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        out.push_str(&rest[..start]);
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// JSON as Python's `json.dumps` writes it: ", " and ": ", no HTML escaping, non-ASCII kept.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Templates pass these with the values that are ours anyway.
    let _: (Option<bool>, Option<bool>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
    let _: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let bad = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let json = serde_json::to_value(&value).map_err(bad)?;
    let mut out = Vec::new();
    match indent {
        Some(n) => {
            // A template could ask for a line of any width.
            let pad = " ".repeat(n.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(pad.as_bytes());
            json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter))
                .map_err(bad)?;
        }
        None => json
            .serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced))
            .map_err(bad)?,
    }
    Ok(Value::from_safe_string(String::from_utf8_lossy(&out).into_owned()))
}
