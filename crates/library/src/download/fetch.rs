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
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pieces waiting for the disk or the hash. A piece is up to 400 KiB, so four files wait with 13 MiB at most.
const QUEUE: usize = 8;

type Piece = bytes::Bytes;

/// Writes and hashes on two threads, so that neither waits for the other nor the line for both.
pub(crate) struct Sink {
    partial: Partial,
    to_disk: mpsc::Sender<Piece>,
    to_hash: mpsc::Sender<Piece>,
    writing: JoinHandle<io::Result<Writing>>,
    hashing: JoinHandle<io::Result<Hashing>>,
}

impl Sink {
    pub fn start(partial: Partial) -> io::Result<Self> {
        let (mut writing, mut hashing) = partial.halves()?;
        let (to_disk, mut pieces) = mpsc::channel::<Piece>(QUEUE);
        let writing = tokio::task::spawn_blocking(move || {
            while let Some(piece) = pieces.blocking_recv() {
                writing.push(&piece)?;
            }
            Ok(writing)
        });
        let (to_hash, mut pieces) = mpsc::channel::<Piece>(QUEUE);
        let hashing = tokio::task::spawn_blocking(move || {
            while let Some(piece) = pieces.blocking_recv() {
                hashing.push(&piece)?;
            }
            Ok(hashing)
        });
        Ok(Self { partial, to_disk, to_hash, writing, hashing })
    }

    /// `false` when a half has ended with an error, which `finish` tells.
    pub async fn push(&self, piece: Piece) -> bool {
        // Room in both queues first: whoever stops waiting here has given the piece to both halves or to neither.
        match tokio::join!(self.to_hash.reserve(), self.to_disk.reserve()) {
            (Ok(to_hash), Ok(to_disk)) => {
                to_hash.send(piece.clone());
                to_disk.send(piece);
                true
            }
            _ => false,
        }
    }

    /// The partial file with everything that was pushed.
    pub async fn finish(self) -> io::Result<Partial> {
        let Self { mut partial, to_disk, to_hash, writing, hashing } = self;
        drop((to_disk, to_hash));
        let (writing, hashing) = (writing.await, hashing.await);
        writing.expect("a write does not panic")?;
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
        sink: &Sink,
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
        sink: &Sink,
        have: &AtomicU64,
    ) -> Result<Taken, crate::HubError> {
        let mut body = self.hub.open_range(&self.listing, file, *at..end).await?;
        while let Some(piece) = body.next().await? {
            self.limiter.take(piece.len()).await;
            let n = piece.len() as u64;
            if !sink.push(piece).await {
                return Ok(Taken::DiskEnded);
            }
            *at += n;
            have.fetch_add(n, Ordering::Relaxed);
        }
        Ok(Taken::All)
    }
}

enum Taken {
    /// Everything this answer promised.
    All,
    DiskEnded,
}
