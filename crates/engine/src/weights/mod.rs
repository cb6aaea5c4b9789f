//! Checkpoint formats to weights: safetensors shards in a memory map, MLX affine or plain floats.
//!
//! [`Checkpoint::open`] reads names and places, [`Weights`] walks them like directories and hands out weights.
//! Does not: know a family or a configuration beyond `quantization`.

mod checkpoint;
mod cursor;
mod map;
mod names;
mod quant;

pub(crate) use checkpoint::read_json;
pub use checkpoint::{Checkpoint, TensorPlace};
pub use cursor::Weights;
pub use map::{Shard, map_file};
pub(crate) use names::renamed;
pub use names::{Names, ZeroCentred};
pub use quant::{Packing, QuantTable};
