//! Bytes from the line into a partial file, through every fault that cures itself.

use super::limit::Limiter;
use super::partial::{Hashing, Partial, Writing};
use super::progress::{Event, FileState};
use super::{DownloadError, Notify};
use crate::hub::{Hub, Listing, RemoteFile, Retry};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Bytes that go to the disk and the hash at once. A connection gives a few hundred KiB at a time at most; handing each
/// over by itself wakes threads more often than there is work for them.
const BLOCK: usize = 1 << 20;
/// Blocks of one file; eight files at a time have 32 MiB.
const BLOCKS: usize = 4;
/// A block that waits for more goes to the disk after so long: what a slow line brought should outlive the process.
const WAIT_FOR_MORE: Duration = Duration::from_millis(100);

/// Blocks go round: filled from the line, written, hashed, filled again. Writing and hashing have a thread each, so that
/// neither waits for the other nor the line for both.
pub(crate) struct Sink {
    partial: Partial,
    filling: Vec<u8>,
    began: Instant,
    free: mpsc::UnboundedReceiver<Vec<u8>>,
    to_disk: std::sync::mpsc::Sender<Vec<u8>>,
    writing: JoinHandle<io::Result<Writing>>,
    hashing: JoinHandle<io::Result<Hashing>>,
}

impl Sink {
    pub fn start(partial: Partial) -> io::Result<Self> {
        let (mut writing, mut hashing) = partial.halves()?;
        let block = usize::try_from(partial.left()).unwrap_or(BLOCK).min(BLOCK);
        let (to_free, free) = mpsc::unbounded_channel();
        for _ in 1..BLOCKS {
            // The receiver is here.
            let _ = to_free.send(Vec::with_capacity(block));
        }
        let (to_disk, blocks) = std::sync::mpsc::channel::<Vec<u8>>();
        let (to_hash, written) = std::sync::mpsc::channel::<Vec<u8>>();
        let writing = tokio::task::spawn_blocking(move || {
            for block in blocks {
                writing.push(&block)?;
                // Who hashes has ended with an error that `finish` tells.
                if to_hash.send(block).is_err() {
                    break;
                }
            }
            Ok(writing)
        });
        let hashing = tokio::task::spawn_blocking(move || {
            for mut block in written {
                hashing.push(&block)?;
                block.clear();
                // At the end nobody fills blocks any more.
                let _ = to_free.send(block);
            }
            Ok(hashing)
        });
        let filling = Vec::with_capacity(block);
        Ok(Self { partial, filling, began: Instant::now(), free, to_disk, writing, hashing })
    }

    /// `false` when writing or hashing has ended with an error, which `finish` tells.
    pub async fn push(&mut self, mut piece: &[u8]) -> bool {
        while !piece.is_empty() {
            if self.filling.is_empty() {
                self.began = Instant::now();
            }
            let room = self.filling.capacity() - self.filling.len();
            let (now, later) = piece.split_at(room.min(piece.len()));
            self.filling.extend_from_slice(now);
            piece = later;
            let is_full = self.filling.len() == self.filling.capacity();
            if (is_full || self.began.elapsed() > WAIT_FOR_MORE) && !self.hand_over().await {
                return false;
            }
        }
        true
    }

    /// What was pushed goes to the disk without waiting for more.
    async fn hand_over(&mut self) -> bool {
        if self.filling.is_empty() {
            return true;
        }
        // The next block first: whoever stops waiting here has not taken the full one out.
        let Some(next) = self.free.recv().await else { return false };
        self.to_disk.send(std::mem::replace(&mut self.filling, next)).is_ok()
    }

    /// The partial file with everything that was pushed.
    pub async fn finish(self) -> io::Result<Partial> {
        let Self { mut partial, filling, free, to_disk, writing, hashing, .. } = self;
        if !filling.is_empty() {
            // When nobody takes it any more, the reason comes next.
            let _ = to_disk.send(filling);
        }
        drop((to_disk, free));
        let (writing, hashing) = (writing.await, hashing.await);
        writing.expect("a write does not panic")?.finish()?;
        partial.join(hashing.expect("a hash does not panic")?);
        Ok(partial)
    }
}

/// How the bytes of one download come in.
pub(crate) struct Line {
    pub hub: Hub,
    pub listing: Arc<Listing>,
    pub retry: Retry,
    pub limiter: Arc<Limiter>,
    pub notify: Notify,
}

impl Line {
    /// `range` of a file into `sink`; `have` grows with it. Goes on after the last byte whenever the line comes back.
    pub async fn fetch(
        &self,
        file: &RemoteFile,
        range: Range<u64>,
        sink: &mut Sink,
        have: &AtomicU64,
    ) -> Result<(), DownloadError> {
        let mut at = range.start;
        let mut failed = 0;
        while at < range.end {
            let before = at;
            let result = self.open_and_take(file, &mut at, range.end, sink, have).await;
            if at > before {
                failed = 0;
            }
            let error = match result {
                Ok(Taken::All) => continue,
                // What is wrong with the disk comes out of `finish`.
                Ok(Taken::DiskEnded) => return Ok(()),
                Err(error) => error,
            };
            let Some(wait) = self.retry.wait(&error, failed) else { return Err(error.into()) };
            failed += 1;
            if !sink.hand_over().await {
                return Ok(());
            }
            let state = FileState::Waiting { error, wait };
            (self.notify)(Event::File { path: file.path.clone(), state });
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    async fn open_and_take(
        &self,
        file: &RemoteFile,
        at: &mut u64,
        end: u64,
        sink: &mut Sink,
        have: &AtomicU64,
    ) -> Result<Taken, crate::HubError> {
        let mut body = self.hub.open_range(&self.listing, file, *at..end).await?;
        loop {
            let next = match tokio::time::timeout(WAIT_FOR_MORE, body.next()).await {
                Ok(next) => next?,
                Err(_) if sink.hand_over().await => body.next().await?,
                Err(_) => return Ok(Taken::DiskEnded),
            };
            let Some(piece) = next else { return Ok(Taken::All) };
            self.limiter.take(piece.len()).await;
            let n = piece.len() as u64;
            if !sink.push(&piece).await {
                return Ok(Taken::DiskEnded);
            }
            *at += n;
            have.fetch_add(n, Ordering::Relaxed);
        }
    }
}

enum Taken {
    /// Everything this answer promised.
    All,
    DiskEnded,
}
