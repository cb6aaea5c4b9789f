//! Plain floats to MLX affine codes, as MLX itself chooses them (`reference/mlx_quantization.md` 1).
//!
//! A group's scale runs from the end of larger magnitude, which a code meets exactly; it is negative when that end is the
//! maximum. Zero has a code of its own whenever it lies between the ends, because the scale is a whole part of that end.

use crate::weights::Packing;
use foretoken_kernels::FloatType;
use half::{bf16, f16};
use rayon::prelude::*;

/// Widths of a code that are offered.
pub const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];
/// Codes per scale that are offered.
pub const GROUPS: [usize; 3] = [32, 64, 128];

/// Smallest size of a scale: a group of equal values must not divide by zero.
const SMALLEST_SCALE: f32 = 1e-7;

/// Rows of a matrix in the native layout.
pub(super) struct Codes {
    /// [rows, k * bits / 8] bytes, little-endian bit stream.
    pub codes: Vec<u8>,
    /// [rows, k / group] of the source's float type.
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
}

/// `raw` is [rows, k] of `float`, k a multiple of the group.
pub(super) fn quantise(raw: &[u8], float: FloatType, k: usize, packing: Packing) -> Codes {
    let Packing { bits, group } = packing;
    let rows = raw.len() / (k * float.size());
    let (code_row, scale_row) = (k * bits / 8, k / group * float.size());
    let mut codes = vec![0u8; rows * code_row];
    let mut scales = vec![0u8; rows * scale_row];
    let mut biases = vec![0u8; rows * scale_row];
    let rows = codes.par_chunks_mut(code_row).zip(scales.par_chunks_mut(scale_row));
    rows.zip(biases.par_chunks_mut(scale_row)).zip(raw.par_chunks(k * float.size())).for_each(
        |(((codes, scales), biases), raw)| {
            let mut values = vec![0f32; group];
            let source = raw.chunks_exact(group * float.size());
            for (g, (source, codes)) in
                source.zip(codes.chunks_exact_mut(group * bits / 8)).enumerate()
            {
                floats(float, source, &mut values);
                let (scale, bias) = quantise_group(&values, bits, codes);
                put(float, scales, g, scale);
                put(float, biases, g, bias);
            }
        },
    );
    Codes { codes, scales, biases }
}

fn floats(float: FloatType, raw: &[u8], out: &mut [f32]) {
    match float {
        FloatType::BF16 => {
            for (out, raw) in out.iter_mut().zip(raw.as_chunks::<2>().0) {
                *out = bf16::from_le_bytes(*raw).to_f32();
            }
        }
        float => out.iter_mut().enumerate().for_each(|(i, out)| *out = float.get(raw, i)),
    }
}

/// Fills `codes` and answers scale and bias, in f32.
fn quantise_group(values: &[f32], bits: usize, codes: &mut [u8]) -> (f32, f32) {
    let top = ((1u32 << bits) - 1) as f32;
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (end, sign) = if low.abs() > high.abs() { (low, 1.0) } else { (high, -1.0) };
    let mut scale = sign * ((high - low) / top).max(SMALLEST_SCALE);
    let mut bias = 0.0;
    let steps = (end / scale).round_ties_even();
    if steps != 0.0 {
        scale = end / steps;
        bias = end;
    }
    // Eight codes take `bits` bytes.
    for (values, codes) in values.chunks_exact(8).zip(codes.chunks_exact_mut(bits)) {
        let mut stream = 0u64;
        for (i, value) in values.iter().enumerate() {
            let code = ((value - bias) / scale).round_ties_even().clamp(0.0, top);
            stream |= (code as u64) << (i * bits);
        }
        codes.copy_from_slice(&stream.to_le_bytes()[..bits]);
    }
    (scale, bias)
}

/// Element `i` of little-endian raw data, rounded to nearest even.
pub(super) fn put(float: FloatType, raw: &mut [u8], i: usize, value: f32) {
    match float {
        FloatType::F32 => raw[4 * i..4 * i + 4].copy_from_slice(&value.to_le_bytes()),
        FloatType::F16 => {
            raw[2 * i..2 * i + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes())
        }
        FloatType::BF16 => {
            raw[2 * i..2 * i + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Shard;
    use std::path::Path;

    /// `w` [8, 256] of the fixture, packed by mlx itself in 3 groups; one-bit codes it makes by a rule of its own, which is not offered.
    #[test]
    fn codes_scales_and_biases_are_those_of_mlx() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/golden/mlx-quant/golden.safetensors");
        let shard = Shard::open(&golden).expect("golden values");
        let raw = |name: &str| shard.raw(name).unwrap_or_else(|| panic!("no {name}"));
        for bits in BITS {
            for group in GROUPS {
                let case = format!("affine.b{bits}.g{group}");
                let packing = Packing { bits, group };
                let got = quantise(raw("w").as_slice(), FloatType::BF16, 256, packing);
                assert_eq!(got.scales, raw(&format!("{case}.scales")).as_slice(), "{case} scales");
                assert_eq!(got.biases, raw(&format!("{case}.biases")).as_slice(), "{case} biases");
                assert_eq!(got.codes, raw(&format!("{case}.packed")).as_slice(), "{case} codes");
            }
        }
    }
}
