//! The engine: from a checkpoint folder to committed tokens.
//!
//! Reading order: [`weights`] (formats to matrices), [`cache`] (keys and values), [`nn`] (leaves), [`models`] (one file per
//! family), [`decode`] (sampler and speculative cycle), [`text`] (tokenizer, template, text that is safe to show),
//! [`convert`] (other formats to ours), [`gpu`] (a loaded model's passes as lists of launches).
//!
//! Does not: own a thread, touch the network, know a conversation or a window.

pub mod cache;
pub mod convert;
pub mod decode;
mod error;
pub mod gpu;
pub mod models;
pub mod nn;
pub mod tensors;
pub mod text;
pub mod weights;

pub use error::{EngineError, Result};

/// What computes, for people, e.g. "CPU (AVX-512, 2 threads)".
pub fn device_name() -> String {
    format!(
        "CPU ({}, {} threads)",
        foretoken_kernels::cpu_features(),
        foretoken_kernels::n_threads()
    )
}
