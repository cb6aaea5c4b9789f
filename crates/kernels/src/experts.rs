//! Routed experts: each row goes through the gated MLPs chosen for it and is their weighted sum.
//!
//! Rows that chose the same expert share its matrices' unpacking. A row's sum runs over its experts in ascending order, and
//! each product is a row of [`crate::linear`], so the bits do not depend on which other rows share the call.

use crate::elementwise::swiglu_slice;
use crate::linear::apply;
use crate::weight::Weight;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// The matrices of a layer's experts, in place: `gate` and `up` [width, hidden], `down` [hidden, width].
#[derive(Debug, Clone)]
pub struct Experts {
    pub gate: Vec<Weight>,
    pub up: Vec<Weight>,
    pub down: Vec<Weight>,
    /// See [`crate::swiglu_limited`]; infinite = none.
    pub limit: f32,
}

/// `x` [rows, hidden]; row r is the sum of `weights[r * n + i]` * expert `chosen[r * n + i]`, n = chosen.len() / rows.
/// The experts of a row must be ascending.
pub fn expert_mlp(
    x: &Tensor,
    experts: &Experts,
    chosen: &[u32],
    weights: &[f32],
) -> Result<Tensor> {
    x.apply_op1_no_bwd(&ExpertMlp { experts, chosen, weights })
}

struct ExpertMlp<'a> {
    experts: &'a Experts,
    chosen: &'a [u32],
    weights: &'a [f32],
}

impl CustomOp1 for ExpertMlp<'_> {
    fn name(&self) -> &'static str {
        "expert-mlp"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, hidden) = layout.shape().dims2()?;
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("expert-mlp: x must be contiguous");
        };
        let Experts { gate, up, down, limit } = self.experts;
        let fits = |(i, g): (usize, &Weight)| {
            let (width, k) = g.dims();
            k == hidden && up[i].dims() == g.dims() && down[i].dims() == (hidden, width)
        };
        let per_row = self.chosen.len().checked_div(rows).unwrap_or(0);
        if up.len() != gate.len()
            || down.len() != gate.len()
            || self.chosen.len() != rows * per_row
            || self.weights.len() != self.chosen.len()
            || self.chosen.iter().any(|e| *e as usize >= gate.len())
            || !gate.iter().enumerate().all(fits)
        {
            candle_core::bail!("expert-mlp: the experts do not fit x {:?}", layout.dims());
        }
        let x = &storage.as_slice::<f32>()?[from..to];
        let mut out = vec![0f32; rows * hidden];
        // (expert, place in `chosen`), grouped by expert; within one by row.
        let mut order: Vec<(u32, usize)> =
            self.chosen.iter().enumerate().map(|(at, e)| (*e, at)).collect();
        order.sort_unstable();
        let mut gathered = Vec::new();
        for group in order.chunk_by(|a, b| a.0 == b.0) {
            let e = group[0].0 as usize;
            gathered.clear();
            for (_, at) in group {
                let row = at / per_row;
                gathered.extend_from_slice(&x[row * hidden..(row + 1) * hidden]);
            }
            let (g, u) = (apply(&gathered, &gate[e]), apply(&gathered, &up[e]));
            let mut act = vec![0f32; g.len()];
            swiglu_slice(&g, &u, *limit, &mut act);
            let y = apply(&act, &down[e]);
            for ((_, at), y) in group.iter().zip(y.chunks(hidden)) {
                let (row, weight) = (at / per_row, self.weights[*at]);
                for (out, y) in out[row * hidden..(row + 1) * hidden].iter_mut().zip(y) {
                    *out += weight * y;
                }
            }
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, Dense, FloatType};
    use candle_core::Device;

    const HIDDEN: usize = 64;
    const WIDTH: usize = 32;
    const EXPERTS: usize = 5;

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| (((i * 7919 + seed * 104_729) % 2003) as f32 - 1001.0) / 4000.0).collect()
    }

    /// A stack [experts * n, k] and its parts.
    fn stack(n: usize, k: usize, seed: usize) -> (Vec<f32>, Vec<Weight>) {
        let data = numbers(EXPERTS * n * k, seed);
        let bytes = Bytes::from_vec(data.iter().flat_map(|v| v.to_le_bytes()).collect());
        let all = Weight::Dense(
            Dense::new(bytes, FloatType::F32, (EXPERTS * n, k)).expect("the sizes fit"),
        );
        assert!(all.part(EXPERTS * n - 1, 2).is_none());
        (data, (0..EXPERTS).map(|e| all.part(e * n, n).expect("inside")).collect())
    }

    #[test]
    fn agrees_with_the_formula_and_rows_stand_alone() -> Result<()> {
        let ((g, gate), (u, up), (d, down)) =
            (stack(WIDTH, HIDDEN, 1), stack(WIDTH, HIDDEN, 2), stack(HIDDEN, WIDTH, 3));
        let experts = Experts { gate, up, down, limit: 0.05 };
        let rows = 9;
        let x = numbers(rows * HIDDEN, 4);
        let chosen: Vec<u32> =
            (0..rows as u32).flat_map(|r| [r % 4, (r % 4 + 1 + r % 2).min(4)]).collect();
        let weights: Vec<f32> = (0..2 * rows).map(|i| 0.1 + i as f32 / 10.0).collect();
        let all = Tensor::from_vec(x.clone(), (rows, HIDDEN), &Device::Cpu)?;
        let got = expert_mlp(&all, &experts, &chosen, &weights)?.flatten_all()?.to_vec1::<f32>()?;
        let product = |m: &[f32], e: usize, n: usize, x: &[f64]| -> Vec<f64> {
            (0..n)
                .map(|i| {
                    let row = &m[(e * n + i) * x.len()..(e * n + i + 1) * x.len()];
                    row.iter().zip(x).map(|(a, b)| f64::from(*a) * b).sum()
                })
                .collect()
        };
        for r in 0..rows {
            let row: Vec<f64> =
                x[r * HIDDEN..(r + 1) * HIDDEN].iter().map(|v| f64::from(*v)).collect();
            let mut want = vec![0f64; HIDDEN];
            for i in 2 * r..2 * r + 2 {
                let e = chosen[i] as usize;
                let act: Vec<f64> = product(&g, e, WIDTH, &row)
                    .iter()
                    .zip(product(&u, e, WIDTH, &row))
                    .map(|(g, u)| (g / (1.0 + (-g).exp())).min(0.05) * u.clamp(-0.05, 0.05))
                    .collect();
                for (want, y) in want.iter_mut().zip(product(&d, e, HIDDEN, &act)) {
                    *want += f64::from(weights[i]) * y;
                }
            }
            for (got, want) in got[r * HIDDEN..].iter().zip(&want) {
                assert!((f64::from(*got) - want).abs() < 1e-6, "row {r}: {got} instead of {want}");
            }
            let alone = expert_mlp(
                &all.narrow(0, r, 1)?,
                &experts,
                &chosen[2 * r..2 * r + 2],
                &weights[2 * r..2 * r + 2],
            )?;
            assert_eq!(
                alone.flatten_all()?.to_vec1::<f32>()?,
                got[r * HIDDEN..(r + 1) * HIDDEN],
                "row {r} alone"
            );
        }
        assert!(expert_mlp(&all, &experts, &vec![5; 2 * rows], &weights).is_err());
        Ok(())
    }
}
