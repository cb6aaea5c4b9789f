//! A model on the disk, hashed against the hub's list: for a folder from elsewhere, and for a doubt.

use super::DownloadError;
use super::place::{Place, gone_is_fine};
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

/// Removes blobs that a check found to differ, so that the next download fetches them; the rest stays.
pub fn drop_damaged(
    cache: &Path,
    listing: &Listing,
    checked: &[(RemoteFile, FileCheck)],
) -> Result<(), DownloadError> {
    let place = Place::new(cache, &listing.repo);
    for (file, _) in checked.iter().filter(|(_, found)| *found == FileCheck::Differs) {
        for path in [place.blob(&file.id), place.snapshot(&listing.commit).join(&file.path)] {
            std::fs::remove_file(&path)
                .or_else(gone_is_fine)
                .map_err(|e| DownloadError::io(&path, e))?;
        }
    }
    Ok(())
}
