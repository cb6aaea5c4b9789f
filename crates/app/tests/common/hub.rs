//! An app whose hub is the library tests' stand-in, and its downloads as lists.
#![allow(unused_imports, reason = "each test file uses its own part")]

use super::golden;
use foretoken_app::{App, Paths, Tokens};
use foretoken_protocol::*;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

#[path = "../../../library/tests/support/mod.rs"]
mod support;
pub use support::mirror::{Fault, Kind, Logged, Mirror, Stage};
pub use support::noise;

/// Longest wait for what should take moments; a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn paths(dir: &Path) -> Paths {
    Paths {
        data: dir.join("data"),
        starter: None,
        hub_cache: dir.join("hub"),
        lm_studio: vec![dir.join("lm")],
    }
}

/// An app that asks the mirror, with its token in memory.
pub fn open(dir: &Path, endpoint: &str) -> App {
    let app = App::open_with(paths(dir), Tokens::new(None, None)).unwrap();
    let settings = Settings { hub_endpoint: Some(endpoint.to_owned()), ..app.info().settings };
    app.settings_set(settings).unwrap();
    app
}

/// A repository with the files of a fixture, but those that `leave` names.
pub fn publish(mirror: &Mirror, repo: &str, fixture: &str, leave: &[&str]) {
    for entry in std::fs::read_dir(golden(fixture)).unwrap().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("golden") && name != "README.md" && !leave.contains(&name.as_str()) {
            mirror.add(repo, &name, std::fs::read(entry.path()).unwrap());
        }
    }
}

pub fn start(app: &App, repository: &str) -> ModelDownload {
    let request =
        StartDownload { repository: repository.to_owned(), for_model: None, head_only: false };
    app.download_start(request).unwrap()
}

pub fn start_head(app: &App, repository: &str, model: &str) -> ModelDownload {
    let for_model = Some(model.to_owned());
    let request = StartDownload { repository: repository.to_owned(), for_model, head_only: true };
    app.download_start(request).unwrap()
}

pub fn reference(download: &ModelDownload) -> DownloadRef {
    DownloadRef { id: download.id.clone() }
}

pub fn watch(app: &App) -> Receiver<DownloadEvent> {
    let (send, events) = channel();
    app.downloads_watch(move |event| drop(send.send(event))).unwrap();
    events
}

pub fn downloads(app: &App) -> Vec<ModelDownload> {
    app.library_shelf().unwrap().downloads
}

/// Waits until the download is as asked for.
pub fn until(
    app: &App,
    id: &str,
    what: &str,
    is: impl Fn(&ModelDownload) -> bool,
) -> ModelDownload {
    let began = Instant::now();
    loop {
        let now = downloads(app).into_iter().find(|d| d.id == id).expect("it is in the list");
        if is(&now) {
            return now;
        }
        assert!(began.elapsed() < PATIENCE, "not {what}: {now:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn until_done(app: &App, id: &str) -> String {
    let ended = |d: &ModelDownload| {
        matches!(d.state, DownloadState::Done { .. } | DownloadState::Failed { .. })
    };
    match until(app, id, "done", ended).state {
        DownloadState::Done { model } => model,
        other => panic!("{other:?}"),
    }
}

pub fn until_failed(app: &App, id: &str) -> WireError {
    let ended = |d: &ModelDownload| {
        matches!(d.state, DownloadState::Done { .. } | DownloadState::Failed { .. })
    };
    match until(app, id, "failed", ended).state {
        DownloadState::Failed { error } => error,
        other => panic!("{other:?}"),
    }
}

pub fn check(app: &App, id: &str) -> Vec<CheckEvent> {
    let (send, events) = channel();
    app.model_check(ModelRef { id: id.to_owned() }, move |event| drop(send.send(event))).unwrap();
    events.iter().collect()
}

/// Every byte of every file below a folder.
pub fn everything(folder: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            out.extend(everything(&path));
        } else {
            out.extend(std::fs::read(&path).unwrap_or_default());
        }
    }
    out
}
