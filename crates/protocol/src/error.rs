use serde::{Deserialize, Serialize};

/// What the window or a script reacts to. A code exists only if somebody acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The named model, folder, file, chat or message does not exist.
    NotFound,
    /// A file is there but cannot be what it claims: truncated, wrong format, lying header.
    Corrupt,
    /// A tensor the trunk needs is absent.
    MissingTensor,
    /// A tensor has another shape than the configuration asks for.
    ShapeMismatch,
    /// `model_type`, quantisation or an option of the configuration that this version does not run.
    Unsupported,
    /// The chat template or the tokenizer of the model failed.
    Template,
    /// The prompt does not fit the model's context.
    ContextFull,
    /// A number or word the person gave is out of range.
    InvalidOption,
    /// No model is loaded, and the request needs one.
    NoModel,
    /// Another reply is being generated.
    Busy,
    /// More memory is needed than this machine has free.
    OutOfMemory,
    /// Reading or writing the disk failed.
    Disk,
    /// Too little free space for what was asked.
    DiskFull,
    /// The hub cannot be reached.
    Offline,
    /// The model's terms have to be accepted on its page first.
    Gated,
    /// The repository is private or not there, or the token may not read it: a token may help.
    TokenNeeded,
    /// The hub does not know the token any more.
    TokenStale,
    /// The hub asks for fewer requests.
    RateLimited,
    /// The hub or something before it answered what it should not.
    Hub,
    /// A defect of ours; the detail belongs in a report.
    Internal,
}

/// An error at the door: `message` is a sentence for a person that ends with the next step, `detail` the chain of causes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct WireError {
    pub code: ErrorCode,
    pub message: String,
    pub detail: String,
}
