use super::{Codes, Int8, LINES, STRETCH, Whole, block_of, index_of, table_of};
use crate::FloatType;
use crate::lanes::{Avx2, Avx512};
use std::arch::x86_64::*;

/// The lanes of the first n blocks of a stretch, as bits.
const LANES: [u16; STRETCH + 1] = {
    let mut out = [0; STRETCH + 1];
    let mut n = 1;
    while n <= STRETCH {
        let mut lane = 0;
        while lane < STRETCH {
            if block_of(lane) < n {
                out[n] |= 1 << lane;
            }
            lane += 1;
        }
        n += 1;
    }
    out
};

/// The first `n` of 64 bytes, the rest 0 and not read.
#[inline(always)]
unsafe fn first64(p: *const u8, n: usize) -> __m512i {
    unsafe {
        if n >= 64 {
            return _mm512_loadu_si512(p.cast());
        }
        _mm512_maskz_loadu_epi8((1u64 << n) - 1, p.cast())
    }
}

/// Within each 128 bits, word i of register r becomes word r of register i.
#[inline(always)]
unsafe fn turn512(r: [__m512i; 4]) -> [__m512i; 4] {
    unsafe {
        let a = _mm512_unpacklo_epi32(r[0], r[1]);
        let b = _mm512_unpacklo_epi32(r[2], r[3]);
        let c = _mm512_unpackhi_epi32(r[0], r[1]);
        let d = _mm512_unpackhi_epi32(r[2], r[3]);
        [
            _mm512_unpacklo_epi64(a, b),
            _mm512_unpackhi_epi64(a, b),
            _mm512_unpacklo_epi64(c, d),
            _mm512_unpackhi_epi64(c, d),
        ]
    }
}

/// Needs VNNI and VBMI besides what the f32 lanes need.
impl Int8 for Avx512 {
    type Codes = [__m512i; LINES];
    type Table = __m512;
    type Index = __m512i;
    type Unpacked = Whole;
    #[inline(always)]
    unsafe fn nibbles_of(p: *const u8) -> Self::Codes {
        unsafe {
            let mut raw = [_mm512_setzero_si512(); 4];
            for i in 0..4 {
                raw[i] = _mm512_loadu_si512(p.add(64 * i).cast());
            }
            let raw = turn512(raw);
            let low = _mm512_set1_epi8(15);
            let mut out = [low; LINES];
            for i in 0..4 {
                out[2 * i] = _mm512_and_si512(raw[i], low);
                out[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16::<4>(raw[i]), low);
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn bytes_of(p: *const u8) -> Self::Codes {
        unsafe {
            let mut halves = [[_mm512_setzero_si512(); 4]; 2];
            for i in 0..4 {
                let a = _mm512_loadu_si512(p.add(128 * i).cast());
                let b = _mm512_loadu_si512(p.add(128 * i + 64).cast());
                halves[0][i] = _mm512_shuffle_i64x2::<0x88>(a, b);
                halves[1][i] = _mm512_shuffle_i64x2::<0xdd>(a, b);
            }
            let (first, second) = (turn512(halves[0]), turn512(halves[1]));
            let ([a, b, c, d], [e, f, g, h]) = (first, second);
            [a, b, c, d, e, f, g, h]
        }
    }
    #[inline(always)]
    unsafe fn dot<F: Codes>(codes: &Self::Codes, x: *const i8) -> Self::V {
        unsafe {
            // Two chains: one of eight has to wait for itself.
            let (mut a, mut b) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            for q in 0..LINES / 2 {
                let x = x.add(128 * q);
                a = _mm512_dpbusd_epi32(a, codes[2 * q], _mm512_load_si512(x.cast()));
                b = _mm512_dpbusd_epi32(b, codes[2 * q + 1], _mm512_load_si512(x.add(64).cast()));
            }
            _mm512_cvtepi32_ps(_mm512_add_epi32(a, b))
        }
    }
    #[inline(always)]
    unsafe fn table(p: *const u8, float: FloatType, count: usize) -> Self::Table {
        unsafe {
            let some = ((1u32 << count) - 1) as u16;
            match float {
                FloatType::F32 => _mm512_maskz_loadu_ps(some, p.cast()),
                FloatType::F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, p.cast())),
                FloatType::BF16 => {
                    let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, p.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn index(shift: u32) -> Self::Index {
        let index = index_of(shift);
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(index.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn spread(table: Self::Table, index: Self::Index) -> Self::V {
        unsafe { _mm512_permutexvar_ps(index, table) }
    }
    #[inline(always)]
    unsafe fn keep(v: Self::V, from: usize, to: usize) -> Self::V {
        unsafe { _mm512_maskz_mov_ps(LANES[to] & !LANES[from], v) }
    }
    // 64 codes are 8 * bits bytes: each 8 codes' bytes go to 8 of their own, where one shift per byte finds them all.
    #[inline(always)]
    unsafe fn unpack(p: *const u8, bits: usize, k: usize, out: *mut u8) {
        let (mut place, mut shift) = ([0u8; 64], [0u8; 64]);
        for i in 0..64 {
            place[i] = (i / 8 * bits + i % 8) as u8;
            shift[i] = (i % 8 * bits) as u8;
        }
        unsafe {
            let place = _mm512_loadu_si512(place.as_ptr().cast());
            let shift = _mm512_loadu_si512(shift.as_ptr().cast());
            let low = _mm512_set1_epi8(((1u16 << bits) - 1) as i8);
            for at in (0..k).step_by(64) {
                let raw = first64(p.add(at / 8 * bits), (k - at).min(64) / 8 * bits);
                let words = _mm512_permutexvar_epi8(place, raw);
                let codes = _mm512_and_si512(_mm512_multishift_epi64_epi8(shift, words), low);
                _mm512_storeu_si512(out.add(at).cast(), codes);
            }
        }
    }
}

/// As `turn512`.
#[inline(always)]
unsafe fn turn256(r: [__m256i; 4]) -> [__m256i; 4] {
    unsafe {
        let a = _mm256_unpacklo_epi32(r[0], r[1]);
        let b = _mm256_unpacklo_epi32(r[2], r[3]);
        let c = _mm256_unpackhi_epi32(r[0], r[1]);
        let d = _mm256_unpackhi_epi32(r[2], r[3]);
        [
            _mm256_unpacklo_epi64(a, b),
            _mm256_unpackhi_epi64(a, b),
            _mm256_unpacklo_epi64(c, d),
            _mm256_unpackhi_epi64(c, d),
        ]
    }
}

/// First and second halves of 2 blocks of 32 bytes.
#[inline(always)]
unsafe fn sides256(p: *const u8) -> [__m256i; 2] {
    unsafe {
        let (a, b) = (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast()));
        [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)]
    }
}

/// Byte products are added in pairs to 16 bits that saturate: eight pairs of codes up to 15 stay below (30480), wider codes
/// are taken 4 bits at a time.
#[inline(always)]
unsafe fn dot256<F: Codes>(codes: &[__m256i; LINES], x: *const i8) -> __m256 {
    unsafe {
        let low = _mm256_set1_epi8(15);
        let (mut lows, mut highs) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        for q in 0..LINES {
            let x = _mm256_load_si256(x.add(64 * q).cast());
            let c = codes[q];
            if F::MOST > 15 {
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(c), low);
                let c = _mm256_and_si256(c, low);
                lows = _mm256_add_epi16(lows, _mm256_maddubs_epi16(c, x));
                highs = _mm256_add_epi16(highs, _mm256_maddubs_epi16(high, x));
            } else {
                lows = _mm256_add_epi16(lows, _mm256_maddubs_epi16(c, x));
            }
        }
        let mut sum = _mm256_madd_epi16(lows, _mm256_set1_epi16(1));
        if F::MOST > 15 {
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(highs, _mm256_set1_epi16(16)));
        }
        _mm256_cvtepi32_ps(sum)
    }
}

/// The lanes whose bit is set, the others 0.
#[inline(always)]
unsafe fn side256(v: __m256, lanes: u16) -> __m256 {
    unsafe {
        let bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let own = _mm256_and_si256(_mm256_set1_epi32(i32::from(lanes)), bit);
        _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(own, bit)))
    }
}

impl Int8 for Avx2 {
    /// Lanes 0..8 of each line, then 8..16.
    type Codes = [[__m256i; LINES]; 2];
    type Table = [f32; 16];
    type Index = [u8; 16];
    type Unpacked = Whole;
    #[inline(always)]
    unsafe fn nibbles_of(p: *const u8) -> Self::Codes {
        unsafe {
            let low = _mm256_set1_epi8(15);
            let mut out = [[low; LINES]; 2];
            for h in 0..2 {
                let mut raw = [low; 4];
                for i in 0..4 {
                    raw[i] = _mm256_loadu_si256(p.add(64 * i + 32 * h).cast());
                }
                let raw = turn256(raw);
                for i in 0..4 {
                    out[h][2 * i] = _mm256_and_si256(raw[i], low);
                    out[h][2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(raw[i]), low);
                }
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn bytes_of(p: *const u8) -> Self::Codes {
        unsafe {
            let mut out = [[_mm256_setzero_si256(); LINES]; 2];
            for h in 0..2 {
                let mut halves = [[_mm256_setzero_si256(); 4]; 2];
                for i in 0..4 {
                    let both = sides256(p.add(128 * i + 64 * h));
                    halves[0][i] = both[0];
                    halves[1][i] = both[1];
                }
                let ([a, b, c, d], [e, f, g, i]) = (turn256(halves[0]), turn256(halves[1]));
                out[h] = [a, b, c, d, e, f, g, i];
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn dot<F: Codes>(codes: &Self::Codes, x: *const i8) -> Self::V {
        unsafe { [dot256::<F>(&codes[0], x), dot256::<F>(&codes[1], x.add(32))] }
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
        let mut out = [0f32; 16];
        for j in 0..16 {
            out[j] = table[index[j] as usize & 15];
        }
        unsafe { [_mm256_loadu_ps(out.as_ptr()), _mm256_loadu_ps(out.as_ptr().add(8))] }
    }
    #[inline(always)]
    unsafe fn keep(v: Self::V, from: usize, to: usize) -> Self::V {
        let lanes = LANES[to] & !LANES[from];
        unsafe { [side256(v[0], lanes & 255), side256(v[1], lanes >> 8)] }
    }
}
