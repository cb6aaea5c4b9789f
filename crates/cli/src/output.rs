use foretoken_protocol::{ErrorCode, WireError};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

/// Writes to stdout; a reader that went away ends the program quietly.
pub fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

pub fn line(line: &str) {
    text(&format!("{line}\n"));
}

/// One object on a line of its own.
pub fn json(value: &impl Serialize) {
    line(&serde_json::to_string(value).expect("our own structs serialise"));
}

pub fn progress(what: &str) {
    let mut err = std::io::stderr().lock();
    // Progress that nobody reads is no reason to stop.
    drop(writeln!(err, "{what}"));
}

/// One line of JSON on stderr.
pub fn problem(e: &WireError) {
    progress(&serde_json::to_string(e).expect("our own structs serialise"));
}

pub fn failure(e: &WireError) -> ExitCode {
    problem(e);
    ExitCode::FAILURE
}

/// Help and version are answers; anything else wrong with the words is an error in the usual form.
pub fn usage(e: &clap::Error) -> ExitCode {
    if !e.use_stderr() {
        text(&e.render().to_string());
        return ExitCode::SUCCESS;
    }
    let detail = e.render().to_string();
    let first = detail.lines().next().unwrap_or("").trim_start_matches("error: ");
    let message = format!("The command cannot be understood: {first}. See foretoken --help.");
    failure(&WireError {
        code: ErrorCode::InvalidOption,
        message,
        detail: detail.trim().to_owned(),
    });
    ExitCode::from(2)
}
