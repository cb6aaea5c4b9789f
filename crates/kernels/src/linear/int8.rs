//! y = x W^T for affine W with x quantised to signed bytes: whole-number products in place of f32 ones.
//!
//! x is quantised once per call, per block of 32 (`quantise.rs`); with code u, x ~ s q, group g and block b of it:
//!
//! ```text
//! y = sum over g of scale_g * (sum over b of s_b * (sum of u q)) + bias_g * (sum over b of s_b * (sum of q))
//! ```
//!
//! The sums of u q are taken in 32-bit integers and are exact. In f32, every (row, output) pair has one accumulator of 16
//! lanes: first come the biases, a group to a lane, then 16 blocks at a time, a block to a lane, then what is left, 4 blocks at a
//! time; the lanes are summed by the tree that all kernels have. So the bits depend on neither the backend, nor the company, nor the blocking.
//!
//! Codes of 4 and 8 bits are unpacked in registers, once for up to 8 rows of x; others go to bytes in scratch first.

mod lanes;
mod quantise;

use self::lanes::{Int8, STEP, STRETCH};
use self::quantise::{EACH, STEP_EACH};
pub(crate) use self::quantise::{Line, Order, Rows};
use super::{BLOCK, with_scratch};
use crate::elementwise::swiglu_slice;
use crate::pool::{self, Out};
use crate::weight::{Affine, FloatType};
use std::cell::RefCell;

/// Some rows of x against one weight, or against two that share them: silu(gate x) * up x, limited.
pub(crate) struct Product<'a> {
    pub weight: &'a Affine,
    pub up: Option<(&'a Affine, f32)>,
    /// Rows laid out in the weight's order.
    pub x: Vec<*const Line>,
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
        self.weight.n * self.bytes_per_output() * (3 + self.x.len()) / 4
    }
}

/// Laid out for `weight`.
pub(crate) fn order(weight: &Affine) -> Order {
    Order { k: weight.k, spread: weight.bits == 4, group: weight.group }
}

/// Below this a call stays on one core: about ten microseconds.
const SMALL: usize = 128 << 10;
/// Bytes of weights that stay in the second-level cache while many rows of x go by.
const PANEL: usize = 192 << 10;
/// Outputs of a chunk come in these.
const GRAIN: usize = 8;

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
        let unpacked =
            if matches!(p.weight.bits, 4 | 8) { p.bytes_per_output() } else { p.weight.k };
        let panel = if p.x.len() > MOST_ROWS { PANEL / unpacked.max(1) } else { n };
        let rows = (share / per_output).min(panel).next_multiple_of(GRAIN);
        chunks.extend((0..n).step_by(rows).map(|first| (p, first, (first + rows).min(n))));
    }
    let chunk = |i: usize| {
        let (p, first, end) = chunks[i];
        let unpacked = if matches!(p.weight.bits, 4 | 8) { 0 } else { (p.weight.k + 64) * GRAIN };
        UNPACKED.with_borrow_mut(|scratch| {
            if scratch.len() < unpacked {
                scratch.resize(unpacked, 0);
            }
            match p.up {
                None => panel(p.weight, &p.x, &p.out, first..end, scratch),
                Some((up, limit)) => with_scratch(&UP, p.x.len() * (end - first), |side| {
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

/// [m, n] of several weights that read the same x and share an [`Order`].
pub(crate) fn apply(x: &[f32], weights: &[&Affine]) -> Vec<Vec<f32>> {
    let Some(first) = weights.first() else { return Vec::new() };
    let m = x.len() / first.k;
    let mut out: Vec<Vec<f32>> = weights.iter().map(|w| vec![0f32; m * w.n]).collect();
    if m > 0 {
        let rows = Rows::new(x, order(first));
        let products: Vec<_> = weights
            .iter()
            .zip(&mut out)
            .map(|(weight, out)| product(weight, None, &rows, out))
            .collect();
        run(&products);
    }
    out
}

/// [m, n]: silu(gate x) * up x, limited. Both weights share an [`Order`].
pub(crate) fn apply_gated(x: &[f32], gate: &Affine, up: &Affine, limit: f32) -> Vec<f32> {
    let m = x.len() / gate.k;
    let mut out = vec![0f32; m * gate.n];
    if m > 0 {
        let rows = Rows::new(x, order(gate));
        run(&[product(gate, Some((up, limit)), &rows, &mut out)]);
    }
    out
}

fn product<'a>(
    weight: &'a Affine,
    up: Option<(&'a Affine, f32)>,
    rows: &Rows,
    out: &mut [f32],
) -> Product<'a> {
    let (m, to) = (out.len() / weight.n.max(1), Out(out.as_mut_ptr()));
    let x = (0..m).map(|r| rows.row(r)).collect();
    // SAFETY: row r's outputs are inside `out`.
    Product { weight, up, x, out: (0..m).map(|r| unsafe { to.at(r * weight.n) }).collect() }
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
        (0..p.x.len()).map(|r| side[r * n..].as_mut_ptr().wrapping_sub(first)).collect();
    panel(p.weight, &p.x, &p.out, first..end, scratch);
    panel(up, &p.x, &places, first..end, scratch);
    let mut gate = vec![0f32; n];
    for (out, up) in p.out.iter().zip(side.chunks(n)) {
        // SAFETY: these columns are this chunk's.
        let out = unsafe { std::slice::from_raw_parts_mut(out.add(first), n) };
        gate.copy_from_slice(out);
        swiglu_slice(&gate, up, limit, out);
    }
}

/// The rows of a weight as they are read: codes from `first` on, scales and biases in place.
struct View {
    codes: *const u8,
    code_row: usize,
    first: usize,
    scales: *const u8,
    biases: *const u8,
    scale_row: usize,
    float: FloatType,
    groups: usize,
    blocks: usize,
    /// Lines of a row of x before its groups' sums.
    value_lines: usize,
    /// log2(group / 32).
    shift: u32,
}

/// How a block's codes lie.
trait Codes {
    const BLOCK_BYTES: usize;
    /// Codes may be above 15.
    const WIDE: bool;
    unsafe fn stretch<I: Int8>(p: *const u8) -> I::Codes;
    unsafe fn step<I: Int8>(p: *const u8, blocks: usize) -> I::StepCodes;
}

struct Nibbles;
impl Codes for Nibbles {
    const BLOCK_BYTES: usize = 16;
    const WIDE: bool = false;
    #[inline(always)]
    unsafe fn stretch<I: Int8>(p: *const u8) -> I::Codes {
        unsafe { I::nibbles_of(p) }
    }
    #[inline(always)]
    unsafe fn step<I: Int8>(p: *const u8, blocks: usize) -> I::StepCodes {
        unsafe { I::step_nibbles_of(p, blocks) }
    }
}

struct Whole;
impl Codes for Whole {
    const BLOCK_BYTES: usize = 32;
    const WIDE: bool = true;
    #[inline(always)]
    unsafe fn stretch<I: Int8>(p: *const u8) -> I::Codes {
        unsafe { I::bytes_of(p) }
    }
    #[inline(always)]
    unsafe fn step<I: Int8>(p: *const u8, blocks: usize) -> I::StepCodes {
        unsafe { I::step_bytes_of(p, blocks) }
    }
}

/// Rows of x that share an unpacking.
const MOST_ROWS: usize = 8;
/// Bytes of x that stay in the first-level cache while a panel goes by.
const NEAR: usize = 28 << 10;
/// Bytes ahead that codes are asked for.
const AHEAD: usize = 1024;

/// Output `at` of R rows, not yet summed.
#[inline(always)]
unsafe fn output<I: Int8, F: Codes, const R: usize>(
    w: &View,
    at: usize,
    index: I::Index,
    x: &[*const Line],
) -> [I::V; R] {
    unsafe {
        let mut acc = [I::splat(0.0); R];
        let mut rows = [x[0]; R];
        let place = at * w.scale_row;
        let size = w.float.size();
        rows.copy_from_slice(&x[..R]);
        for group in (0..w.groups).step_by(16) {
            let count = (w.groups - group).min(16);
            let biases = I::table(w.biases.add(place + group * size), w.float, count);
            for r in 0..R {
                let sums = I::load(rows[r].add(w.value_lines + group / 16).cast());
                acc[r] = I::fma(I::lanes(biases), sums, acc[r]);
            }
        }
        let mut codes = w.codes.add((at - w.first) * w.code_row);
        let scales = w.scales.add(place);
        let mut block = 0;
        while block + STRETCH <= w.blocks {
            let mut line = 0;
            while line < STRETCH * F::BLOCK_BYTES {
                I::prefetch(codes.wrapping_add(AHEAD + line));
                line += 64;
            }
            let group = block >> w.shift;
            let scales = I::table(scales.add(group * size), w.float, 16 >> w.shift);
            let scales = I::spread(scales, index);
            let own = F::stretch::<I>(codes);
            for r in 0..R {
                let sum = if F::WIDE {
                    I::dot::<true>(&own, rows[r].cast())
                } else {
                    I::dot::<false>(&own, rows[r].cast())
                };
                let sum = I::mul(sum, I::load(rows[r].add(EACH - 1).cast()));
                acc[r] = I::fma(sum, scales, acc[r]);
                rows[r] = rows[r].add(EACH);
            }
            block += STRETCH;
            codes = codes.add(STRETCH * F::BLOCK_BYTES);
        }
        if block < w.blocks {
            let group = block >> w.shift;
            let table = I::table(scales.add(group * size), w.float, w.groups - group);
            let first = block;
            while block < w.blocks {
                I::prefetch(codes.wrapping_add(AHEAD));
                let scales = I::spread(table, I::step_index(block - first, w.shift));
                let own = F::step::<I>(codes, (w.blocks - block).min(STEP));
                for r in 0..R {
                    let sum = if F::WIDE {
                        I::step_dot::<true>(&own, rows[r].cast())
                    } else {
                        I::step_dot::<false>(&own, rows[r].cast())
                    };
                    let sum = I::mul(sum, I::load(rows[r].add(STEP_EACH - 1).cast()));
                    acc[r] = I::fma(sum, scales, acc[r]);
                    rows[r] = rows[r].add(STEP_EACH);
                }
                block += STEP;
                codes = codes.wrapping_add(STEP * F::BLOCK_BYTES);
            }
        }
        acc
    }
}

/// All outputs of a panel for R rows, which stay in the first-level cache. Eight lanes of sums are added up at once.
#[inline(always)]
unsafe fn sweep<I: Int8, F: Codes, const R: usize>(
    w: &View,
    end: usize,
    x: &[*const Line],
    out: &[*mut f32],
) {
    unsafe {
        let index = I::index(w.shift);
        let together = MOST_ROWS / R;
        let mut held = [I::splat(0.0); MOST_ROWS];
        let mut at = w.first;
        while at < end {
            let some = together.min(end - at);
            for i in 0..some {
                let acc = output::<I, F, R>(w, at + i, index, x);
                for r in 0..R {
                    held[i * R + r] = acc[r];
                }
            }
            let sums = I::sums(&held);
            for i in 0..some {
                for r in 0..R {
                    *out[r].wrapping_add(at + i) = sums[i * R + r];
                }
            }
            at += some;
        }
    }
}

#[inline(always)]
unsafe fn panel_of<I: Int8, F: Codes>(w: &View, end: usize, x: &[*const Line], out: &[*mut f32]) {
    let row = w.value_lines * size_of::<Line>();
    let most = if x.len() > MOST_ROWS { (NEAR / row).clamp(1, MOST_ROWS) } else { MOST_ROWS };
    let mut r = 0;
    while r < x.len() {
        let m = (x.len() - r).min(most);
        let (x, out) = (&x[r..r + m], &out[r..r + m]);
        unsafe {
            match m {
                1 => sweep::<I, F, 1>(w, end, x, out),
                2 => sweep::<I, F, 2>(w, end, x, out),
                3 => sweep::<I, F, 3>(w, end, x, out),
                4 => sweep::<I, F, 4>(w, end, x, out),
                5 => sweep::<I, F, 5>(w, end, x, out),
                6 => sweep::<I, F, 6>(w, end, x, out),
                7 => sweep::<I, F, 7>(w, end, x, out),
                _ => sweep::<I, F, 8>(w, end, x, out),
            }
        }
        r += m;
    }
}

#[inline(always)]
unsafe fn body<I: Int8>(
    w: &Affine,
    x: &[*const Line],
    out: &[*mut f32],
    range: std::ops::Range<usize>,
    scratch: &mut [u8],
) {
    let (groups, row) = (w.k / w.group, w.k * w.bits / 8);
    let codes = w.codes.as_slice().as_ptr();
    let mut view = View {
        codes: codes.wrapping_add(range.start * row),
        code_row: row,
        first: range.start,
        scales: w.scales.as_slice().as_ptr(),
        biases: w.biases.as_slice().as_ptr(),
        scale_row: groups * w.scale_type.size(),
        float: w.scale_type,
        groups,
        blocks: w.k / BLOCK,
        value_lines: order(w).value_lines(),
        shift: (w.group / BLOCK).trailing_zeros(),
    };
    unsafe {
        match w.bits {
            4 => panel_of::<I, Nibbles>(&view, range.end, x, out),
            8 => panel_of::<I, Whole>(&view, range.end, x, out),
            bits => {
                view.codes = scratch.as_ptr();
                view.code_row = w.k;
                while view.first < range.end {
                    let end = (view.first + GRAIN).min(range.end);
                    for i in view.first..end {
                        let to = scratch.as_mut_ptr().add((i - view.first) * w.k);
                        I::unpack(codes.add(i * row), bits, w.k, to);
                    }
                    panel_of::<I, Whole>(&view, end, x, out);
                    view.first = end;
                }
            }
        }
    }
}

/// Which backend takes the products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backend {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// As [`crate::lanes::backend`], where AVX-512 also needs its byte instructions.
pub(crate) fn backend() -> Backend {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::lanes::Backend as Floats;
        let bytes = is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vl");
        match crate::lanes::backend() {
            Floats::Avx512 if bytes => Backend::Avx512,
            Floats::Avx512 | Floats::Avx2 => Backend::Avx2,
            Floats::Portable => Backend::Portable,
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    Backend::Portable
}

/// Outputs `range` of `w` for the rows of x.
fn panel(
    w: &Affine,
    x: &[*const Line],
    out: &[*mut f32],
    range: std::ops::Range<usize>,
    scratch: &mut [u8],
) {
    // SAFETY: the backend is what this CPU has; rows, outputs and scratch are as long as `run` and `gated` make them.
    unsafe { panel_on(backend(), w, x, out, range, scratch) }
}

unsafe fn panel_on(
    backend: Backend,
    w: &Affine,
    x: &[*const Line],
    out: &[*mut f32],
    range: std::ops::Range<usize>,
    scratch: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
    unsafe fn avx512(
        w: &Affine,
        x: &[*const Line],
        out: &[*mut f32],
        range: std::ops::Range<usize>,
        scratch: &mut [u8],
    ) {
        unsafe { body::<crate::lanes::Avx512>(w, x, out, range, scratch) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(
        w: &Affine,
        x: &[*const Line],
        out: &[*mut f32],
        range: std::ops::Range<usize>,
        scratch: &mut [u8],
    ) {
        unsafe { body::<crate::lanes::Avx2>(w, x, out, range, scratch) }
    }
    unsafe {
        match backend {
            #[cfg(target_arch = "x86_64")]
            Backend::Avx512 => avx512(w, x, out, range, scratch),
            #[cfg(target_arch = "x86_64")]
            Backend::Avx2 => avx2(w, x, out, range, scratch),
            Backend::Portable => body::<crate::lanes::Portable>(w, x, out, range, scratch),
        }
    }
}

#[cfg(test)]
mod tests;
