//! The tests' stand-in for the hub, to be used by hand or by a test of the whole window.
//!
//! `cargo run --example hub_mirror ROOT [--throttle BYTES] [--drop FILE BYTES] [--token TOKEN]` serves ROOT/owner/name and
//! prints its address; HF_ENDPOINT takes it. `--drop` breaks the line once after so many bytes of a file.
#![allow(clippy::print_stdout, reason = "it is what this program is for")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use support::{Fault, Kind, Mirror, Stage};

fn main() {
    let mut args = std::env::args().skip(1);
    let root = args.next().expect("a folder to serve");
    let mirror = Mirror::new();
    for owner in folders(Path::new(&root)) {
        for name in folders(&Path::new(&root).join(&owner)) {
            let folder = Path::new(&root).join(&owner).join(&name);
            for file in support::names(&folder) {
                if let Ok(bytes) = std::fs::read(folder.join(&file)) {
                    mirror.add(&format!("{owner}/{name}"), &file, bytes);
                }
            }
        }
    }
    while let Some(option) = args.next() {
        let value = args.next().expect("an option has a value");
        match option.as_str() {
            "--throttle" => {
                mirror.with(|state| state.throttle = Some(value.parse().expect("a number")));
            }
            // It lives as long as the program.
            "--token" => mirror.with(|state| state.token = Some(value.leak())),
            "--drop" => {
                let after = args.next().and_then(|n| n.parse().ok()).expect("a number");
                mirror.fault(Fault::new(Stage::Bytes, value.leak(), Kind::Drop(after)));
            }
            other => panic!("{other} is no option"),
        }
    }
    println!("{}", mirror.endpoint);
    loop {
        std::thread::park();
    }
}

fn folders(root: &Path) -> Vec<String> {
    support::names(root).into_iter().filter(|name| root.join(name).is_dir()).collect()
}
