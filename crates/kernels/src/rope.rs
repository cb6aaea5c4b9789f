//! Rotary position embedding, half-split pairing: dimension j turns with j + r/2 over the first r dimensions of a head.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use std::sync::OnceLock;

/// Cosines and sines by position, f32 from f64 angles, made a block at a time when first asked for: a long context costs
/// nothing until it is used.
#[derive(Debug)]
pub struct RopeTable {
    inv_freq: Vec<f64>,
    blocks: Vec<OnceLock<Block>>,
}

/// Positions per block.
const BLOCK: usize = 1024;

/// [positions, r/2] each.
#[derive(Debug)]
struct Block {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// `inv_freq` has r/2 entries (radians per position).
    pub fn new(inv_freq: &[f64], positions: usize) -> Self {
        let blocks = (0..positions.div_ceil(BLOCK)).map(|_| OnceLock::new()).collect();
        Self { inv_freq: inv_freq.to_vec(), blocks }
    }

    /// Pairs of channels that turn.
    pub fn half_turn(&self) -> usize {
        self.inv_freq.len()
    }

    /// Cosines and sines of the first `positions` positions, [positions, half_turn] each, for whoever reads them elsewhere.
    /// Shorter when the table ends before.
    pub fn first(&self, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let (mut cosines, mut sines) = (Vec::new(), Vec::new());
        for (cos, sin) in (0..positions).map_while(|position| self.at(position)) {
            cosines.extend_from_slice(cos);
            sines.extend_from_slice(sin);
        }
        (cosines, sines)
    }

    /// Cosines and sines of one position; `None` past the end.
    fn at(&self, position: usize) -> Option<(&[f32], &[f32])> {
        let half = self.inv_freq.len();
        let first = position / BLOCK * BLOCK;
        let block = self.blocks.get(position / BLOCK)?.get_or_init(|| {
            let of = |p: usize| self.inv_freq.iter().map(move |f| (p as f64 * f) as f32);
            // The angle is rounded to f32 first, as the reference implementations do.
            let angles = || (first..first + BLOCK).flat_map(of);
            Block { cos: angles().map(f32::cos).collect(), sin: angles().map(f32::sin).collect() }
        });
        let here = (position - first) * half..(position - first + 1) * half;
        Some((&block.cos[here.clone()], &block.sin[here]))
    }
}

/// Rotates `x` [rows, heads, head_dim] (f32, contiguous); row i stands at position `first + i`.
pub fn rope(x: &Tensor, table: &RopeTable, first: usize) -> Result<Tensor> {
    x.apply_op1_no_bwd(&Rope { table, first })
}

struct Rope<'a> {
    table: &'a RopeTable,
    first: usize,
}

impl CustomOp1 for Rope<'_> {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, heads, d) = layout.shape().dims3()?;
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("rope: x must be contiguous")
        };
        let half = self.table.inv_freq.len();
        if 2 * half > d {
            candle_core::bail!("rope: {} dimensions of a head of {d}", 2 * half);
        }
        let mut out = storage.as_slice::<f32>()?[from..to].to_vec();
        for (row, heads) in out.chunks_mut((heads * d).max(1)).enumerate() {
            let Some((cos, sin)) = self.table.at(self.first + row) else {
                candle_core::bail!("rope: position {} is outside the table", self.first + row);
            };
            for head in heads.chunks_mut(d) {
                let (a, b) = head[..2 * half].split_at_mut(half);
                for j in 0..half {
                    let (x, y) = (a[j], b[j]);
                    a[j] = x * cos[j] - y * sin[j];
                    b[j] = y * cos[j] + x * sin[j];
                }
            }
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn turns_pairs_and_leaves_the_rest() -> Result<()> {
        let table = RopeTable::new(&[1.0, 0.1], 1030);
        let x: Vec<f32> = (0..2 * 3 * 6).map(|i| i as f32).collect();
        let y = rope(&Tensor::from_vec(x.clone(), (2, 3, 6), &Device::Cpu)?, &table, 5)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        for (row, p) in [(0usize, 5f64), (1, 6.0)] {
            for head in 0..3 {
                let at = (row * 3 + head) * 6;
                for (j, f) in [(0, 1.0), (1, 0.1)] {
                    let (a, b) = (f64::from(x[at + j]), f64::from(x[at + j + 2]));
                    let (s, c) = (p * f).sin_cos();
                    assert!((f64::from(y[at + j]) - (a * c - b * s)).abs() < 1e-4);
                    assert!((f64::from(y[at + j + 2]) - (b * c + a * s)).abs() < 1e-4);
                }
                assert_eq!(y[at + 4..at + 6], x[at + 4..at + 6]);
            }
        }
        assert!(
            rope(&Tensor::zeros((6, 1, 6), candle_core::DType::F32, &Device::Cpu)?, &table, 2045)
                .is_err()
        );
        Ok(())
    }
}
