//! Rows of x as signed bytes: per block of 32 one scale, max|x| / 127, and values rounded to the nearest, ties to even.
//!
//! Plain loops: the compiler's vector code is bound to the same IEEE operations, so a row's bytes are the same everywhere, and
//! each row is on its own, so they are the same in any company.

use super::BLOCK;
use super::lanes::{LINES, STRETCH, block_of};
use crate::lanes::{Lanes, dispatch};
use crate::pool;
use std::cell::RefCell;

/// What a cache line holds.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line([u32; 16]);

impl Line {
    pub(super) const ZERO: Self = Self([0; 16]);
}

/// Lines of a stretch of 16 blocks: its values, then its scales and the sums of its values times these, a lane each.
pub(super) const EACH: usize = LINES + 2;

/// Rows of a tile. A tile has as many lines for a block of 16 rows as a row has for 16 blocks: the values of each row, then
/// 16 scales and 16 sums of values times these. Its blocks lie as they are multiplied, see [`turns`].
pub(super) const TILE_ROWS: usize = 16;

/// A row of blocks in stretches, and what is left behind them.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub stretches: usize,
    /// Blocks behind the last whole stretch.
    pub left: usize,
    /// Blocks that each of the outputs has which share a stretch for what is left: a power of two, 2 at least.
    pub slot: usize,
}

impl Ends {
    #[inline(always)]
    pub fn of(blocks: usize) -> Self {
        let left = blocks % STRETCH;
        Self { stretches: blocks / STRETCH, left, slot: left.next_power_of_two().max(2) }
    }

    // Only tiles ask, which only this system has.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub fn blocks(self) -> usize {
        self.stretches * STRETCH + self.left
    }

    pub fn lines(self) -> usize {
        (self.stretches + usize::from(self.left > 0)) * EACH
    }
}

/// The lane of the tree of sums that is taken `i`th: 0, 8, 4, 12, ...
pub(super) const fn lane(i: usize) -> usize {
    (i & 1) << 3 | (i & 2) << 1 | (i & 4) >> 1 | (i & 8) >> 3
}

/// Which blocks a tile multiplies, in turn: what is left first, as every lane may ask for it, then the blocks of each lane.
pub(super) fn turns(blocks: usize) -> Vec<usize> {
    let Ends { stretches, left, .. } = Ends::of(blocks);
    let left = (0..left).map(|t| stretches * STRETCH + t);
    let lanes =
        (0..STRETCH).flat_map(|i| (0..stretches).map(move |s| s * STRETCH + block_of(lane(i))));
    left.chain(lanes).collect()
}

/// How a row of x is laid out for one kind of weight: its stretches, then what is left, again in every slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub k: usize,
    /// Evens and odds of a block apart, as 4-bit codes lie, in place of first and second half.
    pub spread: bool,
}

impl Order {
    fn lines(self) -> usize {
        Ends::of(self.k / BLOCK).lines()
    }
}

/// A block of x: its values in the order they lie in, its scale, and the sum of its values times that.
type Block = ([u32; LINES], f32, f32);

thread_local! {
    static BLOCKS: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
    static SPARE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Rows of x, quantised; the memory goes back to the thread for its next call.
pub(crate) struct Rows {
    lines: Vec<Line>,
    order: Order,
}

/// Memory for so many lines, with whatever an earlier call left in it.
fn spare(lines: usize) -> Vec<Line> {
    let mut spare = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if spare.len() < lines {
        spare.resize(lines, Line::ZERO);
    }
    spare
}

impl Rows {
    /// x is [m, k].
    pub fn new(x: &[f32], order: Order) -> Self {
        let (m, each) = (x.len() / order.k, order.lines());
        let mut lines = spare(m * each);
        let to = Shared(lines.as_mut_ptr());
        // 16384 values take a few microseconds, as long as another thread to come.
        let rows_per_chunk = (16384 / order.k).max(1);
        pool::run(m.div_ceil(rows_per_chunk), &|chunk| {
            BLOCKS.with_borrow_mut(|blocks| {
                for r in chunk * rows_per_chunk..((chunk + 1) * rows_per_chunk).min(m) {
                    // SAFETY: every row has its own lines, inside the vector.
                    let out = unsafe { std::slice::from_raw_parts_mut(to.at(r * each), each) };
                    quantise(&x[r * order.k..(r + 1) * order.k], order, blocks, out);
                }
            });
        });
        Self { lines, order }
    }

    /// x is [m, k], in tiles of 16 rows, the last one filled up with zeros.
    pub fn tiles(x: &[f32], order: Order) -> Self {
        let (rows, each) = (TILE_ROWS * order.k, order.k / BLOCK * EACH);
        let (tiles, turns) = (x.len().div_ceil(rows), turns(order.k / BLOCK));
        let mut lines = spare(tiles * each);
        let to = Shared(lines.as_mut_ptr());
        pool::run(tiles, &|t| {
            // SAFETY: every tile has its own lines, inside the vector.
            let out = unsafe { std::slice::from_raw_parts_mut(to.at(t * each), each) };
            quantise_tile(&x[t * rows..x.len().min((t + 1) * rows)], order, &turns, out);
        });
        Self { lines, order }
    }

    pub fn row(&self, r: usize) -> *const Line {
        self.lines[r * self.order.lines()..].as_ptr()
    }

    /// Where the lines begin.
    pub fn first(&self) -> *const Line {
        self.lines.as_ptr()
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        SPARE.with_borrow_mut(|spare| spare.push(lines));
    }
}

#[derive(Clone, Copy)]
struct Shared(*mut Line);
// SAFETY: chunks write disjoint lines, see `Rows::new`.
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// `at` is inside the buffer.
    unsafe fn at(self, at: usize) -> *mut Line {
        unsafe { self.0.add(at) }
    }
}

dispatch! { fn quantise(x: &[f32], order: Order, blocks: &mut Vec<Block>, out: &mut [Line]) = body }

dispatch! { fn quantise_tile(x: &[f32], order: Order, turns: &[usize], out: &mut [Line]) = tile_body }

/// Below this a block is 0: the reciprocal of its scale would leave the range.
const LEAST: f32 = 1e-30;
/// Adding it leaves a small number's nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// A block's values as words (word q is what line q of its lane holds, see [`super::lanes::Int8::Codes`]), its scale, and the
/// sum of its values times that.
#[inline(always)]
unsafe fn block<L: Lanes, const SPREAD: bool>(x: &[f32; BLOCK]) -> Block {
    // As whole numbers: an infinity is above all numbers and NaN above it, so neither is lost.
    let mut top = 0u32;
    for v in x {
        top = top.max(v.to_bits() & 0x7fff_ffff);
    }
    let top = f32::from_bits(top);
    let (scale, inverse) = if top < LEAST { (0.0, 0.0) } else { (top / 127.0, 127.0 / top) };
    let (words, sum) = unsafe {
        let (inverse, round) = (L::splat(inverse), L::splat(ROUND));
        let a = L::add(L::mul(L::load(x.as_ptr()), inverse), round);
        let b = L::add(L::mul(L::load(x.as_ptr().add(16)), inverse), round);
        L::low_bytes::<SPREAD>(a, b)
    };
    (words, scale, scale * sum as f32)
}

#[inline(always)]
unsafe fn body<L: Lanes>(x: &[f32], order: Order, blocks: &mut Vec<Block>, out: &mut [Line]) {
    unsafe {
        if order.spread { row::<L, true>(x, blocks, out) } else { row::<L, false>(x, blocks, out) }
    }
}

#[inline(always)]
unsafe fn row<L: Lanes, const SPREAD: bool>(x: &[f32], blocks: &mut Vec<Block>, out: &mut [Line]) {
    blocks.clear();
    for x in x.as_chunks().0 {
        blocks.push(unsafe { block::<L, SPREAD>(x) });
    }
    let nothing = ([0; LINES], 0.0, 0.0);
    let ends = Ends::of(blocks.len());
    for (s, out) in out.chunks_exact_mut(EACH).enumerate() {
        for i in 0..STRETCH {
            let place = if s < ends.stretches { i } else { i % ends.slot };
            let (values, scale, sum) = blocks.get(s * STRETCH + place).unwrap_or(&nothing);
            // The lane of block i: `block_of` is its own inverse.
            let lane = block_of(i);
            for (line, word) in out.iter_mut().zip(values) {
                line.0[lane] = *word;
            }
            out[LINES].0[lane] = scale.to_bits();
            out[LINES + 1].0[lane] = sum.to_bits();
        }
    }
}

#[inline(always)]
unsafe fn tile_body<L: Lanes>(x: &[f32], order: Order, turns: &[usize], out: &mut [Line]) {
    if x.len() < TILE_ROWS * order.k {
        out.fill(Line::ZERO);
    }
    unsafe {
        if order.spread {
            tile::<L, true>(x, order.k, turns, out)
        } else {
            tile::<L, false>(x, order.k, turns, out)
        }
    }
}

/// Up to 16 rows of x.
#[inline(always)]
unsafe fn tile<L: Lanes, const SPREAD: bool>(
    x: &[f32],
    k: usize,
    turns: &[usize],
    out: &mut [Line],
) {
    for (r, x) in x.chunks_exact(k).enumerate() {
        let (blocks, half) = (x.as_chunks().0, r % 2 * LINES);
        for (at, out) in turns.iter().zip(out.chunks_exact_mut(EACH)) {
            let (words, scale, sum) = unsafe { block::<L, SPREAD>(&blocks[*at]) };
            out[r / 2].0[half..half + LINES].copy_from_slice(&words);
            out[LINES].0[r] = scale.to_bits();
            out[LINES + 1].0[r] = sum.to_bits();
        }
    }
}
