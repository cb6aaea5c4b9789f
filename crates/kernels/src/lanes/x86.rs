use super::Lanes;
use std::arch::x86_64::*;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// 16 lanes in one register.
#[derive(Clone, Copy)]
pub struct Avx512;

/// The lower 8 lanes, already halved once, by the fixed tree.
#[inline(always)]
unsafe fn sum8(v: __m256) -> f32 {
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

#[inline(always)]
unsafe fn max8(v: __m256) -> f32 {
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
    }
}

#[inline(always)]
unsafe fn halves512(v: __m512) -> (__m256, __m256) {
    unsafe {
        (
            _mm512_castps512_ps256(v),
            _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v))),
        )
    }
}

/// See [`Lanes::low_bytes`]. By hand: left to itself the compiler takes some of the bytes out one by one.
#[inline(always)]
unsafe fn words256<const SPREAD: bool>(bytes: __m256i) -> ([u32; 8], i32) {
    unsafe {
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
        let sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b1110>(sums));
        let sum = _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32::<1>(sums)));
        let apart = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        let bytes = if SPREAD {
            _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(apart))
        } else {
            bytes
        };
        (std::mem::transmute::<__m256i, [u32; 8]>(bytes), sum)
    }
}

impl Lanes for Avx512 {
    type V = __m512;
    const REGISTERS: usize = 32;
    #[inline(always)]
    unsafe fn pick(lanes: u16, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_mask_mov_ps(b, lanes, a) }
    }
    #[inline(always)]
    unsafe fn low_bytes<const SPREAD: bool>(a: Self::V, b: Self::V) -> ([u32; 8], i32) {
        unsafe {
            let a = _mm512_cvtepi32_epi8(_mm512_castps_si512(a));
            let b = _mm512_cvtepi32_epi8(_mm512_castps_si512(b));
            words256::<SPREAD>(_mm256_set_m128i(b, a))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        unsafe { _mm512_roundscale_ps::<NEAREST>(a) }
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::V) -> Self::V {
        unsafe {
            let i = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(i))
        }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        unsafe {
            let (lo, hi) = halves512(v);
            sum8(_mm256_add_ps(lo, hi))
        }
    }
    // Eight trees at once: each level puts the halves of two side by side.
    #[inline(always)]
    unsafe fn sums(v: &[Self::V; 8]) -> [f32; 8] {
        unsafe {
            let mut a = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                let (x, y) = (v[2 * i], v[2 * i + 1]);
                let low = _mm512_shuffle_f32x4::<0x44>(x, y);
                a[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xee>(x, y));
            }
            let mut b = [_mm512_setzero_pd(); 2];
            for i in 0..2 {
                let (x, y) = (a[2 * i], a[2 * i + 1]);
                let low = _mm512_shuffle_f32x4::<0x88>(x, y);
                let all = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0xdd>(x, y));
                b[i] = _mm512_castps_pd(all);
            }
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(b[0], b[1]));
            let c = _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(b[0], b[1])));
            let d = _mm512_add_ps(c, _mm512_movehdup_ps(c));
            // Tree i ended in lane 4 i, tree 4 + i in lane 4 i + 2.
            let order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 14, 10, 6, 2, 12, 8, 4, 0);
            let mut out = [0f32; 8];
            let all = _mm512_castps512_ps256(_mm512_permutexvar_ps(order, d));
            _mm256_storeu_ps(out.as_mut_ptr(), all);
            out
        }
    }
    #[inline(always)]
    unsafe fn hmax(v: Self::V) -> f32 {
        unsafe {
            let (lo, hi) = halves512(v);
            max8(_mm256_max_ps(lo, hi))
        }
    }
    // A group of 4-bit codes has only 16 values: one fused multiply-add makes the table, two permutes look it up, and
    // the permute ignores all but the low 4 bits, so no mask is needed.
    #[inline(always)]
    unsafe fn nibbles(p: *const u8, scale: f32, bias: f32) -> (Self::V, Self::V) {
        unsafe {
            let iota =
                _mm512_set_ps(15., 14., 13., 12., 11., 10., 9., 8., 7., 6., 5., 4., 3., 2., 1., 0.);
            let table = _mm512_fmadd_ps(iota, _mm512_set1_ps(scale), _mm512_set1_ps(bias));
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            (
                _mm512_permutexvar_ps(codes, table),
                _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), table),
            )
        }
    }
    #[inline(always)]
    unsafe fn bytes(p: *const u8, scale: f32, bias: f32) -> Self::V {
        unsafe {
            let u = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())));
            _mm512_fmadd_ps(u, _mm512_set1_ps(scale), _mm512_set1_ps(bias))
        }
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> Self::V {
        unsafe {
            let w = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w))
        }
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> Self::V {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn f32(p: *const u8) -> Self::V {
        unsafe { _mm512_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn to_f16(p: *mut u8, v: Self::V) {
        unsafe {
            // Of NaN and a number these give the second operand, as `max` and `min` do.
            let v = _mm512_min_ps(_mm512_set1_ps(65504.0), v);
            let v = _mm512_max_ps(_mm512_set1_ps(-65504.0), v);
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<0>(v));
        }
    }
}

/// 16 lanes in two registers: 0..8 and 8..16.
#[derive(Clone, Copy)]
pub struct Avx2;

#[inline(always)]
unsafe fn widen8(p: *const u8) -> __m256i {
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())) }
}

#[inline(always)]
unsafe fn affine8(u: __m256i, scale: __m256, bias: __m256) -> __m256 {
    unsafe { _mm256_fmadd_ps(_mm256_cvtepi32_ps(u), scale, bias) }
}

#[inline(always)]
unsafe fn pow2_8(n: __m256) -> __m256 {
    unsafe {
        let i = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(i))
    }
}

#[inline(always)]
unsafe fn bf16_8(p: *const u8) -> __m256 {
    unsafe {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(
            p.cast(),
        ))))
    }
}

impl Lanes for Avx2 {
    type V = [__m256; 2];
    #[inline(always)]
    unsafe fn pick(lanes: u16, a: Self::V, b: Self::V) -> Self::V {
        unsafe {
            let bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let mut out = b;
            for h in 0..2 {
                let own = _mm256_and_si256(_mm256_set1_epi32(i32::from(lanes >> (8 * h))), bit);
                let own = _mm256_castsi256_ps(_mm256_cmpeq_epi32(own, bit));
                out[h] = _mm256_blendv_ps(b[h], a[h], own);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn low_bytes<const SPREAD: bool>(a: Self::V, b: Self::V) -> ([u32; 8], i32) {
        unsafe {
            let low = _mm256_set1_epi32(255);
            let a0 = _mm256_and_si256(_mm256_castps_si256(a[0]), low);
            let a1 = _mm256_and_si256(_mm256_castps_si256(a[1]), low);
            let b0 = _mm256_and_si256(_mm256_castps_si256(b[0]), low);
            let b1 = _mm256_and_si256(_mm256_castps_si256(b[1]), low);
            // Packing goes half by half: fours of a0, a1, b0, b1, then the other fours of each.
            let bytes =
                _mm256_packus_epi16(_mm256_packus_epi32(a0, a1), _mm256_packus_epi32(b0, b1));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            words256::<SPREAD>(_mm256_permutevar8x32_epi32(bytes, order))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        unsafe { [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])] }
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::V) -> Self::V {
        unsafe { [pow2_8(n[0]), pow2_8(n[1])] }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        unsafe { sum8(_mm256_add_ps(v[0], v[1])) }
    }
    #[inline(always)]
    unsafe fn hmax(v: Self::V) -> f32 {
        unsafe { max8(_mm256_max_ps(v[0], v[1])) }
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8, scale: f32, bias: f32) -> (Self::V, Self::V) {
        unsafe {
            let (s, b) = (_mm256_set1_ps(scale), _mm256_set1_ps(bias));
            let (c0, c1) = (widen8(p), widen8(p.add(8)));
            let mask = _mm256_set1_epi32(15);
            let low = [
                affine8(_mm256_and_si256(c0, mask), s, b),
                affine8(_mm256_and_si256(c1, mask), s, b),
            ];
            let high = [
                affine8(_mm256_srli_epi32::<4>(c0), s, b),
                affine8(_mm256_srli_epi32::<4>(c1), s, b),
            ];
            (low, high)
        }
    }
    #[inline(always)]
    unsafe fn bytes(p: *const u8, scale: f32, bias: f32) -> Self::V {
        unsafe {
            let (s, b) = (_mm256_set1_ps(scale), _mm256_set1_ps(bias));
            [affine8(widen8(p), s, b), affine8(widen8(p.add(8)), s, b)]
        }
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> Self::V {
        unsafe { [bf16_8(p), bf16_8(p.add(16))] }
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> Self::V {
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn f32(p: *const u8) -> Self::V {
        unsafe { Self::load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn to_f16(p: *mut u8, v: Self::V) {
        unsafe {
            let v = Self::max(Self::splat(-65504.0), Self::min(Self::splat(65504.0), v));
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<0>(v[0]));
            _mm_storeu_si128(p.add(16).cast(), _mm256_cvtps_ph::<0>(v[1]));
        }
    }
}
