//! What the int8 products need of a CPU beyond [`Lanes`]: the codes of 16 blocks of 32 against a row of x.
//!
//! Sixteen blocks are a stretch. Lane j stands for block [`block_of`]`(j)` of it: a transposition of 4 by 4 words, which is
//! what four loads of 4 blocks each are turned by. Behind the last stretch come steps of 4 blocks, where lane j has a quarter of
//! block j / 4. Whole-number sums are exact, so backends agree whatever their order.

use crate::FloatType;
use crate::lanes::{Lanes, Portable};

/// Blocks of a stretch.
pub const STRETCH: usize = 16;
/// Lines of 64 bytes that a stretch's values take, and its codes as bytes.
pub const LINES: usize = 8;

/// Blocks of a step.
pub const STEP: usize = 4;
/// Lines that a step's values take.
pub const STEP_LINES: usize = 2;

/// The block of a stretch that lane `j` stands for.
#[inline(always)]
pub const fn block_of(j: usize) -> usize {
    j % 4 * 4 + j / 4
}

pub trait Int8: Lanes {
    /// A stretch as bytes. Byte c of lane j of line q is a column of the lane's block: 4 q + c, or of 4-bit codes, whose
    /// halves of a byte lie in two lines, 8 (q / 2) + 2 c + q % 2.
    type Codes: Copy;
    /// A step as bytes. Byte i of line h is a column of block i / 16: 16 h + i % 16, or of 4-bit codes 2 (i % 16) + h.
    type StepCodes: Copy;
    /// One f32 for each lane.
    type Table: Copy;
    /// From a lane to its group's place in the scales of a stretch.
    type Index: Copy;
    /// 16 blocks of 16 bytes, two codes a byte.
    unsafe fn nibbles_of(p: *const u8) -> Self::Codes;
    /// 16 blocks of 32 bytes.
    unsafe fn bytes_of(p: *const u8) -> Self::Codes;
    /// `blocks` (1..=4) blocks of 16 bytes, two codes a byte; the rest are 0 and not read.
    unsafe fn step_nibbles_of(p: *const u8, blocks: usize) -> Self::StepCodes;
    /// `blocks` (1..=4) blocks of 32 bytes; the rest are 0 and not read.
    unsafe fn step_bytes_of(p: *const u8, blocks: usize) -> Self::StepCodes;
    /// Each lane's sum of code * value over its block, as f32; `x` has the lines of a stretch. `WIDE` = codes may be above 15.
    unsafe fn dot<const WIDE: bool>(codes: &Self::Codes, x: *const i8) -> Self::V;
    /// The same of a step: each lane's 4 bytes of both lines.
    unsafe fn step_dot<const WIDE: bool>(codes: &Self::StepCodes, x: *const i8) -> Self::V;
    /// `count` (1..=16) numbers from raw data, the rest 0.
    unsafe fn table(p: *const u8, float: FloatType, count: usize) -> Self::Table;
    unsafe fn lanes(table: Self::Table) -> Self::V;
    /// Of a step whose first block is block `first` of the table.
    unsafe fn step_index(first: usize, shift: u32) -> Self::Index;
    /// For groups of 32 << `shift`.
    unsafe fn index(shift: u32) -> Self::Index;
    /// Each lane's entry of the table.
    unsafe fn spread(table: Self::Table, index: Self::Index) -> Self::V;

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

#[inline(always)]
fn step_index_of(first: usize, shift: u32) -> [u8; 16] {
    let mut out = [0; 16];
    for (j, out) in out.iter_mut().enumerate() {
        *out = ((first + j / 4) >> shift) as u8 % 16;
    }
    out
}

impl Int8 for Portable {
    type Codes = [[u8; 64]; LINES];
    type StepCodes = [[u8; 64]; STEP_LINES];
    type Table = [f32; 16];
    type Index = [u8; 16];
    #[inline(always)]
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
    #[inline(always)]
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
    #[inline(always)]
    unsafe fn step_nibbles_of(p: *const u8, blocks: usize) -> Self::StepCodes {
        let mut raw = [0u8; 64];
        unsafe { std::ptr::copy_nonoverlapping(p, raw.as_mut_ptr(), 16 * blocks) };
        [raw.map(|b| b & 15), raw.map(|b| b >> 4)]
    }
    #[inline(always)]
    unsafe fn step_bytes_of(p: *const u8, blocks: usize) -> Self::StepCodes {
        let mut raw = [0u8; 128];
        unsafe { std::ptr::copy_nonoverlapping(p, raw.as_mut_ptr(), 32 * blocks) };
        let mut out = [[0; 64]; STEP_LINES];
        for i in 0..64 {
            out[0][i] = raw[i / 16 * 32 + i % 16];
            out[1][i] = raw[i / 16 * 32 + i % 16 + 16];
        }
        out
    }
    #[inline(always)]
    unsafe fn step_dot<const WIDE: bool>(codes: &Self::StepCodes, x: *const i8) -> Self::V {
        let mut sums = [0i32; 16];
        for q in 0..STEP_LINES {
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
    unsafe fn dot<const WIDE: bool>(codes: &Self::Codes, x: *const i8) -> Self::V {
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
    unsafe fn lanes(table: Self::Table) -> Self::V {
        table
    }
    #[inline(always)]
    unsafe fn index(shift: u32) -> Self::Index {
        index_of(shift)
    }
    #[inline(always)]
    unsafe fn step_index(first: usize, shift: u32) -> Self::Index {
        step_index_of(first, shift)
    }
    #[inline(always)]
    unsafe fn spread(table: Self::Table, index: Self::Index) -> Self::V {
        std::array::from_fn(|j| table[index[j] as usize])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;
