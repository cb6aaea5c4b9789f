//! Sixteen (row, head) pairs of one key head at once, for prompts: lanes stand for pairs.
//!
//! A key is widened once for all pairs and no score has to be added up across lanes. The sixteen lanes that `attention.rs` adds
//! a score up from are leaves of the same tree here, a softmax's total has the same sixteen parts, and the values follow in
//! the same order: the bits are those of a row alone.

use super::{Half, Rows, Single, Stored, ask};
use crate::lanes::{Lanes, dispatch};

/// Pairs of a block.
pub(super) const PAIRS: usize = 16;
/// Keys or values that are widened together: 64 of 64 columns take a third of a first-level cache.
const TILE: usize = 64;

/// Pairs whose keys begin at the same one.
pub(super) struct Block<'a> {
    /// Each pair's query, of `d` floats; 1 to 16.
    pub q: &'a [*const f32],
    /// Where each pair's result goes.
    pub out: &'a [*mut f32],
    /// How many keys each pair sees, never fewer than the pair before.
    pub seen: &'a [usize],
    pub d: usize,
    pub scale: f32,
    pub k: Rows,
    pub v: Rows,
}

impl Block<'_> {
    /// Keys that somebody sees.
    fn keys(&self) -> usize {
        self.seen.last().copied().unwrap_or(0)
    }

    /// Floats of scratch.
    pub fn scratch(&self) -> usize {
        (self.keys() + 2 * self.d) * PAIRS + TILE * self.d
    }

    /// The pairs that see key `t`, as bits.
    fn who(&self, t: usize) -> u16 {
        let blind = self.seen.iter().take_while(|seen| **seen <= t).count();
        ((1u32 << self.seen.len()) - (1u32 << blind)) as u16
    }
}

dispatch! {
    /// `scratch` has as many floats as the block says.
    pub(super) fn attend_block(block: &Block<'_>, scratch: &mut [f32]) = body
}

#[inline(always)]
unsafe fn body<L: Lanes>(block: &Block<'_>, scratch: &mut [f32]) {
    unsafe {
        match (block.k.half, block.d) {
            (true, 64) => whole::<L, Half, 4>(block, scratch),
            (true, 128) => whole::<L, Half, 8>(block, scratch),
            (true, _) => whole::<L, Half, 0>(block, scratch),
            (false, _) => whole::<L, Single, 0>(block, scratch),
        }
    }
}

/// `S` is d / 16, or 0 if the compiler need not know it.
#[inline(always)]
unsafe fn whole<L: Lanes, T: Stored, const S: usize>(block: &Block<'_>, scratch: &mut [f32]) {
    let (d, keys) = (block.d, block.keys());
    let (q, rest) = scratch.split_at_mut(d * PAIRS);
    let (sums, rest) = rest.split_at_mut(d * PAIRS);
    let (scores, tile) = rest.split_at_mut(keys * PAIRS);
    q.fill(0.0);
    unsafe {
        for (pair, from) in block.q.iter().enumerate() {
            for i in 0..d {
                q[i * PAIRS + pair] = *from.add(i);
            }
        }
        for first in (0..keys).step_by(TILE) {
            let some = TILE.min(keys - first);
            widen::<L, T>(block.k, first, some, d, tile);
            score::<L, S>(q, tile, d, block.scale, &mut scores[first * PAIRS..][..some * PAIRS]);
        }
        let inverse = softmax::<L>(block, scores);
        sums.fill(0.0);
        for first in (0..keys).step_by(TILE) {
            let some = TILE.min(keys - first);
            widen::<L, T>(block.v, first, some, d, tile);
            mix::<L>(block, scores, tile, first..first + some, sums);
        }
        for i in 0..d {
            let p = sums.as_mut_ptr().add(i * PAIRS);
            L::store(p, L::mul(L::load(p), inverse));
        }
        for (pair, to) in block.out.iter().enumerate() {
            for i in 0..d {
                *to.add(i) = sums[i * PAIRS + pair];
            }
        }
    }
}

/// Rows `first..first + some` as f32 [some, d].
#[inline(always)]
unsafe fn widen<L: Lanes, T: Stored>(
    rows: Rows,
    first: usize,
    some: usize,
    d: usize,
    to: &mut [f32],
) {
    for (t, to) in to.chunks_exact_mut(d).take(some).enumerate() {
        unsafe {
            let row = rows.data.add((first + t) * rows.stride);
            ask::<L, T>(row, rows.stride, d);
            for i in (0..d).step_by(16) {
                L::store(to.as_mut_ptr().add(i), T::load::<L>(row.add(i * T::SIZE)));
            }
        }
    }
}

/// [keys, pairs] from q [d, pairs] and keys [keys, d].
#[inline(always)]
unsafe fn score<L: Lanes, const S: usize>(
    q: &[f32],
    keys: &[f32],
    d: usize,
    scale: f32,
    scores: &mut [f32],
) {
    let (n, most) = (scores.len() / PAIRS, if L::REGISTERS < 32 { 1 } else { 4 });
    let mut t = 0;
    while t < n {
        unsafe {
            let (key, to) = (keys.as_ptr().add(t * d), scores.as_mut_ptr().add(t * PAIRS));
            if most == 4 && n - t >= 4 {
                let sums = tree4::<L, S, 4>(q.as_ptr(), key, d, 0);
                for j in 0..4 {
                    L::store(to.add(j * PAIRS), L::mul(sums[j], L::splat(scale)));
                }
                t += 4;
            } else {
                let sums = tree4::<L, S, 1>(q.as_ptr(), key, d, 0);
                L::store(to, L::mul(sums[0], L::splat(scale)));
                t += 1;
            }
        }
    }
}

/// Columns `lane`, `lane + 16`, ... of K keys, one after the other.
#[inline(always)]
unsafe fn leaf<L: Lanes, const S: usize, const K: usize>(
    q: *const f32,
    key: *const f32,
    d: usize,
    lane: usize,
) -> [L::V; K] {
    unsafe {
        let mut acc = [L::splat(0.0); K];
        for s in 0..if S > 0 { S } else { d / 16 } {
            let i = 16 * s + lane;
            let q = L::load(q.add(i * PAIRS));
            for j in 0..K {
                acc[j] = L::fma(q, L::splat(*key.add(j * d + i)), acc[j]);
            }
        }
        acc
    }
}

/// The two halves of a node of the tree begin `$half` lanes apart.
macro_rules! level {
    ($name:ident, $below:ident, $half:literal) => {
        #[inline(always)]
        unsafe fn $name<L: Lanes, const S: usize, const K: usize>(
            q: *const f32,
            key: *const f32,
            d: usize,
            lane: usize,
        ) -> [L::V; K] {
            unsafe {
                let mut a = $below::<L, S, K>(q, key, d, lane);
                let b = $below::<L, S, K>(q, key, d, lane + $half);
                for j in 0..K {
                    a[j] = L::add(a[j], b[j]);
                }
                a
            }
        }
    };
}
level!(tree1, leaf, 8);
level!(tree2, tree1, 4);
level!(tree3, tree2, 2);
// From lane 0, all sixteen, as [`Lanes::sum`] adds them up.
level!(tree4, tree3, 1);

/// Scores to weights, 0 for who does not see the key; returns one over their sums.
#[inline(always)]
unsafe fn softmax<L: Lanes>(block: &Block<'_>, scores: &mut [f32]) -> L::V {
    let unseen = |scores: &mut [f32], number: f32| {
        for (pair, seen) in block.seen.iter().enumerate() {
            for t in *seen..block.keys() {
                scores[t * PAIRS + pair] = number;
            }
        }
    };
    unseen(scores, f32::MIN);
    unsafe {
        let mut top = L::splat(f32::MIN);
        for t in scores.chunks_exact(PAIRS) {
            top = L::max(top, L::load(t.as_ptr()));
        }
        let low = L::mul(top, L::splat(-1.0));
        for t in scores.chunks_exact_mut(PAIRS) {
            let p = t.as_mut_ptr();
            L::store(p, L::exp(L::add(L::load(p), low)));
        }
        unseen(scores, 0.0);
        let mut parts = [L::splat(0.0); 16];
        for sixteen in scores.chunks(16 * PAIRS) {
            for (part, t) in parts.iter_mut().zip(sixteen.chunks_exact(PAIRS)) {
                *part = L::add(*part, L::load(t.as_ptr()));
            }
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                parts[i] = L::add(parts[i], parts[i + half]);
            }
        }
        L::div(L::splat(1.0), parts[0])
    }
}

/// Adds keys' weights times their values, `tile`, to sums [d, pairs].
#[inline(always)]
unsafe fn mix<L: Lanes>(
    block: &Block<'_>,
    weights: &[f32],
    tile: &[f32],
    keys: std::ops::Range<usize>,
    sums: &mut [f32],
) {
    let d = block.d;
    // Up to where all see them, then those that only some do: a weight of 0 would still make infinity nobody's number.
    let all = block.seen.first().copied().unwrap_or(0).clamp(keys.start, keys.end);
    unsafe {
        let from = weights.as_ptr().add(keys.start * PAIRS);
        if L::REGISTERS < 32 {
            columns::<L, 4>(from, tile, all - keys.start, d, sums);
        } else {
            columns::<L, 16>(from, tile, all - keys.start, d, sums);
        }
        for t in all..keys.end {
            let (who, weight) = (block.who(t), L::load(weights.as_ptr().add(t * PAIRS)));
            for i in 0..d {
                let p = sums.as_mut_ptr().add(i * PAIRS);
                let value = L::splat(tile[(t - keys.start) * d + i]);
                L::store(p, L::pick(who, L::fma(weight, value, L::load(p)), L::load(p)));
            }
        }
    }
}

/// `C` columns at a time over `keys` keys.
#[inline(always)]
unsafe fn columns<L: Lanes, const C: usize>(
    weights: *const f32,
    tile: &[f32],
    keys: usize,
    d: usize,
    sums: &mut [f32],
) {
    for i in (0..d).step_by(C) {
        unsafe {
            let p = sums.as_mut_ptr().add(i * PAIRS);
            let mut acc = [L::splat(0.0); C];
            for j in 0..C {
                acc[j] = L::load(p.add(j * PAIRS));
            }
            let mut value = tile.as_ptr().add(i);
            let mut weight = weights;
            for _ in 0..keys {
                let w = L::load(weight);
                for j in 0..C {
                    acc[j] = L::fma(w, L::splat(*value.add(j)), acc[j]);
                }
                value = value.wrapping_add(d);
                weight = weight.wrapping_add(PAIRS);
            }
            for j in 0..C {
                L::store(p.add(j * PAIRS), acc[j]);
            }
        }
    }
}
