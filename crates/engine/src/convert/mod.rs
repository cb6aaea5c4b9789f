//! Other formats to the native one: an MLX-affine checkpoint folder.
//!
//! [`convert_gguf`] repacks without loss; [`convert_folder`] writes a safetensors checkpoint of a family in the MLX layout, its
//! head kept, quantised as asked. Does not: know a family beyond the names of the formats it reads and the families' tables.

mod folder;
mod gguf;
mod plan;
mod quantise;
mod repack;
mod writer;

pub use folder::convert_folder;
pub use gguf::convert_gguf;
pub use quantise::{BITS, GROUPS};
use std::collections::BTreeMap;

/// What a conversion wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    pub tensors: usize,
    pub bytes: u64,
    /// Bytes by storage, e.g. "4-bit g32".
    pub by_storage: BTreeMap<String, u64>,
    pub head: bool,
    /// Remarks for a person, a sentence each.
    pub notes: Vec<String>,
}

/// How modules a pattern names are stored, whatever the rest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Bits(usize),
    /// Unquantised; f32 becomes bf16, 16-bit floats stay what they are.
    Bf16,
}

/// Widths of codes; norms, biases and vectors always stay as they are, routers have 8 bits or more, `eh_proj` stays 16-bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantisePlan {
    /// One of [`BITS`]; `None` = the trunk is not quantised.
    pub bits: Option<usize>,
    /// The same of the head.
    pub head_bits: Option<usize>,
    /// Codes per scale, one of [`GROUPS`].
    pub group: usize,
    /// (part of a module's path, storage); the first that fits counts.
    pub keep: Vec<(String, Keep)>,
}
