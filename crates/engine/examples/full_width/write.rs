//! A layout as files: safetensors shards, their index and `config.json`, streamed through one small buffer.

use crate::layout::{Fill, Layout, Tensor};
use crate::place::go_on;

use crate::{Failure, Outcome};
use half::bf16;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Elements filled at a time: a few megabytes of buffer.
const PIECE: usize = 1 << 20;

pub fn checkpoint(layout: &Layout, folder: &Path) -> Outcome<()> {
    let mut weight_map = Map::new();
    for (file, tensors) in &layout.files {
        shard(&folder.join(file), tensors)?;
        weight_map.extend(tensors.iter().map(|t| (t.name.clone(), json!(file))));
    }
    let index = json!({"metadata": {"total_size": layout.n_bytes()}, "weight_map": weight_map});
    let texts = [("model.safetensors.index.json", &index), ("config.json", &layout.config)];
    for (name, value) in texts {
        let path = folder.join(name);
        std::fs::write(&path, format!("{value:#}")).map_err(Failure::io(&path))?;
    }
    Ok(())
}

fn shard(path: &Path, tensors: &[Tensor]) -> Outcome<()> {
    let mut file = File::create(path).map_err(Failure::io(path))?;
    let mut put = |bytes: &[u8]| file.write_all(bytes).map_err(Failure::io(path));
    let header = header(tensors);
    put(&(header.len() as u64).to_le_bytes())?;
    put(&header)?;
    let mut piece = Vec::new();
    for tensor in tensors {
        for first in (0..tensor.len()).step_by(PIECE) {
            go_on()?;
            piece.clear();
            fill(tensor, first..(first + PIECE).min(tensor.len()), &mut piece);
            put(&piece)?;
        }
    }
    Ok(())
}

/// Names, types and places, padded so that the data starts at a multiple of 8.
fn header(tensors: &[Tensor]) -> Vec<u8> {
    let mut table = Map::from_iter([("__metadata__".to_owned(), json!({"format": "mlx"}))]);
    let mut at = 0;
    for tensor in tensors {
        let Tensor { name, dtype, shape, .. } = tensor;
        let end = at + tensor.n_bytes();
        let place = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]});
        table.insert(name.clone(), place);
        at = end;
    }
    let mut text = Value::Object(table).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    text
}

/// Elements `range` of a tensor, little-endian. Element i depends on the seed and i alone.
fn fill(tensor: &Tensor, range: std::ops::Range<usize>, out: &mut Vec<u8>) {
    let seed = tensor.seed;
    let random = |i: usize| mix(seed.wrapping_add(i as u64));
    match tensor.fill {
        // Two codes words a number: this is nearly all there is to write.
        Fill::Codes => {
            out.extend(
                (range.start / 2..range.end.div_ceil(2)).flat_map(|i| random(i).to_le_bytes()),
            );
            out.truncate(4 * range.len());
        }
        Fill::Scales { step } => bf16s(range, out, |i| scale(random(i), step)),
        Fill::Biases { step, bits } => {
            let middle = ((1u32 << bits) - 1) as f32 / 2.0;
            bf16s(range, out, |i| bf16::from_f32(-middle * scale(random(i), step).to_f32()));
        }
        Fill::Norm => bf16s(range, out, |i| bf16::from_f32(1.0 + 0.05 * even(random(i)))),
        Fill::SelectionBias => {
            out.extend(range.flat_map(|i| (0.05 * even(random(i))).to_le_bytes()));
        }
        Fill::EmbedAndHidden => {
            let width = tensor.shape[1];
            let little = 0.1 / (width as f32).sqrt();
            bf16s(range, out, |i| match (i / width, i % width) {
                (row, column) if row == column => bf16::ONE,
                (_, column) if column < width / 2 => bf16::ZERO,
                _ => bf16::from_f32(little * even(random(i))),
            });
        }
    }
}

fn bf16s(range: std::ops::Range<usize>, out: &mut Vec<u8>, of: impl Fn(usize) -> bf16) {
    out.extend(range.flat_map(|i| of(i).to_le_bytes()));
}

/// Scales differ between groups and have either sign, as quantisers make them (`reference/mlx_quantization.md` 1).
fn scale(random: u64, step: f64) -> bf16 {
    let size = step * [0.75, 1.0, 1.0, 1.25][(random & 3) as usize];
    bf16::from_f64(if random & 4 == 0 { size } else { -size })
}

/// Evenly spread over -1..1.
fn even(random: u64) -> f32 {
    (random >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

/// SplitMix64's finaliser over its own sequence: each number from its place alone, so that no state is carried.
fn mix(at: u64) -> u64 {
    let z = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
