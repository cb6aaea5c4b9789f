//! An app with the starter model, and its streams as lists.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod hub;

use foretoken_app::{App, Paths};
use foretoken_protocol::*;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

pub const STORY: &str = "Write a long story about a lighthouse keeper and a storm.";

/// Models share the machine's cores and memory: one test at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn starter() -> PathBuf {
    let here = std::env::var_os("FORETOKEN_STARTER").map(PathBuf::from);
    let dir = here.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.starter"));
    assert!(dir.join("config.json").is_file(), "the starter model is not built: run ./dev test");
    dir.canonicalize().unwrap()
}

pub fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
    folder.canonicalize().unwrap().to_string_lossy().into_owned()
}

pub fn open(dir: &Path) -> App {
    App::open(Paths {
        data: dir.to_owned(),
        starter: Some(starter()),
        hub_cache: dir.join("hub"),
        lm_studio: Vec::new(),
    })
    .unwrap()
}

pub fn load(app: &App, id: &str) -> Vec<LoadEvent> {
    let (send, events) = channel();
    app.model_load(LoadModel { id: id.to_owned(), anyway: false }, move |event| {
        drop(send.send(event))
    })
    .unwrap();
    events.iter().collect()
}

/// An app with a model in memory, and the folder of its data.
pub fn ready() -> (MutexGuard<'static, ()>, TempDir, App) {
    let guard = alone();
    let dir = tempfile::tempdir().unwrap();
    let app = open(dir.path());
    let events = load(&app, "starter");
    assert!(matches!(events.last(), Some(LoadEvent::Ready { .. })), "{events:?}");
    (guard, dir, app)
}

pub fn options(draft: DraftMode, max_tokens: u32) -> GenerationOptions {
    GenerationOptions {
        draft,
        sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
        max_tokens: Some(max_tokens),
        ..GenerationOptions::default()
    }
}

pub fn message(chat_id: i64, text: &str, options: GenerationOptions) -> SendMessage {
    SendMessage { chat_id, text: text.to_owned(), options }
}

/// Sends and waits for the end of the stream; `hook` sees every event first, on the engine's thread.
pub fn say(
    app: &App,
    chat_id: i64,
    text: &str,
    options: GenerationOptions,
    mut hook: impl FnMut(&ChatEvent) + Send + 'static,
) -> Vec<ChatEvent> {
    let (send, events) = channel();
    let sink = move |event: ChatEvent| {
        hook(&event);
        drop(send.send(event));
    };
    app.chat_send(message(chat_id, text, options), sink).unwrap();
    events.iter().collect()
}

pub fn quietly(_: &ChatEvent) {}

/// A reply that waits at its first text until it is let go.
pub struct Held {
    pub events: Receiver<ChatEvent>,
    go: Sender<()>,
}

pub fn hold(app: &App, chat_id: i64, options: GenerationOptions) -> Held {
    let (reached, wait) = channel();
    let (go, gate) = channel();
    let (send, events) = channel();
    let mut held = false;
    let sink = move |event: ChatEvent| {
        if matches!(event, ChatEvent::Step { .. }) && !held {
            held = true;
            reached.send(()).unwrap();
            gate.recv().unwrap();
        }
        drop(send.send(event));
    };
    app.chat_send(message(chat_id, STORY, options), sink).unwrap();
    wait.recv().expect("a reply begins");
    Held { events, go }
}

impl Held {
    pub fn finish(self) -> Vec<ChatEvent> {
        self.go.send(()).unwrap();
        self.events.iter().collect()
    }
}

pub fn text(events: &[ChatEvent]) -> String {
    let pieces = events.iter().filter_map(|event| match event {
        ChatEvent::Step { text, .. } => Some(text.as_str()),
        _ => None,
    });
    pieces.collect()
}

pub fn lives(events: &[ChatEvent]) -> Vec<&LiveStats> {
    let lives = events.iter().filter_map(|event| match event {
        ChatEvent::Step { live, .. } => Some(live),
        _ => None,
    });
    lives.collect()
}

pub fn finished(events: &[ChatEvent]) -> (FinishReason, &ReplyStats) {
    match events.last() {
        Some(ChatEvent::Finished { reason, stats, .. }) => (*reason, stats),
        other => panic!("the reply ended with {other:?}"),
    }
}

/// Without the last digits, which reading JSON may change.
pub fn rounded(stats: &ReplyStats) -> ReplyStats {
    let round = |x: f64| (x * 1e6).round() / 1e6;
    ReplyStats {
        ttft_ms: round(stats.ttft_ms),
        prefill_tok_s: round(stats.prefill_tok_s),
        decode_tok_s: round(stats.decode_tok_s),
        accept_rate: stats.accept_rate.map(round),
        tokens_per_cycle: round(stats.tokens_per_cycle),
        phase_ms: PhaseMs {
            draft: round(stats.phase_ms.draft),
            verify: round(stats.phase_ms.verify),
            sample: round(stats.phase_ms.sample),
            other: round(stats.phase_ms.other),
        },
        ..stats.clone()
    }
}

pub fn failed(events: &[ChatEvent]) -> &WireError {
    match events.last() {
        Some(ChatEvent::Failed { error }) => error,
        other => panic!("the reply ended with {other:?}"),
    }
}

pub fn chat(app: &App, chat_id: i64) -> Vec<Message> {
    app.chat_open(ChatRef { chat_id }).unwrap().messages
}

pub fn new_chat(app: &App) -> i64 {
    app.chat_create().unwrap().id
}

/// Accepted, then prefill, then steps, then one end: nothing else and nothing after it.
pub fn assert_order(events: &[ChatEvent]) {
    let rank = |event: &ChatEvent| match event {
        ChatEvent::Accepted { .. } => 0,
        ChatEvent::Prefill { .. } => 1,
        ChatEvent::Step { .. } => 2,
        ChatEvent::Finished { .. } | ChatEvent::Failed { .. } => 3,
    };
    let ranks: Vec<u8> = events.iter().map(rank).collect();
    assert!(ranks.is_sorted(), "{ranks:?}");
    for once in [0, 3] {
        assert_eq!(ranks.iter().filter(|rank| **rank == once).count(), 1, "{ranks:?}");
    }
}
