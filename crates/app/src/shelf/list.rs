//! The list of downloads: what each is, who works on it, who watches. Nothing here does the work (`app/work.rs`).
//!
//! ```text
//! queued -> preparing -> running <-> waiting -> verifying | attaching -> done
//!    ^                      |                                  |
//!    +---- resume ---- paused, failed <------------------------+
//! ```

use super::heads;
use super::record::{self, Ask, Kept, Record};
use foretoken_library::RepoId;
use foretoken_library::download::pending;
use foretoken_protocol::{DownloadEvent, DownloadState, ModelDownload, WireError};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Shortest time between two events of a download that only move its numbers.
const EVERY: Duration = Duration::from_millis(240);
/// Windows that watch: one, and some that were reloaded.
const MOST_WATCHERS: usize = 8;

/// Why a worker is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Everything stays, and it stays on the list.
    Pause,
    /// Everything stays, but it is not offered again.
    Cancel,
    /// What was fetched is deleted when it has ended.
    Discard,
}

#[derive(Default)]
struct Phase {
    stop: Option<Stop>,
    ended: bool,
}

/// Between a download in the list and its worker.
#[derive(Default)]
pub(crate) struct Control {
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Control {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, stop: Stop) {
        self.phase().stop = Some(stop);
        self.changed.notify_all();
    }

    pub fn stopped(&self) -> Option<Stop> {
        self.phase().stop
    }

    /// Waits; whether it was stopped meanwhile.
    pub fn sleep(&self, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.phase(), time, |p| p.stop.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.stop.is_some()
    }

    /// Waits for the worker; whether it ended.
    pub fn wait_end(&self, most: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.phase(), most, |p| !p.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }
}

/// A download somebody has to work on.
#[derive(Clone)]
pub(crate) struct Job {
    pub id: String,
    pub ask: Ask,
    pub control: Arc<Control>,
}

/// How a worker ended.
pub(crate) enum Ended {
    Done { model: String },
    Stopped,
    Failed(WireError),
}

struct Item {
    shown: ModelDownload,
    ask: Ask,
    control: Option<Arc<Control>>,
    told: Option<Instant>,
    /// From an earlier run, and nobody has said yet that it goes on: another program may be at it.
    asleep: bool,
}

impl Item {
    fn kept(&self) -> Kept {
        match &self.shown.state {
            DownloadState::Paused => Kept::Paused,
            DownloadState::Failed { error } => Kept::Failed { error: error.clone() },
            _ => Kept::Going,
        }
    }

    fn is_of(&self, model: &str) -> bool {
        let is_head_of = self.ask.for_model.as_deref() == Some(model);
        is_head_of || (!self.ask.head_only && self.ask.repository == model)
    }

    fn is_free(&self) -> bool {
        self.control.is_none() && !self.asleep && self.shown.state == DownloadState::Queued
    }
}

/// A download taken off the list, and its worker if it has one that was told to end.
pub(crate) struct Removed {
    pub ask: Ask,
    pub control: Option<Arc<Control>>,
}

#[derive(Default)]
struct List {
    items: Vec<Item>,
    watchers: VecDeque<Sender<DownloadEvent>>,
    /// No worker starts any more.
    closed: bool,
}

impl List {
    fn tell(&mut self, event: &DownloadEvent) {
        self.watchers.retain(|watcher| watcher.send(event.clone()).is_ok());
    }

    fn changed(&mut self, i: usize) {
        let item = &mut self.items[i];
        item.told = Some(Instant::now());
        let event = DownloadEvent::Changed { download: item.shown.clone() };
        self.tell(&event);
    }

    fn place(&self, id: &str) -> Option<usize> {
        self.items.iter().position(|item| item.shown.id == id)
    }
}

pub(crate) struct Downloads {
    list: Mutex<List>,
    /// Of the records.
    folder: PathBuf,
}

impl Downloads {
    /// What earlier runs left: records with their bytes, and what was begun in the cache without one.
    pub fn open(data: &Path, cache: &Path) -> Self {
        let folder = data.join("downloads");
        let mut items: Vec<Item> = Vec::new();
        for (id, record) in record::load(&folder) {
            // Two programs that began the same one have noted it twice.
            match items.iter().any(|item| item.ask == record.ask) {
                true => record::remove(&folder, &id),
                false => items.push(restored(id, record, &data.join("heads"))),
            }
        }
        for pending in pending(cache) {
            let ask = Ask {
                repository: pending.listing.repo.to_string(),
                revision: pending.listing.revision.clone(),
                head_only: false,
                for_model: None,
            };
            let known = items.iter().position(|item| item.ask == ask);
            let i = known.unwrap_or_else(|| {
                items.push(new_item(new_id(), ask, DownloadState::Paused));
                items.len() - 1
            });
            items[i].shown.done = pending.done;
            items[i].shown.total = pending.total();
            items[i].shown.files = pending.listing.files.len() as u32;
        }
        Self { list: Mutex::new(List { items, ..List::default() }), folder }
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> Vec<ModelDownload> {
        self.lock().items.iter().map(|item| item.shown.clone()).collect()
    }

    /// Calls come from a thread of the watcher's own, in order: first every download there is.
    pub fn watch(&self, mut on: impl FnMut(DownloadEvent) + Send + 'static) -> std::io::Result<()> {
        let (send, events) = channel();
        let mut list = self.lock();
        for item in &list.items {
            // The receiver is still here.
            drop(send.send(DownloadEvent::Changed { download: item.shown.clone() }));
        }
        if list.watchers.len() == MOST_WATCHERS {
            list.watchers.pop_front();
        }
        list.watchers.push_back(send);
        drop(list);
        let work = move || events.iter().for_each(&mut on);
        std::thread::Builder::new().name("watch".to_owned()).spawn(work).map(drop)
    }

    /// Puts a download on the list, or queues one again that is there.
    pub fn add(&self, ask: Ask) -> ModelDownload {
        let mut list = self.lock();
        let i = match list.items.iter().position(|item| item.ask == ask) {
            Some(i) => i,
            None => {
                list.items.push(new_item(new_id(), ask, DownloadState::Paused));
                list.items.len() - 1
            }
        };
        self.queue(&mut list, i);
        list.items[i].shown.clone()
    }

    /// Whether there is such a download, whatever its state.
    pub fn has(&self, ask: &Ask) -> bool {
        self.lock().items.iter().any(|item| item.ask == *ask)
    }

    fn queue(&self, list: &mut List, i: usize) {
        let item = &mut list.items[i];
        item.asleep = false;
        let rests = matches!(
            item.shown.state,
            DownloadState::Paused | DownloadState::Failed { .. } | DownloadState::Done { .. }
        );
        if rests {
            item.shown.state = DownloadState::Queued;
            self.note(item);
            list.changed(i);
        }
    }

    /// What ran when the last program ended goes on here.
    pub fn wake(&self) {
        self.lock().items.iter_mut().for_each(|item| item.asleep = false);
    }

    /// Whether there is such a download.
    pub fn resume(&self, id: &str) -> bool {
        let mut list = self.lock();
        let Some(i) = list.place(id) else { return false };
        self.queue(&mut list, i);
        true
    }

    /// Whether there is such a download. One that has ended stays as it is.
    pub fn pause(&self, id: &str) -> bool {
        let mut list = self.lock();
        let Some(i) = list.place(id) else { return false };
        let item = &mut list.items[i];
        if !matches!(item.shown.state, DownloadState::Done { .. } | DownloadState::Failed { .. }) {
            rest(&mut item.shown, DownloadState::Paused);
            if let Some(control) = &item.control {
                control.ask(Stop::Pause);
            }
            self.note(item);
            list.changed(i);
        }
        true
    }

    /// Takes a download off the list.
    pub fn remove(&self, id: &str, stop: Stop) -> Option<Removed> {
        let mut list = self.lock();
        let i = list.place(id)?;
        let item = list.items.remove(i);
        if let Some(control) = &item.control {
            control.ask(stop);
        }
        record::remove(&self.folder, id);
        list.tell(&DownloadEvent::Gone { id: id.to_owned() });
        Some(Removed { ask: item.ask, control: item.control })
    }

    /// Heads that were asked for because of a model, and are not on it yet.
    pub fn heads_for(&self, model: &str) -> Vec<String> {
        let list = self.lock();
        let waits = list.items.iter().filter(|item| {
            item.ask.head_only
                && item.ask.for_model.as_deref() == Some(model)
                && !matches!(item.shown.state, DownloadState::Done { .. })
        });
        waits.map(|item| item.shown.id.clone()).collect()
    }

    /// Whether a worker is busy with a model or its head.
    pub fn works_on(&self, model: &str) -> bool {
        self.lock().items.iter().any(|item| item.control.is_some() && item.is_of(model))
    }

    /// What became of a head after it was done.
    pub fn fail_heads(&self, model: &str, error: &WireError) {
        let mut list = self.lock();
        let of_model = |item: &Item| item.ask.head_only && item.is_of(model);
        for i in 0..list.items.len() {
            let item = &mut list.items[i];
            if item.control.is_none() && of_model(item) {
                rest(&mut item.shown, DownloadState::Failed { error: error.clone() });
                self.note(item);
                list.changed(i);
            }
        }
    }

    /// Takes everything that rests off the list that was about a model which is no more.
    pub fn drop_of(&self, model: &str) {
        let mut list = self.lock();
        let (gone, stay): (Vec<Item>, _) = std::mem::take(&mut list.items)
            .into_iter()
            .partition(|item| item.control.is_none() && item.is_of(model));
        list.items = stay;
        for item in gone {
            let Item { shown: ModelDownload { id, .. }, .. } = item;
            record::remove(&self.folder, &id);
            list.tell(&DownloadEvent::Gone { id });
        }
    }

    /// The next download to work on: one model at a time, heads beside it.
    pub fn next(&self) -> Option<Job> {
        let mut list = self.lock();
        if list.closed {
            return None;
        }
        let busy = list.items.iter().any(|item| item.control.is_some() && !item.ask.head_only);
        let i = list.items.iter().position(|i| i.is_free() && (i.ask.head_only || !busy))?;
        let item = &mut list.items[i];
        let control = Arc::new(Control::default());
        item.control = Some(Arc::clone(&control));
        item.shown.state = DownloadState::Preparing;
        let job = Job { id: item.shown.id.clone(), ask: item.ask.clone(), control };
        list.changed(i);
        Some(job)
    }

    /// How many work now: the bandwidth is shared.
    pub fn n_working(&self) -> u64 {
        self.lock().items.iter().filter(|item| item.control.is_some()).count() as u64
    }

    /// What a worker knows; not heard any more once it was told to end.
    pub fn update(&self, job: &Job, at_once: bool, change: impl FnOnce(&mut ModelDownload)) {
        let mut list = self.lock();
        let mine =
            |item: &Item| item.control.as_ref().is_some_and(|c| Arc::ptr_eq(c, &job.control));
        let Some(i) = list.items.iter().position(mine) else { return };
        if job.control.stopped().is_some() {
            return;
        }
        let item = &mut list.items[i];
        let total = item.shown.total;
        change(&mut item.shown);
        if item.shown.total != total {
            self.note(item);
        }
        if at_once || item.told.is_none_or(|told| told.elapsed() >= EVERY) {
            list.changed(i);
        }
    }

    pub fn ended(&self, job: &Job, how: Ended) {
        let mut list = self.lock();
        let mine =
            |item: &Item| item.control.as_ref().is_some_and(|c| Arc::ptr_eq(c, &job.control));
        if let Some(i) = list.items.iter().position(mine) {
            let item = &mut list.items[i];
            item.control = None;
            let state = match how {
                // It was already on its disk when the pause came.
                Ended::Done { model } => Some(DownloadState::Done { model }),
                // Paused, or queued again since.
                Ended::Stopped | Ended::Failed(_) if job.control.stopped().is_some() => None,
                Ended::Stopped => None,
                Ended::Failed(error) => Some(DownloadState::Failed { error }),
            };
            if let Some(state) = state {
                let is_done = matches!(state, DownloadState::Done { .. });
                rest(&mut item.shown, state);
                if is_done {
                    item.shown.done = item.shown.total;
                    item.shown.files_ready = item.shown.files;
                    record::remove(&self.folder, &job.id);
                } else {
                    self.note(item);
                }
                list.changed(i);
            }
        }
        drop(list);
        job.control.phase().ended = true;
        job.control.changed.notify_all();
    }

    /// Ends all workers and waits for them a while; the records say that they go on at the next start.
    pub fn close(&self, most: Duration) {
        let controls: Vec<_> = {
            let mut list = self.lock();
            list.closed = true;
            list.watchers.clear();
            list.items.iter().filter_map(|item| item.control.clone()).collect()
        };
        controls.iter().for_each(|control| control.ask(Stop::Pause));
        let until = Instant::now() + most;
        for control in controls {
            control.wait_end(until.saturating_duration_since(Instant::now()));
        }
    }

    fn note(&self, item: &Item) {
        let record = Record { ask: item.ask.clone(), kept: item.kept(), total: item.shown.total };
        record::save(&self.folder, &item.shown.id, &record);
    }
}

/// Nothing moves.
fn rest(shown: &mut ModelDownload, state: DownloadState) {
    shown.state = state;
    shown.speed = 0.0;
    shown.remaining_ms = None;
}

/// No two programs and no two starts make the same one; sorts by age.
fn new_id() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let n = MADE.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis());
    format!("{now}-{}-{n}", std::process::id())
}

fn new_item(id: String, ask: Ask, state: DownloadState) -> Item {
    let shown = ModelDownload {
        id,
        repository: ask.repository.clone(),
        head_only: ask.head_only,
        for_model: ask.for_model.clone(),
        state,
        done: 0,
        total: 0,
        speed: 0.0,
        remaining_ms: None,
        files_ready: 0,
        files: u32::from(ask.head_only),
    };
    Item { shown, ask, control: None, told: None, asleep: false }
}

fn restored(id: String, record: Record, heads: &Path) -> Item {
    let state = match record.kept {
        Kept::Going => DownloadState::Queued,
        Kept::Paused => DownloadState::Paused,
        Kept::Failed { error } => DownloadState::Failed { error },
    };
    let mut item = new_item(id, record.ask, state);
    item.asleep = true;
    item.shown.total = record.total;
    if item.ask.head_only
        && let Ok(repo) = item.ask.repository.parse::<RepoId>()
    {
        item.shown.done = heads::begun(heads, &repo, false).min(record.total);
    }
    item
}
