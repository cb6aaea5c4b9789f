//! Chats on disk: one SQLite file, saved while a reply streams.
//!
//! Entry point: [`History::open`]. All methods may be called from any thread. A damaged file is set aside, never
//! overwritten. Does not: know the engine, the window, or which reply is running.

mod aside;
mod error;
mod messages;
mod rows;
mod schema;
mod search;

pub(crate) use aside::set_aside;
pub use error::HistoryError;

use foretoken_protocol::{Chat, ChatSummary, Notice};
use rows::{CHAT_COLUMNS, MESSAGE_COLUMNS, chat_summary, message};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// All chats of one file.
#[derive(Debug)]
pub struct History {
    connection: Mutex<Connection>,
}

impl History {
    /// Opens or makes the file, and its folder. Replies that were still running when the app ended are marked as
    /// interrupted. A file that is no chat database or is damaged is renamed to `<name>.corrupt-<UTC time>` and a new
    /// one is made; the notice then says where the old one is.
    ///
    /// Errors: [`HistoryError::NewerVersion`], [`HistoryError::ReadOnly`], [`HistoryError::DiskFull`],
    /// [`HistoryError::Busy`], [`HistoryError::Io`], [`HistoryError::Database`].
    pub fn open(path: &Path) -> Result<(Self, Option<Notice>), HistoryError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| HistoryError::io(folder, e))?;
        }
        let opened = if path.is_dir() {
            Err(HistoryError::Corrupt { why: "it is a folder".to_owned() })
        } else {
            schema::open(path)
        };
        let (connection, notice) = match opened {
            Ok(connection) => (connection, None),
            Err(HistoryError::Corrupt { why }) => {
                let new_place = set_aside(path).map_err(|e| HistoryError::io(path, e))?;
                let notice = Notice {
                    sentence: format!(
                        "Your chats could not be read, so a new list was started. The old file is kept at {}.",
                        new_place.display()
                    ),
                    detail: why,
                };
                (schema::open(path)?, Some(notice))
            }
            Err(e) => return Err(e),
        };
        let history = Self { connection: Mutex::new(connection) };
        history.write(messages::mark_interrupted)?;
        Ok((history, notice))
    }

    /// All chats, newest first.
    pub fn list(&self) -> Result<Vec<ChatSummary>, HistoryError> {
        let connection = self.lock();
        let sql = format!("SELECT {CHAT_COLUMNS} FROM chats ORDER BY updated_ms DESC, id DESC");
        let mut statement = connection.prepare_cached(&sql)?;
        Ok(statement.query_map([], chat_summary)?.collect::<Result<_, _>>()?)
    }

    /// A new, empty chat without a title.
    pub fn create(&self) -> Result<ChatSummary, HistoryError> {
        let now = now_ms();
        self.write(|tx| {
            tx.execute(
                "INSERT INTO chats (title, created_ms, updated_ms) VALUES ('', ?1, ?1)",
                [now],
            )?;
            Ok(ChatSummary { id: tx.last_insert_rowid(), title: String::new(), updated_ms: now })
        })
    }

    /// A chat with all its messages, oldest first.
    pub fn open_chat(&self, chat_id: i64) -> Result<Chat, HistoryError> {
        let mut connection = self.lock();
        // One transaction, so that both queries see the same state.
        let tx = connection.transaction()?;
        let summary = summary(&tx, chat_id)?;
        let sql = format!("SELECT {MESSAGE_COLUMNS} FROM messages WHERE chat_id = ?1 ORDER BY id");
        let messages =
            tx.prepare_cached(&sql)?.query_map([chat_id], message)?.collect::<Result<_, _>>()?;
        Ok(Chat { summary, messages })
    }

    /// White space around the title and line breaks in it are dropped. An empty title makes the chat unnamed again.
    pub fn rename(&self, chat_id: i64, title: &str) -> Result<ChatSummary, HistoryError> {
        let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
        self.write(|tx| {
            let title = if title.is_empty() {
                messages::title_from_first(tx, chat_id)?
            } else {
                title.clone()
            };
            messages::set_title(tx, chat_id, &title)?;
            summary(tx, chat_id)
        })
    }

    /// Deletes a chat with its messages.
    pub fn delete(&self, chat_id: i64) -> Result<(), HistoryError> {
        self.write(|tx| match tx.execute("DELETE FROM chats WHERE id = ?1", [chat_id])? {
            0 => Err(HistoryError::NoSuchChat { chat_id }),
            _ => Ok(()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic while the lock was held rolled its transaction back; the connection is as good as before.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of `work` or nothing. Takes the write lock at once, so that two apps on one file wait for each other.
    fn write<T>(
        &self,
        work: impl FnOnce(&Transaction) -> Result<T, HistoryError>,
    ) -> Result<T, HistoryError> {
        let mut connection = self.lock();
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let result = work(&tx)?;
        tx.commit()?;
        Ok(result)
    }
}

fn summary(tx: &Transaction, chat_id: i64) -> Result<ChatSummary, HistoryError> {
    let sql = format!("SELECT {CHAT_COLUMNS} FROM chats WHERE id = ?1");
    let found = tx.prepare_cached(&sql)?.query_row([chat_id], chat_summary).optional()?;
    found.ok_or(HistoryError::NoSuchChat { chat_id })
}

/// Unix milliseconds.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
