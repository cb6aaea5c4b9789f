use super::Lanes;
use std::arch::aarch64::*;
use std::arch::asm;

/// 16 lanes in four registers: 0..4, 4..8, 8..12 and 12..16.
///
/// Every aarch64 has these instructions, so nothing here needs a feature to be asked for. Conversions of f16 and the prefetch
/// are written as instructions, because their intrinsics came with Rust 1.94 or are not stable.
#[derive(Clone, Copy)]
pub struct Neon;

macro_rules! each {
    (|$i:ident| $e:expr) => {{
        let mut out = [vdupq_n_f32(0.0); 4];
        for $i in 0..4 {
            out[$i] = $e;
        }
        out
    }};
}

/// Four f16 to f32.
#[inline(always)]
pub unsafe fn widen_f16(half: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    unsafe {
        asm!("fcvtl {w:v}.4s, {h:v}.4h", w = lateout(vreg) wide, h = in(vreg) half,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

#[inline(always)]
unsafe fn narrow_f16(wide: float32x4_t) -> uint16x4_t {
    let half: uint16x4_t;
    unsafe {
        asm!("fcvtn {h:v}.4h, {w:v}.4s", h = lateout(vreg) half, w = in(vreg) wide,
            options(pure, nomem, nostack, preserves_flags));
    }
    half
}

/// Four bf16 to f32.
#[inline(always)]
pub unsafe fn widen_bf16(half: uint16x4_t) -> float32x4_t {
    unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(half))) }
}

/// 16 bytes as f32.
#[inline(always)]
unsafe fn floats(u: uint8x16_t) -> [float32x4_t; 4] {
    unsafe {
        let (a, b) = (vmovl_u8(vget_low_u8(u)), vmovl_high_u8(u));
        [
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(a))),
            vcvtq_f32_u32(vmovl_high_u16(a)),
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(b))),
            vcvtq_f32_u32(vmovl_high_u16(b)),
        ]
    }
}

/// The tree's first two levels: lanes i, 4 + i, 8 + i and 12 + i in lane i.
#[inline(always)]
unsafe fn folded(v: [float32x4_t; 4]) -> float32x4_t {
    unsafe { vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3])) }
}

/// The third level of two trees side by side.
#[inline(always)]
unsafe fn halved(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe {
        let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
        let low = vreinterpretq_f32_f64(vzip1q_f64(a, b));
        vaddq_f32(low, vreinterpretq_f32_f64(vzip2q_f64(a, b)))
    }
}

/// The lowest byte of each lane.
#[inline(always)]
unsafe fn low16(v: [float32x4_t; 4]) -> uint8x16_t {
    unsafe {
        let low = vuzp1q_u16(vreinterpretq_u16_f32(v[0]), vreinterpretq_u16_f32(v[1]));
        let high = vuzp1q_u16(vreinterpretq_u16_f32(v[2]), vreinterpretq_u16_f32(v[3]));
        vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
    }
}

impl Lanes for Neon {
    type V = [float32x4_t; 4];
    #[inline(always)]
    unsafe fn pick(lanes: u16, a: Self::V, b: Self::V) -> Self::V {
        unsafe {
            let bit = vld1q_u32([1, 2, 4, 8].as_ptr());
            each!(|i| vbslq_f32(
                vtstq_u32(vdupq_n_u32(u32::from(lanes) >> (4 * i)), bit),
                a[i],
                b[i]
            ))
        }
    }
    #[inline(always)]
    unsafe fn low_bytes<const SPREAD: bool>(a: Self::V, b: Self::V) -> ([u32; 8], i32) {
        unsafe {
            let (mut a, mut b) = (low16(a), low16(b));
            let sum = vaddlvq_s8(vreinterpretq_s8_u8(a)) + vaddlvq_s8(vreinterpretq_s8_u8(b));
            if SPREAD {
                let apart = [0u8, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15];
                let apart = vld1q_u8(apart.as_ptr());
                (a, b) = (vqtbl1q_u8(a, apart), vqtbl1q_u8(b, apart));
            }
            let mut words = [0u32; 8];
            vst1q_u32(words.as_mut_ptr(), vreinterpretq_u32_u8(a));
            vst1q_u32(words.as_mut_ptr().add(4), vreinterpretq_u32_u8(b));
            (words, i32::from(sum))
        }
    }
    // Nothing the compiler keeps in order depends on it, hence `nomem`; without `pure` it is not left out.
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe {
            asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nomem, nostack, preserves_flags))
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { each!(|i| vld1q_f32(p.add(4 * i))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        for i in 0..4 {
            unsafe { vst1q_f32(p.add(4 * i), v[i]) }
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { each!(|i| vfmaq_f32(c[i], a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        unsafe { each!(|i| vaddq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        unsafe { each!(|i| vmulq_f32(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        unsafe { each!(|i| vdivq_f32(a[i], b[i])) }
    }
    // `fmax` and `fmin` would give NaN if either is.
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        unsafe { each!(|i| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        unsafe { each!(|i| vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        unsafe { each!(|i| vrndnq_f32(a[i])) }
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::V) -> Self::V {
        unsafe {
            let bias = vdupq_n_s32(127);
            each!(|i| {
                let exponent = vaddq_s32(vcvtq_s32_f32(n[i]), bias);
                vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
            })
        }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        unsafe {
            let v = folded(v);
            vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)))
        }
    }
    #[inline(always)]
    unsafe fn sums(v: &[Self::V; 8]) -> [f32; 8] {
        let mut out = [0f32; 8];
        for i in 0..2 {
            let [a, b, c, d] = [v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]];
            unsafe {
                let (ab, cd) = (halved(folded(a), folded(b)), halved(folded(c), folded(d)));
                vst1q_f32(out.as_mut_ptr().add(4 * i), vpaddq_f32(ab, cd));
            }
        }
        out
    }
    // As the plain lanes have it, NaN is passed over and nothing but NaN gives the seed.
    #[inline(always)]
    unsafe fn hmax(v: Self::V) -> f32 {
        unsafe {
            let (a, b) = (vmaxnmq_f32(v[0], v[1]), vmaxnmq_f32(v[2], v[3]));
            vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(a, b), vdupq_n_f32(f32::NEG_INFINITY)))
        }
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8, scale: f32, bias: f32) -> (Self::V, Self::V) {
        unsafe {
            let codes = vld1q_u8(p);
            let (s, b) = (Self::splat(scale), Self::splat(bias));
            let low = floats(vandq_u8(codes, vdupq_n_u8(15)));
            (Self::fma(low, s, b), Self::fma(floats(vshrq_n_u8::<4>(codes)), s, b))
        }
    }
    #[inline(always)]
    unsafe fn bytes(p: *const u8, scale: f32, bias: f32) -> Self::V {
        unsafe { Self::fma(floats(vld1q_u8(p)), Self::splat(scale), Self::splat(bias)) }
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> Self::V {
        unsafe { each!(|i| widen_bf16(vreinterpret_u16_u8(vld1_u8(p.add(8 * i))))) }
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> Self::V {
        unsafe { each!(|i| widen_f16(vreinterpret_u16_u8(vld1_u8(p.add(8 * i))))) }
    }
    #[inline(always)]
    unsafe fn f32(p: *const u8) -> Self::V {
        unsafe { each!(|i| vreinterpretq_f32_u8(vld1q_u8(p.add(16 * i)))) }
    }
    #[inline(always)]
    unsafe fn to_f16(p: *mut u8, v: Self::V) {
        unsafe {
            let most = vdupq_n_f32(65504.0);
            for i in 0..4 {
                // These give NaN for NaN.
                let v = vmaxq_f32(vminq_f32(v[i], most), vnegq_f32(most));
                vst1_u8(p.add(8 * i), vreinterpret_u8_u16(narrow_f16(v)));
            }
        }
    }
}
