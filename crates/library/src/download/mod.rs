//! Downloads: into the hub cache, several files at a time, resumed from the byte, verified before they get their name.
//!
//! Entry points: [`Download::start`], [`pending`], [`check()`], [`forget`], [`discard`], [`delete`].
//! Does not: delete what it did not prove wrong, keep a token, judge whether a model is of use.

mod check;
mod delete;
mod error;
mod fetch;
mod job;
mod limit;
mod partial;
mod place;
mod progress;

use crate::hub::{Hub, Listing, Retry};
pub use check::{FileCheck, check, note_damaged};
pub use delete::{delete, discard, forget, size};
pub use error::DownloadError;
pub(crate) use fetch::{Line, Sink};
pub use job::free_space;
pub(crate) use job::{blocking, need_disk};
pub(crate) use limit::Limiter;
pub(crate) use partial::Partial;
pub use place::{Pending, bytes_here, pending};
pub(crate) use place::{try_lock, write_whole};
pub(crate) use progress::Reporter;
pub use progress::{Event, FileState, Progress};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

pub(crate) type Notify = Arc<dyn Fn(Event) + Send + Sync>;

#[derive(Debug, Clone)]
pub struct Options {
    /// Files at a time, 8 at most.
    pub parallel: usize,
    /// Bytes per second.
    pub bandwidth: Option<u64>,
    pub retry: Retry,
    /// Bytes the disk must have room for besides, for what is made of the files.
    pub also_needed: u64,
    /// Bytes between two marks of a journal. A resume hashes from mark to mark.
    pub mark_every: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            parallel: 4,
            bandwidth: None,
            retry: Retry::default(),
            also_needed: 0,
            mark_every: 64 << 20,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every file is there, verified, in this folder.
    Complete { folder: PathBuf },
    /// By `pause` or `cancel`; what was fetched is kept.
    Stopped,
}

/// A download that runs on threads of its hub. Dropping it stops it as `pause` does.
pub struct Download {
    stopping: Stopping,
    limiter: Arc<Limiter>,
    /// Forgotten on `cancel`, so that the next start of the program does not go on by itself.
    forget: Mutex<Option<place::Place>>,
    result: Receiver<Result<Outcome, DownloadError>>,
}

impl Download {
    /// Fetches the files of `listing` into the hub cache at `cache`; what is there already is not fetched again. Calls
    /// of `on_event` come from the hub's threads and should return at once.
    pub fn start(
        hub: &Hub,
        cache: &Path,
        listing: Listing,
        options: Options,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Self {
        let place = place::Place::new(cache, &listing.repo);
        let forget = Mutex::new(Some(place.clone()));
        let limiter = Arc::new(Limiter::default());
        limiter.set(options.bandwidth);
        let line = Line {
            hub: hub.clone(),
            retry: options.retry,
            limiter: Arc::clone(&limiter),
            notify: Arc::new(on_event),
            listing: Arc::new(listing),
        };
        let have = line.listing.files.iter().map(|_| AtomicU64::new(0)).collect();
        let stopping = Stopping::default();
        let job = job::Job {
            line,
            place,
            options,
            stopping: stopping.clone(),
            have,
            ready: AtomicUsize::new(0),
        };
        let result = spawn(hub, Arc::new(job).run());
        Self { stopping, limiter, forget, result }
    }

    /// A download of something else than a repository's files; it ends when `stopping` says so.
    pub(crate) fn of(
        hub: &Hub,
        stopping: Stopping,
        limiter: Arc<Limiter>,
        work: impl Future<Output = Result<Outcome, DownloadError>> + Send + 'static,
    ) -> Self {
        Self { stopping, limiter, forget: Mutex::new(None), result: spawn(hub, work) }
    }

    /// Ends soon and keeps everything; it is [`pending`] afterwards.
    pub fn pause(&self) {
        self.stopping.stop();
    }

    /// Ends soon and keeps the bytes, but is not [`pending`] any more.
    pub fn cancel(&self) {
        self.stopping.stop();
        let place = self.forget.lock().expect("nothing panics while it is held").take();
        if let Some(Err(error)) = place.map(|place| place.forget_pending()) {
            tracing::warn!(%error, "a cancelled download will be offered again");
        }
    }

    pub fn set_bandwidth(&self, bytes_per_second: Option<u64>) {
        self.limiter.set(bytes_per_second);
    }

    /// Waits for its end.
    pub fn wait(self) -> Result<Outcome, DownloadError> {
        self.result.recv().expect("a download sends its result before it ends")
    }

    /// Waits a while; `None` while it runs.
    pub fn wait_a_while(&self, most: Duration) -> Option<Result<Outcome, DownloadError>> {
        self.result.recv_timeout(most).ok()
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.stopping.stop();
    }
}

fn spawn(
    hub: &Hub,
    work: impl Future<Output = Result<Outcome, DownloadError>> + Send + 'static,
) -> Receiver<Result<Outcome, DownloadError>> {
    let (done, result) = channel();
    hub.spawn(async move {
        // Nobody may be waiting any more.
        let _ = done.send(work.await);
    });
    result
}

/// One signal for everything that has to end: tasks wait for it, loops look at it.
#[derive(Clone)]
pub(crate) struct Stopping {
    signal: Arc<watch::Sender<bool>>,
    flag: Arc<AtomicBool>,
}

impl Default for Stopping {
    fn default() -> Self {
        Self { signal: Arc::new(watch::channel(false).0), flag: Arc::default() }
    }
}

impl Stopping {
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.signal.send_replace(true);
    }

    pub fn is_stopped(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// `work`, or `None` as soon as it is stopped.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut signal = self.signal.subscribe();
        tokio::select! {
            biased;
            done = work => Some(done),
            _ = signal.wait_for(|stopped| *stopped) => None,
        }
    }
}
