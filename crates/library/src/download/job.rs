//! All files of a download, several at a time.

use super::fetch::{Line, Sink};
use super::partial::Partial;
use super::place::Place;
use super::progress::{Event, FileState, Reporter};
use super::{DownloadError, Options, Outcome, Stopping};
use crate::hub::RemoteFile;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// More lines at once bring no more bytes, and each has buffers.
const MOST_FILES: usize = 8;
/// How often a file that another program fetches is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

pub(crate) struct Job {
    pub line: Line,
    pub place: Place,
    pub options: Options,
    pub stopping: Stopping,
    /// Bytes there, by file.
    pub have: Vec<AtomicU64>,
    pub ready: AtomicUsize,
}

enum File {
    Ready,
    /// Somebody else has its lock.
    Busy,
    Stopped,
}

impl Job {
    pub async fn run(self: Arc<Self>) -> Result<Outcome, DownloadError> {
        let this = Arc::clone(&self);
        blocking(move || this.begin()).await?;
        // What is small comes first: a closed repository is noticed before anything large has begun.
        let mut order: Vec<usize> = (0..self.files().len()).collect();
        order.sort_by_key(|&i| self.files()[i].size > 1 << 20);
        let queue = Arc::new(Mutex::new(VecDeque::from(order)));
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..self.options.parallel.clamp(1, MOST_FILES) {
            workers.spawn(Arc::clone(&self).work(Arc::clone(&queue)));
        }
        let ticker = tokio::spawn(Arc::clone(&self).tick());
        let mut result = Ok(());
        while let Some(ended) = workers.join_next().await {
            if let (Err(error), true) = (ended.expect("a worker does not panic"), result.is_ok()) {
                // The others keep what they have and end.
                self.stopping.stop();
                result = Err(error);
            }
        }
        ticker.abort();
        result?;
        self.report(&mut self.reporter());
        if self.stopping.is_stopped() {
            return Ok(Outcome::Stopped);
        }
        let folder = blocking(move || self.place.publish(&self.line.listing)).await?;
        Ok(Outcome::Complete { folder })
    }

    fn files(&self) -> &[RemoteFile] {
        &self.line.listing.files
    }

    fn begin(&self) -> Result<(), DownloadError> {
        self.place.prepare()?;
        self.doubt_damaged()?;
        let mut left = 0;
        for (have, file) in self.have.iter().zip(self.files()) {
            let there = self.place.bytes_of(file, self.commit());
            // Before the first report: what is here already did not come over the line just now.
            have.store(there, Ordering::Relaxed);
            left += file.size - there;
        }
        need_disk(self.place.root(), left, self.options.also_needed)?;
        self.place.write_pending(&self.line.listing)
    }

    /// What a check found damaged does not count as there. What another program has at hand is left to it.
    fn doubt_damaged(&self) -> Result<(), DownloadError> {
        let mut damaged = self.place.damaged();
        let wanted: Vec<_> = self.files().iter().filter(|f| damaged.contains(f.id.hex())).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        for file in wanted {
            let Some(_lock) = self.place.lock(&file.id)? else { continue };
            let io = |e| DownloadError::io(&self.place.blob(&file.id), e);
            self.place.doubt(file, self.commit()).map_err(io)?;
            damaged.remove(file.id.hex());
        }
        self.place.write_damaged(&damaged).map_err(|e| DownloadError::io(self.place.root(), e))
    }

    fn commit(&self) -> &str {
        &self.line.listing.commit
    }

    async fn work(
        self: Arc<Self>,
        queue: Arc<Mutex<VecDeque<usize>>>,
    ) -> Result<(), DownloadError> {
        let mut told = false;
        loop {
            let next = queue.lock().expect("nothing panics while it is held").pop_front();
            let Some(i) = next else { return Ok(()) };
            match self.file(i).await? {
                File::Stopped => return Ok(()),
                File::Ready => {
                    self.ready.fetch_add(1, Ordering::Relaxed);
                    self.tell(i, FileState::Ready);
                    told = false;
                }
                File::Busy => {
                    if !std::mem::replace(&mut told, true) {
                        self.tell(i, FileState::Elsewhere);
                    }
                    queue.lock().expect("nothing panics while it is held").push_back(i);
                    self.stopping.or(tokio::time::sleep(LOOK_AGAIN)).await;
                }
            }
            if self.stopping.is_stopped() {
                return Ok(());
            }
        }
    }

    async fn file(self: &Arc<Self>, i: usize) -> Result<File, DownloadError> {
        let file = &self.files()[i];
        let there = self.place.bytes_of(file, self.commit());
        self.have[i].store(there, Ordering::Relaxed);
        if self.place.has(file, self.commit()) {
            return Ok(File::Ready);
        }
        let Some(_lock) = self.place.lock(&file.id)? else { return Ok(File::Busy) };
        // Whoever had the lock may have finished it.
        if self.place.has(file, self.commit()) {
            self.have[i].store(file.size, Ordering::Relaxed);
            return Ok(File::Ready);
        }
        let path = self.place.incomplete(&file.id);
        let io = |e| DownloadError::io(&path, e);
        if there > 0 {
            self.tell(i, FileState::Checking);
        }
        let this = Arc::clone(self);
        let opened = blocking(move || this.open_partial(i)).await?;
        let Some(mut partial) = opened else { return Ok(File::Stopped) };
        let mut wrong_before = false;
        loop {
            self.have[i].store(partial.len, Ordering::Relaxed);
            self.tell(i, FileState::Fetching { from: partial.len });
            let range = partial.len..file.size;
            let mut sink = Sink::start(partial).map_err(io)?;
            let fetching = self.line.fetch(file, range, &mut sink, &self.have[i]);
            let fetched = self.stopping.or(fetching).await;
            partial = sink.finish().await.map_err(io)?;
            if let Some(result) = fetched {
                result?;
            }
            if !partial.is_full() {
                return Ok(File::Stopped);
            }
            let Some(got) = partial.wrong_hash() else { break };
            tracing::warn!(file = file.path, got, "a file arrived with another hash");
            let doubted;
            (partial, doubted) =
                blocking(move || partial.go_back().map(|doubted| (partial, doubted)))
                    .await
                    .map_err(io)?;
            // Once is the line; twice is the source.
            if !doubted && std::mem::replace(&mut wrong_before, true) {
                partial.throw_away().map_err(io)?;
                self.have[i].store(0, Ordering::Relaxed);
                let want = file.id.hex().to_owned();
                return Err(DownloadError::WrongBytes { file: file.path.clone(), want, got });
            }
            self.tell(i, FileState::Again);
        }
        let blob = self.place.blob(&file.id);
        blocking(move || partial.finish(&blob)).await.map_err(io)?;
        Ok(File::Ready)
    }

    fn open_partial(&self, i: usize) -> Result<Option<Partial>, DownloadError> {
        let file = &self.files()[i];
        let path = self.place.incomplete(&file.id);
        let every = self.options.mark_every.max(1);
        Partial::open(&path, &file.id, file.size, every, self.stopping.flag())
            .map_err(|e| DownloadError::io(&path, e))
    }

    fn tell(&self, i: usize, state: FileState) {
        (self.line.notify)(Event::File { path: self.files()[i].path.clone(), state });
    }

    async fn tick(self: Arc<Self>) {
        let mut reporter = self.reporter();
        loop {
            self.report(&mut reporter);
            tokio::time::sleep(Reporter::EVERY).await;
        }
    }

    fn reporter(&self) -> Reporter {
        let notify = Arc::clone(&self.line.notify);
        Reporter::new(notify, self.line.listing.bytes(), self.have.len())
    }

    fn report(&self, reporter: &mut Reporter) {
        let done = self.have.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        reporter.report(done, self.ready.load(Ordering::Relaxed));
    }
}

/// Refuses what does not fit.
pub(crate) fn need_disk(folder: &Path, left: u64, also: u64) -> Result<(), DownloadError> {
    let (there, free) = free_space(folder)?;
    let need = left.saturating_add(also);
    if left > 0 && need > free {
        return Err(DownloadError::NotEnoughDisk { folder: there, need, free });
    }
    Ok(())
}

/// Free bytes where `folder` is or will be, and the folder that was asked: nothing is known about one that is not there
/// yet but what its parents know.
pub fn free_space(folder: &Path) -> Result<(PathBuf, u64), DownloadError> {
    let there: PathBuf =
        folder.ancestors().find(|f| f.is_dir()).unwrap_or(Path::new(".")).to_owned();
    let free = fs4::available_space(&there).map_err(|e| DownloadError::io(folder, e))?;
    Ok((there, free))
}

/// Disk work off the threads that serve the lines.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("disk work does not panic")
}
