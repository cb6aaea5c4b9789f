//! Text in and out: tokenizer, chat template, stop tokens, recommended sampling, and text that grows while tokens
//! arrive.
//!
//! Entry points: [`Tokenizer::from_dir`], [`ChatTemplate::from_dir`], [`stop_set`], [`GenerationDefaults::from_dir`],
//! [`TextStream`], [`GgufTokenizer::write_hf_files`]. All take the folder of a checkpoint in the hub's layout.
//!
//! Does not: know tensors, the network, sampling or what a conversation is stored in. Files and templates come from
//! strangers: every one of them may be hostile, and none may make this module panic, hang or fill the memory.

mod bytes;
mod error;
mod files;
mod generation;
mod gguf;
mod stream;
mod template;
mod template_env;
mod thought;
mod tokenizer;
mod tool;

pub use error::TextError;
pub use generation::{GenerationDefaults, stop_set};
pub use gguf::GgufTokenizer;
pub use stream::{Piece, TextStream};
pub use template::{ChatTemplate, RenderOptions, TurnText};
pub use thought::{ThoughtState, ThoughtTags};
pub use tokenizer::Tokenizer;
