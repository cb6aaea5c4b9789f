use super::HistoryError;
use rusqlite::{Connection, TransactionBehavior};
use std::path::Path;
use std::time::Duration;

/// Step `i` brings a file from `user_version` i to i + 1. Published steps are never changed, only added to.
const STEPS: [&str; 1] = [
    // `search` holds messages under their id and titles under the negative id of their chat, with marks between
    // letters of scripts without spaces (see search.rs), which is why it is filled by code and not by triggers.
    "CREATE TABLE chats (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        title TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL
    );
    CREATE INDEX chats_by_time ON chats (updated_ms DESC, id DESC);
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        chat_id INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
        text TEXT NOT NULL,
        thought TEXT,
        created_ms INTEGER NOT NULL,
        finish TEXT,
        stats TEXT,
        model TEXT
    );
    CREATE INDEX messages_by_chat ON messages (chat_id, id);
    CREATE INDEX messages_running ON messages (id) WHERE role = 'assistant' AND finish IS NULL;
    CREATE VIRTUAL TABLE search USING fts5 (
        body, chat_id UNINDEXED,
        tokenize = \"unicode61 remove_diacritics 2 categories 'L* N* Co So'\"
    );
    CREATE TRIGGER messages_gone AFTER DELETE ON messages BEGIN
        DELETE FROM search WHERE rowid = old.id;
    END;
    CREATE TRIGGER chats_gone AFTER DELETE ON chats BEGIN
        DELETE FROM search WHERE rowid = -old.id;
    END;",
];
const TABLES: [&str; 3] = ["chats", "messages", "search"];

/// How long one program waits for another that is writing.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A checked connection at the newest version. [`HistoryError::Corrupt`] = the file should be set aside.
pub(super) fn open(path: &Path) -> Result<Connection, HistoryError> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    check_version(version(&connection)?)?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    let answer: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if answer != "ok" {
        return Err(HistoryError::Corrupt { why: answer });
    }
    migrate(&mut connection)?;
    for table in TABLES {
        if !has_table(&connection, table)? {
            return Err(HistoryError::Corrupt { why: format!("the table {table} is missing") });
        }
    }
    Ok(connection)
}

fn migrate(connection: &mut Connection) -> Result<(), HistoryError> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Read under the write lock: another app may have just migrated.
    let found = version(&tx)?;
    let first = check_version(found)?;
    let n_tables: i64 = tx.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if found == 0 && n_tables > 0 {
        return Err(HistoryError::Corrupt { why: "it is a database of another program".into() });
    }
    for (step, sql) in STEPS.iter().enumerate().skip(first) {
        tx.execute_batch(sql)?;
        tx.pragma_update(None, "user_version", step as i64 + 1)?;
    }
    Ok(tx.commit()?)
}

fn version(connection: &Connection) -> Result<i64, HistoryError> {
    Ok(connection.query_row("PRAGMA user_version", [], |row| row.get(0))?)
}

/// The first step to take.
fn check_version(found: i64) -> Result<usize, HistoryError> {
    let known = STEPS.len() as i64;
    match usize::try_from(found) {
        Ok(step) if step <= STEPS.len() => Ok(step),
        Ok(_) => Err(HistoryError::NewerVersion { found, known }),
        Err(_) => Err(HistoryError::Corrupt { why: format!("its format number is {found}") }),
    }
}

fn has_table(connection: &Connection, name: &str) -> Result<bool, HistoryError> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    Ok(connection.query_row(sql, [name], |row| row.get::<_, i64>(0))? > 0)
}
