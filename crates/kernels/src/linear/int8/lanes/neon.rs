use super::{Codes, Int8, LINES, SmallBytes};
use crate::FloatType;
use crate::lanes::neon::{widen_bf16, widen_f16};
use crate::lanes::{Lanes, Neon};
use std::arch::aarch64::*;
use std::arch::asm;

/// `sum`, and in each lane the four products of signed bytes that lie in it. An instruction and not its intrinsic, which is
/// not stable; the function this ends up in must be compiled with `dotprod`.
#[inline(always)]
unsafe fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    unsafe {
        asm!("sdot {s:v}.4s, {a:v}.16b, {b:v}.16b", s = inlateout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Word i of register r becomes word r of register i.
#[inline(always)]
unsafe fn turn(r: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    unsafe {
        let r = [
            vreinterpretq_u32_u8(r[0]),
            vreinterpretq_u32_u8(r[1]),
            vreinterpretq_u32_u8(r[2]),
            vreinterpretq_u32_u8(r[3]),
        ];
        let a = vreinterpretq_u64_u32(vzip1q_u32(r[0], r[1]));
        let b = vreinterpretq_u64_u32(vzip1q_u32(r[2], r[3]));
        let c = vreinterpretq_u64_u32(vzip2q_u32(r[0], r[1]));
        let d = vreinterpretq_u64_u32(vzip2q_u32(r[2], r[3]));
        [
            vreinterpretq_u8_u64(vzip1q_u64(a, b)),
            vreinterpretq_u8_u64(vzip2q_u64(a, b)),
            vreinterpretq_u8_u64(vzip1q_u64(c, d)),
            vreinterpretq_u8_u64(vzip2q_u64(c, d)),
        ]
    }
}

/// As `turn`.
#[inline(always)]
unsafe fn turn_floats(r: [float32x4_t; 4]) -> [float32x4_t; 4] {
    unsafe {
        let mut bytes = [vdupq_n_u8(0); 4];
        for i in 0..4 {
            bytes[i] = vreinterpretq_u8_f32(r[i]);
        }
        let bytes = turn(bytes);
        let mut out = r;
        for i in 0..4 {
            out[i] = vreinterpretq_f32_u8(bytes[i]);
        }
        out
    }
}

/// Lanes 4 h..4 h + 4 of a stretch: each line's codes, signed.
type Quarter = [int8x16_t; LINES];

/// The lanes of quarter h stand for blocks h, 4 + h, 8 + h and 12 + h.
#[inline(always)]
unsafe fn nibbles_quarter(p: *const u8, h: usize) -> Quarter {
    unsafe {
        let low = vdupq_n_u8(15);
        let mut raw = [low; 4];
        for i in 0..4 {
            raw[i] = vld1q_u8(p.add(16 * (4 * i + h)));
        }
        let raw = turn(raw);
        let mut out = [vdupq_n_s8(0); LINES];
        for i in 0..4 {
            out[2 * i] = vreinterpretq_s8_u8(vandq_u8(raw[i], low));
            out[2 * i + 1] = vreinterpretq_s8_u8(vshrq_n_u8::<4>(raw[i]));
        }
        out
    }
}

/// As `nibbles_quarter`, with 128 less than the code if `less` is that; else it is 0.
#[inline(always)]
unsafe fn bytes_quarter(p: *const u8, h: usize, less: u8) -> Quarter {
    unsafe {
        let top = vdupq_n_u8(less);
        let mut out = [vdupq_n_s8(0); LINES];
        for half in 0..2 {
            let mut raw = [top; 4];
            for i in 0..4 {
                raw[i] = vld1q_u8(p.add(32 * (4 * i + h) + 16 * half));
            }
            let raw = turn(raw);
            for i in 0..4 {
                out[4 * half + i] = vreinterpretq_s8_u8(veorq_u8(raw[i], top));
            }
        }
        out
    }
}

/// The codes of quarter `h` of the stretch at `p`. Those that need the eighth bit are brought into the range of a signed byte.
#[inline(always)]
unsafe fn quarter<F: Codes>(p: *const u8, h: usize) -> Quarter {
    unsafe {
        if F::BLOCK_BYTES == 16 {
            nibbles_quarter(p, h)
        } else {
            bytes_quarter(p, h, if F::MOST > 127 { 128 } else { 0 })
        }
    }
}

/// The sums of a quarter: of codes 128 too small, 128 times the values' own sum is missing.
#[inline(always)]
unsafe fn dot_quarter<F: Codes>(codes: &Quarter, x: *const i8, h: usize) -> float32x4_t {
    unsafe {
        let (zero, one) = (vdupq_n_s32(0), vdupq_n_s8(1));
        // Two chains, as the next product of one waits for the last.
        let (mut sum, mut more, mut values) = (zero, zero, zero);
        for q in (0..LINES).step_by(2) {
            let a = vld1q_s8(x.add(64 * q + 16 * h));
            let b = vld1q_s8(x.add(64 * q + 64 + 16 * h));
            sum = sdot(sum, codes[q], a);
            more = sdot(more, codes[q + 1], b);
            if F::MOST > 127 {
                values = sdot(sdot(values, a, one), b, one);
            }
        }
        sum = vaddq_s32(sum, more);
        if F::MOST > 127 {
            sum = vaddq_s32(sum, vshlq_n_s32::<7>(values));
        }
        vcvtq_f32_s32(sum)
    }
}

/// Nothing is loaded early across it: with three rows and more the compiler would mix quarters, and then put aside what has no
/// register.
#[inline(always)]
unsafe fn apart<const R: usize>() {
    if R > 2 {
        unsafe { asm!("", options(nostack, preserves_flags)) }
    }
}

/// A quarter is unpacked once for all rows, and done with before the next: 8 registers of codes, and of the accumulators only
/// its own.
#[inline(always)]
unsafe fn take_quarter<F: Codes, const R: usize>(
    codes: *const u8,
    (scale, bias): &([float32x4_t; 4], [float32x4_t; 4]),
    x: &[*const f32; R],
    acc: &mut [[float32x4_t; 4]; R],
    h: usize,
) {
    unsafe {
        let own = quarter::<F>(codes, h);
        for r in 0..R {
            let products = dot_quarter::<F>(&own, x[r].cast(), h);
            let behind = x[r].add(16 * LINES + 4 * h);
            let products = vmulq_f32(products, vld1q_f32(behind));
            let ones = vfmaq_f32(acc[r][h], vld1q_f32(behind.add(16)), bias[h]);
            acc[r][h] = vfmaq_f32(ones, products, scale[h]);
        }
    }
}

impl Int8 for Neon {
    /// Where they lie: as bytes a stretch's codes are 32 registers, all there are, so they are taken a quarter at a time.
    type Codes = *const u8;
    type Table = [float32x4_t; 4];
    /// log2(group / 32).
    type Index = u32;
    type Unpacked = SmallBytes;
    #[inline(always)]
    unsafe fn nibbles_of(p: *const u8) -> Self::Codes {
        p
    }
    #[inline(always)]
    unsafe fn bytes_of(p: *const u8) -> Self::Codes {
        p
    }
    #[inline(always)]
    unsafe fn dot<F: Codes>(codes: &Self::Codes, x: *const i8) -> Self::V {
        unsafe {
            let mut out = Self::splat(0.0);
            for h in 0..4 {
                out[h] = dot_quarter::<F>(&quarter::<F>(*codes, h), x, h);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn take<F: Codes, const R: usize>(
        codes: *const u8,
        scaling: (Self::V, Self::V),
        x: &[*const f32; R],
        acc: &mut [Self::V; R],
    ) {
        unsafe {
            if R <= 4 {
                // Written out, so that accumulators stay in registers; those of more rows would not find room.
                take_quarter::<F, R>(codes, &scaling, x, acc, 0);
                apart::<R>();
                take_quarter::<F, R>(codes, &scaling, x, acc, 1);
                apart::<R>();
                take_quarter::<F, R>(codes, &scaling, x, acc, 2);
                apart::<R>();
                take_quarter::<F, R>(codes, &scaling, x, acc, 3);
            } else {
                for h in 0..4 {
                    take_quarter::<F, R>(codes, &scaling, x, acc, h);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn table(p: *const u8, float: FloatType, count: usize) -> Self::Table {
        let mut out = unsafe { Self::splat(0.0) };
        for i in 0..4 {
            if 4 * i < count {
                unsafe {
                    let p = p.add(4 * i * float.size());
                    out[i] = match float {
                        FloatType::F32 => vreinterpretq_f32_u8(vld1q_u8(p)),
                        FloatType::F16 => widen_f16(vreinterpret_u16_u8(vld1_u8(p))),
                        FloatType::BF16 => widen_bf16(vreinterpret_u16_u8(vld1_u8(p))),
                    };
                }
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn index(shift: u32) -> Self::Index {
        shift
    }
    // Lane 4 h + i stands for block 4 i + h.
    #[inline(always)]
    unsafe fn spread(table: Self::Table, shift: Self::Index) -> Self::V {
        unsafe {
            match shift {
                0 => turn_floats(table),
                1 => {
                    let even = vuzp1q_f32(table[0], table[1]);
                    let odd = vuzp2q_f32(table[0], table[1]);
                    [even, even, odd, odd]
                }
                _ => [table[0]; 4],
            }
        }
    }
    #[inline(always)]
    unsafe fn keep(v: Self::V, from: usize, to: usize) -> Self::V {
        unsafe {
            let first = vld1q_u32([0, 4, 8, 12].as_ptr());
            let count = vdupq_n_u32((to - from) as u32);
            let mut out = v;
            for h in 0..4 {
                // Blocks before `from` wrap round to large numbers.
                let place = vsubq_u32(first, vdupq_n_u32((from as u32).wrapping_sub(h as u32)));
                let kept = vandq_u32(vcltq_u32(place, count), vreinterpretq_u32_f32(v[h]));
                out[h] = vreinterpretq_f32_u32(kept);
            }
            out
        }
    }
    // 16 codes are 2 * bits bytes. A code lies in a byte and perhaps the next: shifted down and up, they meet.
    #[inline(always)]
    unsafe fn unpack(p: *const u8, bits: usize, k: usize, out: *mut u8) {
        let (mut place, mut shift) = ([0u8; 16], [0i8; 16]);
        for i in 0..16 {
            place[i] = (i * bits / 8) as u8;
            shift[i] = -((i * bits % 8) as i8);
        }
        unsafe {
            let (place, shift) = (vld1q_u8(place.as_ptr()), vld1q_s8(shift.as_ptr()));
            let (next, up) = (vaddq_u8(place, vdupq_n_u8(1)), vaddq_s8(shift, vdupq_n_s8(8)));
            let low = vdupq_n_u8(((1u16 << bits) - 1) as u8);
            let (mut at, end) = (0, k / 8 * bits);
            for to in (0..k).step_by(16) {
                let raw = if end - at >= 16 {
                    vld1q_u8(p.add(at))
                } else {
                    let mut last = [0u8; 16];
                    std::ptr::copy_nonoverlapping(p.add(at), last.as_mut_ptr(), end - at);
                    vld1q_u8(last.as_ptr())
                };
                let down = vshlq_u8(vqtbl1q_u8(raw, place), shift);
                let codes = vorrq_u8(down, vshlq_u8(vqtbl1q_u8(raw, next), up));
                vst1q_u8(out.add(to), vandq_u8(codes, low));
                at += 2 * bits;
            }
        }
    }
}
