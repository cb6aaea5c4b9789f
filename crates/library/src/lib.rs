//! Where models are on disk, and how they get there: the starter, folders the person added, the hub cache that other
//! tools share, the hub itself.
//!
//! Entry points: [`Library::resolve`] (name to folder), [`Library::list`], [`catalogue()`], [`Hub`], [`Download`], [`HeadPlan`].
//! Does not: compute with weights, know Tauri, write to a folder it did not make.

pub mod card;
mod catalogue;
pub mod download;
mod hash;
mod head;
pub mod hub;
mod hub_cache;
mod lm_studio;

pub use catalogue::{HeadSource, Offer, Sampling, Support, catalogue};
pub use download::{Download, DownloadError};
pub use head::HeadPlan;
pub use hub::{Hub, HubError, RepoId, RepoRef};

use std::path::{Path, PathBuf};

/// Name of the model that comes with the app.
pub const STARTER: &str = "starter";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Starter,
    Folder,
    HubCache,
    LmStudio,
}

/// A model folder that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What `resolve` takes.
    pub id: String,
    pub name: String,
    pub source: Source,
    pub folder: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// It is not there now: a volume that is not mounted, or a folder that was moved.
    pub missing: bool,
    /// `owner/name` it is known to come from, by where it lies or by what its card says.
    pub repository: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    #[error("the starter model is not here")]
    NoStarter,
    #[error("there is no folder {}", folder.display())]
    NoFolder { folder: PathBuf },
    #[error("there is no model named {name:?}")]
    UnknownName { name: String },
}

/// The places to look in.
#[derive(Debug, Clone, Default)]
pub struct Library {
    pub starter: Option<PathBuf>,
    /// Folder of `models--owner--name` entries.
    pub hub_cache: PathBuf,
    pub folders: Vec<PathBuf>,
    /// Folders of LM Studio's `owner/name` entries.
    pub lm_studio: Vec<PathBuf>,
}

impl Library {
    /// `starter`, a folder, or `owner/name` from the hub cache.
    pub fn resolve(&self, id: &str) -> Result<PathBuf, LibraryError> {
        if id == STARTER {
            return self.starter.clone().ok_or(LibraryError::NoStarter);
        }
        let folder = Path::new(id);
        if folder.is_dir() {
            return Ok(folder.to_owned());
        }
        if let Some(folder) = hub_cache::snapshot(&self.hub_cache, id) {
            return Ok(folder);
        }
        let looks_like_path = folder.is_absolute()
            || id.starts_with('.')
            || id.starts_with('~')
            || id.matches('/').count() != 1;
        if looks_like_path && id.contains(std::path::MAIN_SEPARATOR) {
            return Err(LibraryError::NoFolder { folder: folder.to_owned() });
        }
        Err(LibraryError::UnknownName { name: id.to_owned() })
    }

    /// The starter first, then the person's folders, what the hub cache has and what LM Studio has.
    pub fn list(&self) -> Vec<Entry> {
        let mut out = Vec::new();
        if let Some(folder) = &self.starter {
            out.push(entry(
                STARTER.to_owned(),
                "SmolLM2 135M (starter)".to_owned(),
                Source::Starter,
                folder,
            ));
        }
        for folder in &self.folders {
            out.push(entry(
                folder.to_string_lossy().into_owned(),
                name_of(folder),
                Source::Folder,
                folder,
            ));
        }
        for (id, folder) in hub_cache::models(&self.hub_cache) {
            out.push(entry(id.clone(), id, Source::HubCache, &folder));
        }
        for (name, folder) in self.lm_studio.iter().flat_map(|root| lm_studio::models(root)) {
            // Somebody added it by hand as well.
            if !self.folders.contains(&folder) {
                let id = folder.to_string_lossy().into_owned();
                out.push(entry(id, name, Source::LmStudio, &folder));
            }
        }
        out
    }
}

/// A folder by the name a person knows it by: `owner/name` for a snapshot of the hub cache or a head that was fetched
/// alone, whose own names are commits.
pub fn name_of(folder: &Path) -> String {
    hub_cache::repo_of(folder).or_else(|| repo_of_head(folder)).unwrap_or_else(|| {
        folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
    })
}

/// Of `owner--name/<commit>`.
fn repo_of_head(folder: &Path) -> Option<String> {
    let commit = folder.file_name()?.to_str()?;
    let is_commit = commit.len() == 40 && commit.bytes().all(|c| c.is_ascii_hexdigit());
    let (owner, name) = folder.parent()?.file_name()?.to_str()?.split_once("--")?;
    is_commit.then(|| format!("{owner}/{name}"))
}

fn entry(id: String, name: String, source: Source, folder: &Path) -> Entry {
    let repository = match source {
        Source::Starter => None,
        Source::HubCache | Source::LmStudio => Some(name.clone()),
        Source::Folder => repository_of(folder),
    };
    let missing = !folder.is_dir();
    Entry {
        id,
        name,
        source,
        folder: folder.to_owned(),
        bytes: bytes_of(folder),
        missing,
        repository,
    }
}

/// Symbolic links of the hub cache are followed: what they point to is what the model takes. `._*` files, which macOS
/// leaves on other file systems, are no part of a model.
fn bytes_of(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .filter(|file| !file.file_name().to_string_lossy().starts_with("._"))
        .filter_map(|file| std::fs::metadata(file.path()).ok())
        .filter(|m| m.is_file())
        .map(|m| m.len())
        .sum()
}

fn repository_of(folder: &Path) -> Option<String> {
    let named = || {
        let readme = std::fs::read_to_string(folder.join("README.md")).ok()?;
        card::own_name(&readme).map(|id| id.to_string())
    };
    hub_cache::repo_of(folder).or_else(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_starter_folders_and_the_hub_cache() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let repo = dir.path().join("models--acme--tiny");
        std::fs::create_dir_all(repo.join("snapshots/abc")).expect("makes folders");
        std::fs::create_dir_all(repo.join("refs")).expect("makes folders");
        std::fs::write(repo.join("refs/main"), "abc").expect("writes");
        std::fs::write(repo.join("snapshots/abc/config.json"), "{}").expect("writes");
        let library = Library {
            starter: Some(dir.path().join("s")),
            hub_cache: dir.path().to_owned(),
            folders: vec![dir.path().join("gone")],
            lm_studio: vec![dir.path().join("lm"), dir.path().join("none")],
        };
        let lm = dir.path().join("lm/acme/small");
        std::fs::create_dir_all(&lm).expect("makes folders");
        std::fs::write(lm.join("config.json"), "{}").expect("writes");
        std::fs::write(lm.join("._config.json"), "AppleDouble").expect("writes");
        std::fs::create_dir_all(dir.path().join("lm/acme/gguf-only")).expect("makes folders");
        assert_eq!(library.resolve(STARTER), Ok(dir.path().join("s")));
        assert_eq!(library.resolve("acme/tiny"), Ok(repo.join("snapshots/abc")));
        assert_eq!(library.resolve(&dir.path().to_string_lossy()), Ok(dir.path().to_owned()));
        assert!(matches!(library.resolve("/no/such/place"), Err(LibraryError::NoFolder { .. })));
        assert!(matches!(library.resolve("acme/other"), Err(LibraryError::UnknownName { .. })));
        assert!(matches!(
            library.resolve("../etc"),
            Err(LibraryError::NoFolder { .. } | LibraryError::UnknownName { .. })
        ));
        assert_eq!(name_of(&repo.join("snapshots/abc")), "acme/tiny");
        let head = format!("heads/acme--tiny/{}", "ab".repeat(20));
        assert_eq!(name_of(Path::new(&head)), "acme/tiny");
        assert_eq!(name_of(Path::new("heads/acme--tiny/abab")), "abab");
        assert_eq!(name_of(Path::new("models/tiny")), "tiny");
        assert_eq!(name_of(Path::new("/")), "/");
        let list = library.list();
        let known: Vec<_> =
            list.iter().map(|e| (e.name.as_str(), e.missing, e.repository.as_deref())).collect();
        let expected = [
            ("SmolLM2 135M (starter)", true, None),
            ("gone", true, None),
            ("acme/tiny", false, Some("acme/tiny")),
            ("acme/small", false, Some("acme/small")),
        ];
        assert_eq!(known, expected);
        assert_eq!((list[3].bytes, library.resolve(&list[3].id)), (2, Ok(lm)));
    }
}
