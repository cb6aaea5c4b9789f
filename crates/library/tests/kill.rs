//! A process that downloads is killed at random moments; whoever goes on must end with the right bytes.
//! `FORETOKEN_KILL_ROUNDS=100` for the long run.

mod support;

use foretoken_library::download::{Outcome, pending};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::*;

const ENDPOINT: &str = "FORETOKEN_KILL_ENDPOINT";
const CACHE: &str = "FORETOKEN_KILL_CACHE";
const HEAD: &str = "FORETOKEN_KILL_HEAD";
const FILES: u64 = 20;

fn rounds() -> u32 {
    std::env::var("FORETOKEN_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8)
}

/// Not a test by itself: what the killed process runs, when it is told where.
#[test]
fn the_process_that_is_killed() {
    let (Ok(endpoint), Ok(cache)) = (std::env::var(ENDPOINT), std::env::var(CACHE)) else { return };
    let hub = hub(&endpoint, None);
    if std::env::var(HEAD).is_ok() {
        let fetching = original::plan(&hub).fetch(&hub, Path::new(&cache), options(), |_| {});
        fetching.wait().expect("complete");
        return;
    }
    run(&hub, Path::new(&cache), list(&hub), options()).result.expect("complete");
}

fn start(mirror: &Mirror, cache: &Path) -> Child {
    command(mirror, cache).spawn().expect("starts")
}

fn command(mirror: &Mirror, cache: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "the_process_that_is_killed"])
        .env(ENDPOINT, &mirror.endpoint)
        .env(CACHE, cache)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

#[test]
fn a_head_is_right_after_every_kill() {
    let mirror = Mirror::new();
    let head = original::original(&mirror);
    let hub = hub(&mirror.endpoint, None);
    let rounds = rounds().div_ceil(4);
    let mut kept = 0;
    for _ in 0..rounds {
        let folder = tempfile::tempdir().expect("a temporary folder");
        mirror.with(|state| state.throttle = Some(4_000_000));
        for _ in 0..fastrand::u8(1..=3) {
            let mut child = command(&mirror, folder.path()).env(HEAD, "1").spawn().expect("starts");
            std::thread::sleep(Duration::from_millis(fastrand::u64(100..700)));
            child.kill().expect("killed");
            child.wait().expect("gone");
        }
        let partial = names(folder.path()).into_iter().find(|name| name.ends_with(".incomplete"));
        kept += u32::from(partial.is_some());
        mirror.with(|state| state.throttle = None);
        original::plan(&hub)
            .fetch(&hub, folder.path(), options(), |_| {})
            .wait()
            .expect("complete");
        original::assert_is(folder.path(), &head);
    }
    eprintln!("{rounds} rounds, {kept} times something was left to fetch");
}

#[test]
fn two_processes_at_once_share_the_work() {
    let scene = Scene::new();
    scene.mirror.with(|state| state.throttle = Some(1_000_000));
    let mut both = [(); 2].map(|()| start(&scene.mirror, scene.cache.path()));
    for child in &mut both {
        assert!(child.wait().expect("ends").success());
    }
    scene.assert_complete();
    assert_eq!(scene.mirror.sent(), scene.list().bytes(), "no byte is fetched twice");
}

#[test]
fn every_resume_after_kill_ends_with_the_right_hashes() {
    let rounds = rounds();
    let mirror = Mirror::new();
    mirror.add(REPO, "config.json", b"{}".to_vec());
    for i in 1..FILES {
        let n = 60_000 + 17_003 * i as usize;
        mirror.add(REPO, &format!("model-{i:05}-of-00019.safetensors"), noise(i, n));
    }
    let hub = hub(&mirror.endpoint, None);
    let total = list(&hub).bytes();
    let mut rng = fastrand::Rng::new();
    let (mut kills, mut unfinished) = (0, 0);
    for round in 0..rounds {
        let cache = tempfile::tempdir().expect("a temporary folder");
        // Most rounds are killed while bytes come in; some run unhindered, to be hit while files get their names.
        let slow = rng.u8(..4) > 0;
        mirror.with(|state| state.throttle = slow.then_some(1_000_000));
        for _ in 0..rng.u8(1..=3) {
            let mut child = start(&mirror, cache.path());
            std::thread::sleep(Duration::from_millis(rng.u64(..if slow { 900 } else { 200 })));
            child.kill().expect("killed");
            child.wait().expect("gone");
            kills += 1;
        }
        let left = pending(cache.path());
        let done = left.first().map(|pending| pending.done);
        unfinished += left.len();
        mirror.with(|state| state.throttle = None);
        // The last request of the killed process may still be answered to nobody.
        std::thread::sleep(Duration::from_millis(30));
        let before = mirror.log().len();
        let ran = run(&hub, cache.path(), list(&hub), options());
        assert!(matches!(ran.result, Ok(Outcome::Complete { .. })), "{round}: {:?}", ran.result);
        assert_complete(&mirror, cache.path());
        if let Some(done) = done {
            let fetched = mirror.sent_since(before);
            assert_eq!(fetched, total - done, "{round}: what was on the disk is not fetched again");
        }
    }
    eprintln!("{rounds} rounds, {kills} kills, {unfinished} times something was left to fetch");
    assert!(unfinished > 0 || rounds < 4, "kills came too late to test anything");
}
