//! Writing messages, and the titles that come from them.

use super::rows::{MESSAGE_COLUMNS, message, word};
use super::search::{index, indexed_text};
use super::{History, HistoryError, summary};
use foretoken_protocol::{FinishReason, Message, ReplyStats, Role};
use rusqlite::{OptionalExtension, Transaction, params};

/// Longest title made from a message, in characters.
const MAX_TITLE_CHARS: usize = 60;

impl History {
    /// Stores what the person wrote, and names the chat after it while it has no name. `now`: Unix milliseconds.
    pub fn add_user(&self, chat_id: i64, text: &str, now: i64) -> Result<Message, HistoryError> {
        self.write(|tx| {
            let is_unnamed = summary(tx, chat_id)?.title.is_empty();
            let message = insert(tx, chat_id, Role::User, text, None, now)?;
            index(tx, message.id, chat_id, text)?;
            if is_unnamed {
                set_title(tx, chat_id, &title_of(text))?;
            }
            Ok(message)
        })
    }

    /// Stores an empty, running reply (`finish` is `None`). `model`: its display name.
    pub fn begin_reply(
        &self,
        chat_id: i64,
        model: &str,
        now: i64,
    ) -> Result<Message, HistoryError> {
        self.write(|tx| {
            summary(tx, chat_id)?;
            insert(tx, chat_id, Role::Assistant, "", Some(model), now)
        })
    }

    /// Saves a running reply; what was saved is what a crash leaves.
    pub fn save_progress(
        &self,
        message_id: i64,
        text: &str,
        thought: Option<&str>,
    ) -> Result<(), HistoryError> {
        self.write(|tx| {
            // A second app that opened the file meanwhile may have marked the reply as interrupted.
            let sql = "UPDATE messages SET text = ?2, thought = ?3
                WHERE id = ?1 AND role = 'assistant' AND (finish IS NULL OR finish = 'interrupted')";
            match tx.execute(sql, params![message_id, text, thought])? {
                0 => Err(HistoryError::NoSuchMessage { message_id }),
                _ => Ok(()),
            }
        })
    }

    /// Ends a reply and makes it searchable.
    pub fn finish_reply(
        &self,
        message_id: i64,
        text: &str,
        thought: Option<&str>,
        reason: FinishReason,
        stats: Option<&ReplyStats>,
    ) -> Result<(), HistoryError> {
        // Numbers that json cannot hold are left out rather than losing the text.
        let stats = stats.and_then(|stats| serde_json::to_string(stats).ok());
        self.write(|tx| {
            let sql = "UPDATE messages SET text = ?2, thought = ?3, finish = ?4, stats = ?5
                WHERE id = ?1 AND role = 'assistant' RETURNING chat_id";
            let values = params![message_id, text, thought, word(&reason), stats];
            let chat_id = tx.query_row(sql, values, |row| row.get(0)).optional()?;
            index(tx, message_id, chat_id.ok_or(HistoryError::NoSuchMessage { message_id })?, text)
        })
    }

    /// Deletes a reply of a chat and all after it, to write them again.
    pub fn truncate_from(&self, chat_id: i64, message_id: i64) -> Result<(), HistoryError> {
        self.write(|tx| {
            let sql = "SELECT count(*) FROM messages WHERE id = ?1 AND chat_id = ?2 AND role = 'assistant'";
            let found: i64 = tx.query_row(sql, [message_id, chat_id], |row| row.get(0))?;
            if found == 0 {
                return Err(HistoryError::NoSuchMessage { message_id });
            }
            tx.execute("DELETE FROM messages WHERE chat_id = ?1 AND id >= ?2", [chat_id, message_id])?;
            let sql = "UPDATE chats SET updated_ms =
                coalesce((SELECT max(created_ms) FROM messages WHERE chat_id = ?1), updated_ms) WHERE id = ?1";
            tx.execute(sql, [chat_id])?;
            Ok(())
        })
    }
}

fn insert(
    tx: &Transaction,
    chat_id: i64,
    role: Role,
    text: &str,
    model: Option<&str>,
    now: i64,
) -> Result<Message, HistoryError> {
    let sql = format!(
        "INSERT INTO messages (chat_id, role, text, model, created_ms) VALUES (?1, ?2, ?3, ?4, ?5)
        RETURNING {MESSAGE_COLUMNS}"
    );
    let stored = tx.query_row(&sql, params![chat_id, word(&role), text, model, now], message)?;
    tx.execute("UPDATE chats SET updated_ms = ?2 WHERE id = ?1", [chat_id, now])?;
    Ok(stored)
}

/// Replies without an end belong to an app that is gone.
pub(super) fn mark_interrupted(tx: &Transaction) -> Result<(), HistoryError> {
    let sql = "UPDATE messages SET finish = ?1 WHERE role = 'assistant' AND finish IS NULL RETURNING id, chat_id, text";
    let reason = word(&FinishReason::Interrupted);
    let mut statement = tx.prepare(sql)?;
    let ended = statement
        .query_map([reason], |row| Ok((row.get(0)?, row.get(1)?, indexed_text(row, 2)?)))?;
    let ended: Vec<(i64, i64, String)> = ended.collect::<Result<_, _>>()?;
    ended.iter().try_for_each(|(id, chat_id, text)| index(tx, *id, *chat_id, text))
}

pub(super) fn set_title(tx: &Transaction, chat_id: i64, title: &str) -> Result<(), HistoryError> {
    match tx.execute("UPDATE chats SET title = ?2 WHERE id = ?1", params![chat_id, title])? {
        0 => Err(HistoryError::NoSuchChat { chat_id }),
        _ => index(tx, -chat_id, chat_id, title),
    }
}

/// The title a chat has when the person gives none.
pub(super) fn title_from_first(tx: &Transaction, chat_id: i64) -> Result<String, HistoryError> {
    let sql = "SELECT text FROM messages WHERE chat_id = ?1 AND role = 'user' ORDER BY id LIMIT 1";
    let first = tx.query_row(sql, [chat_id], |row| indexed_text(row, 0)).optional()?;
    Ok(first.map(|text| title_of(&text)).unwrap_or_default())
}

/// The first words of a text; a first word that is too long is cut.
fn title_of(text: &str) -> String {
    let mut title = String::new();
    let mut n_chars = 0;
    for word in text.split_whitespace() {
        let n_word = word.chars().count() + usize::from(n_chars > 0);
        if n_chars + n_word > MAX_TITLE_CHARS {
            break;
        }
        if n_chars > 0 {
            title.push(' ');
        }
        title.push_str(word);
        n_chars += n_word;
    }
    if title.is_empty() {
        let first = text.split_whitespace().next().unwrap_or_default();
        title = first.chars().take(MAX_TITLE_CHARS).collect();
    }
    // A joiner at the end would join with whatever is shown after the title.
    title.trim_end_matches('\u{200d}').to_owned()
}

#[cfg(test)]
mod tests {
    use super::title_of;

    #[test]
    fn titles_end_on_a_word() {
        assert_eq!(title_of("  Hello,\n\n world  "), "Hello, world");
        assert_eq!(
            title_of(&"word ".repeat(40)),
            "word ".repeat(12).trim_end(),
            "12 words are 59 characters"
        );
        assert_eq!(title_of(&"字".repeat(100)).chars().count(), 60);
        assert_eq!(title_of(" \n "), "");
    }
}
