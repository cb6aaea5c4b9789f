use super::*;
use crate::weight::{Affine, Dense};

pub(super) struct Rng(pub u64);
impl Rng {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
    pub fn float(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 31) as f32 * 2.0 - 1.0
    }
}

pub(super) fn weights(rng: &mut Rng, n: usize, k: usize) -> Vec<Weight> {
    let mut all = Vec::new();
    for float in [FloatType::F32, FloatType::F16, FloatType::BF16] {
        let mut raw = Vec::new();
        for _ in 0..n * k {
            let v = rng.float();
            match float {
                FloatType::F32 => raw.extend(v.to_le_bytes()),
                FloatType::F16 => raw.extend(half::f16::from_f32(v).to_le_bytes()),
                FloatType::BF16 => raw.extend(half::bf16::from_f32(v).to_le_bytes()),
            }
        }
        all.push(Weight::Dense(
            Dense::new(Bytes::from_vec(raw), float, (n, k)).expect("sizes fit"),
        ));
    }
    for bits in [1, 2, 3, 4, 5, 6, 8] {
        for (group, scale_type) in
            [(32, FloatType::F16), (64, FloatType::BF16), (128, FloatType::F32)]
        {
            if !k.is_multiple_of(group) {
                continue;
            }
            let codes = (0..n * k * bits / 8).map(|_| rng.next() as u8).collect();
            let mut floats = || {
                let mut raw = Vec::new();
                for _ in 0..n * (k / group) {
                    let v = rng.float() * 0.1;
                    match scale_type {
                        FloatType::F32 => raw.extend(v.to_le_bytes()),
                        FloatType::F16 => raw.extend(half::f16::from_f32(v).to_le_bytes()),
                        FloatType::BF16 => raw.extend(half::bf16::from_f32(v).to_le_bytes()),
                    }
                }
                Bytes::from_vec(raw)
            };
            let (scales, biases) = (floats(), floats());
            let w = Affine::new(
                Bytes::from_vec(codes),
                scales,
                biases,
                scale_type,
                (bits, group),
                (n, k),
            );
            all.push(Weight::Affine(w.expect("sizes fit")));
        }
    }
    all
}

#[test]
fn agrees_with_the_plain_reference() {
    let mut rng = Rng(1);
    for (n, k) in [(1, 32), (7, 96), (33, 128), (50, 576), (21, 40)] {
        for w in weights(&mut rng, n, k) {
            for m in [1, 2, 3, 5, 8, 9, 19] {
                let x: Vec<f32> = (0..m * k).map(|_| rng.float()).collect();
                let got = apply(&x, &w);
                let mut row = vec![0f32; k];
                for j in 0..n {
                    w.row(j, &mut row);
                    for i in 0..m {
                        let products = || {
                            row.iter().zip(&x[i * k..]).map(|(w, x)| f64::from(*w) * f64::from(*x))
                        };
                        let (want, size) =
                            (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
                        let off = (f64::from(got[i * n + j]) - want).abs();
                        assert!(
                            off <= 1e-6 * size + 1e-9,
                            "{} n{n} k{k} m{m} ({i},{j}): off by {off}",
                            w.storage()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_how_many_share_the_call() {
    let mut rng = Rng(2);
    for (n, k) in [(50, 128), (37, 576), (9, 40)] {
        for w in weights(&mut rng, n, k) {
            let x: Vec<f32> = (0..23 * k).map(|_| rng.float()).collect();
            let alone: Vec<u32> =
                (0..23).flat_map(|i| apply(&x[i * k..(i + 1) * k], &w)).map(f32::to_bits).collect();
            for m in [2, 3, 4, 5, 6, 7, 8, 9, 12, 23] {
                let together: Vec<u32> =
                    apply(&x[..m * k], &w).into_iter().map(f32::to_bits).collect();
                assert!(together == alone[..m * n], "{} n{n} k{k}: {m} rows", w.storage());
            }
        }
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let w = |codes, bits, group| {
        let b = |n| Bytes::from_vec(vec![0; n]);
        Affine::new(b(codes), b(2 * 2 * 2), b(2 * 2 * 2), FloatType::F16, (bits, group), (2, 64))
    };
    assert!(w(64, 4, 32).is_ok());
    assert!(matches!(w(63, 4, 32), Err(crate::WeightError::Size { .. })));
    assert!(matches!(w(64, 7, 32), Err(crate::WeightError::Format { .. })));
    assert!(matches!(w(64, 4, 48), Err(crate::WeightError::Format { .. })));
}
