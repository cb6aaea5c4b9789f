//! The chores behind `./dev` that are easier said in Rust than in a shell.
//!
//! `starter` makes the starter model; `exact` and `bench` run the product's own commands on it.

mod starter;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let chore = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let done = match chore.as_str() {
        "starter" => starter::make(&root(), &target(), &product()),
        "exact" | "bench" => on_starter(&chore, &rest),
        _ => Err("usage: xtask starter | exact [ARGS] | bench [ARGS]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{chore}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// `foretoken <chore> starter ARGS`.
fn on_starter(chore: &str, rest: &[String]) -> Outcome<()> {
    run(Command::new(product())
        .arg(chore)
        .arg("starter")
        .args(rest)
        .env("FORETOKEN_STARTER", root().join(starter::FOLDER)))
}

fn run(command: &mut Command) -> Outcome<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|e| format!("{name} did not start: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed: {status}").into()) }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("crates/xtask is two below the root")
        .into()
}

/// The folder this program was built into, wherever CARGO_TARGET_DIR put it.
fn built() -> PathBuf {
    let me = std::env::current_exe().expect("the system knows our path");
    me.parent().expect("a program is in a folder").into()
}

fn target() -> PathBuf {
    built().parent().expect("target/<profile>").into()
}

fn product() -> PathBuf {
    built().join(format!("foretoken{}", std::env::consts::EXE_SUFFIX))
}
