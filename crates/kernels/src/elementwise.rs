//! SwiGLU: silu(gate) * up, with silu(x) = x / (1 + e^-x); optionally limited, see [`swiglu_limited`]. And sums: candle's own
//! run on threads of its own, which spin beside ours.

use crate::lanes::{Lanes, dispatch};
use crate::pool::{self, Out};
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

/// `gate` and `up` are f32 contiguous of one shape.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2_no_bwd(up, &SwiGlu { limit: f32::INFINITY })
}

/// min(silu(gate), limit) * clamp(up, -limit, limit): the activation is limited above and after silu, `up` on both sides.
pub fn swiglu_limited(gate: &Tensor, up: &Tensor, limit: f32) -> Result<Tensor> {
    gate.apply_op2_no_bwd(up, &SwiGlu { limit })
}

struct SwiGlu {
    /// Infinite = no limit; `min` and `max` with it change no bit.
    limit: f32,
}

/// Elements per chunk: about as long as waking a thread takes.
const CHUNK: usize = 8192;

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (Some((a, b)), Some((c, d))) = (l1.contiguous_offsets(), l2.contiguous_offsets())
        else {
            candle_core::bail!("swiglu: gate and up must be contiguous");
        };
        if l1.dims() != l2.dims() {
            candle_core::bail!("swiglu: gate is {:?}, up {:?}", l1.dims(), l2.dims());
        }
        let (gate, up) = (&s1.as_slice::<f32>()?[a..b], &s2.as_slice::<f32>()?[c..d]);
        let mut out = vec![0f32; gate.len()];
        let to = Out(out.as_mut_ptr());
        pool::run(gate.len().div_ceil(CHUNK), &|chunk| {
            let range = chunk * CHUNK..((chunk + 1) * CHUNK).min(gate.len());
            // SAFETY: chunks are disjoint ranges.
            let out = unsafe { std::slice::from_raw_parts_mut(to.at(range.start), range.len()) };
            swiglu_slice(&gate[range.clone()], &up[range], self.limit, out);
        });
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}

/// x + y, f32 contiguous; y has the shape of x, or is one row for all of them.
pub fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    x.apply_op2_no_bwd(y, &Add)
}

struct Add;

impl CustomOp2 for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (Some((a, b)), Some((c, d))) = (l1.contiguous_offsets(), l2.contiguous_offsets())
        else {
            candle_core::bail!("add: x and y must be contiguous");
        };
        let a_row = l2.dims().len() == 1 && l1.dims().last() == l2.dims().last();
        if l1.dims() != l2.dims() && !a_row {
            candle_core::bail!("add: x is {:?}, y {:?}", l1.dims(), l2.dims());
        }
        let (x, y) = (&s1.as_slice::<f32>()?[a..b], &s2.as_slice::<f32>()?[c..d]);
        let mut out = vec![0f32; x.len()];
        let to = Out(out.as_mut_ptr());
        // Whole rows of y a chunk: as many of x as it is long, or one for a large y.
        let each = if a_row { (CHUNK / y.len().max(1)).max(1) * y.len().max(1) } else { CHUNK };
        pool::run(x.len().div_ceil(each), &|chunk| {
            let range = chunk * each..((chunk + 1) * each).min(x.len());
            // SAFETY: chunks are disjoint ranges.
            let out = unsafe { std::slice::from_raw_parts_mut(to.at(range.start), range.len()) };
            let x = &x[range.clone()];
            if a_row {
                for (x, out) in x.chunks(y.len()).zip(out.chunks_mut(y.len())) {
                    add_slice(x, y, out);
                }
            } else {
                add_slice(x, &y[range], out);
            }
        });
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}

dispatch! { fn add_slice(x: &[f32], y: &[f32], out: &mut [f32]) = add_body }

#[inline(always)]
unsafe fn add_body<L: Lanes>(x: &[f32], y: &[f32], out: &mut [f32]) {
    for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
        *out = x + y;
    }
}

dispatch! { pub(crate) fn swiglu_slice(gate: &[f32], up: &[f32], limit: f32, out: &mut [f32]) = body }

#[inline(always)]
unsafe fn sixteen<L: Lanes>(gate: *const f32, up: *const f32, limit: f32, out: *mut f32) {
    unsafe {
        let (g, u) = (L::load(gate), L::load(up));
        let e = L::exp(L::mul(g, L::splat(-1.0)));
        // In this order NaN passes the limits: it must reach the logits, where it is an error.
        let act = L::min(L::splat(limit), L::div(g, L::add(L::splat(1.0), e)));
        let u = L::max(L::splat(-limit), L::min(L::splat(limit), u));
        L::store(out, L::mul(act, u));
    }
}

#[inline(always)]
unsafe fn body<L: Lanes>(gate: &[f32], up: &[f32], limit: f32, out: &mut [f32]) {
    let n = gate.len();
    let whole = n / 16 * 16;
    unsafe {
        for i in (0..whole).step_by(16) {
            sixteen::<L>(gate.as_ptr().add(i), up.as_ptr().add(i), limit, out.as_mut_ptr().add(i));
        }
        if whole < n {
            let (mut g, mut u, mut o) = ([0f32; 16], [0f32; 16], [0f32; 16]);
            g[..n - whole].copy_from_slice(&gate[whole..]);
            u[..n - whole].copy_from_slice(&up[whole..]);
            sixteen::<L>(g.as_ptr(), u.as_ptr(), limit, o.as_mut_ptr());
            out[whole..].copy_from_slice(&o[..n - whole]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn agrees_with_the_formula() -> Result<()> {
        let n = 8192 + 37;
        let gate: Vec<f32> = (0..n).map(|i| ((i * 7 % 401) as f32 - 200.0) / 3.0).collect();
        let up: Vec<f32> = (0..n).map(|i| ((i * 11 % 13) as f32 - 6.0) / 2.0).collect();
        let t = |v: &Vec<f32>| Tensor::from_vec(v.clone(), n, &Device::Cpu);
        for limit in [f64::INFINITY, 1.5] {
            let y = if limit.is_finite() {
                swiglu_limited(&t(&gate)?, &t(&up)?, limit as f32)?
            } else {
                swiglu(&t(&gate)?, &t(&up)?)?
            };
            let y = y.to_vec1::<f32>()?;
            for i in 0..n {
                let g = f64::from(gate[i]);
                let want =
                    (g / (1.0 + (-g).exp())).min(limit) * f64::from(up[i]).clamp(-limit, limit);
                assert!(
                    (f64::from(y[i]) - want).abs() <= 1e-6 * (1.0 + want.abs()),
                    "{i}: {} instead of {want}",
                    y[i]
                );
            }
        }
        Ok(())
    }

    #[test]
    fn sums_and_rows_for_all() -> Result<()> {
        let x = Tensor::arange(0f32, 3.0 * 9000.0, &Device::Cpu)?.reshape((3, 9000))?;
        let row = Tensor::arange(0f32, 9000.0, &Device::Cpu)?;
        for y in [&x, &row] {
            let want = x.broadcast_add(y)?.to_vec2::<f32>()?;
            assert_eq!(add(&x, y)?.to_vec2::<f32>()?, want);
        }
        assert!(add(&x, &row.narrow(0, 0, 3)?).is_err());
        Ok(())
    }

    #[test]
    fn limits_let_nan_pass() -> Result<()> {
        let n = 20;
        for (g, u) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::NAN, f32::NAN)] {
            let t = |v: f32| Tensor::from_vec(vec![v; n], n, &Device::Cpu);
            for y in [swiglu_limited(&t(g)?, &t(u)?, 1.5)?, swiglu(&t(g)?, &t(u)?)?] {
                assert!(y.to_vec1::<f32>()?.iter().all(|v| v.is_nan()), "{g} {u}: {y}");
            }
        }
        Ok(())
    }
}
