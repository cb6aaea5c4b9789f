//! What the int8 products need of a CPU beyond [`Lanes`]: the codes of 16 blocks of 32 against a row of x.
//!
//! Sixteen blocks are a stretch. Lane j stands for block [`block_of`]`(j)` of it: a transposition of 4 by 4 words, which is
//! what four loads of 4 blocks each are turned by. Whole-number sums are exact, so backends agree whatever their order.

use crate::FloatType;
use crate::lanes::{Lanes, Portable};

/// Blocks of a stretch.
pub const STRETCH: usize = 16;
/// Lines of 64 bytes that a stretch's values take, and its codes as bytes.
pub const LINES: usize = 8;

/// The block of a stretch that lane `j` stands for.
#[inline(always)]
pub const fn block_of(j: usize) -> usize {
    j % 4 * 4 + j / 4
}

pub trait Int8: Lanes {
    /// A stretch as bytes. Byte c of lane j of line q is a column of the lane's block: 4 q + c, or of 4-bit codes, whose
    /// halves of a byte lie in two lines, 8 (q / 2) + 2 c + q % 2.
    type Codes: Copy;
    /// One f32 for each lane.
    type Table: Copy;
    /// From a lane to its group's place in the scales of a stretch.
    type Index: Copy;
    /// How [`Int8::unpack`]'s bytes are best taken.
    type Unpacked: Codes;
    /// 16 blocks of 16 bytes, two codes a byte.
    unsafe fn nibbles_of(p: *const u8) -> Self::Codes;
    /// 16 blocks of 32 bytes.
    unsafe fn bytes_of(p: *const u8) -> Self::Codes;
    /// Each lane's sum of code * value over its block, as f32; `x` has the lines of a stretch.
    unsafe fn dot<F: Codes>(codes: &Self::Codes, x: *const i8) -> Self::V;
    /// Adds what a stretch's codes give to the accumulators of R rows of x, whose lines begin at `x`; `scale` and `bias` are
    /// the lanes'. All backends do the same operations, a lane has one order of them.
    #[inline(always)]
    unsafe fn take<F: Codes, const R: usize>(
        codes: *const u8,
        (scale, bias): (Self::V, Self::V),
        x: &[*const f32; R],
        acc: &mut [Self::V; R],
    ) {
        unsafe {
            let own = F::stretch::<Self>(codes);
            for r in 0..R {
                let products = Self::dot::<F>(&own, x[r].cast());
                let products = Self::mul(products, Self::load(x[r].add(16 * LINES)));
                let ones = Self::load(x[r].add(16 * LINES + 16));
                acc[r] = Self::fma(products, scale, Self::fma(ones, bias, acc[r]));
            }
        }
    }
    /// `count` (16, 8 or 4) numbers from raw data, the rest 0.
    unsafe fn table(p: *const u8, float: FloatType, count: usize) -> Self::Table;
    /// For groups of 32 << `shift`.
    unsafe fn index(shift: u32) -> Self::Index;
    /// Each lane's entry of the table.
    unsafe fn spread(table: Self::Table, index: Self::Index) -> Self::V;
    /// The lanes whose blocks are `from..to` of the stretch, the others 0.
    unsafe fn keep(v: Self::V, from: usize, to: usize) -> Self::V;

    /// `k` codes of `bits` bits to bytes; `out` has room for k rounded up to 64.
    #[inline(always)]
    unsafe fn unpack(p: *const u8, bits: usize, k: usize, out: *mut u8) {
        for eight in 0..k / 8 {
            let mut word = [0u8; 8];
            unsafe {
                // 8 codes are `bits` bytes.
                std::ptr::copy_nonoverlapping(p.add(bits * eight), word.as_mut_ptr(), bits);
                let word = u64::from_le_bytes(word);
                let low = ((1u16 << bits) - 1) as u8;
                for i in 0..8 {
                    *out.add(8 * eight + i) = (word >> (bits * i)) as u8 & low;
                }
            }
        }
    }
}

/// How a block's codes lie.
pub trait Codes {
    const BLOCK_BYTES: usize;
    /// The largest code there can be.
    const MOST: u8;
    unsafe fn stretch<I: Int8>(p: *const u8) -> I::Codes;
}

pub struct Nibbles;
impl Codes for Nibbles {
    const BLOCK_BYTES: usize = 16;
    const MOST: u8 = 15;
    #[inline(always)]
    unsafe fn stretch<I: Int8>(p: *const u8) -> I::Codes {
        unsafe { I::nibbles_of(p) }
    }
}

pub struct Whole;
impl Codes for Whole {
    const BLOCK_BYTES: usize = 32;
    const MOST: u8 = 255;
    #[inline(always)]
    unsafe fn stretch<I: Int8>(p: *const u8) -> I::Codes {
        unsafe { I::bytes_of(p) }
    }
}

/// As [`Whole`], of at most 6 bits: as signed bytes they are the same numbers.
#[cfg(target_arch = "aarch64")]
pub struct SmallBytes;
#[cfg(target_arch = "aarch64")]
impl Codes for SmallBytes {
    const BLOCK_BYTES: usize = 32;
    const MOST: u8 = 63;
    #[inline(always)]
    unsafe fn stretch<I: Int8>(p: *const u8) -> I::Codes {
        unsafe { I::bytes_of(p) }
    }
}

/// A table in memory, for backends without a permute over 16 lanes.
#[inline(always)]
unsafe fn table_of<L: Lanes>(p: *const u8, float: FloatType, count: usize) -> [f32; 16] {
    let mut out = [0f32; 16];
    unsafe {
        if count == 16 {
            let v = match float {
                FloatType::F32 => L::f32(p),
                FloatType::F16 => L::f16(p),
                FloatType::BF16 => L::bf16(p),
            };
            L::store(out.as_mut_ptr(), v);
        } else {
            let raw = std::slice::from_raw_parts(p, count * float.size());
            for (i, out) in out.iter_mut().enumerate().take(count) {
                *out = float.get(raw, i);
            }
        }
    }
    out
}

#[inline(always)]
fn index_of(shift: u32) -> [u8; 16] {
    let mut out = [0; 16];
    for (j, out) in out.iter_mut().enumerate() {
        *out = (block_of(j) >> shift) as u8;
    }
    out
}

impl Int8 for Portable {
    type Codes = [[u8; 64]; LINES];
    type Table = [f32; 16];
    type Index = [u8; 16];
    type Unpacked = Whole;
    // Functions of their own: inlined for every number of rows, this was half of what the crate takes to compile.
    #[inline(never)]
    unsafe fn nibbles_of(p: *const u8) -> Self::Codes {
        let raw = unsafe { p.cast::<[u8; 16 * STRETCH]>().read() };
        let mut out = [[0; 64]; LINES];
        for q in 0..LINES {
            for j in 0..16 {
                for c in 0..4 {
                    let byte = raw[16 * block_of(j) + 4 * (q / 2) + c];
                    out[q][4 * j + c] = if q % 2 == 0 { byte & 15 } else { byte >> 4 };
                }
            }
        }
        out
    }
    #[inline(never)]
    unsafe fn bytes_of(p: *const u8) -> Self::Codes {
        let raw = unsafe { p.cast::<[u8; 32 * STRETCH]>().read() };
        let mut out = [[0; 64]; LINES];
        for q in 0..LINES {
            for j in 0..16 {
                for c in 0..4 {
                    out[q][4 * j + c] = raw[32 * block_of(j) + 4 * q + c];
                }
            }
        }
        out
    }
    #[inline(never)]
    unsafe fn dot<F: Codes>(codes: &Self::Codes, x: *const i8) -> Self::V {
        let mut sums = [0i32; 16];
        for q in 0..LINES {
            let x = unsafe { x.add(64 * q).cast::<[i8; 64]>().read() };
            for j in 0..16 {
                for i in 4 * j..4 * j + 4 {
                    sums[j] += i32::from(codes[q][i]) * i32::from(x[i]);
                }
            }
        }
        sums.map(|s| s as f32)
    }
    #[inline(always)]
    unsafe fn table(p: *const u8, float: FloatType, count: usize) -> Self::Table {
        unsafe { table_of::<Self>(p, float, count) }
    }
    #[inline(always)]
    unsafe fn index(shift: u32) -> Self::Index {
        index_of(shift)
    }
    #[inline(always)]
    unsafe fn spread(table: Self::Table, index: Self::Index) -> Self::V {
        std::array::from_fn(|j| table[index[j] as usize])
    }
    #[inline(never)]
    unsafe fn keep(v: Self::V, from: usize, to: usize) -> Self::V {
        std::array::from_fn(|j| if (from..to).contains(&block_of(j)) { v[j] } else { 0.0 })
    }
}

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;
