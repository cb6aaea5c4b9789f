//! The fault table as a person sees it: each fault's code and sentence, and that going on fetches only what is missing.
//! What the library makes of each fault is in its own tests; here is what the door says.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::hub::*;
use foretoken_app::App;
use foretoken_protocol::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const REPO: &str = "acme/tiny";
const SHARD: &str = "model-00002-of-00003.safetensors";
const SHARD_BYTES: u64 = 600_000;
const SHARDS: usize = 3;
/// Bytes a connection may have sent that nobody read when it ended: three pieces of a throttled line for each.
const UNREAD: u64 = 3 * 3 * 20_000;
const REFUSES: &str =
    "The hub's file server refuses to go on. Try again later; what was downloaded is kept.";

struct Scene {
    mirror: Mirror,
    dir: tempfile::TempDir,
    app: App,
    /// Bytes of the files.
    all: u64,
    /// Bytes that looking at the headers takes before a download.
    looks: u64,
    /// Requests for the shard before the one that downloads it, at the hub and at its file server alike.
    before: usize,
}

impl Scene {
    /// A hub with a model, looked at once by another app, so that it is known what that takes.
    fn new() -> Self {
        let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
        let config = br#"{"model_type":"qwen3","num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,"vocab_size":100,"max_position_embeddings":4096}"#;
        mirror.add(REPO, "config.json", config.to_vec());
        for i in 1..=SHARDS as u64 {
            let header = format!(
                r#"{{"model.layers.{i}.w":{{"dtype":"BF16","shape":[{}],"data_offsets":[0,{SHARD_BYTES}]}}}}"#,
                SHARD_BYTES / 2
            );
            let length = (header.len() as u64).to_le_bytes();
            let file = [&length[..], header.as_bytes(), &noise(i, SHARD_BYTES as usize)].concat();
            mirror.add(REPO, &format!("model-0000{i}-of-00003.safetensors"), file);
        }
        let first = open(&dir.path().join("first"), &mirror.endpoint);
        until_done(&first, &start(&first, REPO).id);
        let all = first.models_list().unwrap()[0].bytes;
        first.shutdown();
        let looks = mirror.sent() - all;
        let at_the_files = |row: &&_| -> bool {
            let row: &Logged = row;
            !row.on_hub && row.path.ends_with(SHARD)
        };
        let before = mirror.log().iter().filter(at_the_files).count() - 1;
        mirror.with(|state| state.log.clear());
        mirror.with(|state| state.throttle = Some(1_000_000));
        let app = open(dir.path(), &mirror.endpoint);
        Self { mirror, dir, app, all, looks, before }
    }

    /// `kind` for one shard's download, again and again.
    fn always(&self, stage: Stage, kind: Kind) {
        let fault = Fault::new(stage, SHARD, kind).times(99);
        self.mirror.fault(Fault { skip: self.before, ..fault });
    }

    /// `kind` once for each shard's download: while another file moves, a download runs.
    fn once_each(&self, stage: Stage, kind: Kind) {
        let fault = Fault::new(stage, ".safetensors", kind).times(SHARDS);
        self.mirror.fault(Fault { skip: SHARDS * self.before, ..fault });
    }

    /// The model is there, as the hub has it, and besides `twice` no byte came more than once.
    fn assert_complete(&self, attempts: u64, twice: u64) {
        self.mirror.with(|state| state.throttle = None);
        let sent = self.mirror.sent();
        let most = self.all + attempts * self.looks + twice + (attempts - 1) * UNREAD;
        assert!(sent <= most, "{sent} bytes were sent, {most} at most");
        let Some(CheckEvent::Finished { report }) = check(&self.app, REPO).pop() else {
            panic!("checked")
        };
        assert_eq!(report.good, 4, "{report:?}");
        self.app.shutdown();
    }

    /// What a download that goes on by itself says meanwhile.
    fn waits(self, twice: u64) -> WireError {
        let id = start(&self.app, REPO).id;
        let waits = |d: &ModelDownload| matches!(d.state, DownloadState::Waiting { .. });
        let waiting = until(&self.app, &id, "waiting", waits);
        until_done(&self.app, &id);
        self.assert_complete(1, twice);
        match waiting.state {
            DownloadState::Waiting { error, retry_ms: Some(_) } => error,
            other => panic!("{other:?}"),
        }
    }

    /// What a download that ends says; once the fault is over it is resumed.
    fn fails(self, twice: u64) -> WireError {
        let id = start(&self.app, REPO).id;
        let error = until_failed(&self.app, &id);
        self.mirror.with(|state| state.faults.clear());
        self.mirror.with(|state| {
            let repo = state.repos.get_mut(REPO).unwrap();
            (repo.gated, repo.private) = (false, false);
        });
        resume(&self.app, &id);
        self.assert_complete(2, twice);
        error
    }
}

fn resume(app: &App, id: &str) {
    app.download_resume(DownloadRef { id: id.to_owned() }).unwrap();
    until(app, id, "tried again", |d| !matches!(d.state, DownloadState::Failed { .. }));
    until_done(app, id);
}

fn status(status: u16) -> Kind {
    Kind::Status(status, None, "text/plain", "no")
}

#[track_caller]
fn says(error: &WireError, code: ErrorCode, sentence: &str) {
    // Ports differ from run to run.
    let words = error.message.split(' ');
    let message: Vec<_> =
        words.map(|w| if w.starts_with("127.0.0.1:") { "HOST" } else { w }).collect();
    assert_eq!((error.code, message.join(" ").as_str()), (code, sentence));
    assert!(!error.detail.is_empty(), "the cause is kept: {error:?}");
}

#[test]
fn faults_that_cure_themselves_say_what_is_waited_for() {
    use ErrorCode as C;
    let broke = "The line to HOST broke. Check the network; what was downloaded is kept.";
    let page = "HOST does not answer like the hub. Sign in to the network you are on, or check the hub's address in the settings.";
    let limited = "The hub asks for fewer requests. Try again in 1 second; with an access token it allows more.";
    let failed = "The hub failed with status 500. Try again later; what was downloaded is kept.";
    let rows = [
        (Stage::Bytes, Kind::Drop(200_000), C::Offline, broke),
        (Stage::Bytes, status(416), C::Hub, REFUSES),
        (Stage::Bytes, status(403), C::Hub, REFUSES),
        (Stage::Bytes, Kind::Short(1000), C::Hub, REFUSES),
        (Stage::Bytes, status(500), C::Hub, failed),
        (Stage::Resolve, Kind::Status(429, Some("1"), "text/plain", ""), C::RateLimited, limited),
        (Stage::Bytes, Kind::Status(200, None, "text/html", "<html>sign in</html>"), C::Hub, page),
        (Stage::Resolve, Kind::Redirect("file:///etc/passwd".to_owned()), C::Hub, page),
    ];
    for (stage, kind, code, sentence) in rows {
        let scene = Scene::new();
        eprintln!("{kind:?}");
        scene.once_each(stage, kind);
        says(&scene.waits(UNREAD), code, sentence);
    }
}

#[test]
fn faults_that_end_a_download_say_what_to_do_and_lose_nothing() {
    use ErrorCode as C;
    let private = "acme/tiny is private or does not exist. Check the name; if it is private, enter an access token in the settings.";
    let forbidden = "Your access token may not read acme/tiny. Enter a token that may, or ask its owner for access.";
    let none = "acme/tiny has no model-00002-of-00003.safetensors, so Foretoken cannot run it. Choose a version of it with safetensors files.";
    let changed = "The model was changed on the hub meanwhile. Start the download again; what is the same is kept.";
    let damaged = "model-00002-of-00003.safetensors arrived damaged twice. Try again later, or over another network; the other files are kept.";
    let rows = [
        (Stage::Resolve, status(401), C::TokenNeeded, private, 0),
        (Stage::Resolve, status(403), C::TokenNeeded, forbidden, 0),
        (Stage::Resolve, status(404), C::NotFound, none, 0),
        (Stage::Resolve, Kind::OtherTag, C::Hub, changed, 0),
        (Stage::Bytes, Kind::WrongByte(300_000), C::Hub, damaged, 2 * SHARD_BYTES + 1000),
    ];
    for (stage, kind, code, sentence, twice) in rows {
        let scene = Scene::new();
        eprintln!("{kind:?}");
        scene.always(stage, kind);
        says(&scene.fails(twice), code, sentence);
    }
    let scene = Scene::new();
    scene.mirror.with(|state| state.repos.get_mut(REPO).unwrap().gated = true);
    let gated = "acme/tiny asks its users to accept its terms first. Open its page, accept them, and try again with a token of that account.";
    says(&scene.fails(0), C::Gated, gated);
}

#[test]
fn names_that_lead_out_are_refused_as_a_whole() {
    for name in ["../../../evil", "/tmp/foretoken-evil", "a/../../../../evil"] {
        let scene = Scene::new();
        scene.mirror.add(REPO, name, noise(1, 10));
        let error = until_failed(&scene.app, &start(&scene.app, REPO).id);
        let sentence = "This repository has a file that would be written outside of its folder, so it is not downloaded. Choose another one.";
        says(&error, ErrorCode::Hub, sentence);
        assert!(!scene.dir.path().join("hub").join("models--acme--tiny").exists());
        assert!(
            !scene.dir.path().join("evil").exists() && !Path::new("/tmp/foretoken-evil").exists()
        );
        scene.app.shutdown();
    }
}

/// A file system of its own, gone at the end.
struct Mounted(PathBuf);

impl Mounted {
    /// `None`, with the reason printed, where mounting is not allowed.
    fn new(folder: PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir_all(&folder).unwrap();
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&folder);
        match mount.output() {
            Ok(output) if output.status.success() => return Some(Self(folder)),
            Ok(output) => eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim()),
            Err(e) => eprintln!("skipped: mount: {e}"),
        }
        None
    }

    fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        let done = Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Something may still have a file open there.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_before_and_in_the_middle() {
    let scene = Scene::new();
    let Some(disk) = Mounted::new(scene.dir.path().join("hub"), "1m") else { return };
    let id = start(&scene.app, REPO).id;
    let error = until_failed(&scene.app, &id);
    let (start, end) = (
        error.message.starts_with("1.7 MB are needed in "),
        "Free some space and go on; nothing is lost.",
    );
    assert!(start && error.message.ends_with(end), "{error:?}");
    assert_eq!(error.code, ErrorCode::DiskFull);
    assert_eq!(scene.mirror.sent(), scene.looks, "no byte of the model was fetched");

    disk.remount("size=3m");
    resume_until_running(&scene.app, &id);
    let other = disk.0.join("another program's");
    let full = std::fs::write(&other, vec![0; 4 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let error = until_failed(&scene.app, &id);
    let start = error.message.starts_with("The disk is full at ");
    assert!(start && error.message.ends_with(end), "{error:?}");
    assert_eq!(error.code, ErrorCode::DiskFull);
    std::fs::remove_file(other).unwrap();
    resume(&scene.app, &id);
    // Of each file, what the disk had no room for came twice: a block of it at most.
    scene.assert_complete(3, 3 * 200_000);
}

fn resume_until_running(app: &App, id: &str) {
    app.download_resume(DownloadRef { id: id.to_owned() }).unwrap();
    until(app, id, "running", |d| d.state == DownloadState::Running && d.done > 50_000);
}

#[test]
fn a_folder_that_is_read_only_is_told_and_tried_again() {
    let scene = Scene::new();
    let Some(disk) = Mounted::new(scene.dir.path().join("hub"), "16m") else { return };
    disk.remount("ro");
    let id = start(&scene.app, REPO).id;
    let error = until_failed(&scene.app, &id);
    let is_about = error.message.starts_with(&*disk.0.to_string_lossy());
    assert!(
        is_about
            && error
                .message
                .ends_with(" cannot be written to. Check the permissions of the folder."),
        "{error:?}"
    );
    assert_eq!(error.code, ErrorCode::Disk);
    disk.remount("rw");
    // In the middle of it, too.
    resume_until_running(&scene.app, &id);
    std::thread::sleep(Duration::from_millis(100));
    scene.app.download_pause(DownloadRef { id: id.clone() }).unwrap();
    until(&scene.app, &id, "paused", |d| d.state == DownloadState::Paused);
    resume(&scene.app, &id);
    scene.assert_complete(3, UNREAD);
}
