use crate::{GenerationOptions, LiveStats, ReplyStats, WireError};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its turn.
    Stop,
    /// `max_tokens` was reached.
    Length,
    /// The context is full.
    ContextFull,
    /// The person stopped it.
    Stopped,
    /// The app ended while the reply ran; the text is saved up to there.
    Interrupted,
    /// The engine failed; the text is saved up to there.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Message {
    #[cfg_attr(test, ts(type = "number"))]
    pub id: i64,
    pub role: Role,
    pub text: String,
    /// Reasoning text of a thinking model, apart from the answer.
    pub thought: Option<String>,
    /// Unix milliseconds.
    #[cfg_attr(test, ts(type = "number"))]
    pub created_ms: i64,
    /// Assistant messages only; `None` while the reply runs.
    pub finish: Option<FinishReason>,
    pub stats: Option<ReplyStats>,
    /// Display name of the model that wrote it.
    pub model: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct ChatSummary {
    #[cfg_attr(test, ts(type = "number"))]
    pub id: i64,
    /// First words of the first message until the person names it; empty for a new chat.
    pub title: String,
    /// Unix milliseconds of the newest message.
    #[cfg_attr(test, ts(type = "number"))]
    pub updated_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Chat {
    pub summary: ChatSummary,
    pub messages: Vec<Message>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct ChatRef {
    #[cfg_attr(test, ts(type = "number"))]
    pub chat_id: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct RenameChat {
    #[cfg_attr(test, ts(type = "number"))]
    pub chat_id: i64,
    pub title: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Search {
    pub query: String,
}

/// A chat whose messages match; `excerpt` is plain text, matches between U+0002 and U+0003.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct SearchHit {
    #[cfg_attr(test, ts(type = "number"))]
    pub chat_id: i64,
    pub title: String,
    pub excerpt: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct SendMessage {
    #[cfg_attr(test, ts(type = "number"))]
    pub chat_id: i64,
    pub text: String,
    pub options: GenerationOptions,
}

/// The stream of one reply. Always ends with `finished` or `failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ChatEvent {
    /// The messages are stored; `user` is `None` for a retry.
    Accepted {
        user: Option<Message>,
        reply: Message,
        title: String,
    },
    /// Reading the prompt; `done` includes `reused`. Tokens.
    Prefill {
        done: u32,
        total: u32,
        reused: u32,
    },
    /// Committed text to append (either may be empty), with the numbers after it.
    Step {
        text: String,
        thought: String,
        live: LiveStats,
    },
    Finished {
        reason: FinishReason,
        stats: ReplyStats,
        live: Option<LiveStats>,
    },
    /// What was committed before stays.
    Failed {
        error: WireError,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct RetryMessage {
    #[cfg_attr(test, ts(type = "number"))]
    pub chat_id: i64,
    #[cfg_attr(test, ts(type = "number"))]
    pub message_id: i64,
    pub options: GenerationOptions,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct OpenLink {
    pub url: String,
}
