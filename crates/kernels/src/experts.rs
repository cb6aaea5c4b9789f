//! Routed experts: each row goes through the gated MLPs chosen for it and is their weighted sum.
//!
//! Rows that chose the same expert share its matrices' unpacking; with quantised x, all experts' first halves are one run of
//! the pool, and all second halves another. A row's sum runs over its experts in ascending order, and
//! each product is a row of [`crate::linear`], so the bits do not depend on which other rows share the call.

use crate::elementwise::swiglu_slice;
use crate::linear::apply;
use crate::linear::int8::{self, Input, Order, Product, Rows};
use crate::many::Activations;
use crate::pool::{self, Out};
use crate::weight::{Affine, Weight};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// The matrices of a layer's experts, in place: `gate` and `up` [width, hidden], `down` [hidden, width].
#[derive(Debug, Clone)]
pub struct Experts {
    pub gate: Vec<Weight>,
    pub up: Vec<Weight>,
    pub down: Vec<Weight>,
    /// See [`crate::swiglu_limited`]; infinite = none.
    pub limit: f32,
    pub activations: Activations,
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
        let Experts { gate, up, down, limit, .. } = self.experts;
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
        if let Some(out) = self.int8(x, (rows, hidden)) {
            return Ok((CpuStorage::F32(out), layout.shape().clone()));
        }
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

/// Quantised matrices of the experts that are used, and the order each kind wants its x in.
struct Halves<'a> {
    first: Vec<(&'a Affine, &'a Affine)>,
    first_order: Order,
    second: Vec<&'a Affine>,
    second_order: Order,
}

impl ExpertMlp<'_> {
    /// `None` when x is not to be quantised, or not the same way for all of `used`.
    fn halves(&self, used: &[usize]) -> Option<Halves<'_>> {
        if self.experts.activations != Activations::Int8 {
            return None;
        }
        let Experts { gate, up, down, .. } = self.experts;
        let first: Vec<_> =
            used.iter().map(|e| gate[*e].affine().zip(up[*e].affine())).collect::<Option<_>>()?;
        let second: Vec<_> = used.iter().map(|e| down[*e].affine()).collect::<Option<_>>()?;
        let first_order = int8::order(first.first()?.0);
        let second_order = int8::order(second.first()?);
        let alike = first
            .iter()
            .all(|(g, u)| int8::order(g) == first_order && int8::order(u) == first_order)
            && second.iter().all(|d| int8::order(d) == second_order);
        alike.then_some(Halves { first, first_order, second, second_order })
    }

    fn int8(&self, x: &[f32], (rows, hidden): (usize, usize)) -> Option<Vec<f32>> {
        let per_row = self.chosen.len() / rows.max(1);
        // Places in `chosen`, grouped by expert; within one by row.
        let mut order: Vec<usize> = (0..self.chosen.len()).collect();
        order.sort_by_key(|at| (self.chosen[*at], *at));
        let groups: Vec<&[usize]> =
            order.chunk_by(|a, b| self.chosen[*a] == self.chosen[*b]).collect();
        let used: Vec<usize> = groups.iter().map(|g| self.chosen[g[0]] as usize).collect();
        let halves = self.halves(&used)?;
        let width = halves.second_order.k;

        let x = Rows::new(x, halves.first_order);
        let mut act = vec![0f32; order.len() * width];
        let to = Out(act.as_mut_ptr());
        let products: Vec<_> = groups
            .iter()
            .zip(halves.first)
            .map(|(group, (gate, up))| Product {
                weight: gate,
                up: Some((up, self.experts.limit)),
                x: Input::Rows(group.iter().map(|at| x.row(at / per_row)).collect()),
                // SAFETY: every place has `width` floats of its own.
                out: group.iter().map(|at| unsafe { to.at(at * width) }).collect(),
            })
            .collect();
        int8::run(&products);

        let act = Rows::new(&act, halves.second_order);
        let mut parts = vec![0f32; order.len() * hidden];
        let to = Out(parts.as_mut_ptr());
        let products: Vec<_> = groups
            .iter()
            .zip(halves.second)
            .map(|(group, down)| Product {
                weight: down,
                up: None,
                x: Input::Rows(group.iter().map(|at| act.row(*at)).collect()),
                // SAFETY: every place has `hidden` floats of its own.
                out: group.iter().map(|at| unsafe { to.at(at * hidden) }).collect(),
            })
            .collect();
        int8::run(&products);

        let mut out = vec![0f32; rows * hidden];
        let to = Out(out.as_mut_ptr());
        // A row of a few experts is not worth another thread.
        let rows_per_chunk = 8;
        pool::run(rows.div_ceil(rows_per_chunk), &|chunk| {
            for row in chunk * rows_per_chunk..((chunk + 1) * rows_per_chunk).min(rows) {
                // SAFETY: each row is in one chunk.
                let out = unsafe { std::slice::from_raw_parts_mut(to.at(row * hidden), hidden) };
                for at in row * per_row..(row + 1) * per_row {
                    let weight = self.weights[at];
                    for (out, y) in out.iter_mut().zip(&parts[at * hidden..(at + 1) * hidden]) {
                        *out += weight * y;
                    }
                }
            }
        });
        Some(out)
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
        let activations = Activations::Exact;
        let experts = Experts { gate, up, down, limit: 0.05, activations };
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

    /// Quantised: the parts as [`crate::gated`] and [`crate::linear_many`] give them, to the bit, in any company.
    #[test]
    fn quantised_experts_are_their_parts() -> Result<()> {
        const K: usize = 128;
        const N: usize = 64;
        let stack = |n: usize, k: usize, seed: usize| -> Vec<Weight> {
            let raw = |len: usize| -> Vec<u8> {
                (0..len).map(|i| ((i * 7919 + seed * 31) % 251) as u8).collect()
            };
            let halves = |len: usize, seed| {
                let all = numbers(len, seed).into_iter();
                Bytes::from_vec(all.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect())
            };
            let (rows, groups) = (EXPERTS * n, EXPERTS * n * k / 32);
            let codes = Bytes::from_vec(raw(rows * k / 2));
            let (s, b) = (halves(groups, seed), halves(groups, seed + 9));
            let all = Affine::new(codes, s, b, FloatType::F16, (4, 32), (rows, k));
            let all = Weight::Affine(all.expect("the sizes fit"));
            (0..EXPERTS).map(|e| all.part(e * n, n).expect("inside")).collect()
        };
        let activations = Activations::Int8;
        let (gate, up, down) = (stack(N, K, 1), stack(N, K, 2), stack(K, N, 3));
        let experts = Experts { gate, up, down, limit: 0.9, activations };
        let rows = 19;
        let all = Tensor::from_vec(numbers(rows * K, 4), (rows, K), &Device::Cpu)?;
        let chosen: Vec<u32> =
            (0..rows as u32).flat_map(|r| [r % 4, (r % 4 + 1 + r % 2).min(4)]).collect();
        let weights: Vec<f32> = (0..2 * rows).map(|i| 0.1 + i as f32 / 10.0).collect();
        let got = expert_mlp(&all, &experts, &chosen, &weights)?.to_vec2::<f32>()?;
        for r in 0..rows {
            let x = all.narrow(0, r, 1)?;
            let mut want = vec![0f32; K];
            for i in 2 * r..2 * r + 2 {
                let e = chosen[i] as usize;
                let (gate, up) = (&experts.gate[e], &experts.up[e]);
                let act = crate::gated(&x, gate, up, Some(0.9), activations)?;
                let y = crate::linear_many(&act, &[&experts.down[e]], activations)?.remove(0);
                for (want, y) in want.iter_mut().zip(y.flatten_all()?.to_vec1::<f32>()?) {
                    *want += weights[i] * y;
                }
            }
            assert_eq!(got[r], want, "row {r}");
        }
        Ok(())
    }
}
