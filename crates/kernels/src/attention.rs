//! Causal attention of a few query rows over a cache, grouped heads, optional sliding window by absolute position.
//!
//! Each (row, head) is computed alone, over its keys in order of position, so that the result does not depend on the
//! chunk a row came in.

use crate::lanes::{Lanes, dispatch};
use crate::pool::{self, Out};
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use std::cell::RefCell;

/// What the query rows may see.
#[derive(Debug, Clone, Copy)]
pub struct AttendSpec {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Factor on q k before the softmax, usually 1/sqrt(head_dim).
    pub scale: f32,
    /// Absolute position of query row 0.
    pub query_position: usize,
    /// Absolute position of key row 0.
    pub key_position: usize,
    /// Position of the oldest key there ever was: a sequence may begin anywhere.
    pub origin: usize,
    /// A query at p sees p - window + 1 ..= p; `None` = everything up to p.
    pub window: Option<usize>,
}

/// `q` [rows, heads * dim], `k` and `v` [keys, kv_heads * dim], all f32 contiguous; the result is [rows, heads * dim].
/// Query head h reads key head h / (heads / kv_heads).
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, spec: AttendSpec) -> Result<Tensor> {
    q.apply_op3_no_bwd(k, v, &spec)
}

impl CustomOp3 for AttendSpec {
    fn name(&self) -> &'static str {
        "attend"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = l1.shape().dims2()?;
        let (keys, kv_width) = l2.shape().dims2()?;
        let fits = width == self.n_heads * self.head_dim
            && kv_width == self.n_kv_heads * self.head_dim
            && l3.dims() == l2.dims()
            && self.n_kv_heads > 0
            && self.n_heads.is_multiple_of(self.n_kv_heads)
            && self.head_dim.is_multiple_of(16);
        let newest = self.query_position + rows;
        if !fits
            || newest > self.key_position + keys
            || self.first_key(self.query_position) < self.key_position
        {
            candle_core::bail!(
                "attend: {self:?} does not fit q {:?}, k {:?}, v {:?}",
                l1.dims(),
                l2.dims(),
                l3.dims()
            );
        }
        let (Some(a), Some(b), Some(c)) =
            (l1.contiguous_offsets(), l2.contiguous_offsets(), l3.contiguous_offsets())
        else {
            candle_core::bail!("attend: q, k and v must be contiguous");
        };
        let q = &s1.as_slice::<f32>()?[a.0..a.1];
        let (k, v) = (&s2.as_slice::<f32>()?[b.0..b.1], &s3.as_slice::<f32>()?[c.0..c.1]);
        let mut out = vec![0f32; rows * width];
        let to = Out(out.as_mut_ptr());
        let job = |row: usize, head: usize| {
            let position = self.query_position + row;
            let first = self.first_key(position) - self.key_position;
            let last = position - self.key_position;
            let kv = head / (self.n_heads / self.n_kv_heads) * self.head_dim;
            let at = row * width + head * self.head_dim;
            // SAFETY: every (row, head) writes its own `head_dim` floats.
            let out = unsafe { std::slice::from_raw_parts_mut(to.at(at), self.head_dim) };
            let part =
                |t| &(t as &[f32])[first * kv_width + kv..last * kv_width + kv + self.head_dim];
            let (q, k, v) = (&q[at..at + self.head_dim], part(k), part(v));
            SCORES.with_borrow_mut(|scores| {
                let keys = last - first + 1;
                scores.clear();
                // A padded score is so low that its weight is 0 to f32 precision; it is not summed anyway.
                scores.resize(keys.next_multiple_of(16), f32::MIN);
                attend_one(q, k, v, (keys, kv_width), self.scale, scores, out);
            });
        };
        // One head over a short context is done before another thread wakes up.
        let small = rows * self.n_heads * keys * self.head_dim < 1 << 17;
        let jobs_per_chunk = if small {
            rows * self.n_heads
        } else {
            (rows * self.n_heads / (pool::n_threads() * 16)).max(1)
        };
        pool::run((rows * self.n_heads).div_ceil(jobs_per_chunk.max(1)), &|chunk| {
            for i in chunk * jobs_per_chunk..((chunk + 1) * jobs_per_chunk).min(rows * self.n_heads)
            {
                // Neighbouring jobs share a key head, not a row: its keys stay in the cache.
                job(i % rows, i / rows);
            }
        });
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}

impl AttendSpec {
    /// Absolute position of the oldest key a query at `position` sees.
    fn first_key(&self, position: usize) -> usize {
        self.window.map_or(0, |w| (position + 1).saturating_sub(w)).max(self.origin)
    }
}

thread_local! {
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

dispatch! {
    /// `k` and `v` start at the first visible key's head; `layout` = (keys, floats from one row to the next). `scores` has the
    /// keys rounded up to 16.
    fn attend_one(q: &[f32], k: &[f32], v: &[f32], layout: (usize, usize), scale: f32, scores: &mut [f32], out: &mut [f32]) = body
}

#[inline(always)]
unsafe fn body<L: Lanes>(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    (keys, stride): (usize, usize),
    scale: f32,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let d = q.len();
    unsafe {
        // Eight keys' lanes are added up at once; the last keys share their turn with what earlier ones left.
        let mut held = [L::splat(0.0); 8];
        for first in (0..keys).step_by(8) {
            let some = (keys - first).min(8);
            for t in 0..some {
                let key = k.as_ptr().add((first + t) * stride);
                let mut acc = L::splat(0.0);
                for i in (0..d).step_by(16) {
                    acc = L::fma(L::load(q.as_ptr().add(i)), L::load(key.add(i)), acc);
                }
                held[t] = acc;
            }
            let sums = L::sums(&held);
            for t in 0..some {
                scores[first + t] = sums[t] * scale;
            }
        }
        let mut top = L::splat(f32::MIN);
        for t in (0..scores.len()).step_by(16) {
            top = L::max(top, L::load(scores.as_ptr().add(t)));
        }
        let low = L::splat(-L::hmax(top));
        for t in (0..scores.len()).step_by(16) {
            let p = scores.as_mut_ptr().add(t);
            L::store(p, L::exp(L::add(L::load(p), low)));
        }
        // One sum in order of position: the same whatever the padding.
        let mut total = 0f32;
        for weight in &scores[..keys] {
            total += weight;
        }
        let inverse = L::splat(1.0 / total);
        for i in (0..d).step_by(64) {
            let n = ((d - i) / 16).min(4);
            let mut acc = [L::splat(0.0); 4];
            for t in 0..keys {
                let value = v.as_ptr().add(t * stride + i);
                let weight = L::splat(scores[t]);
                for j in 0..n {
                    acc[j] = L::fma(weight, L::load(value.add(16 * j)), acc[j]);
                }
            }
            for j in 0..n {
                L::store(out.as_mut_ptr().add(i + 16 * j), L::mul(acc[j], inverse));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn tensor(rows: usize, width: usize, seed: usize) -> Tensor {
        let v: Vec<f32> = (0..rows * width)
            .map(|i| (((i * 7919 + seed * 104729) % 2003) as f32 - 1001.0) / 700.0)
            .collect();
        Tensor::from_vec(v, (rows, width), &Device::Cpu).expect("the shape fits")
    }

    fn reference(q: &Tensor, k: &Tensor, v: &Tensor, s: AttendSpec) -> Vec<f64> {
        let [q, k, v] = [q, k, v].map(|t| t.to_vec2::<f32>().expect("f32"));
        let d = s.head_dim;
        let mut out = Vec::new();
        for (r, q) in q.iter().enumerate() {
            for h in 0..s.n_heads {
                let kv = h / (s.n_heads / s.n_kv_heads) * d;
                let p = s.query_position + r;
                let seen = |t: &usize| {
                    let at = s.key_position + t;
                    at <= p && s.window.is_none_or(|w| at + w > p)
                };
                let keys: Vec<usize> = (0..k.len()).filter(seen).collect();
                let score = |t: &usize| {
                    let dot: f64 =
                        (0..d).map(|i| f64::from(q[h * d + i]) * f64::from(k[*t][kv + i])).sum();
                    (dot * f64::from(s.scale)).exp()
                };
                let w: Vec<f64> = keys.iter().map(score).collect();
                let total: f64 = w.iter().sum();
                out.extend((0..d).map(|i| {
                    keys.iter()
                        .zip(&w)
                        .map(|(t, w)| w / total * f64::from(v[*t][kv + i]))
                        .sum::<f64>()
                }));
            }
        }
        out
    }

    #[test]
    fn agrees_with_the_formula_and_rows_stand_alone() -> Result<()> {
        for (n_heads, n_kv_heads, head_dim) in [(4, 2, 16), (9, 3, 64), (2, 1, 80)] {
            for (rows, query_position, window, key_position, origin) in [
                (1, 0, None, 0, 0),
                (5, 33, None, 0, 0),
                (17, 3, None, 0, 0),
                (8, 40, Some(16), 20, 0),
                (3, 5, Some(64), 0, 0),
                (40, 0, Some(7), 0, 0),
                (20, 33, Some(16), 33, 33),
                (5, 40, Some(16), 35, 35),
            ] {
                let spec = AttendSpec {
                    n_heads,
                    n_kv_heads,
                    head_dim,
                    scale: 0.2,
                    query_position,
                    key_position,
                    origin,
                    window,
                };
                let keys = query_position + rows - key_position;
                let (q, k, v) = (
                    tensor(rows, n_heads * head_dim, 1),
                    tensor(keys, n_kv_heads * head_dim, 2),
                    tensor(keys, n_kv_heads * head_dim, 3),
                );
                let got = attend(&q, &k, &v, spec)?.flatten_all()?.to_vec1::<f32>()?;
                for (got, want) in got.iter().zip(reference(&q, &k, &v, spec)) {
                    assert!(
                        (f64::from(*got) - want).abs() < 1e-5,
                        "{spec:?}: {got} instead of {want}"
                    );
                }
                for r in 0..rows {
                    let alone = attend(
                        &q.narrow(0, r, 1)?,
                        &k,
                        &v,
                        AttendSpec { query_position: query_position + r, ..spec },
                    )?;
                    let alone: Vec<u32> = alone
                        .flatten_all()?
                        .to_vec1::<f32>()?
                        .into_iter()
                        .map(f32::to_bits)
                        .collect();
                    let width = n_heads * head_dim;
                    let together: Vec<u32> =
                        got[r * width..(r + 1) * width].iter().map(|v| v.to_bits()).collect();
                    assert_eq!(alone, together, "row {r} of {rows}");
                }
            }
        }
        Ok(())
    }

    /// A softmax over one key is 1 whatever its score, so it is the score that must be remembered.
    #[test]
    fn a_query_that_is_not_a_number_sees_nothing() -> Result<()> {
        let spec = AttendSpec {
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 16,
            scale: 1.0,
            query_position: 0,
            key_position: 0,
            origin: 0,
            window: None,
        };
        for keys in [1, 2, 3, 17] {
            let spec = AttendSpec { query_position: keys - 1, ..spec };
            let (k, v) = (tensor(keys, 16, 1), tensor(keys, 16, 2));
            let mut q = tensor(1, 16, 3).flatten_all()?.to_vec1::<f32>()?;
            q[5] = f32::NAN;
            let q = Tensor::from_vec(q, (1, 16), &Device::Cpu)?;
            let out = attend(&q, &k, &v, spec)?.flatten_all()?.to_vec1::<f32>()?;
            assert!(out.iter().all(|x| x.is_nan()), "{keys} keys: {out:?}");
        }
        Ok(())
    }

    #[test]
    fn refuses_keys_that_are_gone() {
        let spec = AttendSpec {
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 16,
            scale: 1.0,
            query_position: 9,
            key_position: 6,
            origin: 0,
            window: Some(8),
        };
        assert!(attend(&tensor(1, 16, 1), &tensor(4, 16, 2), &tensor(4, 16, 3), spec).is_err());
    }
}
