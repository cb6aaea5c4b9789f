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
pub use foretoken_kernels::{n_threads, read_bandwidth};

/// What computes, for people, e.g. "CPU (AVX-512, 2 threads, int8 activations)".
pub fn device_name(activations: models::Activations) -> String {
    let (features, threads) = (foretoken_kernels::cpu_features(), foretoken_kernels::n_threads());
    let numerics = match activations {
        models::Activations::Exact => "f32",
        models::Activations::Int8 => "int8",
    };
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    format!("CPU ({features}, {threads}, {numerics} activations)")
}
