//! Operations candle lacks, each with a plain reference, a CPU body and a test that compares the two.
//!
//! Entry points: [`Affine`] and [`Dense`] weights with [`linear`], [`linear_many`], [`gated`] and [`Weight::rows`];
//! [`rms_norm`], [`rope`], [`swiglu`], [`add`], [`attend`], [`gate_heads`], [`expert_mlp`]. All activations are f32, row-major, contiguous.
//!
//! Invariant that the speculative cycle rests on: **a row's result does not depend on how many rows share the call.**
//! Every (row, output) pair has one accumulator of 16 lanes that walks k in one order, and the lanes are summed by one
//! fixed tree; vector width, thread count and blocking change the speed and never the bits. See `lanes.rs`.
//!
//! Does not: know a model, a token, a layer index or a file.

mod attention;
mod bandwidth;
mod bytes;
mod elementwise;
mod experts;
mod head_gate;
mod lanes;
mod linear;
mod many;
pub mod metal;
mod norm;
mod pool;
mod rope;
mod softmax;
mod weight;

pub use attention::{AttendSpec, attend, to_half};
pub use bandwidth::read_bandwidth;
pub use bytes::Bytes;
pub use elementwise::{add, swiglu, swiglu_limited};
pub use experts::{Experts, expert_mlp};
pub use head_gate::gate_heads;
pub use lanes::cpu_features;
pub use linear::linear;
pub use many::{Activations, gated, linear_many};
pub use norm::rms_norm;
pub use pool::n_threads;
pub use rope::{RopeTable, rope};
pub use softmax::softmax;
pub use weight::{Affine, Dense, FloatType, Weight, WeightError};
