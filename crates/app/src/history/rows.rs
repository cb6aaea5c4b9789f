//! Rows to the protocol's structures. Text that is damaged costs its own characters, not the chat.

use foretoken_protocol::{ChatSummary, FinishReason, Message, Role};
use rusqlite::Row;
use rusqlite::types::ValueRef;
use serde::Serialize;
use serde_json::Value;

/// What [`chat_summary`] reads.
pub(super) const CHAT_COLUMNS: &str = "id, title, updated_ms";
/// What [`message`] reads.
pub(super) const MESSAGE_COLUMNS: &str =
    "id, role, text, thought, created_ms, finish, stats, model";

pub(super) fn chat_summary(row: &Row) -> rusqlite::Result<ChatSummary> {
    Ok(ChatSummary {
        id: row.get(0)?,
        title: text(row, 1)?.unwrap_or_default(),
        updated_ms: row.get(2)?,
    })
}

pub(super) fn message(row: &Row) -> rusqlite::Result<Message> {
    let role = match text(row, 1)?.as_deref() {
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        _ => Role::User,
    };
    // A reason from a later version still means that the reply is over.
    let finish = text(row, 5)?.map(|word| {
        serde_json::from_value(Value::String(word)).unwrap_or(FinishReason::Interrupted)
    });
    Ok(Message {
        id: row.get(0)?,
        role,
        text: text(row, 2)?.unwrap_or_default(),
        thought: text(row, 3)?,
        created_ms: row.get(4)?,
        finish,
        stats: text(row, 6)?.and_then(|json| serde_json::from_str(&json).ok()),
        model: text(row, 7)?,
    })
}

/// The word an enum has on the wire, which is also what the file stores.
pub(super) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

fn text(row: &Row, column: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
        _ => None,
    })
}
