//! A repository's folder in the hub cache, as other tools lay it out: `blobs/<content id>`,
//! `snapshots/<commit>/<file>` linked to them, `refs/<branch>` with a commit, and locks beside the repositories.
//!
//! A snapshot's links are made when every blob is there, `config.json` last: half a model is never taken for a whole.

use super::DownloadError;
use super::partial::bytes_there;
use crate::hub::{ContentId, Listing, RemoteFile, RepoId, check_path};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// What was asked for, kept while it is not there, so that the next start of the program goes on.
const PENDING: &str = "foretoken-pending.json";

/// Hashes of blobs that were found to hold something else, one a line.
const DAMAGED: &str = "foretoken-damaged";

#[derive(Debug, Clone)]
pub(crate) struct Place {
    root: PathBuf,
    locks: PathBuf,
}

/// A download that was begun and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    pub listing: Listing,
    /// Bytes on the disk.
    pub done: u64,
}

impl Pending {
    pub fn total(&self) -> u64 {
        self.listing.bytes()
    }
}

#[derive(Serialize, Deserialize)]
struct PendingFile {
    repo: String,
    revision: String,
    commit: String,
    files: Vec<RemoteFile>,
}

impl Place {
    pub fn new(cache: &Path, repo: &RepoId) -> Self {
        let folder = repo.folder();
        Self { root: cache.join(&folder), locks: cache.join(".locks").join(folder) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn locks(&self) -> &Path {
        &self.locks
    }

    pub fn prepare(&self) -> Result<(), DownloadError> {
        for folder in [&self.root.join("blobs"), &self.locks] {
            std::fs::create_dir_all(folder).map_err(|e| DownloadError::io(folder, e))?;
        }
        Ok(())
    }

    pub fn blob(&self, id: &ContentId) -> PathBuf {
        self.root.join("blobs").join(id.hex())
    }

    pub fn incomplete(&self, id: &ContentId) -> PathBuf {
        self.root.join("blobs").join(format!("{}.incomplete", id.hex()))
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// Whether a file is complete, as a blob or, where links cannot be made, in the snapshot itself.
    pub fn has(&self, file: &RemoteFile, commit: &str) -> bool {
        [self.blob(&file.id), self.snapshot(commit).join(&file.path)]
            .iter()
            .any(|path| std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == file.size))
    }

    /// Bytes of a file that need not be fetched any more.
    pub fn bytes_of(&self, file: &RemoteFile, commit: &str) -> u64 {
        match self.has(file, commit) {
            true => file.size,
            false => bytes_there(&self.incomplete(&file.id)).min(file.size),
        }
    }

    /// The lock the other tools take for the same blob; `None` while somebody has it. It goes with the file returned.
    pub fn lock(&self, id: &ContentId) -> Result<Option<File>, DownloadError> {
        try_lock(&self.locks.join(format!("{}.lock", id.hex())))
    }

    /// Makes the snapshot of files that are all there, then moves the branch to it.
    pub fn publish(&self, listing: &Listing) -> Result<PathBuf, DownloadError> {
        let (last, first): (Vec<_>, Vec<_>) =
            listing.files.iter().partition(|file| file.path == "config.json");
        let snapshot = self.snapshot(&listing.commit);
        for file in first.into_iter().chain(last) {
            let link = snapshot.join(&file.path);
            self.link(file, &link).map_err(|e| DownloadError::io(&link, e))?;
        }
        if listing.revision != listing.commit {
            let branch = self.root.join("refs").join(&listing.revision);
            write_whole(&branch, listing.commit.as_bytes())
                .map_err(|e| DownloadError::io(&branch, e))?;
        }
        let pending = self.root.join(PENDING);
        std::fs::remove_file(&pending)
            .or_else(gone_is_fine)
            .map_err(|e| DownloadError::io(&pending, e))?;
        Ok(snapshot)
    }

    fn link(&self, file: &RemoteFile, link: &Path) -> io::Result<()> {
        let blob = self.blob(&file.id);
        if !blob.is_file() && link.is_file() {
            return Ok(());
        }
        let folder = link.parent().expect("a file in the snapshot's folder");
        std::fs::create_dir_all(folder)?;
        let up = "../".repeat(file.path.matches('/').count() + 2);
        let target = PathBuf::from(format!("{up}blobs/{}", file.id.hex()));
        if std::fs::read_link(link).is_ok_and(|there| there == target) {
            return Ok(());
        }
        let new = folder.join(format!(".{}.new", file.id.hex()));
        std::fs::remove_file(&new).or_else(gone_is_fine)?;
        // A drive formatted for another system knows no links: there the file itself goes into the snapshot.
        std::os::unix::fs::symlink(&target, &new)
            .or_else(|_| std::fs::rename(&blob, &new))
            .and_then(|()| std::fs::rename(&new, link))
    }

    pub fn write_pending(&self, listing: &Listing) -> Result<(), DownloadError> {
        let file = PendingFile {
            repo: listing.repo.to_string(),
            revision: listing.revision.clone(),
            commit: listing.commit.clone(),
            files: listing.files.clone(),
        };
        let path = self.root.join(PENDING);
        let text = serde_json::to_vec(&file).expect("text and numbers are always JSON");
        write_whole(&path, &text).map_err(|e| DownloadError::io(&path, e))
    }

    pub fn forget_pending(&self) -> io::Result<()> {
        std::fs::remove_file(self.root.join(PENDING)).or_else(gone_is_fine)
    }

    pub fn damaged(&self) -> BTreeSet<String> {
        let text = std::fs::read_to_string(self.root.join(DAMAGED)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn write_damaged(&self, damaged: &BTreeSet<String>) -> io::Result<()> {
        let path = self.root.join(DAMAGED);
        match damaged.is_empty() {
            true => std::fs::remove_file(path).or_else(gone_is_fine),
            false => {
                let lines: Vec<_> = damaged.iter().map(String::as_str).collect();
                write_whole(&path, lines.join("\n").as_bytes())
            }
        }
    }

    /// Takes the name from a file that was found damaged: as an incomplete one it is hashed again, and fetched again when
    /// it is wrong.
    pub fn doubt(&self, file: &RemoteFile, commit: &str) -> io::Result<()> {
        let in_snapshot = self.snapshot(commit).join(&file.path);
        let there = [self.blob(&file.id), in_snapshot].into_iter().find(|path| path.is_file());
        let Some(there) = there else { return Ok(()) };
        let incomplete = self.incomplete(&file.id);
        super::partial::discard(&incomplete)?;
        std::fs::rename(there, incomplete)
    }

    /// `None` for what is not there or cannot be what this program wrote.
    pub fn pending(&self) -> Option<Pending> {
        let text = std::fs::read(self.root.join(PENDING)).ok()?;
        let file: PendingFile = serde_json::from_slice(&text).ok()?;
        let sound = |file: &RemoteFile| check_path(&file.path).is_ok() && file.id.is_valid();
        let commit_ok = ContentId::GitBlob(file.commit.clone()).is_valid();
        if !commit_ok || check_path(&file.revision).is_err() || !file.files.iter().all(sound) {
            return None;
        }
        let repo: RepoId = file.repo.parse().ok()?;
        let done = file.files.iter().map(|f| self.bytes_of(f, &file.commit)).sum();
        let PendingFile { revision, commit, files, .. } = file;
        Some(Pending { listing: Listing { repo, revision, commit, files }, done })
    }
}

/// Downloads in a hub cache that were begun and have not ended, by name.
pub fn pending(cache: &Path) -> Vec<Pending> {
    let folders = std::fs::read_dir(cache).into_iter().flatten().flatten();
    let mut out: Vec<_> = folders
        .filter_map(|folder| {
            let name = folder.file_name();
            let (owner, repo) = name.to_str()?.strip_prefix("models--")?.split_once("--")?;
            Place::new(cache, &RepoId::new(owner, repo).ok()?).pending()
        })
        .collect();
    out.sort_by(|a, b| a.listing.repo.cmp(&b.listing.repo));
    out
}

/// Bytes of a listing's files that are on the disk, those of incomplete files included.
pub fn bytes_here(cache: &Path, listing: &Listing) -> u64 {
    let place = Place::new(cache, &listing.repo);
    listing.files.iter().map(|file| place.bytes_of(file, &listing.commit)).sum()
}

pub(crate) fn try_lock(path: &Path) -> Result<Option<File>, DownloadError> {
    let io = |e| DownloadError::io(path, e);
    let file = File::options().create(true).append(true).open(path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(io(e)),
    }
}

/// Writes a small file so that it has its old content or its new one, never half of it.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file in a folder");
    std::fs::create_dir_all(folder)?;
    let name = path.file_name().expect("a file's name").to_string_lossy();
    let new = folder.join(format!(".{name}.{}.new", std::process::id()));
    std::fs::write(&new, content)?;
    std::fs::rename(new, path)
}

pub(super) fn gone_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
