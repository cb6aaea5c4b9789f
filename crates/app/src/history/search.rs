//! Full-text search. The index splits words at spaces; scripts that write without spaces, and emoji, get an invisible
//! mark around each character, in the index and in the query alike, so that any part of a run is found.

use super::{History, HistoryError};
use foretoken_protocol::SearchHit;
use rusqlite::{Row, Transaction, params, types::ValueRef};
use std::collections::HashSet;

/// Zero width space: the tokenizer splits there, and nobody sees it.
const MARK: char = '\u{200b}';
/// Around matches in an excerpt, see [`SearchHit`].
const MATCH_MARKS: [char; 2] = ['\u{2}', '\u{3}'];
/// Words of a query beyond this are ignored.
const MAX_WORDS: usize = 32;
const MAX_QUERY_CHARS: usize = 1000;
/// Matching messages looked at, before they are gathered by chat.
const MAX_ROWS: i64 = 500;

impl History {
    /// Chats whose title or messages hold all words of the query, best first; the last word may be unfinished. Every
    /// input is text to look for, never an operator. An empty query finds nothing.
    pub fn search(&self, query: &str) -> Result<Vec<SearchHit>, HistoryError> {
        let Some(query) = fts_query(query) else { return Ok(Vec::new()) };
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT chats.id, chats.title, snippet(search, 0, char(2), char(3), '…', 32)
            FROM search JOIN chats ON chats.id = search.chat_id
            WHERE search MATCH ?1 ORDER BY rank, search.rowid DESC LIMIT ?2",
        )?;
        let hits = statement.query_map(params![query, MAX_ROWS], |row| {
            Ok(SearchHit {
                chat_id: row.get(0)?,
                title: indexed_text(row, 1)?,
                excerpt: indexed_text(row, 2)?.replace(MARK, ""),
            })
        })?;
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for hit in hits {
            let hit = hit?;
            if seen.insert(hit.chat_id) {
                found.push(hit);
            }
        }
        Ok(found)
    }
}

/// Replaces what is known under `rowid`: a message id, or minus the id of a chat for its title.
pub(super) fn index(
    tx: &Transaction,
    rowid: i64,
    chat_id: i64,
    text: &str,
) -> Result<(), HistoryError> {
    tx.prepare_cached("DELETE FROM search WHERE rowid = ?1")?.execute([rowid])?;
    if !text.is_empty() {
        let sql = "INSERT INTO search (rowid, body, chat_id) VALUES (?1, ?2, ?3)";
        tx.prepare_cached(sql)?.execute(params![rowid, segmented(text), chat_id])?;
    }
    Ok(())
}

/// A text column, damaged characters replaced.
pub(super) fn indexed_text(row: &Row, column: usize) -> rusqlite::Result<String> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    })
}

/// `None` = there is nothing to look for.
fn fts_query(query: &str) -> Option<String> {
    let query: String = query
        .chars()
        .take(MAX_QUERY_CHARS)
        .filter(|c| !matches!(c, '\0' | '\u{2}' | '\u{3}'))
        .collect();
    let phrases: Vec<String> = query
        .split_whitespace()
        .filter(|word| word.chars().any(|c| c.is_alphanumeric() || stands_alone(c)))
        .take(MAX_WORDS)
        .map(|word| format!("\"{}\"", segmented(word).replace('"', "\"\"")))
        .collect();
    (!phrases.is_empty()).then(|| format!("{}*", phrases.join(" ")))
}

fn segmented(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars().filter(|c| !MATCH_MARKS.contains(c) && *c != '\0') {
        if stands_alone(c) {
            out.extend([MARK, c, MARK]);
        } else {
            out.push(c);
        }
    }
    out
}

/// Characters that are words of their own: scripts without spaces between words, and symbols.
fn stands_alone(c: char) -> bool {
    matches!(u32::from(c),
        0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff // Thai, Lao, Burmese, Khmer
        | 0x2e80..=0x2fdf | 0x3005..=0x3007 | 0x3021..=0x30ff | 0x3100..=0x31ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff
        | 0xac00..=0xd7af | 0xf900..=0xfaff | 0xff66..=0xff9d | 0x20000..=0x3ffff // Chinese, Japanese, Korean
        | 0xa9 | 0xae | 0xb0 | 0x2100..=0x214f | 0x2190..=0x23ff | 0x2500..=0x27bf | 0x2900..=0x297f | 0x2b00..=0x2bff
        | 0x1f000..=0x1faff // symbols and emoji
    )
}
