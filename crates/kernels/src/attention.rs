//! Causal attention of a few query rows over a cache, grouped heads, optional sliding window by absolute position.
//!
//! Each (row, head) is computed alone, over its keys in order of position, so that the result does not depend on the
//! chunk a row came in. Heads that share keys walk them together, which changes what is read and not what is computed.

use crate::lanes::{Lanes, dispatch};
use crate::pool::{self, Out};
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use half::f16;
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

/// `q` [rows, heads * dim] f32, `k` and `v` [keys, kv_heads * dim], both f32 or both f16, all contiguous; the result is
/// [rows, heads * dim] f32. Query head h reads key head h / (heads / kv_heads).
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, spec: AttendSpec) -> Result<Tensor> {
    q.apply_op3_no_bwd(k, v, &spec)
}

/// Heads that walk their shared keys together.
const TOGETHER: usize = 4;

/// Keys or values of one head, from its first visible row on.
#[derive(Clone, Copy)]
struct Rows {
    data: *const u8,
    /// Bytes from a row to the next.
    stride: usize,
    half: bool,
}
// SAFETY: only read.
unsafe impl Send for Rows {}
unsafe impl Sync for Rows {}

impl Rows {
    fn of(storage: &CpuStorage, from: usize, width: usize) -> Result<Self> {
        Ok(match storage {
            CpuStorage::F16(all) => {
                Self { data: all[from..].as_ptr().cast(), stride: 2 * width, half: true }
            }
            other => Self {
                data: other.as_slice::<f32>()?[from..].as_ptr().cast(),
                stride: 4 * width,
                half: false,
            },
        })
    }

    /// From row `row`, column `column` on.
    fn at(self, row: usize, column: usize) -> Self {
        let size = if self.half { 2 } else { 4 };
        Self { data: self.data.wrapping_add(row * self.stride + column * size), ..self }
    }
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
        let (k, v) = (Rows::of(s2, b.0, kv_width)?, Rows::of(s3, c.0, kv_width)?);
        if k.half != v.half {
            candle_core::bail!("attend: keys and values are stored alike");
        }
        let mut out = vec![0f32; rows * width];
        let to = Out(out.as_mut_ptr());
        let group = self.n_heads / self.n_kv_heads;
        // Where there are too few key heads for the threads, heads are given out one by one.
        let few = rows * self.n_kv_heads < pool::n_threads();
        let together = if few { 1 } else { group.min(TOGETHER) };
        let parts = group.div_ceil(together);
        let job = |row: usize, part: usize| {
            let (kv, part) = (part / parts, part % parts);
            let head = kv * group + part * together;
            let heads = together.min(group - part * together);
            let position = self.query_position + row;
            let first = self.first_key(position) - self.key_position;
            let keys = position - self.key_position + 1 - first;
            let at = row * width + head * self.head_dim;
            let column = kv * self.head_dim;
            // SAFETY: every (row, head) writes its own `head_dim` floats.
            let out = unsafe { std::slice::from_raw_parts_mut(to.at(at), heads * self.head_dim) };
            let q = &q[at..at + heads * self.head_dim];
            let work = Work {
                heads,
                d: self.head_dim,
                keys,
                scale: self.scale,
                k: k.at(first, column),
                v: v.at(first, column),
            };
            SCORES.with_borrow_mut(|scores| {
                scores.clear();
                // A padded score is so low that it is nobody's maximum.
                scores.resize(heads * keys.next_multiple_of(16), f32::MIN);
                attend_heads(&work, q, scores, out);
            });
        };
        let jobs = rows * self.n_kv_heads * parts;
        // One head over a short context is done before another thread wakes up.
        let small = rows * self.n_heads * keys * self.head_dim < 1 << 17;
        let jobs_per_chunk = if small { jobs } else { (jobs / (pool::n_threads() * 16)).max(1) };
        pool::run(jobs.div_ceil(jobs_per_chunk.max(1)), &|chunk| {
            for i in chunk * jobs_per_chunk..((chunk + 1) * jobs_per_chunk).min(jobs) {
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

/// One row's heads that share keys.
struct Work {
    /// 1 to 4.
    heads: usize,
    d: usize,
    keys: usize,
    scale: f32,
    k: Rows,
    v: Rows,
}

dispatch! {
    /// `q` and `out` are [heads, d]; `scores` has the keys rounded up to 16 for each head.
    fn attend_heads(work: &Work, q: &[f32], scores: &mut [f32], out: &mut [f32]) = body
}

/// How keys and values are stored.
trait Stored {
    const SIZE: usize;
    unsafe fn load<L: Lanes>(p: *const u8) -> L::V;
}

struct Single;
impl Stored for Single {
    const SIZE: usize = 4;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L::V {
        unsafe { L::f32(p) }
    }
}

struct Half;
impl Stored for Half {
    const SIZE: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const u8) -> L::V {
        unsafe { L::f16(p) }
    }
}

#[inline(always)]
unsafe fn body<L: Lanes>(work: &Work, q: &[f32], scores: &mut [f32], out: &mut [f32]) {
    unsafe {
        match (work.k.half, work.heads) {
            (false, 1) => heads::<L, Single, 1>(work, q, scores, out),
            (false, 2) => heads::<L, Single, 2>(work, q, scores, out),
            (false, 3) => heads::<L, Single, 3>(work, q, scores, out),
            (false, _) => heads::<L, Single, 4>(work, q, scores, out),
            (true, 1) => heads::<L, Half, 1>(work, q, scores, out),
            (true, 2) => heads::<L, Half, 2>(work, q, scores, out),
            (true, 3) => heads::<L, Half, 3>(work, q, scores, out),
            (true, _) => heads::<L, Half, 4>(work, q, scores, out),
        }
    }
}

/// Rows ahead that keys and values are asked for: a head's part of a row is too short for the hardware to see a stream.
const AHEAD: usize = 16;

/// Asks for a head's part of a later row, which need not be there.
#[inline(always)]
unsafe fn ask<L: Lanes, S: Stored>(row: *const u8, stride: usize, d: usize) {
    let mut at = 0;
    while at < d * S::SIZE {
        unsafe { L::prefetch(row.wrapping_add(AHEAD * stride + at)) };
        at += 64;
    }
}

#[inline(always)]
unsafe fn heads<L: Lanes, S: Stored, const G: usize>(
    work: &Work,
    q: &[f32],
    scores: &mut [f32],
    out: &mut [f32],
) {
    let Work { d, keys, k, v, .. } = *work;
    let padded = keys.next_multiple_of(16);
    unsafe {
        // Eight keys' lanes are added up at once; the last keys share their turn with what earlier ones left.
        let mut held = [[L::splat(0.0); 8]; G];
        for first in (0..keys).step_by(8) {
            let some = (keys - first).min(8);
            for t in 0..some {
                let key = k.data.add((first + t) * k.stride);
                ask::<L, S>(key, k.stride, d);
                let mut acc = [L::splat(0.0); G];
                for i in (0..d).step_by(16) {
                    let key = S::load::<L>(key.add(i * S::SIZE));
                    for g in 0..G {
                        acc[g] = L::fma(L::load(q.as_ptr().add(g * d + i)), key, acc[g]);
                    }
                }
                for g in 0..G {
                    held[g][t] = acc[g];
                }
            }
            for g in 0..G {
                let sums = L::sums(&held[g]);
                for t in 0..some {
                    scores[g * padded + first + t] = sums[t] * work.scale;
                }
            }
        }
        let mut inverse = [0f32; G];
        for g in 0..G {
            inverse[g] = 1.0 / exponents::<L>(&mut scores[g * padded..(g + 1) * padded], keys);
        }
        for i in (0..d).step_by(64) {
            let n = ((d - i) / 16).min(4);
            let mut acc = [[L::splat(0.0); 4]; G];
            for t in 0..keys {
                let row = v.data.add(t * v.stride + i * S::SIZE);
                ask::<L, S>(row, v.stride, 16 * n);
                let mut weights = [L::splat(0.0); G];
                for g in 0..G {
                    weights[g] = L::splat(*scores.get_unchecked(g * padded + t));
                }
                for j in 0..n {
                    let value = S::load::<L>(row.add(16 * j * S::SIZE));
                    for g in 0..G {
                        acc[g][j] = L::fma(weights[g], value, acc[g][j]);
                    }
                }
            }
            for g in 0..G {
                for j in 0..n {
                    let to = out.as_mut_ptr().add(g * d + i + 16 * j);
                    L::store(to, L::mul(acc[g][j], L::splat(inverse[g])));
                }
            }
        }
    }
}

/// Scores to e^(score - the largest), those behind `keys` to 0; returns their sum, 16 lanes wide in order of position.
#[inline(always)]
unsafe fn exponents<L: Lanes>(scores: &mut [f32], keys: usize) -> f32 {
    unsafe {
        let mut top = L::splat(f32::MIN);
        for t in (0..scores.len()).step_by(16) {
            top = L::max(top, L::load(scores.as_ptr().add(t)));
        }
        let low = L::splat(-L::hmax(top));
        for t in (0..scores.len()).step_by(16) {
            let p = scores.as_mut_ptr().add(t);
            L::store(p, L::exp(L::add(L::load(p), low)));
        }
        scores[keys..].fill(0.0);
        let mut total = L::splat(0.0);
        for t in (0..scores.len()).step_by(16) {
            total = L::add(total, L::load(scores.as_ptr().add(t)));
        }
        L::sum(total)
    }
}

/// Rows as f16, as a cache keeps them: rounded to nearest, and what f16 cannot hold to the largest it can.
pub fn to_half(x: &Tensor) -> Result<Tensor> {
    let (storage, layout) = x.storage_and_layout();
    let (candle_core::Storage::Cpu(CpuStorage::F32(all)), Some((from, to))) =
        (&*storage, layout.contiguous_offsets())
    else {
        candle_core::bail!("to_half: x must be f32, contiguous and in this machine's memory");
    };
    let mut out = vec![f16::ZERO; to - from];
    halve(&all[from..to], &mut out);
    Tensor::from_vec(out, layout.dims(), &candle_core::Device::Cpu)
}

dispatch! { fn halve(x: &[f32], out: &mut [f16]) = halve_body }

#[inline(always)]
unsafe fn halve_body<L: Lanes>(x: &[f32], out: &mut [f16]) {
    let whole = x.len() / 16 * 16;
    unsafe {
        for i in (0..whole).step_by(16) {
            L::to_f16(out.as_mut_ptr().add(i).cast(), L::load(x.as_ptr().add(i)));
        }
    }
    for (x, out) in x[whole..].iter().zip(&mut out[whole..]) {
        *out = f16::from_f32(largest_half(*x));
    }
}

/// NaN stays.
#[inline(always)]
fn largest_half(x: f32) -> f32 {
    x.clamp(-65504.0, 65504.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// Keys and values as f16 see and are seen as f32 of the same numbers, alone and in company.
    #[test]
    fn halves_are_read_as_what_they_are() -> Result<()> {
        for (n_heads, n_kv_heads, head_dim, rows) in [(9, 3, 64, 1), (12, 2, 80, 5), (4, 4, 128, 3)]
        {
            let keys = 37;
            let spec = AttendSpec {
                n_heads,
                n_kv_heads,
                head_dim,
                scale: 0.1,
                query_position: keys - rows,
                key_position: 0,
                origin: 0,
                window: None,
            };
            let q = tensor(rows, n_heads * head_dim, 1);
            let [k, v] = [2, 3].map(|seed| tensor(keys, n_kv_heads * head_dim, seed));
            let (k, v) = (to_half(&k)?, to_half(&v)?);
            let wide = |x: &Tensor| x.to_dtype(candle_core::DType::F32);
            let got = attend(&q, &k, &v, spec)?.to_vec2::<f32>()?;
            assert_eq!(got, attend(&q, &wide(&k)?, &wide(&v)?, spec)?.to_vec2::<f32>()?);
            assert!(attend(&q, &k, &wide(&v)?, spec).is_err());
        }
        Ok(())
    }

    #[test]
    fn halves_are_the_nearest_and_stay_finite() -> Result<()> {
        let mut x: Vec<f32> = (0..200).map(|i| (i as f32 - 99.5) * 7.77e-4).collect();
        x.extend([1e30, -1e30, f32::INFINITY, 65519.0, 65504.0, 1e-9, -0.0, 6.1e-5, 3e-7]);
        let half =
            to_half(&Tensor::from_vec(x.clone(), x.len(), &Device::Cpu)?)?.to_vec1::<f16>()?;
        for (x, half) in x.iter().zip(half) {
            assert_eq!(half, f16::from_f32(x.clamp(-65504.0, 65504.0)), "{x}");
        }
        let nan = to_half(&Tensor::from_vec(vec![f32::NAN; 17], 17, &Device::Cpu)?)?;
        assert!(nan.to_vec1::<f16>()?.iter().all(|v| v.is_nan()));
        Ok(())
    }

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
        for (n_heads, n_kv_heads, head_dim) in
            [(4, 2, 16), (9, 3, 64), (2, 1, 80), (16, 2, 32), (5, 1, 64)]
        {
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
