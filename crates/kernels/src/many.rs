//! Several maps of the same x at once: one pass over the threads, and one quantisation of x where it is quantised.

use crate::linear::{self, int8};
use crate::weight::{Affine, Weight};
use crate::{swiglu, swiglu_limited};
use candle_core::{CpuStorage, Device, Result, Storage, Tensor};

/// How a product with a quantised weight sees its x. Weights stored as floats always see it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// As f32.
    #[default]
    Exact,
    /// As signed bytes, a scale per 32: whole-number products, several times as fast. Where there is no such kernel, as f32.
    Int8,
}

/// The weights, if one quantisation of x does for all of them.
fn alike<'a>(weights: &[&'a Weight], activations: Activations) -> Option<Vec<&'a Affine>> {
    let all: Vec<&Affine> = weights.iter().map(|w| w.affine()).collect::<Option<_>>()?;
    let order = int8::order(all.first()?);
    let same = all.iter().all(|w| int8::order(w) == order);
    (activations == Activations::Int8 && same).then_some(all)
}

/// x as a slice, when it is in this machine's memory and fits.
fn with_rows<R>(x: &Tensor, k: usize, f: impl FnOnce(&[f32]) -> R) -> Result<Option<R>> {
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(all)) = &*storage else { return Ok(None) };
    let Some((from, to)) = layout.contiguous_offsets() else {
        candle_core::bail!("linear: x must be contiguous");
    };
    if layout.dims().last() != Some(&k) {
        candle_core::bail!("linear: x is {:?}, the weight has {k} columns", layout.dims());
    }
    Ok(Some(f(&all[from..to])))
}

/// y [.., n] as a tensor with the leading dimensions of `x`.
fn shaped(y: Vec<f32>, x: &Tensor, n: usize) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = n;
    }
    Tensor::from_vec(y, dims, &Device::Cpu)
}

/// [`linear()`](crate::linear()) with each of `weights`, in order.
pub fn linear_many(
    x: &Tensor,
    weights: &[&Weight],
    activations: Activations,
) -> Result<Vec<Tensor>> {
    if let Some(all) = alike(weights, activations)
        && let Some(out) = with_rows(x, all[0].k, |x| int8::apply(x, &all))?
    {
        return out.into_iter().zip(all).map(|(y, w)| shaped(y, x, w.n)).collect();
    }
    if activations == Activations::Int8 && weights.len() > 1 {
        let one = |w: &&Weight| Ok(linear_many(x, &[*w], activations)?.remove(0));
        return weights.iter().map(one).collect();
    }
    weights.iter().map(|w| linear::linear(x, w)).collect()
}

/// silu(gate x) * up x; `limit` as in [`swiglu_limited`].
pub fn gated(
    x: &Tensor,
    gate: &Weight,
    up: &Weight,
    limit: Option<f32>,
    activations: Activations,
) -> Result<Tensor> {
    if let Some(all) = alike(&[gate, up], activations)
        && all[0].n == all[1].n
    {
        let most = limit.unwrap_or(f32::INFINITY);
        let out = with_rows(x, all[0].k, |x| int8::apply_gated(x, all[0], all[1], most))?;
        if let Some(y) = out {
            return shaped(y, x, all[0].n);
        }
    }
    let [gate, up] = &linear_many(x, &[gate, up], activations)?[..] else {
        candle_core::bail!("linear: two weights, two results");
    };
    match limit {
        Some(limit) => swiglu_limited(gate, up, limit),
        None => swiglu(gate, up),
    }
}
