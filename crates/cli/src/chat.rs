use crate::args::ChatArgs;
use crate::output;
use foretoken_app::{
    Engine, ModelPlace, Prompt, ReplyEvent, ReplyRequest, TurnText, check_options, error,
};
use foretoken_protocol::{
    DraftingState, ErrorCode, FinishReason, LoadEvent, LoadedModel, ReplyStats, WireError,
};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;

#[derive(Deserialize)]
struct MessageArg {
    role: String,
    content: String,
    #[serde(default, alias = "reasoning_content")]
    reasoning: Option<String>,
}

/// The last line of `foretoken chat --json`.
#[derive(Serialize)]
struct ChatResult<'a> {
    token_ids: &'a [u32],
    text: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thought: &'a str,
    finish_reason: FinishReason,
    #[serde(flatten)]
    stats: &'a ReplyStats,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line<'a> {
    Prefill { done: u32, total: u32, reused: u32 },
    Step { text: &'a str, thought: &'a str },
}

struct Reply {
    text: String,
}

pub fn read_json<T: serde::de::DeserializeOwned>(file: &Path, what: &str) -> Result<T, WireError> {
    let wrong = |code, why: &str, detail: String| WireError {
        code,
        message: format!("{} {why}. Give a file with {what}.", file.display()),
        detail,
    };
    let raw = std::fs::read(file)
        .map_err(|e| wrong(ErrorCode::NotFound, "cannot be read", e.to_string()))?;
    serde_json::from_slice(&raw)
        .map_err(|e| wrong(ErrorCode::InvalidOption, "is not what is expected here", e.to_string()))
}

fn load(engine: &Engine, place: ModelPlace) -> Result<LoadedModel, WireError> {
    let (done, wait) = channel();
    engine.load(place, move |event| {
        let result = match event {
            LoadEvent::Progress { .. } => return,
            LoadEvent::Ready { model } => Ok(*model),
            LoadEvent::Failed { error } => Err(error),
            LoadEvent::Cancelled => {
                Err(error(ErrorCode::NoModel, "Loading was cancelled. Load the model again."))
            }
        };
        // Nobody waits any more when the program is ending.
        drop(done.send(result));
    })?;
    wait.recv()
        .unwrap_or_else(|_| Err(error(ErrorCode::Internal, "The engine has stopped. Try again.")))
}

pub fn run(args: &ChatArgs, place: ModelPlace) -> Result<(), WireError> {
    check_options(&args.options())?;
    let mut turns: Vec<TurnText> = Vec::new();
    if let Some(system) = args.system.as_deref().filter(|s| !s.trim().is_empty()) {
        turns.push(turn("system", system));
    }
    let mut ids = None;
    if let Some(file) = &args.messages {
        let messages: Vec<MessageArg> =
            read_json(file, "a JSON list of messages with role and content")?;
        if messages.is_empty() {
            return Err(nothing_to_answer());
        }
        turns.extend(messages.into_iter().map(|m| TurnText {
            role: m.role,
            content: m.content,
            reasoning: m.reasoning,
        }));
    } else if let Some(file) = &args.raw_ids {
        ids = Some(read_json::<Vec<u32>>(file, "a JSON list of token ids")?);
    } else if let Some(prompt) = &args.prompt {
        if prompt.trim().is_empty() {
            return Err(nothing_to_answer());
        }
        turns.push(turn("user", prompt));
    }
    let engine = Engine::start()?;
    let place = ModelPlace { activations: args.activations(), ..place };
    let model = load(&engine, place)?;
    let once = args.prompt.is_some() || args.messages.is_some() || ids.is_some();
    if once {
        let prompt = ids.map_or(Prompt::Turns(turns), Prompt::Ids);
        reply(&engine, args, prompt)?;
    } else {
        interactive(&engine, args, &model, turns)?;
    }
    engine.shutdown();
    Ok(())
}

fn nothing_to_answer() -> WireError {
    error(ErrorCode::InvalidOption, "There is nothing to answer. Write a message first.")
}

fn turn(role: &str, content: &str) -> TurnText {
    TurnText { role: role.to_owned(), content: content.to_owned(), reasoning: None }
}

/// One line in, one reply out, until the input ends.
fn interactive(
    engine: &Engine,
    args: &ChatArgs,
    model: &LoadedModel,
    mut turns: Vec<TurnText>,
) -> Result<(), WireError> {
    let person = std::io::stdin().is_terminal();
    if !args.json {
        output::line(&format!(
            "{} on {}. {}",
            model.name, model.device, model.report.head.sentence
        ));
        output::line("Write a message and press Enter; an empty line ends the chat.");
    }
    // Bytes and not text: a character in another encoding is no reason to end the chat.
    let mut lines = std::io::stdin().lock().split(b'\n');
    loop {
        if person && !args.json {
            output::text("\n> ");
        }
        let Some(line) = lines.next().transpose().ok().flatten() else { return Ok(()) };
        let line = String::from_utf8_lossy(&line);
        if line.trim().is_empty() {
            return Ok(());
        }
        let line = line.trim_end_matches('\r');
        turns.push(turn("user", line));
        match reply(engine, args, Prompt::Turns(turns.clone())) {
            Ok(reply) => turns.push(turn("assistant", &reply.text)),
            // A chat goes on after a message that could not be answered.
            Err(e) => {
                turns.pop();
                if args.json { output::problem(&e) } else { output::progress(&e.message) }
            }
        }
    }
}

fn reply(engine: &Engine, args: &ChatArgs, prompt: Prompt) -> Result<Reply, WireError> {
    let (send, events) = channel();
    let request =
        ReplyRequest { prompt, options: args.options(), stop: Arc::new(AtomicBool::new(false)) };
    // The receiver lives until the last event.
    engine.reply(request, move |event| drop(send.send(event)))?;
    let (mut text, mut thought) = (String::new(), String::new());
    for event in events {
        match event {
            ReplyEvent::Prefill { done, total, reused } => {
                if args.json {
                    output::json(&Line::Prefill { done, total, reused });
                }
            }
            ReplyEvent::Step { text: new, thought: new_thought, .. } => {
                if args.json {
                    output::json(&Line::Step { text: &new, thought: &new_thought });
                } else {
                    output::text(&new_thought);
                    output::text(&new);
                }
                text.push_str(&new);
                thought.push_str(&new_thought);
            }
            ReplyEvent::Finished { reason, stats, live, token_ids } => {
                if args.json {
                    output::json(&ChatResult {
                        token_ids: &token_ids,
                        text: &text,
                        thought: &thought,
                        finish_reason: reason,
                        stats: &stats,
                    });
                } else {
                    let drafting =
                        live.map(|l| l.drafting).filter(|d| d.state != DraftingState::Off);
                    let accept = stats
                        .accept_rate
                        .map_or(String::new(), |a| format!(" · {:.0}%", a * 100.0));
                    let sentence = drafting.map_or(String::new(), |d| format!(" · {}", d.sentence));
                    output::line(&format!(
                        "\n[{:.1} tok/s{accept} · {:.2}/cycle{sentence}]",
                        stats.decode_tok_s, stats.tokens_per_cycle
                    ));
                }
                return Ok(Reply { text });
            }
            ReplyEvent::Failed(e) => return Err(e),
        }
    }
    Err(error(ErrorCode::Internal, "The engine has stopped. Try again."))
}
