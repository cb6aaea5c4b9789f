//! A model on the disk, hashed against the hub's list: for a folder from elsewhere, and for a doubt.

use super::DownloadError;
use super::place::Place;
use crate::hash::Hasher;
use crate::hub::{Listing, RemoteFile};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileCheck {
    Good,
    Missing,
    /// Another size or hash than the hub has.
    Differs,
}

/// Hashes what `folder` has of the listing's files; what else it has (`._*` files of another system, notes) is not looked
/// at. `progress` gets the bytes read so far. `None` when `stop` was raised.
pub fn check(
    folder: &Path,
    listing: &Listing,
    stop: &AtomicBool,
    mut progress: impl FnMut(u64),
) -> Result<Option<Vec<(RemoteFile, FileCheck)>>, DownloadError> {
    let mut out = Vec::with_capacity(listing.files.len());
    let mut before = 0;
    for file in &listing.files {
        let path = folder.join(&file.path);
        let hash = hash(&path, file, stop, |read| progress(before + read))
            .map_err(|e| DownloadError::io(&path, e))?;
        let found = match hash {
            Hash::Stopped => return Ok(None),
            Hash::Missing => FileCheck::Missing,
            Hash::Is(hex) if hex == file.id.hex() => FileCheck::Good,
            Hash::Is(_) | Hash::OtherSize => FileCheck::Differs,
        };
        before += file.size;
        progress(before);
        out.push((file.clone(), found));
    }
    Ok(Some(out))
}

enum Hash {
    Is(String),
    OtherSize,
    Missing,
    Stopped,
}

fn hash(
    path: &Path,
    file: &RemoteFile,
    stop: &AtomicBool,
    mut progress: impl FnMut(u64),
) -> std::io::Result<Hash> {
    let mut open = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Hash::Missing),
        open => open?,
    };
    if open.metadata()?.len() != file.size {
        return Ok(Hash::OtherSize);
    }
    let mut hash = Hasher::new(&file.id, file.size);
    let mut block = vec![0; BLOCK];
    let mut read = 0;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ok(Hash::Stopped);
        }
        let n = open.read(&mut block)?;
        if n == 0 {
            return Ok(Hash::Is(hash.hex()));
        }
        hash.update(&block[..n]);
        read += n as u64;
        progress(read);
    }
}

/// Notes which files a check found to differ, and forgets of which it was noted and is not so any more. Nothing is
/// deleted: the next download looks at them again, and fetches those that are wrong.
pub fn note_damaged(
    cache: &Path,
    listing: &Listing,
    checked: &[(RemoteFile, FileCheck)],
) -> Result<(), DownloadError> {
    let place = Place::new(cache, &listing.repo);
    let mut damaged = place.damaged();
    for (file, found) in checked {
        match found {
            FileCheck::Differs => damaged.insert(file.id.hex().to_owned()),
            _ => damaged.remove(file.id.hex()),
        };
    }
    place.write_damaged(&damaged).map_err(|e| DownloadError::io(place.root(), e))
}
