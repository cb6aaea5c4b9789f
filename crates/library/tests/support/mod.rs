//! What every test of a download needs: a mirror with a model on it, a hub that is impatient, a cache to look into.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

mod http;
pub mod mirror;
pub mod original;

use foretoken_library::download::{Event, Options, Outcome};
use foretoken_library::hub::{Hub, HubOptions, Listing, RepoRef, Retry, Token};
use foretoken_library::{Download, DownloadError};
pub use mirror::{Fault, Kind, Mirror, Stage};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const REPO: &str = "acme/tiny";

/// The same bytes for the same seed, and no two pieces alike.
pub fn noise(seed: u64, n: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut out = vec![0; n];
    rng.fill(&mut out);
    out
}

/// Tries often and soon, and gives up.
pub fn impatient() -> Retry {
    Retry {
        line: 4,
        server: 3,
        first: Duration::from_millis(10),
        longest: Duration::from_millis(40),
    }
}

pub fn hub(endpoint: &str, token: Option<&str>) -> Hub {
    let options = HubOptions {
        endpoint: endpoint.to_owned(),
        token: token.map(Token::new),
        stall: Duration::from_millis(400),
        retry: impatient(),
        ..HubOptions::default()
    };
    Hub::new(&options).expect("a client")
}

pub fn options() -> Options {
    Options { retry: impatient(), mark_every: 100_000, ..Options::default() }
}

/// A mirror with a small model on it, a hub that asks there, and an empty cache.
pub struct Scene {
    pub mirror: Mirror,
    pub hub: Hub,
    pub cache: tempfile::TempDir,
}

pub const SHARD: &str = "model-00002-of-00003.safetensors";
pub const SHARD_BYTES: usize = 700_000;

impl Scene {
    pub fn new() -> Self {
        let mirror = Mirror::new();
        mirror.add(REPO, "config.json", b"{\"model_type\":\"hy_v3\"}".to_vec());
        mirror.add(REPO, "tokenizer.json", noise(1, 50_000));
        for i in 1..=3 {
            let path = format!("model-0000{i}-of-00003.safetensors");
            mirror.add(REPO, &path, noise(10 + i, SHARD_BYTES));
        }
        let hub = hub(&mirror.endpoint, None);
        Self { mirror, hub, cache: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn list(&self) -> Listing {
        list(&self.hub)
    }

    pub fn run(&self) -> Ran {
        run(&self.hub, self.cache.path(), self.list(), options())
    }

    /// Every file in the snapshot, byte for byte what the mirror has; nothing incomplete is left.
    pub fn assert_complete(&self) {
        assert_complete(&self.mirror, self.cache.path());
    }

    pub fn blobs(&self) -> PathBuf {
        self.cache.path().join("models--acme--tiny/blobs")
    }

    pub fn incomplete_bytes(&self) -> u64 {
        names(&self.blobs())
            .iter()
            .filter(|name| name.ends_with(".incomplete"))
            .map(|name| std::fs::metadata(self.blobs().join(name)).expect("there").len())
            .sum()
    }
}

pub fn list(hub: &Hub) -> Listing {
    hub.list(&RepoRef::main(REPO.parse().expect("a name"))).expect("a listing")
}

pub struct Ran {
    pub result: Result<Outcome, DownloadError>,
    pub events: Vec<Event>,
}

pub fn run(hub: &Hub, cache: &Path, listing: Listing, options: Options) -> Ran {
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    let on_event = move |event| seen.lock().expect("no panic").push(event);
    let result = Download::start(hub, cache, listing, options, on_event).wait();
    let events = events.lock().expect("no panic").clone();
    Ran { result, events }
}

pub fn assert_complete(mirror: &Mirror, cache: &Path) {
    let repo = cache.join("models--acme--tiny");
    let commit = std::fs::read_to_string(repo.join("refs/main")).expect("a branch");
    mirror.with(|state| {
        assert_eq!(commit, state.repos[REPO].commit);
        for (path, file) in &state.repos[REPO].files {
            let link = repo.join("snapshots").join(&commit).join(path);
            assert!(link.is_symlink(), "{path} is a link, as other tools make it");
            let mirror::Content::Bytes(bytes) = &file.content else { panic!("bytes") };
            assert!(std::fs::read(&link).expect("there") == **bytes, "{path} is what the hub has");
        }
    });
    let left: Vec<_> = names(&repo.join("blobs")).into_iter().filter(|n| n.contains('.')).collect();
    assert_eq!(left, Vec::<String>::new(), "nothing incomplete stays");
}

pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
