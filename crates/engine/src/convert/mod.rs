//! Other formats to the native one: an MLX-affine checkpoint folder.
//!
//! Now: GGUF, without loss. Does not: know a family beyond the names of the formats it reads.

mod gguf;
mod repack;

pub use gguf::{Written, convert_gguf};
