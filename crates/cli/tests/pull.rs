//! `pull`, `inspect hf:`, `check`, `rm` and `list` against the library tests' stand-in for the hub.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
#[path = "../../library/tests/support/http.rs"]
mod http;
#[path = "../../library/tests/support/mirror.rs"]
#[allow(dead_code, reason = "faults are other tests' matter")]
mod mirror;

use common::{Place, Run, root};
use mirror::Mirror;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ORIGINAL: &str = "maker/original";
const REPACK: &str = "acme/repack";

fn publish(mirror: &Mirror, repo: &str, fixture: &str) {
    for entry in std::fs::read_dir(root().join("tests/golden").join(fixture)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("golden") && name != "README.md" {
            mirror.add(repo, &name, std::fs::read(entry.path()).unwrap());
        }
    }
}

/// An original and a repack that lost its head.
fn hub() -> Mirror {
    let mirror = Mirror::new();
    publish(&mirror, ORIGINAL, "hy_v3-tiny");
    publish(&mirror, REPACK, "hy_v3-tiny-headless");
    let card = format!("---\nbase_model: {ORIGINAL}\n---\n# {REPACK}\n");
    mirror.add(REPACK, "README.md", card.into_bytes());
    mirror
}

fn run(place: &Place, mirror: &Mirror, args: &[&str]) -> Run {
    place.run_with(args, &[("HF_ENDPOINT", &mirror.endpoint)])
}

/// The program in the background.
fn spawn(place: &Place, mirror: &Mirror, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(args)
        .env("HOME", place.dir.path())
        .env("XDG_DATA_HOME", place.path("data"))
        .env("HF_HUB_CACHE", place.path("hub"))
        .env("HF_ENDPOINT", &mirror.endpoint)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Bytes of a repository on the disk.
fn on_disk(place: &Place, repo: &str) -> u64 {
    let blobs = format!("hub/models--{}/blobs", repo.replace('/', "--"));
    let entries = std::fs::read_dir(place.path(&blobs)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Waits until so much is there.
fn until_fetched(place: &Place, repo: &str, bytes: u64) {
    let began = Instant::now();
    while on_disk(place, repo) < bytes {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is fetched");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_repack_is_pulled_with_its_head_checked_and_removed() {
    let (place, mirror) = (Place::new(), hub());
    let looked = run(&place, &mirror, &["inspect", &format!("hf:{REPACK}"), "--json"]).result();
    assert_eq!(looked["head"]["repository"], ORIGINAL);
    assert_eq!((&looked["family"], &looked["fit"]["fits"]), (&"hy_v3".into(), &true.into()));
    let text = run(&place, &mirror, &["inspect", &format!("hf:{REPACK}"), "--context", "100"]);
    assert!(text.stdout.contains("MTP head in maker/original"), "{}", text.stdout);
    assert!(text.stdout.contains("at 100 tokens"), "{}", text.stdout);
    run(&place, &mirror, &["inspect", "hf:acme/repack", "--load"]).refused(
        "load",
        "invalid_option",
        &["--load"],
    );
    assert!(!place.path("hub").exists(), "nothing was downloaded");

    let pulled = run(&place, &mirror, &["pull", REPACK, "--json"]);
    assert_eq!(pulled.result()["model"], REPACK);
    assert!(pulled.lines().iter().any(|line| line["download"]["headOnly"] == true));
    let listed = run(&place, &mirror, &["list", "--json"]).lines();
    let [_, model] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((&model["id"], &model["ownHead"]), (&REPACK.into(), &false.into()));
    let inspected = run(&place, &mirror, &["inspect", REPACK, "--json"]).result();
    assert_eq!(inspected["head"]["found"], true);
    let again = run(&place, &mirror, &["pull", REPACK, "--head-only", "--json"]).result();
    assert_eq!(again["model"], REPACK);

    let good = run(&place, &mirror, &["check", REPACK]);
    assert!(good.code == 0 && good.stdout.starts_with("All "), "{}", good.stdout);
    let folder = std::path::Path::new(model["folder"].as_str().unwrap());
    let blob = folder.join("tokenizer.json").canonicalize().unwrap();
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    run(&place, &mirror, &["check", REPACK]).refused(
        "damaged",
        "corrupt",
        &["tokenizer.json", "Download the model again"],
    );
    run(&place, &mirror, &["pull", REPACK]).result_text();
    run(&place, &mirror, &["check", REPACK]).result_text();

    run(&place, &mirror, &["rm", REPACK]).refused("unasked", "invalid_option", &["--yes"]);
    let gone = run(&place, &mirror, &["rm", REPACK, "--yes", "--json"]).result();
    assert!(gone["freed"].as_u64().unwrap() > 100_000, "{gone}");
    assert_eq!(run(&place, &mirror, &["list", "--json"]).lines().len(), 1);
    run(&place, &mirror, &["rm", REPACK, "--yes"]).refused("gone", "not_found", &[REPACK]);
}

trait Text {
    fn result_text(&self) -> &str;
}

impl Text for Run {
    fn result_text(&self) -> &str {
        assert_eq!(self.code, 0, "{}", self.stderr);
        &self.stdout
    }
}

#[test]
fn a_folder_on_this_disk_gets_its_head() {
    let (place, mirror) = (Place::new(), hub());
    let folder = root().join("tests/golden/hy_v3-tiny-headless");
    let folder = folder.to_str().unwrap();
    let before: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    let named = ["pull", ORIGINAL, "--head-only", "--for", folder, "--json"];
    assert_eq!(run(&place, &mirror, &named).result()["model"], folder);
    let inspected = run(&place, &mirror, &["inspect", folder, "--json"]).result();
    assert_eq!(inspected["head"]["found"], true);
    let after: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(after, before);
    assert!(!place.path("hub").exists());
}

#[test]
fn a_killed_and_an_interrupted_download_go_on() {
    let (place, mirror) = (Place::new(), hub());
    mirror.with(|state| state.throttle = Some(100_000));
    let mut child = spawn(&place, &mirror, &["pull", ORIGINAL]);
    until_fetched(&place, ORIGINAL, 60_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let listed = run(&place, &mirror, &["list", "--json"]).lines();
    let download = listed.last().unwrap();
    assert_eq!(
        (&download["repository"], &download["state"]["kind"]),
        (&ORIGINAL.into(), &"queued".into())
    );
    assert!(download["done"].as_u64().unwrap() > 30_000, "{download}");

    let before = on_disk(&place, ORIGINAL);
    let child = spawn(&place, &mirror, &["pull", ORIGINAL]);
    until_fetched(&place, ORIGINAL, before + 60_000);
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("To go on: foretoken pull maker/original"), "{said}");
    let listed = run(&place, &mirror, &["list"]);
    assert!(listed.stdout.contains("to go on: foretoken pull maker/original"), "{}", listed.stdout);

    mirror.with(|state| state.throttle = None);
    assert_eq!(run(&place, &mirror, &["pull", ORIGINAL, "--json"]).result()["model"], ORIGINAL);
    let all = run(&place, &mirror, &["inspect", &format!("hf:{ORIGINAL}"), "--json"]).result();
    assert_eq!(all["bytes"], all["haveBytes"]);
    let fetched: u64 =
        mirror.log().iter().filter(|r| r.path.contains("/resolve/")).map(|r| r.sent).sum();
    assert!(fetched < all["bytes"].as_u64().unwrap() * 3 / 2, "{fetched} of {}", all["bytes"]);
    assert_eq!(run(&place, &mirror, &["list", "--json"]).lines().len(), 2);
}

#[test]
fn what_was_begun_can_be_removed_and_wrong_words_are_refused() {
    let (place, mirror) = (Place::new(), hub());
    mirror.with(|state| state.throttle = Some(100_000));
    let mut child = spawn(&place, &mirror, &["pull", ORIGINAL]);
    until_fetched(&place, ORIGINAL, 60_000);
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = run(&place, &mirror, &["rm", ORIGINAL, "--yes", "--json"]).result();
    assert!(gone["freed"].as_u64().unwrap() > 30_000, "{gone}");
    assert_eq!(run(&place, &mirror, &["list", "--json"]).lines().len(), 1);

    let refused = |args: &[&str], code: &str, words: &[&str]| {
        run(&place, &mirror, args).refused(&args.join(" "), code, words);
    };
    refused(&["pull", "nothing"], "invalid_option", &["owner/name"]);
    refused(&["pull", "acme/none"], "token_needed", &["acme/none"]);
    refused(&["pull", "acme/none@v1", "--revision", "v2"], "invalid_option", &["twice"]);
    refused(&["pull", REPACK, "--revision", "v9"], "not_found", &["v9"]);
    refused(&["pull", REPACK, "--for", "starter"], "invalid_option", &["required"]);
    refused(&["check", "starter"], "not_found", &["Nothing says"]);
    refused(&["rm", "starter", "--yes"], "invalid_option", &["stays"]);
    refused(&["inspect", "hf:acme"], "invalid_option", &["owner/name"]);
    let offline =
        place.run_with(&["inspect", "hf:acme/tiny"], &[("HF_ENDPOINT", "http://127.0.0.1:9")]);
    offline.refused("offline", "offline", &["network"]);
    let nowhere = place.run_with(&["pull", "acme/tiny"], &[("HF_ENDPOINT", "nowhere")]);
    nowhere.refused("nowhere", "invalid_option", &["address"]);
}
