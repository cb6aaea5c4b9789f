//! Many rows at once by AMX: 16 outputs for 16 rows of x are one product of tiles a block.
//!
//! A vector's lanes stand for outputs here, where `panel.rs` has blocks in them. The sixteen lanes that an output has there are
//! taken one after the other, in the order in which the tree adds them, so that few sums wait: the same operations for
//! each output, so the same bits. What tiles buy is the whole-number part; scaling by block stays, and is what bounds it.

use super::lanes::{Int8, STRETCH, block_of};
use super::quantise::{EACH, Ends, Line, TILE_ROWS, lane, turns};
use super::{BLOCK, GRAIN};
use crate::Bytes;
use crate::lanes::Avx512;
use crate::weight::Affine;
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

/// Outputs of a tile.
pub const TILE_OUTPUTS: usize = 16;
/// Rows from which on a tile pays although its other rows are computed for nothing, and 16 outputs are laid out for it.
const FEWEST_ROWS: usize = 16;
/// Bytes of x that stay in the second-level cache while a panel goes by.
const NEAR: usize = 1 << 20;
/// Products on their way ahead of the one that is scaled.
const AHEAD: usize = 2;
/// Where they wait.
const RING: usize = 4;

/// Whether so many rows go through tiles.
pub fn takes(rows: usize) -> bool {
    rows >= FEWEST_ROWS && are_here()
}

/// Whether the CPU has tiles and the system lets this process use them. `FORETOKEN_SIMD` with a name keeps them off.
pub fn are_here() -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| {
        let unasked = std::env::var_os("FORETOKEN_SIMD").is_none();
        let bytes = super::panel::backend() == super::panel::Backend::Avx512;
        // Leaf 7: bit 24 tiles, bit 25 products of bytes.
        unasked && bytes && __cpuid_count(7, 0).edx >> 24 & 3 == 3 && is_allowed()
    })
}

/// Tiles make a thread's saved state larger, so Linux gives them to who asks.
fn is_allowed() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// Tile 0: 16 x 16 sums. Tile 1: 16 rows of 32 values. Tile 2: 32 codes of 16 outputs, four by four.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start: u8,
    zero: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static SHAPES: Shapes = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    (row_bytes[0], rows[0]) = (64, TILE_ROWS as u8);
    (row_bytes[1], rows[1]) = (BLOCK as u16, TILE_ROWS as u8);
    (row_bytes[2], rows[2]) = (64, (BLOCK / 4) as u8);
    Shapes { palette: 1, start: 0, zero: [0; 14], row_bytes, rows }
};

/// A block's sums of value * code, for 16 rows of x and 16 outputs.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Sums([[i32; TILE_OUTPUTS]; TILE_ROWS]);

/// SAFETY: the thread has `SHAPES` loaded; `x` and `codes` have a tile's bytes.
#[inline(always)]
unsafe fn multiply(x: *const Line, codes: *const Line, to: *mut Sums) {
    unsafe {
        asm!(
            "tileloadd tmm2, [{codes} + {line}*1]",
            "tileloadd tmm1, [{x} + {row}*1]",
            "tilezero tmm0",
            "tdpbsud tmm0, tmm1, tmm2",
            "tilestored [{to} + {line}*1], tmm0",
            x = in(reg) x, codes = in(reg) codes, to = in(reg) to,
            line = in(reg) 64usize, row = in(reg) BLOCK,
            options(nostack, preserves_flags),
        );
    }
}

/// 16 outputs of a weight, laid out for tiles: by turn, 8 lines of four codes of each output, and a line of scales and one of
/// biases.
#[derive(Clone, Copy)]
struct Side {
    codes: *mut Line,
    numbers: *mut Line,
    ends: Ends,
}

/// Lines that a block's codes take.
const CODES: usize = BLOCK / 4;

type Acc = [__m512; TILE_ROWS];

/// Puts the sums of a turn into the ring, if there is such a turn.
#[inline(always)]
unsafe fn ahead(side: Side, x: *const Line, turn: usize, ring: *mut Sums) {
    if turn < side.ends.blocks() {
        unsafe { multiply(x.add(turn * EACH), side.codes.add(turn * CODES), ring.add(turn % RING)) }
    }
}

/// What a turn's block does to the accumulators of 16 rows.
#[inline(always)]
unsafe fn scaled(side: Side, x: *const Line, turn: usize, ring: *mut Sums, acc: &mut Acc) {
    unsafe {
        ahead(side, x, turn + AHEAD, ring);
        let sums = ring.add(turn % RING);
        let of_outputs = side.numbers.add(2 * turn).cast::<f32>();
        let (scale, bias) =
            (_mm512_load_ps(of_outputs), _mm512_load_ps(of_outputs.add(TILE_OUTPUTS)));
        let of_rows = x.add(turn * EACH + EACH - 2).cast::<f32>();
        for r in 0..TILE_ROWS {
            let products = _mm512_cvtepi32_ps(_mm512_load_si512((&raw const (*sums).0[r]).cast()));
            let products = _mm512_mul_ps(products, _mm512_set1_ps(*of_rows.add(r)));
            let ones = _mm512_set1_ps(*of_rows.add(TILE_ROWS + r));
            acc[r] = _mm512_fmadd_ps(products, scale, _mm512_fmadd_ps(ones, bias, acc[r]));
        }
    }
}

/// What a thread needs beside registers, all of it written before it is read.
#[repr(C, align(64))]
struct Work {
    ring: [Sums; RING],
    /// What each left block gives.
    left: [Acc; STRETCH - 1],
    /// Sums that wait for the other half of their level of the tree.
    waiting: [Acc; 4],
}

/// 16 outputs for 16 rows of x; each row's go to `out`, the columns of `used`.
#[target_feature(enable = "avx512f")]
unsafe fn tile(side: Side, x: *const Line, work: *mut Work, out: &[*mut f32], used: u16) {
    unsafe {
        let zero = _mm512_setzero_ps();
        let (ends, ring) = (side.ends, (&raw mut (*work).ring).cast::<Sums>());
        let left = (&raw mut (*work).left).cast::<Acc>();
        let waiting = (&raw mut (*work).waiting).cast::<Acc>();
        for turn in 0..AHEAD {
            ahead(side, x, turn, ring);
        }
        let mut turn = 0;
        while turn < ends.left {
            let mut part = [zero; TILE_ROWS];
            scaled(side, x, turn, ring, &mut part);
            *left.add(turn) = part;
            turn += 1;
        }
        for i in 0..STRETCH {
            let mut acc = [zero; TILE_ROWS];
            for _ in 0..ends.stretches {
                scaled(side, x, turn, ring, &mut acc);
                turn += 1;
            }
            if ends.left > 0 {
                let (t, outputs) = slot(ends, lane(i));
                for r in 0..TILE_ROWS {
                    acc[r] = _mm512_add_ps(acc[r], _mm512_maskz_mov_ps(outputs, (*left.add(t))[r]));
                }
            }
            let whole = i.trailing_ones() as usize;
            for level in 0..whole {
                for r in 0..TILE_ROWS {
                    acc[r] = _mm512_add_ps((*waiting.add(level))[r], acc[r]);
                }
            }
            if i + 1 < STRETCH {
                *waiting.add(whole) = acc;
            } else {
                for (to, sum) in out.iter().zip(acc) {
                    _mm512_mask_storeu_ps(*to, used, sum);
                }
            }
        }
    }
}

/// Which left block a lane takes, and for which outputs: those whose slot it is in.
#[inline(always)]
fn slot(ends: Ends, lane: usize) -> (usize, u16) {
    let (t, output) = (block_of(lane) % ends.slot, block_of(lane) / ends.slot);
    if t >= ends.left {
        return (0, 0);
    }
    let mut outputs = 0;
    for j in (output..TILE_OUTPUTS).step_by((STRETCH / ends.slot).min(GRAIN)) {
        outputs |= 1 << j;
    }
    (t, outputs)
}

thread_local! {
    static SIDE: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Outputs `range` of `w`, which begins at a whole tile, for rows of x in tiles from `x` on.
///
/// SAFETY: [`takes`] said yes; `x` has as many rows as `out`, each of which has its outputs.
pub unsafe fn panel(w: &Affine, x: *const Line, out: &[*mut f32], range: Range<usize>) {
    let blocks = w.k / BLOCK;
    let (codes, numbers) = (blocks * CODES, 2 * blocks);
    // 16 rows of numbers as f32, or of codes as bytes.
    let spare = (w.k / w.group).next_multiple_of(TILE_OUTPUTS).max((w.k + 64).div_ceil(64) * 16);
    SIDE.with_borrow_mut(|lines| {
        if lines.len() < codes + numbers + spare {
            lines.resize(codes + numbers + spare, Line::ZERO);
        }
        let lines = lines.as_mut_ptr();
        unsafe {
            let side = Side { codes: lines, numbers: lines.add(codes), ends: Ends::of(blocks) };
            asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, preserves_flags));
            sweep(w, x, out, range, side, lines.add(codes + numbers));
            asm!("tilerelease", options(nostack, preserves_flags));
        }
    });
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn sweep(
    w: &Affine,
    x: *const Line,
    out: &[*mut f32],
    range: Range<usize>,
    side: Side,
    spare: *mut Line,
) {
    let turns = turns(w.k / BLOCK);
    let each = w.k / BLOCK * EACH;
    let near = (NEAR / (each * size_of::<Line>())).max(1) * TILE_ROWS;
    let mut work = MaybeUninit::<Work>::uninit();
    for (i, out) in out.chunks(near).enumerate() {
        for first in range.clone().step_by(TILE_OUTPUTS) {
            let outputs = TILE_OUTPUTS.min(range.end - first);
            let used = ((1u32 << outputs) - 1) as u16;
            unsafe {
                lay_codes(w, first, outputs, &turns, side.codes, spare.cast());
                lay_numbers(w, &w.scales, first, outputs, &turns, side.numbers, spare.cast());
                lay_numbers(
                    w,
                    &w.biases,
                    first,
                    outputs,
                    &turns,
                    side.numbers.add(1),
                    spare.cast(),
                );
                for (t, out) in out.chunks(TILE_ROWS).enumerate() {
                    let mut to = [std::ptr::null_mut(); TILE_ROWS];
                    for (to, out) in to.iter_mut().zip(out) {
                        *to = out.add(first);
                    }
                    let x = x.add((i * near / TILE_ROWS + t) * each);
                    tile(side, x, work.as_mut_ptr(), &to[..out.len()], used);
                }
            }
        }
    }
}

/// For each of 16 outputs the offset of its row, the last one's again where there is none.
#[inline(always)]
unsafe fn offsets(outputs: usize, row: usize) -> __m512i {
    let mut at = [0i32; TILE_OUTPUTS];
    for (j, at) in at.iter_mut().enumerate() {
        *at = (j.min(outputs - 1) * row) as i32;
    }
    unsafe { _mm512_loadu_si512(at.as_ptr().cast()) }
}

/// The codes of some outputs by turn, as `Order` has them: evens and odds of 4-bit codes apart.
#[inline(always)]
unsafe fn lay_codes(
    w: &Affine,
    first: usize,
    outputs: usize,
    turns: &[usize],
    mut to: *mut Line,
    spare: *mut u8,
) {
    unsafe {
        let row = w.k * w.bits / 8;
        let mut from = w.codes.as_slice().as_ptr().add(first * row);
        if w.bits == 4 {
            let at = offsets(outputs, row);
            let low = _mm512_set1_epi8(15);
            for block in turns {
                for word in 4 * block..4 * (block + 1) {
                    let both = _mm512_i32gather_epi32::<1>(at, from.add(4 * word).cast());
                    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
                    _mm512_store_si512(to.cast(), _mm512_and_si512(both, low));
                    _mm512_store_si512(to.add(1).cast(), high);
                    to = to.add(2);
                }
            }
            return;
        }
        if w.bits != 8 {
            for j in 0..outputs {
                Avx512::unpack(from.add(j * row), w.bits, w.k, spare.add(j * w.k));
            }
            from = spare;
        }
        let at = offsets(outputs, w.k);
        for block in turns {
            for word in CODES * block..CODES * (block + 1) {
                let codes = _mm512_i32gather_epi32::<1>(at, from.add(4 * word).cast());
                _mm512_store_si512(to.cast(), codes);
                to = to.add(1);
            }
        }
    }
}

/// The scales or biases `raw` of some outputs, to every other line.
#[inline(always)]
unsafe fn lay_numbers(
    w: &Affine,
    raw: &Bytes,
    first: usize,
    outputs: usize,
    turns: &[usize],
    to: *mut Line,
    spare: *mut f32,
) {
    unsafe {
        let (groups, size) = (w.k / w.group, w.scale_type.size());
        let wide = groups.next_multiple_of(TILE_OUTPUTS);
        let raw = raw.as_slice().as_ptr();
        for j in 0..outputs {
            let row = raw.add((first + j) * groups * size);
            for g in (0..groups).step_by(TILE_OUTPUTS) {
                let some = (groups - g).min(TILE_OUTPUTS);
                let numbers = Avx512::table(row.add(g * size), w.scale_type, some);
                _mm512_store_ps(spare.add(j * wide + g), numbers);
            }
        }
        let at = offsets(outputs, wide * size_of::<f32>());
        for (turn, block) in turns.iter().enumerate() {
            let group = block * BLOCK / w.group;
            let line = _mm512_i32gather_ps::<1>(at, spare.add(group).cast());
            _mm512_store_ps(to.add(2 * turn).cast(), line);
        }
    }
}
