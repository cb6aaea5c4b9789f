//! y = x W^T for affine W with x quantised to signed bytes: whole-number products in place of f32 ones.
//!
//! x is quantised once per call, per block of 32 (`quantise.rs`); with code u, x ~ s q, scale and bias of block b's group:
//!
//! ```text
//! y = sum over b of scale_b * (s_b * (sum of u q)) + bias_b * (s_b * (sum of q))
//! ```
//!
//! The sums of u q are taken in 32-bit integers and are exact. In f32, every (row, output) pair has one accumulator of 16 lanes
//! that takes 16 blocks at a time, a block to a lane. What is left of a row after that, if anything, shares a last
//! stretch with what is left of its neighbours, and each output then gets its own lanes of that. The lanes are summed by the tree that
//! all kernels have. So the bits depend on neither the backend, nor the company, nor the blocking.
//!
//! Codes of 4 and 8 bits are unpacked in registers, once for up to 8 rows of x; others go to bytes in scratch first.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
mod lanes;
mod panel;
mod quantise;

use self::panel::{MOST_ROWS, panel};
pub(crate) use self::quantise::{Line, Order, Rows};
use super::{BLOCK, with_scratch};
use crate::elementwise::swiglu_slice;
use crate::pool;
use crate::weight::Affine;
use std::cell::RefCell;

/// Rows of x, laid out in a weight's order.
pub(crate) enum Input {
    /// Each by itself.
    Rows(Vec<*const Line>),
    /// All of them, in tiles of 16.
    Tiles(*const Line),
}

/// Some rows of x against one weight, or against two that share them: silu(gate x) * up x, limited.
pub(crate) struct Product<'a> {
    pub weight: &'a Affine,
    pub up: Option<(&'a Affine, f32)>,
    pub x: Input,
    /// For each row of x, n outputs that nobody else writes.
    pub out: Vec<*mut f32>,
}
// SAFETY: rows are only read, and chunks write disjoint columns.
unsafe impl Sync for Product<'_> {}

impl Product<'_> {
    fn bytes_per_output(&self) -> usize {
        let w = self.weight;
        let one = w.k * w.bits / 8 + 2 * (w.k / w.group) * w.scale_type.size();
        if self.up.is_some() { 2 * one } else { one }
    }

    /// What a pass over it costs, in bytes that take as long to read.
    fn cost(&self) -> usize {
        self.weight.n * self.bytes_per_output() * (3 + self.out.len()) / 4
    }
}

/// Laid out for `weight`.
pub(crate) fn order(weight: &Affine) -> Order {
    Order { k: weight.k, spread: weight.bits == 4 }
}

/// Below this a call stays on one core: about ten microseconds.
const SMALL: usize = 128 << 10;
/// Bytes of weights that stay in the second-level cache while many rows of x go by.
const PANEL: usize = 192 << 10;
/// Outputs of a chunk come in these; their lanes are added up at once.
const GRAIN: usize = 8;

/// Whether prompts go through AMX tiles.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_tiles() -> bool {
    amx::are_here()
}

/// Codes that are unpacked in registers.
fn is_direct(weight: &Affine) -> bool {
    matches!(weight.bits, 4 | 8)
}

/// All products, in one run of the pool.
pub(crate) fn run(products: &[Product<'_>]) {
    let cost: usize = products.iter().map(Product::cost).sum();
    let threads = pool::n_threads();
    // Several chunks for each thread, so that one that is late, or taken off its core, leaves little to wait for.
    let share = if cost < SMALL { cost } else { (cost / (threads * 8)).max(SMALL / 8) };
    let mut chunks = Vec::new();
    for p in products {
        let n = p.weight.n;
        let per_output = (p.cost() / n.max(1)).max(1);
        let unpacked = if is_direct(p.weight) { p.bytes_per_output() } else { p.weight.k };
        let (panel, grain) = match &p.x {
            Input::Rows(x) if x.len() > MOST_ROWS => (PANEL / unpacked.max(1), GRAIN),
            Input::Rows(_) => (n, GRAIN),
            Input::Tiles(_) => (n, amx::TILE_OUTPUTS),
        };
        // One output may be more than a thread's share, or than a panel.
        let rows = (share / per_output).min(panel).max(1).next_multiple_of(grain);
        chunks.extend((0..n).step_by(rows).map(|first| (p, first, (first + rows).min(n))));
    }
    let chunk = |i: usize| {
        let (p, first, end) = chunks[i];
        UNPACKED.with_borrow_mut(|scratch| {
            let need = if is_direct(p.weight) { 0 } else { (p.weight.k + 64) * GRAIN };
            if scratch.len() < need {
                scratch.resize(need, 0);
            }
            match p.up {
                None => outputs(p.weight, &p.x, &p.out, first..end, scratch),
                Some((up, limit)) => with_scratch(&UP, p.out.len() * (end - first), |side| {
                    gated(p, up, limit, (first, end), scratch, side)
                }),
            }
        });
    };
    if cost < SMALL || threads == 1 {
        (0..chunks.len()).for_each(chunk);
    } else {
        pool::run(chunks.len(), &chunk);
    }
}

/// Outputs `range` of `weight` for all rows of x.
fn outputs(
    weight: &Affine,
    x: &Input,
    out: &[*mut f32],
    range: std::ops::Range<usize>,
    scratch: &mut [u8],
) {
    match x {
        Input::Rows(x) => panel(weight, x, out, range, scratch),
        // SAFETY: `Shared` asks before it lays x out in tiles; chunks begin at whole tiles.
        Input::Tiles(x) => unsafe { amx::panel(weight, *x, out, range) },
    }
}

/// Rows that several products read.
struct Shared {
    rows: Rows,
    /// In tiles.
    tiled: bool,
}

impl Shared {
    /// x is [m, k].
    fn new(x: &[f32], order: Order) -> Self {
        if amx::takes(x.len() / order.k) {
            return Self { rows: Rows::tiles(x, order), tiled: true };
        }
        Self { rows: Rows::new(x, order), tiled: false }
    }

    fn input(&self, m: usize) -> Input {
        if self.tiled {
            return Input::Tiles(self.rows.first());
        }
        Input::Rows((0..m).map(|r| self.rows.row(r)).collect())
    }
}

/// [m, n] of several weights that read the same x and share an [`Order`].
pub(crate) fn apply(x: &[f32], weights: &[&Affine]) -> Vec<Vec<f32>> {
    let Some(first) = weights.first() else { return Vec::new() };
    let m = x.len() / first.k;
    // Not zeroed: it would be written twice.
    let mut out: Vec<Vec<f32>> = weights.iter().map(|w| Vec::with_capacity(m * w.n)).collect();
    if m > 0 {
        let rows = Shared::new(x, order(first));
        let products: Vec<_> = weights
            .iter()
            .zip(&mut out)
            .map(|(weight, out)| product(weight, None, &rows, m, out.as_mut_ptr()))
            .collect();
        run(&products);
    }
    for (weight, out) in weights.iter().zip(&mut out) {
        // SAFETY: `run` has written all of them.
        unsafe { out.set_len(m * weight.n) };
    }
    out
}

/// [m, n]: silu(gate x) * up x, limited. Both weights share an [`Order`].
pub(crate) fn apply_gated(x: &[f32], gate: &Affine, up: &Affine, limit: f32) -> Vec<f32> {
    let m = x.len() / gate.k;
    let mut out = Vec::with_capacity(m * gate.n);
    if m > 0 {
        let rows = Shared::new(x, order(gate));
        run(&[product(gate, Some((up, limit)), &rows, m, out.as_mut_ptr())]);
    }
    // SAFETY: as in `apply`.
    unsafe { out.set_len(m * gate.n) };
    out
}

/// `to` has room for m rows of the weight's outputs.
fn product<'a>(
    weight: &'a Affine,
    up: Option<(&'a Affine, f32)>,
    rows: &Shared,
    m: usize,
    to: *mut f32,
) -> Product<'a> {
    let out = (0..m).map(|r| to.wrapping_add(r * weight.n)).collect();
    Product { weight, up, x: rows.input(m), out }
}

/// Without tiles all rows go one by one.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod amx {
    pub const TILE_OUTPUTS: usize = 16;

    pub fn takes(_rows: usize) -> bool {
        false
    }

    #[cfg(target_arch = "x86_64")]
    pub fn are_here() -> bool {
        false
    }

    pub unsafe fn panel(
        _: &super::Affine,
        _: *const super::Line,
        _: &[*mut f32],
        _: std::ops::Range<usize>,
    ) {
    }
}

thread_local! {
    static UNPACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static UP: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Outputs `first..end` of gate, up beside it, then the activation over gate's.
fn gated(
    p: &Product<'_>,
    up: &Affine,
    limit: f32,
    (first, end): (usize, usize),
    scratch: &mut [u8],
    side: &mut [f32],
) {
    let n = end - first;
    // Column `first` of each row lands at its own place in `side`.
    let places: Vec<*mut f32> =
        (0..p.out.len()).map(|r| side[r * n..].as_mut_ptr().wrapping_sub(first)).collect();
    outputs(p.weight, &p.x, &p.out, first..end, scratch);
    outputs(up, &p.x, &places, first..end, scratch);
    let mut gate = vec![0f32; n];
    for (out, up) in p.out.iter().zip(side.chunks(n)) {
        // SAFETY: these columns are this chunk's.
        let out = unsafe { std::slice::from_raw_parts_mut(out.add(first), n) };
        gate.copy_from_slice(out);
        swiglu_slice(&gate, up, limit, out);
    }
}

#[cfg(test)]
mod tests;
