//! Freeing what a download put on the disk. Says how much, and does nothing while another program fetches.

use super::DownloadError;
use super::place::{Place, gone_is_fine, try_lock};
use crate::hub::RepoId;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

/// Takes a download that was begun off the list of [`super::pending`]; its bytes stay.
pub fn forget(cache: &Path, repo: &RepoId) -> Result<(), DownloadError> {
    let place = Place::new(cache, repo);
    place.forget_pending().map_err(|e| DownloadError::io(place.root(), e))
}

/// Removes what is incomplete of a repository, and the files of an unfinished download that are complete but belong to no
/// snapshot; what a snapshot has stays. Bytes freed.
pub fn discard(cache: &Path, repo: &RepoId) -> Result<u64, DownloadError> {
    let place = Place::new(cache, repo);
    let _locks = lock_all(&place, repo)?;
    let mut freed = 0;
    let blobs = place.root().join("blobs");
    for entry in std::fs::read_dir(&blobs).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "incomplete") {
            freed += entry.metadata().map_or(0, |m| m.len());
            super::partial::discard(&path).map_err(|e| DownloadError::io(&path, e))?;
        }
    }
    let unfinished = place.pending().map(|pending| pending.listing.files).unwrap_or_default();
    let linked = linked_blobs(&place.root().join("snapshots"));
    for file in unfinished.iter().filter(|file| !linked.contains(file.id.hex())) {
        let blob = place.blob(&file.id);
        let bytes = blob.metadata().map_or(0, |m| m.len());
        std::fs::remove_file(&blob)
            .or_else(gone_is_fine)
            .map_err(|e| DownloadError::io(&blob, e))?;
        freed += bytes;
    }
    place.forget_pending().map_err(|e| DownloadError::io(place.root(), e))?;
    Ok(freed)
}

/// Names of the blobs that links below `folder` lead to.
fn linked_blobs(folder: &Path) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.read_link() {
            Ok(target) => {
                out.extend(target.file_name().map(|name| name.to_string_lossy().into_owned()));
            }
            Err(_) if path.is_dir() => out.extend(linked_blobs(&path)),
            Err(_) => {}
        }
    }
    out
}

/// Bytes [`delete`] would free.
pub fn size(cache: &Path, repo: &RepoId) -> u64 {
    bytes_in(Place::new(cache, repo).root())
}

/// Removes a repository from the cache, every revision of it. Bytes freed: a blob that two revisions share counts once.
pub fn delete(cache: &Path, repo: &RepoId) -> Result<u64, DownloadError> {
    let place = Place::new(cache, repo);
    let _locks = lock_all(&place, repo)?;
    let freed = bytes_in(place.root());
    for folder in [place.root(), place.locks()] {
        std::fs::remove_dir_all(folder)
            .or_else(gone_is_fine)
            .map_err(|e| DownloadError::io(folder, e))?;
    }
    Ok(freed)
}

fn lock_all(place: &Place, repo: &RepoId) -> Result<Vec<File>, DownloadError> {
    let entries = std::fs::read_dir(place.locks()).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            try_lock(&entry.path())?.ok_or_else(|| DownloadError::Busy { repo: repo.clone() })
        })
        .collect()
}

/// Links are not followed: what they lead to is counted where it lies.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let meta = entry.path().symlink_metadata().ok()?;
            Some(match meta.is_dir() {
                true => bytes_in(&entry.path()),
                false if meta.is_symlink() => 0,
                false => meta.len(),
            })
        })
        .sum()
}
