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

/// Lines of a stretch of 16 blocks: its values, then its scales and the sums of its values times these, a lane each.
pub(super) const EACH: usize = LINES + 2;

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

    pub fn lines(self) -> usize {
        (self.stretches + usize::from(self.left > 0)) * EACH
    }
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

impl Rows {
    /// x is [m, k].
    pub fn new(x: &[f32], order: Order) -> Self {
        let (m, each) = (x.len() / order.k, order.lines());
        let mut lines = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        if lines.len() < m * each {
            lines.resize(m * each, Line([0; 16]));
        }
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

    pub fn row(&self, r: usize) -> *const Line {
        self.lines[r * self.order.lines()..].as_ptr()
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

/// Below this a block is 0: the reciprocal of its scale would leave the range.
const LEAST: f32 = 1e-30;
/// Adding it leaves a small number's nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// A block's values, its scale, and the sum of its values.
#[inline(always)]
fn block(x: &[f32], values: &mut [i8; BLOCK]) -> (f32, f32) {
    // As whole numbers: an infinity is above all numbers and NaN above it, so neither is lost.
    let mut top = 0u32;
    for v in x {
        top = top.max(v.to_bits() & 0x7fff_ffff);
    }
    let top = f32::from_bits(top);
    let (scale, inverse) = if top < LEAST { (0.0, 0.0) } else { (top / 127.0, 127.0 / top) };
    for (v, out) in x.iter().zip(values.iter_mut()) {
        *out = (v * inverse + ROUND).to_bits() as i8;
    }
    let mut sum = 0i32;
    for v in values {
        sum += i32::from(*v);
    }
    (scale, scale * sum as f32)
}

/// Values as words: word q of a block is what line q of its lane holds, see [`super::lanes::Int8::Codes`].
#[inline(always)]
fn words(values: &[i8; BLOCK], spread: bool) -> [u32; LINES] {
    let mut out = [0; LINES];
    for (q, word) in out.iter_mut().enumerate() {
        let mut bytes = [0; 4];
        for (c, byte) in bytes.iter_mut().enumerate() {
            let column = if spread { q / 2 * 8 + 2 * c + q % 2 } else { 4 * q + c };
            *byte = values[column] as u8;
        }
        *word = u32::from_ne_bytes(bytes);
    }
    out
}

#[inline(always)]
unsafe fn body<L: Lanes>(x: &[f32], order: Order, blocks: &mut Vec<Block>, out: &mut [Line]) {
    blocks.clear();
    for x in x.chunks_exact(BLOCK) {
        let mut values = [0i8; BLOCK];
        let (scale, sum) = block(x, &mut values);
        blocks.push((words(&values, order.spread), scale, sum));
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
