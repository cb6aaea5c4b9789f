use crate::text::TextError;
use std::path::PathBuf;

pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// Everything that can go wrong below the door, one variant per thing a caller can act on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("there is no folder {}", folder.display())]
    FolderMissing { folder: PathBuf },
    #[error("{} is missing", file.display())]
    FileMissing { file: PathBuf },
    #[error("{} names the shard {shard}, which is not there", index.display())]
    ShardMissing { index: PathBuf, shard: String },
    #[error("{} cannot be read: {why}", file.display())]
    Corrupt { file: PathBuf, why: String },
    #[error("the tensor {name} is missing from {}", folder.display())]
    MissingTensor { name: String, folder: PathBuf },
    #[error("the tensor {name} should be {want:?} and is {got:?}")]
    ShapeMismatch { name: String, want: Vec<usize>, got: Vec<usize> },
    #[error("the model type {model_type:?} is not supported")]
    UnsupportedModel { model_type: String },
    #[error("{key} = {value} is not supported")]
    UnsupportedConfig { key: String, value: String },
    #[error("the tensor {name} is stored as {format}, which is not supported")]
    UnsupportedFormat { name: String, format: String },
    #[error("the MTP head is incomplete: {} missing", missing.join(", "))]
    HeadIncomplete { missing: Vec<String> },
    /// A head from another folder was made for another trunk: `key` of both configurations.
    #[error("{key} of the MTP head is {head} and that of the model is {trunk}")]
    HeadMismatch { key: &'static str, head: String, trunk: String },
    #[error("the prompt has {prompt} tokens and the context holds {context}")]
    ContextFull { prompt: usize, context: usize },
    #[error("the prompt is empty")]
    EmptyPrompt,
    #[error("the token {id} is outside the vocabulary of {vocab}")]
    TokenOutOfRange { id: u32, vocab: usize },
    #[error("{name} is {value} and must be {allowed}")]
    InvalidOption { name: &'static str, value: String, allowed: &'static str },
    #[error("{need} bytes are needed and {available} are free")]
    NotEnoughMemory { need: u64, available: u64 },
    #[error("{need} bytes are needed in {} and {available} are free", folder.display())]
    DiskFull { folder: PathBuf, need: u64, available: u64 },
    #[error("the model computed numbers that are not finite")]
    NotFinite,
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("the GPU failed: {0}")]
    Gpu(#[from] foretoken_kernels::metal::GpuError),
    #[error("the device failed: {0}")]
    Device(#[from] candle_core::Error),
}

impl EngineError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
