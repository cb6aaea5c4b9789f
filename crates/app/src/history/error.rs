use rusqlite::ErrorCode;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Everything that can go wrong with the stored chats. One variant per thing a caller can act on.
#[derive(Debug, Error)]
pub enum HistoryError {
    #[error("there is no chat {chat_id}")]
    NoSuchChat { chat_id: i64 },
    #[error("there is no message {message_id}")]
    NoSuchMessage { message_id: i64 },
    /// Written by a later version of the app; left as it is.
    #[error("the chats were written by a newer version of the app (format {found}, known {known})")]
    NewerVersion { found: i64, known: i64 },
    /// The file is damaged or is no chat database. [`super::History::open`] handles this one itself.
    #[error("the chat database is damaged: {why}")]
    Corrupt { why: String },
    #[error("the chat database cannot be written")]
    ReadOnly(#[source] rusqlite::Error),
    #[error("the disk is full")]
    DiskFull(#[source] rusqlite::Error),
    /// Another program held the file for longer than the busy timeout.
    #[error("the chat database is in use by another program")]
    Busy(#[source] rusqlite::Error),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("the chat database failed")]
    Database(#[source] rusqlite::Error),
}

impl HistoryError {
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

impl From<rusqlite::Error> for HistoryError {
    fn from(e: rusqlite::Error) -> Self {
        match e.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                Self::Corrupt { why: e.to_string() }
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Self::ReadOnly(e),
            Some(ErrorCode::DiskFull) => Self::DiskFull(e),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy(e),
            _ => Self::Database(e),
        }
    }
}
