//! The MTP head alone, out of a repository whose trunk nobody wants to fetch: the ranges of its tensors become one file.
//!
//! The hub knows the hash of a shard, not of a part of it, so these bytes cannot be proven as whole files are. What
//! stands for it: every range is checked against what was asked for, the shard against its name in the listing, and a
//! resume keeps only what its journal's marks prove.

use crate::download::{
    Download, DownloadError, Event, FileState, Limiter, Line, Options, Outcome, Partial, Reporter,
    Sink, Stopping, blocking, need_disk, try_lock, write_whole,
};
use crate::hash::Hasher;
use crate::hub::{ContentId, Hub, Listing, RemoteFile, RemoteModel, RemoteTensor};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const WEIGHTS: &str = "mtp.safetensors";
const CONFIG: &str = "config.json";
/// What follows the last mark is fetched again after a crash: more marks than a file with a hash gets.
const MARK_EVERY: u64 = 8 << 20;
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// What fetching a head alone takes.
#[derive(Debug, Clone)]
pub struct HeadPlan {
    listing: Listing,
    config: Vec<u8>,
    /// Start of the file to be made, up to its data.
    header: Vec<u8>,
    /// Ranges of remote files, in the order they follow the header in.
    pieces: Vec<(RemoteFile, Range<u64>)>,
}

impl HeadPlan {
    /// `None` when the repository has no head.
    pub fn new(model: &RemoteModel) -> Option<Self> {
        if model.head.is_empty() {
            return None;
        }
        let mut tensors: Vec<&RemoteTensor> = model.head.iter().collect();
        // Wide numbers first, so that every tensor begins at a multiple of its own width; else as they lie.
        tensors.sort_by(|a, b| {
            let key = |t: &RemoteTensor| (std::cmp::Reverse(width(&t.dtype)), t.at.start);
            key(a).0.cmp(&key(b).0).then(a.file.cmp(&b.file)).then(key(a).1.cmp(&key(b).1))
        });
        let mut pieces: Vec<(RemoteFile, Range<u64>)> = Vec::new();
        for tensor in &tensors {
            let file = model.listing.file(&tensor.file)?;
            match pieces.last_mut() {
                Some((last, range)) if last == file && range.end == tensor.at.start => {
                    range.end = tensor.at.end;
                }
                _ => pieces.push((file.clone(), tensor.at.clone())),
            }
        }
        pieces.retain(|(_, range)| !range.is_empty());
        Some(Self {
            header: header(&model.listing, &tensors),
            config: model.config_text.clone(),
            listing: model.listing.clone(),
            pieces,
        })
    }

    /// Bytes of the file it makes.
    pub fn bytes(&self) -> u64 {
        let data: u64 = self.pieces.iter().map(|(_, range)| range.end - range.start).sum();
        self.header.len() as u64 + data
    }

    /// Requests it takes.
    pub fn ranges(&self) -> usize {
        self.pieces.len()
    }

    /// Whether `folder` has exactly this head, complete.
    pub fn is_in(&self, folder: &Path) -> bool {
        use std::io::Read;
        let file = folder.join(WEIGHTS);
        let mut start = vec![0; self.header.len()];
        let read = std::fs::File::open(&file).and_then(|mut file| file.read_exact(&mut start));
        folder.join(CONFIG).is_file()
            && std::fs::metadata(&file).is_ok_and(|m| m.len() == self.bytes())
            && read.is_ok()
            && start == self.header
    }

    /// Fetches the head into `folder`, as `mtp.safetensors` and `config.json`. The folder should be of its own for a
    /// repository and a commit.
    pub fn fetch(
        self,
        hub: &Hub,
        folder: &Path,
        options: Options,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Download {
        let limiter = Arc::new(Limiter::default());
        limiter.set(options.bandwidth);
        let line = Line {
            hub: hub.clone(),
            listing: Arc::new(self.listing.clone()),
            retry: options.retry,
            limiter: Arc::clone(&limiter),
            notify: Arc::new(on_event),
        };
        let stopping = Stopping::default();
        let fetching = Fetching {
            plan: self,
            folder: folder.to_owned(),
            line,
            stopping: stopping.clone(),
            mark_every: options.mark_every.clamp(1, MARK_EVERY),
        };
        Download::of(hub, stopping, limiter, fetching.run(options.also_needed))
    }

    /// Named by what goes into it, so that a plan of another commit never continues it.
    fn incomplete(&self, folder: &Path) -> PathBuf {
        let mut hash = Hasher::new(&ContentId::Sha256(String::new()), 0);
        hash.update(&self.header);
        folder.join(format!("{}.incomplete", &hash.hex()[..16]))
    }
}

struct Fetching {
    plan: HeadPlan,
    folder: PathBuf,
    line: Line,
    stopping: Stopping,
    mark_every: u64,
}

impl Fetching {
    async fn run(self, also_needed: u64) -> Result<Outcome, DownloadError> {
        let folder = self.folder.clone();
        let io = |e| DownloadError::io(&folder, e);
        std::fs::create_dir_all(&folder).map_err(io)?;
        let complete = Outcome::Complete { folder: folder.clone() };
        let _lock = loop {
            if self.plan.is_in(&folder) {
                return Ok(complete);
            }
            if let Some(lock) = try_lock(&folder.join(".lock"))? {
                break lock;
            }
            self.tell(FileState::Elsewhere);
            if self.stopping.or(tokio::time::sleep(LOOK_AGAIN)).await.is_none() {
                return Ok(Outcome::Stopped);
            }
        };
        let path = self.plan.incomplete(&folder);
        let size = self.plan.bytes();
        let opening = {
            let (path, stopping) = (path.clone(), self.stopping.clone());
            let every = self.mark_every;
            move || {
                // There is no hash to compare with, so the id only says which kind to use.
                let id = ContentId::Sha256(String::new());
                let opened = Partial::open(&path, &id, size, every, stopping.flag())?;
                opened.map(Partial::only_proven).transpose()
            }
        };
        let opened = blocking(opening).await.map_err(io)?;
        let Some(partial) = opened else { return Ok(Outcome::Stopped) };
        need_disk(&folder, size - partial.len, also_needed)?;
        self.tell(FileState::Fetching { from: partial.len });
        let have = Arc::new(AtomicU64::new(partial.len));
        let ticker = {
            let have = Arc::clone(&have);
            let mut reporter = Reporter::new(Arc::clone(&self.line.notify), size, 1);
            tokio::spawn(async move {
                loop {
                    reporter.report(have.load(Ordering::Relaxed), 0);
                    tokio::time::sleep(Reporter::EVERY).await;
                }
            })
        };
        let fetched = self.fetch(partial, &have).await;
        ticker.abort();
        let Some(partial) = fetched? else { return Ok(Outcome::Stopped) };
        let config = self.plan.config.clone();
        let place = folder.clone();
        // The configuration comes last: without it the folder is no model.
        let finish = move || {
            partial.finish(&place.join(WEIGHTS))?;
            write_whole(&place.join(CONFIG), &config)
        };
        blocking(finish).await.map_err(io)?;
        Reporter::new(Arc::clone(&self.line.notify), size, 1).report(size, 1);
        self.tell(FileState::Ready);
        Ok(complete)
    }

    /// The full file, or `None` when it was stopped.
    async fn fetch(
        &self,
        partial: Partial,
        have: &AtomicU64,
    ) -> Result<Option<Partial>, DownloadError> {
        let io = |e| DownloadError::io(&self.folder, e);
        let mut skip = partial.len;
        let mut sink = Sink::start(partial).map_err(io)?;
        let all = async {
            let header = &self.plan.header;
            if let Some(rest) = header.get(usize::try_from(skip).unwrap_or(usize::MAX)..)
                && sink.push(rest).await
            {
                have.fetch_add(rest.len() as u64, Ordering::Relaxed);
            }
            skip = skip.saturating_sub(header.len() as u64);
            for (file, range) in &self.plan.pieces {
                let there = skip.min(range.end - range.start);
                skip -= there;
                self.line.fetch(file, range.start + there..range.end, &mut sink, have).await?;
            }
            Ok::<_, DownloadError>(())
        };
        let result = self.stopping.or(all).await;
        let partial = sink.finish().await.map_err(io)?;
        result.transpose()?;
        Ok(Some(partial).filter(Partial::is_full))
    }

    fn tell(&self, state: FileState) {
        (self.line.notify)(Event::File { path: WEIGHTS.to_owned(), state });
    }
}

/// Length and JSON of the header, padded so that the data begins at a multiple of 8.
fn header(listing: &Listing, tensors: &[&RemoteTensor]) -> Vec<u8> {
    let mut places = Map::new();
    let metadata =
        json!({"format": "pt", "repository": listing.repo.to_string(), "commit": listing.commit});
    places.insert("__metadata__".to_owned(), metadata);
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.at.end - tensor.at.start;
        let place =
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end]});
        places.insert(tensor.name.clone(), place);
        at = end;
    }
    let mut text = Value::Object(places).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}

/// Bits of an element, from the type's name: `BF16`, `F8_E4M3`, `U32`; a `BOOL` takes a byte.
fn width(dtype: &str) -> u32 {
    let digits = dtype.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_come_from_the_names() {
        let known =
            [("BF16", 16), ("F32", 32), ("U32", 32), ("F8_E4M3", 8), ("BOOL", 8), ("I64", 64)];
        for (name, bits) in known {
            assert_eq!(width(name), bits, "{name}");
        }
    }
}
