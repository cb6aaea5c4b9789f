//! GGUF blocks as MLX affine, bit for bit the same numbers (`assets/starter-head/README.md`, "pack_notes").
//!
//! Every block of 32 becomes a group of 32: Q4_1 `d q + m` is scale d, bias m; Q4_0 `d (q - 8)` is scale d, bias -8 d; Q8_0 `d i` is
//! scale d, bias -128 d over q = i + 128. Multiplying by a power of two is exact in f16 unless it overflows, which is checked.

use candle_core::quantized::GgmlDType;
use half::f16;

/// A matrix or vector in the native layout.
pub(super) enum Repacked {
    /// u32 codes [n, k * bits / 32], f16 scales and biases [n, k / 32].
    Affine { bits: usize, codes: Vec<u8>, scales: Vec<u8>, biases: Vec<u8> },
    /// As it lies there.
    Plain(safetensors::Dtype, Vec<u8>),
}

/// Bytes of one block and elements in it; `None` = a format that is not repacked.
pub(super) fn block(dtype: GgmlDType) -> Option<(usize, usize)> {
    match dtype {
        GgmlDType::F32 => Some((4, 1)),
        GgmlDType::F16 | GgmlDType::BF16 => Some((2, 1)),
        GgmlDType::Q4_0 => Some((18, 32)),
        GgmlDType::Q4_1 => Some((20, 32)),
        GgmlDType::Q8_0 => Some((34, 32)),
        _ => None,
    }
}

/// `raw` holds whole blocks. `None` when a bias does not fit f16 exactly.
pub(super) fn repack(dtype: GgmlDType, raw: &[u8]) -> Option<Repacked> {
    let (block_bytes, _) = block(dtype)?;
    let bits = match dtype {
        GgmlDType::F32 => return Some(Repacked::Plain(safetensors::Dtype::F32, raw.to_vec())),
        GgmlDType::F16 => return Some(Repacked::Plain(safetensors::Dtype::F16, raw.to_vec())),
        GgmlDType::BF16 => return Some(Repacked::Plain(safetensors::Dtype::BF16, raw.to_vec())),
        GgmlDType::Q8_0 => 8,
        _ => 4,
    };
    let blocks = raw.len() / block_bytes;
    let mut codes = Vec::with_capacity(blocks * 4 * bits);
    let (mut scales, mut biases) = (Vec::with_capacity(2 * blocks), Vec::with_capacity(2 * blocks));
    for block in raw.chunks_exact(block_bytes) {
        let d = f16::from_le_bytes([block[0], block[1]]);
        scales.extend(d.to_le_bytes());
        let (bias, quants) = match dtype {
            GgmlDType::Q4_1 => (f16::from_le_bytes([block[2], block[3]]), &block[4..]),
            GgmlDType::Q4_0 => (times(d, -8.0)?, &block[2..]),
            _ => (times(d, -128.0)?, &block[2..]),
        };
        biases.extend(bias.to_le_bytes());
        if bits == 8 {
            // i + 128 of a two's complement byte is the byte with its top bit turned.
            codes.extend(quants.iter().map(|i| i ^ 0x80));
        } else {
            // GGUF: byte j holds elements j (low) and j + 16 (high). MLX: byte j holds elements 2 j and 2 j + 1.
            let element = |e: usize| if e < 16 { quants[e] & 15 } else { quants[e - 16] >> 4 };
            codes.extend((0..16).map(|j| element(2 * j) | element(2 * j + 1) << 4));
        }
    }
    Some(Repacked::Affine { bits, codes, scales, biases })
}

/// d * factor where that is exact in f16.
fn times(d: f16, factor: f32) -> Option<f16> {
    let want = d.to_f32() * factor;
    let got = f16::from_f32(want);
    (got.to_f32() == want).then_some(got)
}

/// Rows of a rotary projection from GGUF's interleaved pairs to half-split order: within a head, row (j, side) moves to (side, j).
/// `raw` has `heads * head_dim` rows of `row_bytes`.
pub(super) fn unpermute(raw: &[u8], row_bytes: usize, heads: usize, head_dim: usize) -> Vec<u8> {
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(raw.len());
    for head in 0..heads {
        for side in 0..2 {
            for j in 0..half {
                let row = head * head_dim + 2 * j + side;
                out.extend_from_slice(&raw[row * row_bytes..(row + 1) * row_bytes]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::quantized::{GgmlDType, QTensor};
    use candle_core::{Device, Tensor};
    use foretoken_kernels::{Affine, Bytes, FloatType};

    #[test]
    fn repacked_blocks_are_candles_own_dequantisation() {
        for dtype in [GgmlDType::Q4_0, GgmlDType::Q4_1, GgmlDType::Q8_0] {
            let values: Vec<f32> =
                (0..8 * 96).map(|i| ((i * 37 % 211) as f32 - 100.0) / 31.0).collect();
            let x = Tensor::from_vec(values, (8, 96), &Device::Cpu).expect("the shape fits");
            let q = QTensor::quantize(&x, dtype).expect("quantises");
            let want =
                q.dequantize(&Device::Cpu).and_then(|t| t.to_vec2::<f32>()).expect("dequantises");
            let raw = q.data().expect("its bytes");
            let Some(Repacked::Affine { bits, codes, scales, biases }) = repack(dtype, &raw) else {
                panic!("{dtype:?}")
            };
            let b = Bytes::from_vec;
            let w =
                Affine::new(b(codes), b(scales), b(biases), FloatType::F16, (bits, 32), (8, 96))
                    .expect("sizes fit");
            for (row, want) in want.iter().enumerate() {
                let mut got = vec![0f32; 96];
                w.dequantise_row(row, &mut got);
                assert_eq!(&got, want, "{dtype:?} row {row}");
            }
        }
    }

    #[test]
    fn unpermute_separates_the_halves() {
        // Two heads of four: pairs (0,1) (2,3) of GGUF are dimensions (0,2) (1,3).
        assert_eq!(unpermute(&[0, 1, 2, 3, 10, 11, 12, 13], 1, 2, 4), [0, 2, 1, 3, 10, 12, 11, 13]);
    }
}
