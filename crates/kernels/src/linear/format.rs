//! How a weight row's stored codes become lanes, one unpacking step of 32 columns at a time.

use super::BLOCK;
use crate::lanes::Lanes;

/// How one row's codes become lanes. 4-bit codes come as evens then odds of 32 columns; `arrange` orders x to match.
pub(super) trait Format {
    /// Values of columns 32 b .. 32 b + 32, as two registers.
    unsafe fn block<L: Lanes>(row: &Row, b: usize) -> (L::V, L::V);
}

#[derive(Clone, Copy)]
pub(super) struct Row {
    pub data: *const u8,
    /// One f32 per group.
    pub scales: *const f32,
    pub biases: *const f32,
    /// log2(group / 32).
    pub group_shift: u32,
}

impl Row {
    #[inline(always)]
    unsafe fn affine(&self, b: usize) -> (f32, f32) {
        unsafe {
            (*self.scales.add(b >> self.group_shift), *self.biases.add(b >> self.group_shift))
        }
    }
}

pub(super) struct Bits4;
impl Format for Bits4 {
    #[inline(always)]
    unsafe fn block<L: Lanes>(row: &Row, b: usize) -> (L::V, L::V) {
        unsafe {
            let (s, o) = row.affine(b);
            L::nibbles(row.data.add(16 * b), s, o)
        }
    }
}

pub(super) struct Bits8;
impl Format for Bits8 {
    #[inline(always)]
    unsafe fn block<L: Lanes>(row: &Row, b: usize) -> (L::V, L::V) {
        unsafe {
            let (s, o) = row.affine(b);
            let p = row.data.add(32 * b);
            (L::bytes(p, s, o), L::bytes(p.add(16), s, o))
        }
    }
}

/// 1, 2, 3, 5 and 6 bits: 32 codes are 4 * BITS bytes, unpacked to bytes first.
pub(super) struct BitsN<const BITS: usize>;
impl<const BITS: usize> Format for BitsN<BITS> {
    #[inline(always)]
    unsafe fn block<L: Lanes>(row: &Row, b: usize) -> (L::V, L::V) {
        unsafe {
            let (s, o) = row.affine(b);
            let p = row.data.add(4 * BITS * b);
            let mut codes = [0u8; BLOCK];
            // 8 codes are BITS bytes.
            for (g, codes) in codes.chunks_mut(8).enumerate() {
                let mut word = [0u8; 8];
                std::ptr::copy_nonoverlapping(p.add(BITS * g), word.as_mut_ptr(), BITS);
                let word = u64::from_le_bytes(word);
                for (i, code) in codes.iter_mut().enumerate() {
                    *code = ((word >> (BITS * i)) as u8) & ((1u16 << BITS) - 1) as u8;
                }
            }
            (L::bytes(codes.as_ptr(), s, o), L::bytes(codes.as_ptr().add(16), s, o))
        }
    }
}

macro_rules! dense_format {
    ($name:ident, $load:ident, $size:expr) => {
        pub(super) struct $name;
        impl Format for $name {
            #[inline(always)]
            unsafe fn block<L: Lanes>(row: &Row, b: usize) -> (L::V, L::V) {
                unsafe {
                    let p = row.data.add($size * BLOCK * b);
                    (L::$load(p), L::$load(p.add($size * 16)))
                }
            }
        }
    };
}
dense_format!(BF16, bf16, 2);
dense_format!(F16, f16, 2);
dense_format!(F32, f32, 4);
