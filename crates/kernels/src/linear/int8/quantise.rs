//! Rows of x as signed bytes: per block of 32 one scale, max|x| / 127, and values rounded to the nearest, ties to even.
//!
//! Plain loops: the compiler's vector code is bound to the same IEEE operations, so a row's bytes are the same everywhere, and
//! each row is on its own, so they are the same in any company.

use super::BLOCK;
use super::lanes::{LINES, STEP, STEP_LINES, STRETCH, block_of};
use crate::lanes::{Lanes, dispatch};
use crate::pool;
use std::cell::RefCell;

/// What a cache line holds.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line([f32; 16]);

/// Lines of a stretch of 16 blocks: its values, then its scales, a lane each.
pub(super) const EACH: usize = LINES + 1;
/// The same of a step of 4 blocks, each of whose lanes has a quarter of one.
pub(super) const STEP_EACH: usize = STEP_LINES + 1;

/// How a row of x is laid out for one kind of weight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub k: usize,
    /// Evens and odds of a block apart, as 4-bit codes lie, in place of first and second half.
    pub spread: bool,
    pub group: usize,
}

impl Order {
    /// Whole stretches, and steps behind them.
    fn parts(self) -> (usize, usize) {
        let stretch = STRETCH * BLOCK;
        (self.k / stretch, (self.k % stretch).div_ceil(STEP * BLOCK))
    }

    /// Lines before the sums of the groups.
    pub fn value_lines(self) -> usize {
        let (stretches, steps) = self.parts();
        EACH * stretches + STEP_EACH * steps
    }

    /// Lines of a row: its stretches, its steps, then the sum of each group's values, 16 to a line.
    pub fn lines(self) -> usize {
        self.value_lines() + (self.k / self.group).div_ceil(16)
    }
}

thread_local! {
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
            lines.resize(m * each, Line([0.0; 16]));
        }
        let to = Shared(lines.as_mut_ptr());
        // 16384 values take a few microseconds, as long as another thread to come.
        let rows_per_chunk = (16384 / order.k).max(1);
        pool::run(m.div_ceil(rows_per_chunk), &|chunk| {
            for r in chunk * rows_per_chunk..((chunk + 1) * rows_per_chunk).min(m) {
                // SAFETY: every row has its own lines, inside the vector.
                let out = unsafe { std::slice::from_raw_parts_mut(to.at(r * each), each) };
                quantise(&x[r * order.k..(r + 1) * order.k], order, out);
            }
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

dispatch! { fn quantise(x: &[f32], order: Order, out: &mut [Line]) = body }

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

#[inline(always)]
unsafe fn body<L: Lanes>(x: &[f32], order: Order, out: &mut [Line]) {
    let (mut lines, sums) = out.split_at_mut(order.value_lines());
    for sums in sums.iter_mut() {
        sums.0 = [0.0; 16];
    }
    let per_group = order.group / BLOCK;
    let (stretches, steps) = order.parts();
    let mut first = 0;
    for part in 0..stretches + steps {
        let whole = part < stretches;
        // Behind a row's end there is nothing: a code times 0, times a scale of 0.
        let mut values = [[0i8; BLOCK]; STRETCH];
        let mut scales = [0f32; STRETCH];
        let blocks = if whole { STRETCH } else { STEP };
        for (b, x) in x[first * BLOCK..].chunks_exact(BLOCK).enumerate().take(blocks) {
            let (scale, sum) = block(x, &mut values[b]);
            scales[b] = scale;
            let group = (first + b) / per_group;
            sums[group / 16].0[group % 16] += sum;
        }
        first += blocks;
        let (here, rest) = lines.split_at_mut(if whole { EACH } else { STEP_EACH });
        lines = rest;
        if whole {
            stretch(&values, &scales, order.spread, here);
        } else {
            step(&values, &scales, order.spread, here);
        }
    }
}

/// SAFETY of the casts here and in `step`: a line is 64 bytes.
#[inline(always)]
fn stretch(
    values: &[[i8; BLOCK]; STRETCH],
    scales: &[f32; STRETCH],
    spread: bool,
    out: &mut [Line],
) {
    for j in 0..STRETCH {
        out[LINES].0[j] = scales[block_of(j)];
    }
    for (q, line) in out[..LINES].iter_mut().enumerate() {
        let line = unsafe { &mut *std::ptr::from_mut(line).cast::<[[i8; 4]; 16]>() };
        for (j, lane) in line.iter_mut().enumerate() {
            let from = &values[block_of(j)];
            for (c, to) in lane.iter_mut().enumerate() {
                *to = from[if spread { q / 2 * 8 + 2 * c + q % 2 } else { 4 * q + c }];
            }
        }
    }
}

#[inline(always)]
fn step(values: &[[i8; BLOCK]; STRETCH], scales: &[f32; STRETCH], spread: bool, out: &mut [Line]) {
    for j in 0..16 {
        out[STEP_LINES].0[j] = scales[j / 4];
    }
    for (h, line) in out[..STEP_LINES].iter_mut().enumerate() {
        let line = unsafe { &mut *std::ptr::from_mut(line).cast::<[[i8; 16]; STEP]>() };
        for (b, half) in line.iter_mut().enumerate() {
            for (i, to) in half.iter_mut().enumerate() {
                *to = values[b][if spread { 2 * i + h } else { 16 * h + i }];
            }
        }
    }
}
