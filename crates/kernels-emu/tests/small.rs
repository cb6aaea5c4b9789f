//! `norm.metal`, `swiglu.metal`, `heads.metal` and `top.metal` against the CPU's functions.

use candle_core::{Device, Tensor};
use foretoken_kernels::metal::{self, Cache, FloatArray, Heads, HeadsLaunch, Launch, PairedNorm};
use foretoken_kernels::{FloatType, RopeTable, rms_norm, rope, swiglu, swiglu_limited};
use foretoken_kernels_emu::{Act, Memory, Rng, close, floats};

fn run(memory: &Memory, launch: &Launch) {
    for backward in [true, false] {
        memory
            .run_in_order(launch, backward)
            .unwrap_or_else(|fault| panic!("{}: {fault}", launch.kernel));
    }
}

fn tensor(values: &[f32], width: usize) -> Tensor {
    Tensor::from_vec(values.to_vec(), (values.len() / width, width), &Device::Cpu).expect("it fits")
}

fn values(tensor: candle_core::Result<Tensor>) -> Vec<f32> {
    tensor.and_then(|t| t.flatten_all()?.to_vec1()).expect("f32")
}

#[test]
fn norms_agree_with_and_without_a_sum() {
    let mut rng = Rng(1);
    for act in Act::ALL {
        for (i, d) in [5, 256, 257, 576].into_iter().enumerate() {
            for rows in [1, 3, 8] {
                let float = [FloatType::F32, FloatType::F16, FloatType::BF16][i % 3];
                let (plus_one, adds) = (rows == 3, d % 2 == 1);
                let mut memory = Memory::default();
                let x = act.round(&floats(&mut rng, rows * d));
                let delta = act.round(&floats(&mut rng, rows * d));
                let w = Act(float).round(&floats(&mut rng, d));
                let weight = FloatArray { at: memory.put(&Act(float).bytes(&w)), float };
                let xv = memory.put(&act.bytes(&x));
                let size = rows * d * act.0.size();
                let (y, kept) = (memory.room(size), memory.room(size));
                let more = adds.then(|| (memory.put(&act.bytes(&delta)), kept));
                let what = (weight, plus_one, 1e-5);
                let launch = metal::rms_norm(act.0, (rows, d), xv, what, y, more);
                run(&memory, &launch);
                let sum: Vec<f32> = x.iter().zip(&delta).map(|(a, b)| a + b).collect();
                let input = if adds { act.round(&sum) } else { x };
                if adds {
                    assert_eq!(act.values(&memory.get(kept)), input);
                }
                let w: Vec<f32> = w.iter().map(|w| w + if plus_one { 1.0 } else { 0.0 }).collect();
                let want = values(rms_norm(&tensor(&input, d), &w, 1e-5));
                close("rms_norm", act, &act.values(&memory.get(y)), &want, 1e-5);
            }
        }
    }
}

#[test]
fn two_norms_side_by_side_have_the_bits_of_two_launches() {
    let mut rng = Rng(6);
    for act in Act::ALL {
        for (d, rows) in [(5, 1), (256, 3), (300, 9)] {
            let mut memory = Memory::default();
            let mut one = |eps: f32| {
                let x = memory.put(&act.bytes(&floats(&mut rng, rows * d)));
                let at = memory.put(&floats(&mut rng, d));
                PairedNorm { x, weight: FloatArray { at, float: FloatType::F32 }, eps }
            };
            let (left, right) = (one(1e-5), one(0.3));
            let y = memory.room(2 * rows * d * act.0.size());
            run(&memory, &metal::norm_pair(act.0, (rows, d), &left, &right, y));
            let mut alone = |of: &PairedNorm| -> Vec<u8> {
                let y = memory.room(rows * d * act.0.size());
                let what = (of.weight, false, of.eps);
                run(&memory, &metal::rms_norm(act.0, (rows, d), of.x, what, y, None));
                memory.get(y)
            };
            let (left, right) = (alone(&left), alone(&right));
            let rows = left.chunks(d * act.0.size()).zip(right.chunks(d * act.0.size()));
            let want: Vec<u8> = rows.flat_map(|(l, r)| [l, r].concat()).collect();
            assert!(memory.get::<u8>(y) == want, "{act:?}, rows of {d}");
        }
    }
}

#[test]
fn a_norms_row_has_the_same_bits_alone() {
    let mut rng = Rng(2);
    let (act, d) = (Act(FloatType::F32), 300);
    let mut memory = Memory::default();
    let x = memory.put(&floats(&mut rng, 8 * d));
    let weight = FloatArray { at: memory.put(&floats(&mut rng, d)), float: FloatType::F32 };
    let (all, one) = (memory.room(8 * d * 4), memory.room(d * 4));
    run(&memory, &metal::rms_norm(act.0, (8, d), x, (weight, false, 1e-6), all, None));
    for row in 0..8 {
        let from = x.plus(row * d * 4);
        run(&memory, &metal::rms_norm(act.0, (1, d), from, (weight, false, 1e-6), one, None));
        assert!(memory.get::<u32>(one) == memory.get::<u32>(all)[row * d..(row + 1) * d]);
    }
}

#[test]
fn swiglu_limits_and_lets_nan_pass() {
    let mut rng = Rng(3);
    for act in Act::ALL {
        for limit in [None, Some(0.6)] {
            let n = 1000;
            let mut memory = Memory::default();
            let big: Vec<f32> = floats(&mut rng, n).iter().map(|v| v * 100.0).collect();
            let mut g = act.round(&big);
            let u = act.round(&floats(&mut rng, n));
            g[7] = f32::NAN;
            let (gv, uv) = (memory.put(&act.bytes(&g)), memory.put(&act.bytes(&u)));
            let y = memory.room(n * act.0.size());
            run(&memory, &metal::swiglu(act.0, n, (gv, uv), limit, y));
            let (g, u) = (tensor(&g, n), tensor(&u, n));
            let want = match limit {
                Some(limit) => values(swiglu_limited(&g, &u, limit)),
                None => values(swiglu(&g, &u)),
            };
            close("swiglu", act, &act.values(&memory.get(y)), &want, 1e-5);
            assert!(want[7].is_nan());
        }
    }
}

/// (heads, channels that turn, start, base, capacity, ring)
type HeadsCase = (Heads, usize, usize, usize, usize, bool);

#[test]
fn heads_are_normed_turned_and_kept() {
    let mut rng = Rng(4);
    let heads = |q, kv, dim| Heads { q, kv, dim };
    let cases: [HeadsCase; 5] = [
        (heads(4, 2, 16), 16, 0, 0, 11, false),
        (heads(3, 1, 80), 20, 70, 64, 32, false),
        (heads(2, 2, 256), 128, 5, 0, 20, false),
        // Around the end of a ring.
        (heads(4, 1, 64), 64, 30, 0, 32, true),
        (heads(2, 1, 48), 0, 9, 9, 11, false),
    ];
    for (i, (heads, turned, start, base, capacity, ring)) in cases.into_iter().enumerate() {
        for rows in [1, 3, 8, 11] {
            let act = Act::ALL[(i + rows) % 3];
            let size = act.0.size();
            let Heads { q, kv, dim } = heads;
            let (q_normed, k_normed, plus_one) = (i % 2 == 0, i != 1, rows == 3);
            let half = turned / 2;
            let inv_freq: Vec<f64> = (0..half).map(|j| 1.0 / (1.0 + j as f64)).collect();
            let table = RopeTable::new(&inv_freq, 128);
            let angle = |p: usize, j: usize| (p as f64 * inv_freq[j]) as f32;
            let all = |f: fn(f32) -> f32| -> Vec<f32> {
                (0..128)
                    .flat_map(|p| (0..half).map(move |j| (p, j)))
                    .map(|(p, j)| f(angle(p, j)))
                    .collect()
            };
            let mut memory = Memory::default();
            let [xq, xk, xv] = [q, kv, kv].map(|n| act.round(&floats(&mut rng, rows * n * dim)));
            let [wq, wk] = [(); 2].map(|()| floats(&mut rng, dim));
            let bias = floats(&mut rng, (q + 2 * kv) * dim);
            let biased = rows % 2 == 0 || i == 2;
            let mut norm = |w: &[f32]| FloatArray { at: memory.put(w), float: FloatType::F32 };
            let (qn, kn) = (norm(&wq), norm(&wk));
            // Room that nobody may touch must stay as it is.
            let old = act.bytes(&vec![7.0; capacity * kv * dim]);
            let spec = HeadsLaunch {
                heads,
                q: memory.put(&act.bytes(&xq)),
                k: memory.put(&act.bytes(&xk)),
                v: memory.put(&act.bytes(&xv)),
                cosines: memory.put(&all(f32::cos)),
                sines: memory.put(&all(f32::sin)),
                half_turn: half,
                start: memory.put(&[start as u32]),
                q_norm: q_normed.then_some(qn),
                k_norm: k_normed.then_some(kn),
                bias: biased.then(|| memory.put(&bias)),
                plus_one,
                eps: 1e-6,
                cache: Cache {
                    keys: memory.put(&old),
                    values: memory.put(&old),
                    base,
                    capacity,
                    ring,
                },
                q_out: memory.room(rows * q * dim * size),
            };
            run(&memory, &metal::heads(act.0, rows, &spec).expect("a launch"));
            // q, k and v with their biases.
            let with_bias = |x: &[f32], first: usize, n: usize| -> Vec<f32> {
                let bias = bias[first * dim..(first + n) * dim].iter().cycle();
                x.iter().zip(bias).map(|(x, b)| if biased { x + b } else { *x }).collect()
            };
            let (xq, xk) = (with_bias(&xq, 0, q), with_bias(&xk, q, kv));
            let xv = act.round(&with_bias(&xv, q + kv, kv));
            let turn = |x: &[f32], w: &[f32], normed: bool, n: usize| -> Vec<f32> {
                let w: Vec<f32> = w.iter().map(|w| w + if plus_one { 1.0 } else { 0.0 }).collect();
                let x =
                    if normed { values(rms_norm(&tensor(x, dim), &w, 1e-6)) } else { x.to_vec() };
                let x = Tensor::from_vec(x, (rows, n, dim), &Device::Cpu).expect("it fits");
                values(rope(&x, &table, start))
            };
            // Rounded once more in between than on the CPU.
            let tolerance = 1e-5 + 3.0 * act.epsilon();
            let got = act.values(&memory.get(spec.q_out));
            close("queries", act, &got, &turn(&xq, &wq, q_normed, q), tolerance);
            let mut keys = vec![7.0; capacity * kv * dim];
            let mut vals = keys.clone();
            let turned_keys = turn(&xk, &wk, k_normed, kv);
            for row in 0..rows {
                let slot = if ring { (start + row) % capacity } else { start + row - base };
                let (to, from) = (slot * kv * dim, row * kv * dim);
                keys[to..to + kv * dim].copy_from_slice(&turned_keys[from..from + kv * dim]);
                vals[to..to + kv * dim].copy_from_slice(&xv[from..from + kv * dim]);
            }
            close("keys", act, &act.values(&memory.get(spec.cache.keys)), &keys, tolerance);
            assert_eq!(act.values(&memory.get(spec.cache.values)), vals);
        }
    }
}

#[test]
fn the_largest_logits_come_in_order() {
    let mut rng = Rng(5);
    for (n, k) in [(1, 1), (7, 7), (1023, 1), (5000, 1), (5000, 40)] {
        for rows in [1, 3, 8] {
            let mut memory = Memory::default();
            let mut logits: Vec<f32> = floats(&mut rng, rows * n);
            // Ties: of equals the lower index.
            for i in 0..rows * n / 3 {
                let at = rng.below(rows * n);
                logits[at] = [0.9, -0.0, f32::NEG_INFINITY][i % 3];
            }
            let x = memory.put(&logits);
            let (ids, vals) = (memory.room(rows * k * 4), memory.room(rows * k * 4));
            run(&memory, &metal::top((rows, n), k, x, (ids, vals)).expect("a launch"));
            let (ids, vals) = (memory.get::<u32>(ids), memory.get::<f32>(vals));
            for (row, logits) in logits.chunks(n).enumerate() {
                let mut order: Vec<u32> = (0..n as u32).collect();
                order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
                assert_eq!(ids[row * k..(row + 1) * k], order[..k], "{n} {k} row {row}");
                for (id, value) in order.iter().zip(&vals[row * k..(row + 1) * k]) {
                    assert_eq!(logits[*id as usize], *value);
                }
            }
        }
    }
}

#[test]
fn a_logit_that_is_not_a_number_comes_first() {
    let mut memory = Memory::default();
    let x = memory.put(&[1.0, f32::INFINITY, f32::NAN, 3.0]);
    let (ids, vals) = (memory.room(8), memory.room(8));
    run(&memory, &metal::top((1, 4), 2, x, (ids, vals)).expect("a launch"));
    assert_eq!(memory.get::<u32>(ids), [2, 1]);
    assert!(memory.get::<f32>(vals)[0].is_nan());
    assert!(metal::top((1, 4), 5, x, (ids, vals)).is_err());
}
