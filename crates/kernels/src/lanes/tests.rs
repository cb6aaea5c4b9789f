use super::*;

#[inline(always)]
unsafe fn halved<L: Lanes>(v: L::V) -> L::V {
    let mut out = [0u8; 32];
    unsafe {
        L::to_f16(out.as_mut_ptr(), v);
        L::f16(out.as_ptr())
    }
}

/// Values where backends could differ: what is not a number or not finite, signed zeros, denormals, ties of `round` and of f16
/// (among its normal and its denormal numbers, and where it ends).
const SPECIAL: [f32; 32] = [
    f32::NAN,
    -f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    -0.0,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-40,
    f32::MAX,
    f32::MIN,
    0.5,
    -0.5,
    1.5,
    -2.5,
    8_388_607.5,
    // f16 has 10 bits behind the point: ties between 1 and the next, which is odd, and between that and the second.
    1.0 + 1.0 / 2048.0,
    1.0 + 3.0 / 2048.0,
    -1.0 - 1.0 / 2048.0 - 1.0 / 4_194_304.0,
    65504.0,
    65519.996,
    -65520.0,
    1e9,
    // Halves and multiples of its least, 2^-24.
    1.0 / 33_554_432.0,
    -3.0 / 33_554_432.0,
    5.0 / 33_554_432.0,
    1.0 / 16_777_216.0,
    6.1e-5,
    88.5,
    -87.5,
    -103.0,
    3.0,
];

/// NaN is one value: which of its patterns a sum of two gives is nobody's rule.
fn push(out: &mut Vec<u32>, v: f32) {
    out.push(if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() });
}

/// Lane operations on one backend, as bits; of `tame` numbers those too that ask for such.
#[inline(always)]
unsafe fn trace<L: Lanes>(x: &[f32; 32], raw: &[u8; 80], tame: bool, out: &mut Vec<u32>) {
    unsafe {
        let (a, b) = (L::load(x.as_ptr()), L::load(x.as_ptr().add(16)));
        let (lo, hi) = L::nibbles(raw.as_ptr(), 0.37, -1.25);
        let vs = [
            L::fma(a, b, L::splat(0.1)),
            L::fma(a, L::splat(0.1), b),
            L::add(a, b),
            L::mul(a, b),
            L::div(a, b),
            L::max(a, b),
            L::min(a, b),
            L::round(a),
            L::exp(a),
            L::exp(L::mul(a, L::splat(9.0))),
            lo,
            hi,
            L::bytes(raw.as_ptr().add(1), 0.01, -1.28),
            halved::<L>(a),
            halved::<L>(L::mul(a, L::splat(3e4))),
            L::bf16(raw.as_ptr().add(3)),
            L::f16(raw.as_ptr().add(5)),
            L::f32(raw.as_ptr().add(7)),
        ];
        for v in vs {
            let mut s = [0f32; 16];
            L::store(s.as_mut_ptr(), v);
            s.into_iter().for_each(|v| push(out, v));
        }
        push(out, L::sum(a));
        let eight = [a, b, L::mul(a, b), a, L::add(a, b), b, L::mul(b, b), a];
        L::sums(&eight).into_iter().for_each(|v| push(out, v));
        for v in eight {
            push(out, L::sum(v));
        }
        let mut s = [0f32; 16];
        L::store(s.as_mut_ptr(), L::pick(0b1010_0111_0001_1000, a, b));
        out.extend(s.map(f32::to_bits));
        for (words, sum) in [L::low_bytes::<false>(a, b), L::low_bytes::<true>(b, a)] {
            out.extend(words);
            out.push(sum as u32);
        }
        if tame {
            let mut s = [0f32; 16];
            L::store(s.as_mut_ptr(), L::pow2(L::round(a)));
            s.into_iter().for_each(|v| push(out, v));
            push(out, L::hmax(a));
        }
    }
}

/// Tame numbers, then every special one beside every other, and bytes of all kinds.
#[inline(always)]
unsafe fn trace_all<L: Lanes>() -> Vec<u32> {
    let (mut x, mut raw, mut out) = ([0f32; 32], [0u8; 80], Vec::new());
    for i in 0..32 {
        x[i] = ((i * 37 % 101) as f32 - 50.0) / 7.3;
    }
    for i in 0..80 {
        raw[i] = (i * 73 % 251) as u8;
    }
    unsafe { trace::<L>(&x, &raw, true, &mut out) };
    for half in 0..2 {
        for shift in 0..32 {
            for i in 0..16 {
                x[i] = SPECIAL[16 * half + i];
                x[16 + i] = SPECIAL[(16 * half + i + shift) % 32];
            }
            for byte in &mut raw {
                *byte = byte.wrapping_mul(29).wrapping_add(shift as u8);
            }
            unsafe { trace::<L>(&x, &raw, false, &mut out) };
        }
    }
    out
}

#[test]
fn backends_agree_bit_for_bit() {
    let want = unsafe { trace_all::<Portable>() };
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn two() -> Vec<u32> {
            unsafe { trace_all::<Avx2>() }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
        unsafe fn five() -> Vec<u32> {
            unsafe { trace_all::<Avx512>() }
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            assert!(unsafe { two() } == want, "AVX2 differs from the portable lanes");
        }
        if is_x86_feature_detected!("avx512bw") {
            assert!(unsafe { five() } == want, "AVX-512 differs from the portable lanes");
        }
    }
    #[cfg(target_arch = "aarch64")]
    assert!(unsafe { trace_all::<Neon>() } == want, "NEON differs from the portable lanes");
}

/// Every f16 there is, and around every tie between two neighbours.
#[cfg(target_arch = "aarch64")]
#[test]
fn neon_knows_every_f16() {
    for bits in (0..=u16::MAX).step_by(16) {
        let raw: [u16; 16] = std::array::from_fn(|i| bits + i as u16);
        let (mut got, mut want) = ([0f32; 16], [0f32; 16]);
        unsafe {
            Neon::store(got.as_mut_ptr(), Neon::f16(raw.as_ptr().cast()));
            Portable::store(want.as_mut_ptr(), Portable::f16(raw.as_ptr().cast()));
        }
        for i in 0..16 {
            let (got, want) = (got[i], want[i]);
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{}", raw[i]);
        }
        let next = half::f16::from_bits(raw[15].wrapping_add(1)).to_f32();
        for i in 0..16 {
            let above = if i < 15 { want[i + 1] } else { next };
            want[i] += (above - want[i]) / 2.0;
        }
        for step in [-1, 0, 1i32] {
            let near = want.map(|v| f32::from_bits(v.to_bits().wrapping_add_signed(step)));
            let (mut got, mut want) = ([0u16; 16], [0u16; 16]);
            unsafe {
                Neon::to_f16(got.as_mut_ptr().cast(), Neon::load(near.as_ptr()));
                Portable::to_f16(want.as_mut_ptr().cast(), Portable::load(near.as_ptr()));
            }
            for i in 0..16 {
                let nan = |bits| half::f16::from_bits(bits).is_nan();
                assert!(got[i] == want[i] || nan(got[i]) && nan(want[i]), "{}", near[i]);
            }
        }
    }
}

/// `scripts/check-arm.sh` says what the CPU it emulates has; elsewhere nobody says anything.
#[test]
fn the_instructions_are_those_that_the_run_expects() {
    if let Ok(expected) = std::env::var("FORETOKEN_SIMD_EXPECTED") {
        assert_eq!(cpu_features(), expected);
    }
}

#[test]
fn exp_of_what_is_not_a_number_is_none() {
    dispatch! { fn exp(x: &mut [f32; 16]) = body }
    unsafe fn body<L: Lanes>(x: &mut [f32; 16]) {
        unsafe { L::store(x.as_mut_ptr(), L::exp(L::load(x.as_ptr()))) }
    }
    let mut x = [f32::NAN; 16];
    x[3] = -f32::NAN;
    x[5] = 0.0;
    exp(&mut x);
    for (i, v) in x.into_iter().enumerate() {
        assert_eq!(v.is_nan(), i != 5, "lane {i}: {v}");
    }
}

#[test]
fn exp_is_close_to_the_library() {
    for i in -8000..=8000 {
        let x = i as f32 / 100.0;
        let mut s = [0f32; 16];
        unsafe { Portable::store(s.as_mut_ptr(), Portable::exp(Portable::splat(x))) };
        let want = f64::from(x).exp();
        assert!(
            (f64::from(s[3]) / want - 1.0).abs() < 3e-7,
            "exp({x}) = {} instead of {want}",
            s[3]
        );
    }
}
