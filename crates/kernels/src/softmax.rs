//! Softmax over a whole vocabulary row, for the sampler.

use crate::lanes::{Lanes, dispatch};

/// exp((x - max) / temperature) / sum, f32. Temperature > 0. An empty row stays empty.
pub fn softmax(x: &[f32], temperature: f32) -> Vec<f32> {
    let mut out = x.to_vec();
    scaled_softmax(&mut out, 1.0 / temperature);
    out
}

dispatch! { fn scaled_softmax(x: &mut [f32], scale: f32) = body }

#[inline(always)]
unsafe fn body<L: Lanes>(x: &mut [f32], scale: f32) {
    let top = x.iter().copied().fold(f32::MIN, f32::max);
    let whole = x.len() / 16 * 16;
    unsafe {
        let (s, low) = (L::splat(scale), L::splat(-top));
        let mut acc = L::splat(0.0);
        for i in (0..whole).step_by(16) {
            let e = L::exp(L::mul(L::add(L::load(x.as_ptr().add(i)), low), s));
            L::store(x.as_mut_ptr().add(i), e);
            acc = L::add(acc, e);
        }
        let tail = x.len() - whole;
        let mut rest = [f32::MIN; 16];
        rest[..tail].copy_from_slice(&x[whole..]);
        let e = L::exp(L::mul(L::add(L::load(rest.as_ptr()), low), s));
        L::store(rest.as_mut_ptr(), e);
        x[whole..].copy_from_slice(&rest[..tail]);
        let sum = L::sum(acc) + x[whole..].iter().sum::<f32>();
        let inverse = L::splat(1.0 / sum);
        for i in (0..whole).step_by(16) {
            L::store(x.as_mut_ptr().add(i), L::mul(L::load(x.as_ptr().add(i)), inverse));
        }
        for v in &mut x[whole..] {
            *v /= sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_formula() {
        for n in [1usize, 5, 16, 33, 1000] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 97 % 61) as f32 - 30.0) / 4.0).collect();
            let got = softmax(&x, 0.7);
            let w: Vec<f64> = x.iter().map(|v| (f64::from(*v) / 0.7).exp()).collect();
            let total: f64 = w.iter().sum();
            for (got, w) in got.iter().zip(&w) {
                assert!((f64::from(*got) - w / total).abs() < 1e-6 * (1.0 + w / total));
            }
        }
    }
}
