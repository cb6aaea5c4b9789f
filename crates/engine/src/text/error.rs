use std::path::{Path, PathBuf};
use thiserror::Error;

/// Everything that can go wrong between a model's text files and text. One variant per thing a caller can act on.
#[derive(Debug, Error)]
pub enum TextError {
    /// The folder holds no `tokenizer.json`.
    #[error("{} is missing", file.display())]
    TokenizerMissing { file: PathBuf },
    /// `tokenizer.json` or `tokenizer_config.json` is not what it claims to be.
    #[error("{} cannot be read as a tokenizer: {why}", file.display())]
    TokenizerCorrupt { file: PathBuf, why: String },
    /// The tokenizer refused a text or a list of ids.
    #[error("the tokenizer failed: {why}")]
    TokenizerFailed { why: String },
    /// A tokenizer inside a GGUF file that this version cannot turn into a `tokenizer.json`.
    #[error("the gguf tokenizer {name:?} is not supported")]
    GgufUnsupported { name: String },
    /// The tokenizer inside a GGUF file contradicts itself.
    #[error("the tokenizer in the gguf file is damaged: {why}")]
    GgufCorrupt { why: String },
    /// `config.json` or `generation_config.json` is not what it claims to be.
    #[error("{} cannot be read: {why}", file.display())]
    ConfigCorrupt { file: PathBuf, why: String },
    /// No chat template in any of the three places.
    #[error("the model has no chat template")]
    TemplateMissing,
    /// The template is not text, is empty or is too large.
    #[error("the chat template {} cannot be used: {why}", file.display())]
    TemplateCorrupt { file: PathBuf, why: String },
    /// The template does not parse. `line` counts from 1; 0 = unknown.
    #[error("the chat template {} has a syntax error in line {line}: {why}", file.display())]
    TemplateSyntax { file: PathBuf, line: usize, why: String },
    /// Rendering failed or ran into a limit. `line` counts from 1; 0 = unknown.
    #[error("the chat template failed in line {line}: {why}")]
    TemplateFailed { line: usize, why: String },
    /// The template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {why}")]
    TemplateRefused { why: String },
    /// Reading or writing a file failed.
    #[error("{}: {source}", file.display())]
    Io { file: PathBuf, source: std::io::Error },
}

impl TextError {
    pub(super) fn io(file: &Path, source: std::io::Error) -> Self {
        Self::Io { file: file.to_owned(), source }
    }
}
