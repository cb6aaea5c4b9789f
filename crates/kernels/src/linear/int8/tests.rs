use super::panel::{Backend, backend, panel_on};
use super::*;
use crate::linear::tests::{Rng, weights};
use crate::weight::Weight;

fn affine(all: &[Weight]) -> Vec<&Affine> {
    all.iter().filter_map(Weight::affine).collect()
}

fn one(x: &[f32], w: &Affine) -> Vec<f32> {
    apply(x, &[w]).remove(0)
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|v| v.to_bits()).collect()
}

/// x as the product sees it.
fn rounded(x: &[f32]) -> Vec<f64> {
    let mut out = Vec::new();
    for block in x.chunks(BLOCK) {
        let top = block.iter().fold(0f32, |top, v| top.max(v.abs()));
        let inverse = 127.0 / top;
        out.extend(
            block.iter().map(|v| f64::from((v * inverse).round_ties_even() * (top / 127.0))),
        );
    }
    out
}

#[test]
fn agrees_with_the_formula() {
    let mut rng = Rng(3);
    for (n, k) in [(1, 32), (7, 96), (33, 128), (21, 576), (17, 800), (5, 2176)] {
        for w in affine(&weights(&mut rng, n, k)) {
            for m in [1, 2, 5, 9] {
                let x: Vec<f32> = (0..m * k).map(|_| rng.float() * 3.0).collect();
                let got = one(&x, w);
                let mut row = vec![0f32; k];
                for j in 0..n {
                    w.dequantise_row(j, &mut row);
                    for i in 0..m {
                        let x = rounded(&x[i * k..(i + 1) * k]);
                        let products = || row.iter().zip(&x).map(|(w, x)| f64::from(*w) * x);
                        // The bias of a group is summed apart from its codes, which may be far from it.
                        let size = products().map(f64::abs).sum::<f64>() + 0.1 * k as f64;
                        let off = (f64::from(got[i * n + j]) - products().sum::<f64>()).abs();
                        assert!(
                            off <= 2e-6 * size,
                            "{} bits g{} n{n} k{k} m{m} ({i},{j}): off by {off}",
                            w.bits,
                            w.group
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_how_many_share_the_call() {
    let mut rng = Rng(4);
    for (n, k) in [(50, 128), (37, 576), (19, 800), (9, 2208), (3, 1536)] {
        for w in affine(&weights(&mut rng, n, k)) {
            let x: Vec<f32> = (0..23 * k).map(|_| rng.float()).collect();
            let alone: Vec<u32> =
                (0..23).flat_map(|i| bits(&one(&x[i * k..(i + 1) * k], w))).collect();
            for m in [2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 23] {
                let together = bits(&one(&x[..m * k], w));
                assert!(together == alone[..m * n], "{} bits n{n} k{k}: {m} rows", w.bits);
            }
        }
    }
}

#[test]
fn backends_agree_bit_for_bit() {
    let mut rng = Rng(5);
    for (n, k) in [(11, 704), (19, 576), (9, 800), (37, 64), (5, 512), (40, 1536), (17, 2208)] {
        agree(&mut rng, n, k);
    }
}

fn agree(rng: &mut Rng, n: usize, k: usize) {
    for w in affine(&weights(rng, n, k)) {
        // The largest codes and values there are, where narrow sums would overflow.
        for extreme in [false, true] {
            let m = 21;
            let x: Vec<f32> = (0..m * k).map(|_| if extreme { 1.0 } else { rng.float() }).collect();
            let mut w = w.clone();
            if extreme {
                w.codes = crate::Bytes::from_vec(vec![0xff; w.codes.len()]);
            }
            let rows = Rows::new(&x, order(&w));
            let lines: Vec<_> = (0..m).map(|r| rows.row(r)).collect();
            let with = |backend| {
                let mut out = vec![0f32; m * n];
                let places: Vec<_> = (0..m).map(|r| out[r * n..].as_mut_ptr()).collect();
                let mut scratch = vec![0; (k + 64) * GRAIN];
                unsafe { panel_on(backend, &w, &lines, &places, 0..n, &mut scratch) };
                bits(&out)
            };
            let want = with(Backend::Portable);
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    assert!(with(Backend::Avx2) == want, "{} bits g{}: AVX2", w.bits, w.group);
                }
                assert!(with(backend()) == want, "{} bits g{}: {:?}", w.bits, w.group, backend());
                if amx::takes(m) {
                    assert!(bits(&one(&x, &w)) == want, "{} bits g{}: tiles", w.bits, w.group);
                }
            }
            #[cfg(target_arch = "aarch64")]
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                assert!(with(Backend::Neon) == want, "{} bits g{}: NEON", w.bits, w.group);
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[test]
fn the_backend_follows_the_instructions() {
    let dot = crate::cpu_features() == "NEON with dot product";
    assert_eq!(backend(), if dot { Backend::Neon } else { Backend::Portable });
}

/// The products take several rows a quarter at a time, so nothing else asks for this.
#[cfg(target_arch = "aarch64")]
#[test]
fn neon_has_the_sums_of_one_row() {
    use super::lanes::{Codes, Int8, Nibbles, Whole};
    use crate::lanes::{Neon, Portable};
    #[inline(always)]
    unsafe fn sums<I: Int8, F: Codes>(codes: &[u8; 512], x: &[i8; 512]) -> [f32; 16] {
        let mut out = [0f32; 16];
        unsafe {
            let codes = F::stretch::<I>(codes.as_ptr());
            I::store(out.as_mut_ptr(), I::dot::<F>(&codes, x.as_ptr()));
        }
        out
    }
    #[target_feature(enable = "dotprod")]
    unsafe fn neon<F: Codes>(codes: &[u8; 512], x: &[i8; 512]) -> [f32; 16] {
        unsafe { sums::<Neon, F>(codes, x) }
    }
    if !std::arch::is_aarch64_feature_detected!("dotprod") {
        return;
    }
    let mut rng = Rng(8);
    for extreme in [false, true] {
        let codes =
            std::array::from_fn(
                |_| if extreme { 255 } else { (rng.float() * 127.5 + 127.5) as u8 },
            );
        let x = std::array::from_fn(|_| if extreme { -127 } else { (rng.float() * 127.0) as i8 });
        unsafe {
            assert_eq!(neon::<Nibbles>(&codes, &x), sums::<Portable, Nibbles>(&codes, &x));
            assert_eq!(neon::<Whole>(&codes, &x), sums::<Portable, Whole>(&codes, &x));
        }
    }
}

/// So long that tiles of x no longer stay in a cache together, and go by in several turns; and so few outputs that one is more
/// than a thread's share.
#[test]
fn rows_too_long_for_one_turn_of_tiles_are_the_same() {
    let mut rng = Rng(9);
    let (n, k, m) = (3, 65536, 33);
    for w in affine(&weights(&mut rng, n, k)).into_iter().filter(|w| w.bits == 4) {
        let x: Vec<f32> = (0..m * k).map(|_| rng.float()).collect();
        let alone: Vec<u32> = (0..m).flat_map(|i| bits(&one(&x[i * k..(i + 1) * k], w))).collect();
        assert!(bits(&one(&x, w)) == alone, "g{}", w.group);
    }
}

#[test]
fn a_gated_pair_is_its_parts() {
    let mut rng = Rng(6);
    let (n, k) = (530, 192);
    let (all, others) = (weights(&mut rng, n, k), weights(&mut rng, n, k));
    for (gate, up) in affine(&all).into_iter().zip(affine(&others)) {
        for m in [1, 3, 17] {
            let x: Vec<f32> = (0..m * k).map(|_| rng.float()).collect();
            let got = apply_gated(&x, gate, up, 0.7);
            let parts = apply(&x, &[gate, up]);
            let mut want = vec![0f32; got.len()];
            swiglu_slice(&parts[0], &parts[1], 0.7, &mut want);
            assert!(bits(&got) == bits(&want), "{} bits, {m} rows", gate.bits);
        }
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    let mut rng = Rng(7);
    for w in affine(&weights(&mut rng, 6, 128)) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x: Vec<f32> = (0..128).map(|_| rng.float()).collect();
            x[77] = bad;
            assert!(one(&x, w).iter().all(|y| !y.is_finite()), "{bad} in {} bits", w.bits);
        }
        let tiny = vec![f32::MIN_POSITIVE / 8.0; 128];
        assert!(one(&tiny, w).iter().all(|y| *y == 0.0));
    }
}
