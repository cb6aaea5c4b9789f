//! A download over loopback, verified and synced to the disk, beside curl, which does neither.
//!
//! `cargo run --release --example throughput [MIB] [FOLDER]` makes a file of MIB mebibytes (1024) in FOLDER (the temporary one),
//! fetches it in turn with curl and with this crate, each in a process of its own, and prints medians. Linux only:
//! memory and CPU time are read from /proc.
//!
//! Before every run a file of that size is written and removed: a virtual machine gives free memory back to its host, and
//! whoever writes first pays for getting it, up to five times what the copying costs.
#![allow(clippy::print_stdout, reason = "it is what this program is for")]

#[path = "../tests/support/mod.rs"]
mod support;

use foretoken_library::Download;
use foretoken_library::download::Options;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::mirror::{Content, Served};
use support::{Mirror, REPO, hub, list};

const ROUNDS: usize = 7;
const FILE: &str = "model.safetensors";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("serve") => serve(Path::new(&args[1])),
        Some("fetch") => fetch(&args[1], Path::new(&args[2])),
        _ => compare(&args),
    }
}

fn compare(args: &[String]) {
    let mib: usize = args.first().and_then(|n| n.parse().ok()).unwrap_or(1024);
    let folder = args.get(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(folder).expect("a temporary folder");
    let source = dir.path().join("source");
    let mut file = std::fs::File::create(&source).expect("a file");
    for i in 0..mib {
        file.write_all(&support::noise(i as u64, 1 << 20)).expect("written");
    }
    file.sync_all().expect("on the disk");

    let me = std::env::current_exe().expect("this program");
    let mut server = Command::new(&me)
        .arg("serve")
        .arg(&source)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a server");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("piped")).read_line(&mut line).expect("an address");
    let endpoint = line.trim();

    let (mut curl, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        warm(dir.path(), mib);
        let to = dir.path().join("curl");
        let url = format!("{endpoint}/{REPO}/resolve/main/{FILE}");
        curl.push(timed(Command::new("curl").args(["-sSfL", "-o"]).arg(&to).arg(url)));
        std::fs::remove_file(&to).expect("removed");
        warm(dir.path(), mib);
        let to = dir.path().join("cache");
        ours.push(timed(Command::new(&me).args(["fetch", endpoint]).arg(&to)));
        std::fs::remove_dir_all(&to).expect("removed");
        let of = |runs: &[Run]| runs.last().expect("just run").wall.as_secs_f64();
        ratios.push(of(&curl) / of(&ours));
    }
    server.kill().expect("ended");
    server.wait().expect("gone");
    let row = |name: &str, runs: &mut Vec<Run>| {
        runs.sort_by_key(|run| run.wall);
        let Run { wall, cpu, .. } = runs[ROUNDS / 2];
        let rate = mib as f64 * 1.048_576 / wall.as_secs_f64();
        println!(
            "{name}: {:.3} s ({rate:.0} MB/s), CPU {:.2} s",
            wall.as_secs_f64(),
            cpu.as_secs_f64()
        );
    };
    row("curl", &mut curl);
    row("ours", &mut ours);
    ratios.sort_by(f64::total_cmp);
    println!(
        "speed beside curl's, of {ROUNDS} pairs: median {:.2}, from {:.2} to {:.2}",
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1]
    );
    println!("{}", ours[ROUNDS / 2].said);
}

fn warm(folder: &Path, mib: usize) {
    let path = folder.join("warm");
    let mut file = std::fs::File::create(&path).expect("a file");
    let zeros = vec![0; 1 << 20];
    (0..mib).for_each(|_| file.write_all(&zeros).expect("written"));
    std::fs::remove_file(path).expect("removed");
}

struct Run {
    wall: Duration,
    cpu: Duration,
    said: String,
}

fn timed(command: &mut Command) -> Run {
    let before = cpu_of_children();
    let began = Instant::now();
    let output = command.output().expect("runs");
    let wall = began.elapsed();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Run { wall, cpu: cpu_of_children() - before, said }
}

/// Time of children that were waited for, from /proc in hundredths of a second.
fn cpu_of_children() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: u64 = fields[13..15].iter().map(|n| n.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}

fn serve(source: &Path) {
    let mirror = Mirror::new();
    let bytes = std::fs::read(source).expect("the file");
    let size = bytes.len() as u64;
    mirror.add(REPO, "source", bytes);
    mirror.with(|state| {
        let repo = state.repos.get_mut(REPO).expect("just added");
        let read = repo.files.remove("source").expect("just added");
        let content = Content::Disk(source.to_owned());
        repo.files.insert(FILE.to_owned(), Served { size, content, ..read });
    });
    println!("{}", mirror.endpoint);
    loop {
        std::thread::park();
    }
}

fn fetch(endpoint: &str, cache: &Path) {
    let hub = hub(endpoint, None);
    let listing = list(&hub);
    let idle = memory("VmRSS");
    let began = Instant::now();
    Download::start(&hub, cache, listing, Options::default(), |_| {}).wait().expect("complete");
    let most = memory("VmHWM");
    println!(
        "memory: {idle} KiB idle, at most {most} KiB ({:+.1} MiB); without starting the process {:.3} s",
        (most - idle) as f64 / 1024.0,
        began.elapsed().as_secs_f64()
    );
}

fn memory(field: &str) -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with(field)).expect("a field");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}
