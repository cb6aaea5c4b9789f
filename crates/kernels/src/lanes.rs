//! Sixteen f32 lanes, the one vector width all kernels are written in.
//!
//! AVX-512 holds them in one register, AVX2 in two, NEON in four, everything else in an array that the compiler vectorises. Every backend performs the same IEEE operations in the same order (fused multiply-add included), so
//! the same model gives the same bits on every machine with hardware fused multiply-add or without.

/// Lane operations. All functions are `unsafe` because a backend may only run where its CPU feature exists, and because
/// the loads read exactly the documented number of elements behind the pointer.
pub trait Lanes: Copy + 'static {
    type V: Copy;
    /// How many V's the registers hold.
    const REGISTERS: usize = 8;
    unsafe fn splat(x: f32) -> Self::V;
    /// Reads 16 f32.
    unsafe fn load(p: *const f32) -> Self::V;
    /// Writes 16 f32.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// a * b + c with one rounding.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// Of NaN and a number, in this and in `min`, the second operand: whatever may be NaN stands second.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::V) -> Self::V;
    /// 2^n for integer-valued lanes in -126..=127.
    unsafe fn pow2(n: Self::V) -> Self::V;
    /// Sum by halving: lane i + lane i+8, then +4, +2, +1.
    unsafe fn sum(v: Self::V) -> f32;
    /// The sum of each, as [`Lanes::sum`] has it.
    #[inline(always)]
    unsafe fn sums(v: &[Self::V; 8]) -> [f32; 8] {
        let mut out = [0f32; 8];
        for i in 0..8 {
            out[i] = unsafe { Self::sum(v[i]) };
        }
        out
    }

    /// Largest lane.
    unsafe fn hmax(v: Self::V) -> f32;
    /// 16 bytes of 4-bit codes: u * scale + bias for the 16 low nibbles, then for the 16 high ones.
    unsafe fn nibbles(p: *const u8, scale: f32, bias: f32) -> (Self::V, Self::V);
    /// 16 unsigned bytes: u * scale + bias.
    unsafe fn bytes(p: *const u8, scale: f32, bias: f32) -> Self::V;
    /// 16 bf16, any alignment.
    unsafe fn bf16(p: *const u8) -> Self::V;
    /// 16 f16, any alignment.
    unsafe fn f16(p: *const u8) -> Self::V;
    /// 16 f32, any alignment.
    unsafe fn f32(p: *const u8) -> Self::V;
    /// Writes 16 f16, any alignment: the nearest, ties to even, +-65504 for what is beyond; NaN stays.
    unsafe fn to_f16(p: *mut u8, v: Self::V);

    /// The lowest byte of each lane's bits, of `a`'s and then of `b`'s, as eight words, and the sum of these bytes as signed
    /// ones. `SPREAD` puts the evens of each eight before its odds.
    #[inline(always)]
    unsafe fn low_bytes<const SPREAD: bool>(a: Self::V, b: Self::V) -> ([u32; 8], i32) {
        let mut bits = [0f32; 32];
        unsafe {
            Self::store(bits.as_mut_ptr(), a);
            Self::store(bits.as_mut_ptr().add(16), b);
        }
        let (mut words, mut sum) = ([[0; 4]; 8], 0);
        for (q, word) in words.iter_mut().enumerate() {
            for (c, byte) in word.iter_mut().enumerate() {
                let from = if SPREAD { q / 2 * 8 + 2 * c + q % 2 } else { 4 * q + c };
                *byte = bits[from].to_bits() as u8;
                sum += i32::from(*byte as i8);
            }
        }
        (words.map(u32::from_ne_bytes), sum)
    }

    /// `a` in the lanes whose bit is set, `b` in the others.
    #[inline(always)]
    unsafe fn pick(lanes: u16, a: Self::V, b: Self::V) -> Self::V {
        let (mut from, mut to) = ([0f32; 16], [0f32; 16]);
        unsafe {
            Self::store(from.as_mut_ptr(), a);
            Self::store(to.as_mut_ptr(), b);
            for i in 0..16 {
                if lanes >> i & 1 == 1 {
                    to[i] = from[i];
                }
            }
            Self::load(to.as_ptr())
        }
    }

    /// Asks for the cache line behind `p`, which need not be readable.
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    /// e^x, for x in about -87..=88; smaller gives the smallest normal number (close enough to 0 for a softmax), larger
    /// saturates, NaN stays. Relative error below 2e-7 (Cephes' polynomial after range reduction by ln 2 in two parts).
    #[inline(always)]
    unsafe fn exp(x: Self::V) -> Self::V {
        unsafe {
            let x = Self::max(Self::splat(-87.0), Self::min(Self::splat(88.0), x));
            let n = Self::round(Self::mul(x, Self::splat(std::f32::consts::LOG2_E)));
            let r = Self::fma(n, Self::splat(-0.693_359_4), x);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_2e-4);
            for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
                p = Self::fma(p, r, Self::splat(c));
            }
            let p = Self::add(Self::fma(p, Self::mul(r, r), r), Self::splat(1.0));
            Self::mul(p, Self::pow2(n))
        }
    }
}

/// Runs everywhere.
#[derive(Clone, Copy)]
pub struct Portable;

macro_rules! each {
    (|$i:ident| $e:expr) => {{
        let mut out = [0f32; 16];
        for $i in 0..16 {
            out[$i] = $e;
        }
        out
    }};
}

impl Lanes for Portable {
    type V = [f32; 16];
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { p.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        unsafe { p.cast::<[f32; 16]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each!(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        each!(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        each!(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        each!(|i| a[i] / b[i])
    }
    // The comparison form is what the x86 instructions do with NaN: the second operand wins.
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        each!(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        each!(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn round(a: Self::V) -> Self::V {
        each!(|i| a[i].round_ties_even())
    }
    #[inline(always)]
    unsafe fn pow2(n: Self::V) -> Self::V {
        each!(|i| f32::from_bits((((n[i] as i32) + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let mut s = v;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                s[i] += s[i + half];
            }
        }
        s[0]
    }
    // A function of its own, because it is much code and not where the time goes.
    #[inline(never)]
    unsafe fn sums(v: &[Self::V; 8]) -> [f32; 8] {
        v.map(|v| unsafe { Self::sum(v) })
    }
    #[inline(always)]
    unsafe fn hmax(v: Self::V) -> f32 {
        v.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8, scale: f32, bias: f32) -> (Self::V, Self::V) {
        let b = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        (
            each!(|i| f32::from(b[i] & 15).mul_add(scale, bias)),
            each!(|i| f32::from(b[i] >> 4).mul_add(scale, bias)),
        )
    }
    #[inline(always)]
    unsafe fn bytes(p: *const u8, scale: f32, bias: f32) -> Self::V {
        let b = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        each!(|i| f32::from(b[i]).mul_add(scale, bias))
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> Self::V {
        let b = unsafe { p.cast::<[[u8; 2]; 16]>().read_unaligned() };
        each!(|i| f32::from_bits(u32::from(u16::from_le_bytes(b[i])) << 16))
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> Self::V {
        let b = unsafe { p.cast::<[[u8; 2]; 16]>().read_unaligned() };
        each!(|i| half::f16::from_le_bytes(b[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn f32(p: *const u8) -> Self::V {
        let b = unsafe { p.cast::<[[u8; 4]; 16]>().read_unaligned() };
        each!(|i| f32::from_le_bytes(b[i]))
    }
    #[inline(always)]
    unsafe fn to_f16(p: *mut u8, v: Self::V) {
        let halves = v.map(|x| half::f16::from_f32(x.clamp(-65504.0, 65504.0)).to_le_bytes());
        unsafe { p.cast::<[[u8; 2]; 16]>().write_unaligned(halves) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;

/// What the CPU offers, decided once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

/// The widest backend this CPU runs. `FORETOKEN_SIMD=avx512|avx2|portable` asks for a narrower one, for tests and comparisons.
pub fn backend() -> Backend {
    static CHOSEN: std::sync::OnceLock<Backend> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let asked = std::env::var("FORETOKEN_SIMD").unwrap_or_default();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 =
                avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            match asked.as_str() {
                "portable" => Backend::Portable,
                "avx2" if avx2 => Backend::Avx2,
                _ if avx512 => Backend::Avx512,
                _ if avx2 => Backend::Avx2,
                _ => Backend::Portable,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if asked == "portable" { Backend::Portable } else { Backend::Neon }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            // There is nothing to choose from.
            let _ = asked;
            Backend::Portable
        }
    })
}

/// For people: which vector instructions are in use.
pub fn cpu_features() -> &'static str {
    match backend() {
        #[cfg(target_arch = "x86_64")]
        Backend::Avx512 if crate::linear::int8::has_tiles() => "AVX-512 with AMX",
        #[cfg(target_arch = "x86_64")]
        Backend::Avx512 => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        Backend::Avx2 => "AVX2",
        #[cfg(target_arch = "aarch64")]
        Backend::Neon if std::arch::is_aarch64_feature_detected!("dotprod") => {
            "NEON with dot product"
        }
        #[cfg(target_arch = "aarch64")]
        Backend::Neon => "NEON",
        Backend::Portable => "portable",
    }
}

/// Defines `$name`, which runs `$body::<L>` compiled for the widest backend of this CPU.
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) = $body:ident) => {
        $(#[$doc])*
        $vis fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
            unsafe fn avx512($($arg: $ty),*) {
                unsafe { $body::<$crate::lanes::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) {
                unsafe { $body::<$crate::lanes::Avx2>($($arg),*) }
            }
            // SAFETY: `backend` names only what this CPU has; the pointers' validity is the caller's contract.
            match $crate::lanes::backend() {
                #[cfg(target_arch = "x86_64")]
                $crate::lanes::Backend::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                $crate::lanes::Backend::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                $crate::lanes::Backend::Neon => unsafe { $body::<$crate::lanes::Neon>($($arg),*) },
                $crate::lanes::Backend::Portable => unsafe { $body::<$crate::lanes::Portable>($($arg),*) },
            }
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests;
