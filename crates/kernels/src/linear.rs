//! y = x W^T for x [m, k] f32 and W [n, k] affine or dense, f32 accumulation.
//!
//! Up to 4 rows (decode and verify) the common formats are unpacked in registers, once for all rows. More rows, and the rarer
//! formats, unpack 16 weight rows at a time into a scratch tile that all rows then use. Both run the same chain of
//! fused multiply-adds for a (row, output) pair, so the two agree bit for bit. (Every format in registers for every
//! number of rows would be 300 more loops to compile, for checkpoints hardly anybody has.)

mod format;
pub(crate) mod int8;

use self::format::{BF16, Bits4, Bits8, BitsN, F16, F32, Format, Row};
use crate::Bytes;
use crate::lanes::{Lanes, dispatch};
use crate::pool::{self, Out};
use crate::weight::{FloatType, Weight};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use std::cell::RefCell;

/// Elements per unpacking step: two registers of lanes.
const BLOCK: usize = 32;
/// Weight rows per scratch tile; 16 rows of 1536 f32 are 96 KiB and stay in the second-level cache.
const TILE: usize = 16;
/// Rows above which unpacking to a tile pays.
const MAX_DIRECT_ROWS: usize = 4;
/// y [m, n] = x [m, k] W^T. `x` is f32 and contiguous, of any rank with last dimension k.
pub fn linear(x: &Tensor, weight: &Weight) -> Result<Tensor> {
    x.apply_op1_no_bwd(&LinearOp { weight })
}

struct LinearOp<'a> {
    weight: &'a Weight,
}

impl CustomOp1 for LinearOp<'_> {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, k) = self.weight.dims();
        let mut dims = layout.dims().to_vec();
        let (Some((from, to)), Some(last)) = (layout.contiguous_offsets(), dims.last_mut()) else {
            candle_core::bail!("linear: x must be contiguous");
        };
        if *last != k {
            candle_core::bail!("linear: x has {last} columns, the weight {k}");
        }
        *last = n;
        let x = &storage.as_slice::<f32>()?[from..to];
        Ok((CpuStorage::F32(apply(x, self.weight)), Shape::from(dims)))
    }
}

/// One call of `apply`, shared by its chunks.
struct Job<'a> {
    weight: &'a Weight,
    /// [m, blocks * 32], zero-padded, in the format's order.
    x: &'a [f32],
    out: Out,
    m: usize,
    n: usize,
    blocks: usize,
    rows_per_chunk: usize,
}

/// Formats with a loop that unpacks in registers.
fn has_direct(weight: &Weight) -> bool {
    match weight {
        Weight::Affine(w) => matches!(w.bits, 4 | 8),
        Weight::Dense(w) => matches!(w.float, FloatType::BF16 | FloatType::F32),
    }
}

/// x is [m, k] with m = x.len() / k; the result is [m, n].
pub(crate) fn apply(x: &[f32], weight: &Weight) -> Vec<f32> {
    let (n, k) = weight.dims();
    let m = x.len() / k;
    let mut out = vec![0f32; m * n];
    if m == 0 || n == 0 {
        return out;
    }
    let spread = matches!(weight, Weight::Affine(w) if w.bits == 4);
    let blocks = k.div_ceil(BLOCK);
    let direct = m <= MAX_DIRECT_ROWS && k.is_multiple_of(BLOCK) && has_direct(weight);
    let tile = if direct { 8 } else { TILE };
    let rows_per_chunk = (n / (pool::n_threads() * 8)).next_multiple_of(tile).clamp(tile, 512);
    with_scratch(&PADDED_X, m * blocks * BLOCK, |padded| {
        arrange(x, k, spread, padded);
        let job =
            Job { weight, x: padded, out: Out(out.as_mut_ptr()), m, n, blocks, rows_per_chunk };
        pool::run(n.div_ceil(rows_per_chunk), &|chunk| {
            with_scratch(&GROUPS, groups_len(weight), |wide| {
                if direct {
                    direct_chunk(&job, chunk, wide);
                } else {
                    with_scratch(&UNPACKED, TILE * job.blocks * BLOCK, |tile| {
                        tile_chunk(&job, chunk, wide, tile)
                    });
                }
            });
        });
    });
    out
}

thread_local! {
    static PADDED_X: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static GROUPS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static UNPACKED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// A thread's own buffer of at least `len`; what is in it is left over from the last use.
fn with_scratch<R>(
    cell: &'static std::thread::LocalKey<RefCell<Vec<f32>>>,
    len: usize,
    f: impl FnOnce(&mut [f32]) -> R,
) -> R {
    cell.with_borrow_mut(|v| {
        if v.len() < len {
            v.resize(len, 0.0);
        }
        f(&mut v[..len])
    })
}

fn arrange(x: &[f32], k: usize, spread: bool, padded: &mut [f32]) {
    let kp = k.next_multiple_of(BLOCK);
    for (row, out) in x.chunks(k).zip(padded.chunks_mut(kp)) {
        out[k..].fill(0.0);
        if spread {
            for (x, out) in row.chunks_exact(BLOCK).zip(out.chunks_exact_mut(BLOCK)) {
                for i in 0..16 {
                    out[i] = x[2 * i];
                    out[16 + i] = x[2 * i + 1];
                }
            }
        } else {
            out[..k].copy_from_slice(row);
        }
    }
}

/// N weight rows against R rows of x: the chain that defines every result. Only the first `used` outputs are written.
///
/// SAFETY: `x` holds R rows of `blocks` blocks, `rows` N readable weight rows, `out` R rows of stride n with `used` columns.
#[inline(always)]
unsafe fn dot<L: Lanes, F: Format, const R: usize, const N: usize>(
    x: *const f32,
    rows: &[Row; N],
    blocks: usize,
    out: *mut f32,
    n: usize,
    used: usize,
) {
    unsafe {
        let stride = blocks * BLOCK;
        let mut acc = [[L::splat(0.0); N]; R];
        for b in 0..blocks {
            let mut w = [(L::splat(0.0), L::splat(0.0)); N];
            for j in 0..N {
                w[j] = F::block::<L>(&rows[j], b);
            }
            for r in 0..R {
                let x = x.add(r * stride + b * BLOCK);
                let (x0, x1) = (L::load(x), L::load(x.add(16)));
                for j in 0..N {
                    acc[r][j] = L::fma(w[j].0, x0, acc[r][j]);
                }
                for j in 0..N {
                    acc[r][j] = L::fma(w[j].1, x1, acc[r][j]);
                }
            }
        }
        for r in 0..R {
            for j in 0..used {
                *out.add(r * n + j) = L::sum(acc[r][j]);
            }
        }
    }
}

/// Any number of weight rows against 1..=4 rows of x.
#[inline(always)]
unsafe fn dots<L: Lanes, F: Format>(
    x: *const f32,
    rows: &[Row],
    m: usize,
    blocks: usize,
    out: *mut f32,
    n: usize,
) {
    // Weight rows that share a pass over x: enough independent chains to hide the latency of a multiply-add, and no more than
    // there are registers for.
    let few = L::REGISTERS < 32;
    unsafe {
        match (m, few) {
            (1, _) => dots_of::<L, F, 1, 4>(x, rows, blocks, out, n),
            (2, true) => dots_of::<L, F, 2, 2>(x, rows, blocks, out, n),
            (3, true) => dots_of::<L, F, 3, 1>(x, rows, blocks, out, n),
            (_, true) => dots_of::<L, F, 4, 1>(x, rows, blocks, out, n),
            (2, false) => dots_of::<L, F, 2, 4>(x, rows, blocks, out, n),
            (3, false) => dots_of::<L, F, 3, 4>(x, rows, blocks, out, n),
            (_, false) => dots_of::<L, F, 4, 4>(x, rows, blocks, out, n),
        }
    }
}

#[inline(always)]
unsafe fn dots_of<L: Lanes, F: Format, const R: usize, const N: usize>(
    x: *const f32,
    rows: &[Row],
    blocks: usize,
    out: *mut f32,
    n: usize,
) {
    for (i, rows) in rows.chunks(N).enumerate() {
        // A short last step computes its last row again rather than having a loop of its own.
        let some: [Row; N] = std::array::from_fn(|j| rows[j.min(rows.len() - 1)]);
        unsafe { dot::<L, F, R, N>(x, &some, blocks, out.add(i * N), n, rows.len()) }
    }
}

/// f32 copies of the scales and biases of weight row `row` behind `at` in `groups`.
#[inline(always)]
unsafe fn widen<L: Lanes>(raw: *const u8, float: FloatType, count: usize, out: *mut f32) {
    unsafe {
        let size = float.size();
        let mut i = 0;
        while i + 16 <= count {
            let p = raw.add(i * size);
            let v = match float {
                FloatType::F32 => L::f32(p),
                FloatType::F16 => L::f16(p),
                FloatType::BF16 => L::bf16(p),
            };
            L::store(out.add(i), v);
            i += 16;
        }
        // The last lanes overlap those before rather than being done one by one.
        if i < count && count >= 16 {
            i = count - 16;
            let p = raw.add(i * size);
            let v = match float {
                FloatType::F32 => L::f32(p),
                FloatType::F16 => L::f16(p),
                FloatType::BF16 => L::bf16(p),
            };
            L::store(out.add(i), v);
            return;
        }
        let rest = std::slice::from_raw_parts(raw, count * size);
        while i < count {
            *out.add(i) = float.get(rest, i);
            i += 1;
        }
    }
}

/// Weight rows whose scales are widened together.
const ROWS: usize = 8;
const NO_ROW: Row = Row {
    data: std::ptr::null(),
    scales: std::ptr::null(),
    biases: std::ptr::null(),
    group_shift: 0,
};

/// Floats of scratch that `rows_at` needs.
fn groups_len(weight: &Weight) -> usize {
    match weight {
        Weight::Affine(w) => 2 * ROWS * (w.k / w.group),
        Weight::Dense(_) => 0,
    }
}

/// Up to 8 weight rows from `first`, their scales widened into `wide`.
#[inline(always)]
unsafe fn rows_at<L: Lanes>(
    weight: &Weight,
    first: usize,
    count: usize,
    wide: *mut f32,
) -> [Row; ROWS] {
    let mut rows = [NO_ROW; ROWS];
    unsafe {
        match weight {
            Weight::Dense(w) => {
                let base = w.data.as_slice().as_ptr();
                for (i, row) in rows.iter_mut().enumerate().take(count) {
                    row.data = base.add((first + i) * w.k * w.float.size());
                }
            }
            Weight::Affine(w) => {
                let groups = w.k / w.group;
                let (codes, scales, biases) =
                    (w.codes.as_slice(), w.scales.as_slice(), w.biases.as_slice());
                for (i, row) in rows.iter_mut().enumerate().take(count) {
                    let at = (first + i) * groups * w.scale_type.size();
                    let (s, b) = (wide.add(2 * i * groups), wide.add((2 * i + 1) * groups));
                    widen::<L>(scales.as_ptr().add(at), w.scale_type, groups, s);
                    widen::<L>(biases.as_ptr().add(at), w.scale_type, groups, b);
                    row.data = codes.as_ptr().add((first + i) * w.k * w.bits / 8);
                    (row.scales, row.biases) = (s, b);
                    row.group_shift = (w.group / BLOCK).trailing_zeros();
                }
            }
        }
    }
    rows
}

/// Unpacks in whichever format the weight has.
#[inline(always)]
unsafe fn unpack_any<L: Lanes>(weight: &Weight, rows: &[Row], blocks: usize, out: *mut f32) {
    unsafe {
        match weight {
            Weight::Affine(w) => match w.bits {
                1 => unpack::<L, BitsN<1>>(rows, blocks, out),
                2 => unpack::<L, BitsN<2>>(rows, blocks, out),
                3 => unpack::<L, BitsN<3>>(rows, blocks, out),
                4 => unpack::<L, Bits4>(rows, blocks, out),
                5 => unpack::<L, BitsN<5>>(rows, blocks, out),
                6 => unpack::<L, BitsN<6>>(rows, blocks, out),
                _ => unpack::<L, Bits8>(rows, blocks, out),
            },
            Weight::Dense(w) => match w.float {
                FloatType::BF16 => unpack::<L, BF16>(rows, blocks, out),
                FloatType::F16 => unpack::<L, F16>(rows, blocks, out),
                FloatType::F32 => unpack::<L, F32>(rows, blocks, out),
            },
        }
    }
}

// Vector code may not pass through closures: a closure is a function of its own, compiled without the CPU feature, and
// what cannot be inlined out of it runs a hundred times slower. Scratch is therefore borrowed before these are called.
dispatch! { fn direct_chunk(job: &Job<'_>, chunk: usize, wide: &mut [f32]) = direct_body }
dispatch! { fn tile_chunk(job: &Job<'_>, chunk: usize, wide: &mut [f32], tile: &mut [f32]) = tile_body }

/// Asks for the codes, scales and biases of `count` weight rows from `first`.
#[inline(always)]
unsafe fn fetch<L: Lanes>(weight: &Weight, first: usize, count: usize) {
    match weight {
        Weight::Affine(w) => {
            let scales = w.k / w.group * w.scale_type.size();
            fetch_rows::<L>(&w.codes, first, count, w.k * w.bits / 8);
            fetch_rows::<L>(&w.scales, first, count, scales);
            fetch_rows::<L>(&w.biases, first, count, scales);
        }
        Weight::Dense(w) => fetch_rows::<L>(&w.data, first, count, w.k * w.float.size()),
    }
}

#[inline(always)]
fn fetch_rows<L: Lanes>(bytes: &Bytes, first: usize, count: usize, row: usize) {
    let p = bytes.as_slice().as_ptr().wrapping_add(first * row);
    let mut at = 0;
    while at < count * row {
        // SAFETY: a prefetch never faults.
        unsafe { L::prefetch(p.wrapping_add(at)) };
        at += 64;
    }
}

#[inline(always)]
unsafe fn direct_body<L: Lanes>(job: &Job<'_>, chunk: usize, wide: &mut [f32]) {
    let first = chunk * job.rows_per_chunk;
    let end = (first + job.rows_per_chunk).min(job.n);
    let x = job.x.as_ptr();
    let mut row = first;
    while row < end {
        unsafe {
            let count = ROWS.min(end - row);
            let rows = rows_at::<L>(job.weight, row, count, wide.as_mut_ptr());
            let (rows, out) = (&rows[..count], job.out.at(row));
            // Rows are short: the hardware's own prefetch hardly gets going before one ends.
            fetch::<L>(job.weight, row + ROWS, ROWS);
            match job.weight {
                Weight::Affine(w) if w.bits == 4 => {
                    dots::<L, Bits4>(x, rows, job.m, job.blocks, out, job.n)
                }
                Weight::Affine(_) => dots::<L, Bits8>(x, rows, job.m, job.blocks, out, job.n),
                Weight::Dense(w) if w.float == FloatType::BF16 => {
                    dots::<L, BF16>(x, rows, job.m, job.blocks, out, job.n)
                }
                Weight::Dense(_) => dots::<L, F32>(x, rows, job.m, job.blocks, out, job.n),
            }
        }
        row += ROWS;
    }
}

/// Weight rows as f32 [rows][blocks * 32] in the format's own column order.
#[inline(always)]
unsafe fn unpack<L: Lanes, F: Format>(rows: &[Row], blocks: usize, out: *mut f32) {
    for (i, row) in rows.iter().enumerate() {
        for b in 0..blocks {
            unsafe {
                let (lo, hi) = F::block::<L>(row, b);
                let at = out.add((i * blocks + b) * BLOCK);
                L::store(at, lo);
                L::store(at.add(16), hi);
            }
        }
    }
}

#[inline(always)]
unsafe fn tile_body<L: Lanes>(job: &Job<'_>, chunk: usize, wide: &mut [f32], tile: &mut [f32]) {
    let first = chunk * job.rows_per_chunk;
    let end = (first + job.rows_per_chunk).min(job.n);
    let (_, k) = job.weight.dims();
    let width = job.blocks * BLOCK;
    let mut row = first;
    while row < end {
        let count = TILE.min(end - row);
        if k.is_multiple_of(BLOCK) {
            let mut part = 0;
            while part < count {
                unsafe {
                    let some = ROWS.min(count - part);
                    let rows = rows_at::<L>(job.weight, row + part, some, wide.as_mut_ptr());
                    unpack_any::<L>(
                        job.weight,
                        &rows[..some],
                        job.blocks,
                        tile.as_mut_ptr().add(part * width),
                    );
                }
                part += ROWS;
            }
        } else {
            for (i, to) in tile.chunks_mut(width).enumerate().take(count) {
                to[k..].fill(0.0);
                job.weight.row(row + i, &mut to[..k]);
            }
        }
        let mut rows = [NO_ROW; TILE];
        for (i, unpacked) in rows.iter_mut().enumerate().take(count) {
            unpacked.data = tile[i * width..].as_ptr().cast();
        }
        let mut r = 0;
        while r < job.m {
            unsafe {
                let (x, out) = (job.x.as_ptr().add(r * width), job.out.at(r * job.n + row));
                dots::<L, F32>(x, &rows[..count], 4.min(job.m - r), job.blocks, out, job.n);
            }
            r += 4;
        }
        row += TILE;
    }
}

#[cfg(test)]
mod tests;
