//! Freeing what a download put on the disk. Says how much, and does nothing while another program fetches.

use super::DownloadError;
use super::place::{Place, gone_is_fine, try_lock};
use crate::hub::RepoId;
use std::fs::File;
use std::path::Path;

/// Removes what is incomplete of a repository; complete files stay. Bytes freed.
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
    place.forget_pending().map_err(|e| DownloadError::io(place.root(), e))?;
    Ok(freed)
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
