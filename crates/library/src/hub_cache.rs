//! The hub cache's layout: `models--owner--name/{refs/main, snapshots/<commit>/...}`.

use std::path::{Path, PathBuf};

/// The newest snapshot of `owner/name`, if that is what `id` is and it is there.
pub(super) fn snapshot(cache: &Path, id: &str) -> Option<PathBuf> {
    let (owner, name) = id.split_once('/')?;
    let plain = |s: &str| !s.is_empty() && !s.contains(['/', '\\']) && s != "." && s != "..";
    if !plain(owner) || !plain(name) {
        return None;
    }
    of_repo(&cache.join(format!("models--{owner}--{name}")))
}

fn of_repo(repo: &Path) -> Option<PathBuf> {
    let snapshots = repo.join("snapshots");
    if let Ok(commit) = std::fs::read_to_string(repo.join("refs/main")) {
        let folder = snapshots.join(commit.trim());
        // A commit is one path element; anything else is not ours to follow.
        if Path::new(commit.trim()).file_name().is_some_and(|n| n == commit.trim())
            && folder.is_dir()
        {
            return Some(folder);
        }
    }
    // Fetched by commit only: any snapshot is better than none.
    std::fs::read_dir(snapshots).ok()?.flatten().map(|e| e.path()).find(|p| p.is_dir())
}

/// `owner/name` of a snapshot's folder.
pub(super) fn repo_of(snapshot: &Path) -> Option<String> {
    let snapshots = snapshot.parent().filter(|parent| parent.ends_with("snapshots"))?;
    id_of(snapshots.parent()?.file_name()?.to_str()?)
}

fn id_of(repo: &str) -> Option<String> {
    Some(repo.strip_prefix("models--")?.replacen("--", "/", 1))
}

/// All models with a configuration, by `owner/name`.
pub(super) fn models(cache: &Path) -> Vec<(String, PathBuf)> {
    let mut out: Vec<_> = std::fs::read_dir(cache)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let id = id_of(entry.file_name().to_str()?)?;
            let folder = of_repo(&entry.path())?;
            folder.join("config.json").is_file().then_some((id, folder))
        })
        .collect();
    out.sort();
    out
}
