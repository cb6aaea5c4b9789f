//! `foretoken`: the command line over `foretoken-app`.
//!
//! With `--json` stdout holds one object a line, the result last; logs go to stderr. A failure exits with 1 (wrong usage: 2) and
//! one line `{"code":..,"message":..,"detail":..}` on stderr; an interrupted download exits with 130.

mod args;
mod chat;
mod commands;
mod models;
mod output;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FORETOKEN_LOG")
        .unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(e) => return output::usage(&e),
    };
    match commands::run(args) {
        Ok(code) => code,
        Err(e) => output::failure(&e),
    }
}
