//! What can end a download, besides having it all.

use crate::hub::{HubError, RepoId};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error(transparent)]
    Hub(#[from] HubError),
    /// Found before the first byte.
    #[error("{need} bytes are needed in {}, and {free} are free", folder.display())]
    NotEnoughDisk { folder: PathBuf, need: u64, free: u64 },
    /// Something else took the space meanwhile.
    #[error("the disk is full at {}", path.display())]
    DiskFull { path: PathBuf },
    #[error("{} cannot be written to", path.display())]
    ReadOnly { path: PathBuf },
    /// Fetched twice, and both times not what the hub says it is.
    #[error("{file} arrives damaged: its hash is {got} instead of {want}")]
    WrongBytes { file: String, want: String, got: String },
    #[error("another program is fetching {repo}")]
    Busy { repo: RepoId },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: Error },
}

impl DownloadError {
    pub(crate) fn io(path: &Path, source: Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::DiskFull { path },
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            _ => Self::Io { path, source },
        }
    }
}
