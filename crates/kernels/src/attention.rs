//! Causal attention of a few query rows over a cache, grouped heads, optional sliding window by absolute position.
//!
//! Each (row, head) is computed alone, over its keys in order of position, so that the result does not depend on the
//! chunk a row came in. Heads that share keys walk them together, and in a prompt rows do too (`block.rs`), which changes what
//! is read and not what is computed.

mod block;

use self::block::{Block, PAIRS, attend_block};
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
        let pass = Pass { spec: *self, q, k, v, rows, to };
        if !pass.blocks() {
            pass.row_by_row();
        }
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}

/// One call.
struct Pass<'a> {
    spec: AttendSpec,
    /// [rows, heads * dim], as the result.
    q: &'a [f32],
    k: Rows,
    v: Rows,
    rows: usize,
    to: Out,
}

/// Keys from which on it pays to lay queries out for a block.
const FEWEST_KEYS: usize = 32;
/// Lanes of a block that must be of use.
const FEWEST_PAIRS: usize = 10;

impl Pass<'_> {
    /// The first key row that query row `row` sees, and how many it sees.
    fn seen(&self, row: usize) -> (usize, usize) {
        let position = self.spec.query_position + row;
        let first = self.spec.first_key(position) - self.spec.key_position;
        (first, position - self.spec.key_position + 1 - first)
    }

    fn row_by_row(&self) {
        let (spec, rows) = (self.spec, self.rows);
        let group = spec.n_heads / spec.n_kv_heads;
        // Where there are too few key heads for the threads, heads are given out one by one.
        let few = rows * spec.n_kv_heads < pool::n_threads();
        let together = if few { 1 } else { group.min(TOGETHER) };
        let parts = group.div_ceil(together);
        let jobs = rows * spec.n_kv_heads * parts;
        // One head over a short context is done before another thread wakes up.
        let (_, keys) = self.seen(rows - 1);
        let small = rows * spec.n_heads * keys * spec.head_dim < 1 << 17;
        let jobs_per_chunk = if small { jobs } else { (jobs / (pool::n_threads() * 16)).max(1) };
        pool::run(jobs.div_ceil(jobs_per_chunk), &|chunk| {
            for i in chunk * jobs_per_chunk..((chunk + 1) * jobs_per_chunk).min(jobs) {
                // Neighbouring jobs share a key head, not a row: its keys stay in the cache.
                let (row, part) = (i % rows, i / rows);
                let (kv, part) = (part / parts, part % parts);
                let head = kv * group + part * together;
                self.row(row, kv, head, together.min(group - part * together));
            }
        });
    }

    /// Heads `head..head + heads` of a row, 4 at most, which share key head `kv`.
    fn row(&self, row: usize, kv: usize, head: usize, heads: usize) {
        let d = self.spec.head_dim;
        let (first, keys) = self.seen(row);
        let at = (row * self.spec.n_heads + head) * d;
        // SAFETY: every (row, head) writes its own `head_dim` floats.
        let out = unsafe { std::slice::from_raw_parts_mut(self.to.at(at), heads * d) };
        let q = &self.q[at..at + heads * d];
        let (k, v) = (self.k.at(first, kv * d), self.v.at(first, kv * d));
        let work = Work { heads, d, keys, scale: self.spec.scale, k, v };
        SCRATCH.with_borrow_mut(|scores| {
            scores.clear();
            // A padded score is so low that it is nobody's maximum.
            scores.resize(heads * keys.next_multiple_of(16), f32::MIN);
            attend_heads(&work, q, scores, out);
        });
    }

    /// Rows that see many keys, in blocks of 16 (row, head) pairs; false if that does not pay.
    fn blocks(&self) -> bool {
        let spec = self.spec;
        let group = spec.n_heads / spec.n_kv_heads;
        let heads = group.min(PAIRS);
        let (rows, parts) = (PAIRS / heads, group.div_ceil(heads));
        let blocks = self.rows.div_ceil(rows);
        let jobs = blocks * spec.n_kv_heads * parts;
        let (_, keys) = self.seen(self.rows - 1);
        if keys < FEWEST_KEYS
            || self.rows.min(rows) * heads < FEWEST_PAIRS
            || jobs < 2 * pool::n_threads()
        {
            return false;
        }
        pool::run(jobs, &|job| {
            // The last rows, which see the most, come first, so that no thread is left with them at the end.
            let (first, part) = ((blocks - 1 - job % blocks) * rows, job / blocks);
            let (kv, part) = (part / parts, part % parts);
            let head = kv * group + part * heads;
            let heads = heads.min(group - part * heads);
            self.block(first..(first + rows).min(self.rows), kv, head, heads);
        });
        true
    }

    fn block(&self, rows: std::ops::Range<usize>, kv: usize, head: usize, heads: usize) {
        let d = self.spec.head_dim;
        let (oldest, _) = self.seen(rows.start);
        if self.seen(rows.end - 1).0 != oldest {
            // A window that has begun to move: each row begins at a key of its own.
            for row in rows {
                for part in (0..heads).step_by(TOGETHER) {
                    self.row(row, kv, head + part, TOGETHER.min(heads - part));
                }
            }
            return;
        }
        let (mut q, mut out, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            for head in head..head + heads {
                let at = (row * self.spec.n_heads + head) * d;
                q.push(self.q[at..at + d].as_ptr());
                // SAFETY: inside the result, and every (row, head) has its own `head_dim` floats.
                out.push(unsafe { self.to.at(at) });
                seen.push(self.seen(row).1);
            }
        }
        let (k, v) = (self.k.at(oldest, kv * d), self.v.at(oldest, kv * d));
        let block = Block { q: &q, out: &out, seen: &seen, d, scale: self.spec.scale, k, v };
        SCRATCH.with_borrow_mut(|scratch| {
            let need = block.scratch();
            if scratch.len() < need {
                scratch.resize(need, 0.0);
            }
            attend_block(&block, &mut scratch[..need]);
        });
    }
}

impl AttendSpec {
    /// Absolute position of the oldest key a query at `position` sees.
    fn first_key(&self, position: usize) -> usize {
        self.window.map_or(0, |w| (position + 1).saturating_sub(w)).max(self.origin)
    }
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
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
mod tests;
