//! RMSNorm over the last dimension: x / sqrt(mean(x^2) + eps) * w, in f32.

use crate::lanes::{Lanes, dispatch};
use crate::pool::{self, Out};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// `x` is f32 contiguous with last dimension `weight.len()`. For zero-centred checkpoints the caller passes 1 + w.
pub fn rms_norm(x: &Tensor, weight: &[f32], eps: f32) -> Result<Tensor> {
    x.apply_op1_no_bwd(&RmsNorm { weight, eps })
}

struct RmsNorm<'a> {
    weight: &'a [f32],
    eps: f32,
}

impl CustomOp1 for RmsNorm<'_> {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let d = self.weight.len();
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("rms-norm: x must be contiguous")
        };
        if d == 0 || layout.dims().last() != Some(&d) {
            candle_core::bail!("rms-norm: x is {:?}, the weight {d}", layout.dims());
        }
        let x = &storage.as_slice::<f32>()?[from..to];
        let mut out = vec![0f32; x.len()];
        let rows = x.len() / d;
        let rows_per_chunk = (16384 / d).max(1);
        let to = Out(out.as_mut_ptr());
        pool::run(rows.div_ceil(rows_per_chunk), &|chunk| {
            let first = chunk * rows_per_chunk;
            for row in first..(first + rows_per_chunk).min(rows) {
                // SAFETY: each row is written by the chunk it belongs to only.
                let out = unsafe { std::slice::from_raw_parts_mut(to.at(row * d), d) };
                norm_row(&x[row * d..(row + 1) * d], self.weight, self.eps, out);
            }
        });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

dispatch! { fn norm_row(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) = norm_body }

#[inline(always)]
unsafe fn norm_body<L: Lanes>(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let d = x.len();
    let whole = d / 16 * 16;
    unsafe {
        let mut acc = L::splat(0.0);
        for i in (0..whole).step_by(16) {
            let v = L::load(x.as_ptr().add(i));
            acc = L::fma(v, v, acc);
        }
        let mut sum = L::sum(acc);
        for v in &x[whole..] {
            sum += v * v;
        }
        let scale = 1.0 / (sum / d as f32 + eps).sqrt();
        let s = L::splat(scale);
        for i in (0..whole).step_by(16) {
            let v = L::mul(L::mul(L::load(x.as_ptr().add(i)), s), L::load(w.as_ptr().add(i)));
            L::store(out.as_mut_ptr().add(i), v);
        }
        for i in whole..d {
            out[i] = x[i] * scale * w[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn agrees_with_the_formula() -> Result<()> {
        for d in [5, 16, 64, 576] {
            let x: Vec<f32> = (0..3 * d).map(|i| ((i * 31 % 17) as f32 - 8.0) / 3.0).collect();
            let w: Vec<f32> = (0..d).map(|i| 0.5 + (i % 3) as f32).collect();
            let y = rms_norm(&Tensor::from_vec(x.clone(), (3, d), &Device::Cpu)?, &w, 1e-5)?
                .flatten_all()?
                .to_vec1::<f32>()?;
            for r in 0..3 {
                let row = &x[r * d..(r + 1) * d];
                let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / d as f64;
                for i in 0..d {
                    let want = f64::from(row[i]) / (mean + 1e-5).sqrt() * f64::from(w[i]);
                    assert!((f64::from(y[r * d + i]) - want).abs() < 1e-5 * (1.0 + want.abs()));
                }
            }
        }
        Ok(())
    }
}
