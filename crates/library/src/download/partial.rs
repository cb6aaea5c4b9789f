//! A file that is not complete yet, and the journal beside it.
//!
//! The bytes go to `<blob>.incomplete` in order, as the other tools of the cache do it. The journal holds marks: the
//! hash of everything up to a place. Whatever moment the process or the machine dies at, opening hashes what is on the
//! disk again and keeps it up to the last mark that holds, plus what follows it. What follows is unproven (a machine
//! that lost power may have left zeros there); should the whole turn out wrong, only that part is fetched again.

use crate::hash::Hasher;
use crate::hub::ContentId;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

const FIRST_LINE: &str = "foretoken partial 1";
const BLOCK: usize = 1 << 20;
/// The disk takes its time; bytes are sent to it while more come in, so that the end does not wait for all of them.
const SYNC_EVERY: usize = 32 << 20;

pub(crate) struct Partial {
    pub path: PathBuf,
    pub len: u64,
    size: u64,
    id: ContentId,
    hash: Hasher,
    marks: Vec<Mark>,
    mark_every: u64,
    /// From here on, bytes were taken over from an earlier run without a mark behind them.
    doubt: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    at: u64,
    hash: String,
}

impl Partial {
    /// Takes over what is there and holds. `None` when `stop` was raised meanwhile.
    pub fn open(
        path: &Path,
        id: &ContentId,
        size: u64,
        mark_every: u64,
        stop: &AtomicBool,
    ) -> io::Result<Option<Self>> {
        let mut file = open(path)?;
        let there = file.metadata()?.len();
        let journal = read_journal(&journal(path), size)?;
        let (marks, mut doubt) = journal.unwrap_or_default();
        let mut partial = Self {
            path: path.to_owned(),
            len: 0,
            size,
            id: id.clone(),
            hash: Hasher::new(id, size),
            marks: Vec::new(),
            mark_every,
            doubt: None,
        };
        let keep = there.min(size);
        for mark in marks.into_iter().take_while(|mark| mark.at <= keep) {
            let before = (partial.len, partial.hash.clone());
            if !partial.take_over(&mut file, mark.at, stop)? {
                return Ok(None);
            }
            if partial.hash.hex() != mark.hash {
                (partial.len, partial.hash) = before;
                file.set_len(partial.len)?;
                break;
            }
            partial.marks.push(mark);
        }
        let proven = partial.len;
        let keep = file.metadata()?.len().min(size);
        if !partial.take_over(&mut file, keep, stop)? {
            return Ok(None);
        }
        if there > keep {
            file.set_len(keep)?;
        }
        if partial.len > proven {
            doubt = Some(doubt.map_or(proven, |doubt| doubt.min(proven)));
        }
        partial.doubt = doubt.filter(|&doubt| doubt < partial.len);
        partial.write_journal()?;
        Ok(Some(partial))
    }

    /// Drops what no mark proves, for a file whose hash nobody knows.
    pub fn only_proven(mut self) -> io::Result<Self> {
        if self.doubt.is_some() {
            self.go_back()?;
        }
        Ok(self)
    }

    /// Hashes the file up to `to`.
    fn take_over(&mut self, file: &mut File, to: u64, stop: &AtomicBool) -> io::Result<bool> {
        file.seek(SeekFrom::Start(self.len))?;
        let mut block = vec![0; BLOCK];
        while self.len < to {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let n = usize::try_from(to - self.len).unwrap_or(BLOCK).min(BLOCK);
            file.read_exact(&mut block[..n])?;
            self.hash.update(&block[..n]);
            self.len += n as u64;
        }
        Ok(true)
    }

    /// The two halves that take bytes: one writes, the other hashes, at the same time.
    pub fn halves(&self) -> io::Result<(Writing, Hashing)> {
        let mut file = open(&self.path)?;
        file.seek(SeekFrom::Start(self.len))?;
        let journal = OpenOptions::new().append(true).open(journal(&self.path))?;
        let hashing = Hashing {
            hash: self.hash.clone(),
            len: self.len,
            next_mark: (self.len / self.mark_every + 1) * self.mark_every,
            mark_every: self.mark_every,
            journal,
        };
        Ok((Writing { file: Arc::new(file), unsynced: 0, syncing: None }, hashing))
    }

    /// Takes the halves back after the same bytes went through both.
    pub fn join(&mut self, hashing: Hashing) {
        (self.len, self.hash) = (hashing.len, hashing.hash);
    }

    pub fn left(&self) -> u64 {
        self.size - self.len
    }

    pub fn is_full(&self) -> bool {
        self.len == self.size
    }

    /// The hash it has, when that is not the one it must have.
    pub fn wrong_hash(&self) -> Option<String> {
        Some(self.hash.hex()).filter(|got| got != self.id.hex())
    }

    /// Goes back to what is proven. `false`: everything was, so nothing is kept.
    pub fn go_back(&mut self) -> io::Result<bool> {
        let doubted = self.doubt.take();
        let to = doubted.unwrap_or(0);
        let mut file = open(&self.path)?;
        file.set_len(to)?;
        let journaled = read_journal(&journal(&self.path), self.size)?;
        let (marks, _) = journaled.unwrap_or_default();
        self.marks = marks.into_iter().filter(|mark| mark.at <= to).collect();
        self.len = 0;
        self.hash = Hasher::new(&self.id, self.size);
        self.take_over(&mut file, to, &AtomicBool::new(false))?;
        self.write_journal()?;
        Ok(doubted.is_some())
    }

    /// On the disk for good, under its final name.
    pub fn finish(self, to: &Path) -> io::Result<()> {
        let file = open(&self.path)?;
        if file.metadata()?.len() != self.size {
            return Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "somebody else writes to this file",
            ));
        }
        // Without this a power cut after the renaming could leave an empty file under a name that promises its content.
        file.sync_all()?;
        std::fs::rename(&self.path, to)?;
        remove(&journal(&self.path))
    }

    /// Removes what turned out to be wrong.
    pub fn throw_away(self) -> io::Result<()> {
        discard(&self.path)
    }

    fn write_journal(&self) -> io::Result<()> {
        let mut text = format!("{FIRST_LINE} {}\n", self.size);
        for Mark { at, hash } in &self.marks {
            text += &format!("m {at} {hash}\n");
        }
        if let Some(doubt) = self.doubt {
            text += &format!("r {doubt}\n");
        }
        let path = journal(&self.path);
        let new = path.with_extension("journal-new");
        std::fs::write(&new, text)?;
        std::fs::rename(new, path)
    }
}

pub(crate) struct Writing {
    file: Arc<File>,
    unsynced: usize,
    /// One at a time; its error may be the only word of a write that failed late.
    syncing: Option<JoinHandle<io::Result<()>>>,
}

impl Writing {
    pub fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        (&*self.file).write_all(bytes)?;
        self.unsynced += bytes.len();
        let is_idle = self.syncing.as_ref().is_none_or(JoinHandle::is_finished);
        if self.unsynced >= SYNC_EVERY && is_idle {
            self.wait_sync()?;
            self.unsynced = 0;
            let file = Arc::clone(&self.file);
            self.syncing = Some(std::thread::spawn(move || file.sync_data()));
        }
        Ok(())
    }

    fn wait_sync(&mut self) -> io::Result<()> {
        self.syncing.take().map_or(Ok(()), |syncing| syncing.join().expect("a sync does not panic"))
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.wait_sync()
    }
}

pub(crate) struct Hashing {
    hash: Hasher,
    len: u64,
    next_mark: u64,
    mark_every: u64,
    journal: File,
}

impl Hashing {
    /// A mark may be in the journal before its bytes are in the file: opening drops marks past the file's end.
    pub fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let to_mark = usize::try_from(self.next_mark - self.len).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(to_mark.min(bytes.len()));
            self.hash.update(now);
            self.len += now.len() as u64;
            bytes = later;
            if self.len == self.next_mark {
                // One call, so that a line is there or is not; half a line is passed over on reading.
                let line = format!("m {} {}\n", self.len, self.hash.hex());
                self.journal.write_all(line.as_bytes())?;
                self.next_mark += self.mark_every;
            }
        }
        Ok(())
    }
}

/// Bytes of a partial file that is there.
pub(crate) fn bytes_there(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |m| m.len())
}

/// Removes a partial file and its journal.
pub(crate) fn discard(path: &Path) -> io::Result<()> {
    remove(path)?;
    remove(&journal(path).with_extension("journal-new"))?;
    remove(&journal(path))
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

pub(crate) fn journal(path: &Path) -> PathBuf {
    path.with_extension("incomplete.journal")
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Marks in rising order and the doubt. `None` when there is no journal for a file of this size, so that everything in
/// the file is unproven: another tool may have begun it.
fn read_journal(path: &Path, size: u64) -> io::Result<Option<(Vec<Mark>, Option<u64>)>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let text = String::from_utf8_lossy(&text);
    // The last piece has no line end: empty, or a line that was being written.
    let mut lines = text.split('\n').collect::<Vec<_>>();
    lines.pop();
    let mut lines = lines.into_iter();
    if lines.next() != Some(format!("{FIRST_LINE} {size}").as_str()) {
        return Ok(None);
    }
    let (mut marks, mut doubt) = (Vec::<Mark>::new(), None);
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["m", at, hash] => {
                let Ok(at) = at.parse() else { break };
                if marks.last().is_some_and(|last| last.at >= at) {
                    break;
                }
                marks.push(Mark { at, hash: hash.to_owned() });
            }
            ["r", at] => doubt = at.parse().ok(),
            _ => break,
        }
    }
    Ok(Some((marks, doubt)))
}

#[cfg(test)]
mod tests;
