//! Time of one mixture layer in the shapes of Step 3.5 Flash and Hy3, random packed weights in memory, by rows of the pass: what a
//! verify pass costs over a plain step when the rows choose experts of their own, and when they all choose the same.
//!
//! `cargo run -p foretoken-kernels --example moe_speed`
#![allow(clippy::print_stdout)]

use candle_core::{DType, Device, Result, Tensor};
use foretoken_kernels::{
    Activations, Affine, Bytes, Experts, FloatType, Weight, expert_mlp, gated, linear_many,
};
use std::time::Instant;

/// Hidden, width of an expert, experts, experts per token, width of the shared one.
const SHAPES: [(&str, usize, usize, usize, usize, usize); 2] =
    [("step3p5", 4096, 1280, 48, 8, 1280), ("hy_v3", 4096, 1536, 48, 8, 1536)];

fn weight(n: usize, k: usize, seed: usize) -> Weight {
    let codes = (0..n * k / 2).map(|i| ((i * 73 + seed) % 251) as u8).collect();
    let halves = |scale: f32| {
        let of = |i: usize| half::bf16::from_f32(scale * (1 + i % 7) as f32).to_le_bytes();
        Bytes::from_vec((0..n * k / 64).flat_map(of).collect())
    };
    let (scales, biases) = (halves(1e-3), halves(-7e-3));
    let parts =
        Affine::new(Bytes::from_vec(codes), scales, biases, FloatType::BF16, (4, 64), (n, k));
    Weight::Affine(parts.expect("sizes fit"))
}

fn main() -> Result<()> {
    for (name, hidden, width, n, top, shared) in SHAPES {
        for activations in [Activations::Exact, Activations::Int8] {
            let stack =
                |rows: usize, k: usize| (0..n).map(|e| weight(rows, k, e)).collect::<Vec<_>>();
            let experts = Experts {
                gate: stack(width, hidden),
                up: stack(width, hidden),
                down: stack(hidden, width),
                limit: f32::INFINITY,
                activations,
            };
            let [gate, up, down] = [
                weight(shared, hidden, 91),
                weight(shared, hidden, 92),
                weight(hidden, shared, 93),
            ];
            let one =
                experts.gate[0].n_bytes() + experts.up[0].n_bytes() + experts.down[0].n_bytes();
            let beside = gate.n_bytes() + up.n_bytes() + down.n_bytes();
            for (how, step) in [("own experts", 5), ("same experts", 0)] {
                let mut plain = 0.0;
                for m in 1..=8 {
                    let values = (0..m * hidden).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0);
                    let x = Tensor::from_iter(values, &Device::Cpu)?.reshape((m, hidden))?;
                    let mut seconds = Vec::new();
                    let mut distinct = 0;
                    for turn in 0..9 {
                        // Another choice each time, so that nothing is left in a cache from the last.
                        let mut chosen = Vec::new();
                        for r in 0..m {
                            let mut row: Vec<u32> = (0..top)
                                .map(|i| ((turn * 11 + r * step + i * 6) % n) as u32)
                                .collect();
                            row.sort_unstable();
                            chosen.extend(row);
                        }
                        let mut all = chosen.clone();
                        all.sort_unstable();
                        all.dedup();
                        distinct = all.len();
                        let weights = vec![0.125f32; chosen.len()];
                        let began = Instant::now();
                        let routed = expert_mlp(&x, &experts, &chosen, &weights)?;
                        let act = gated(&x, &gate, &up, None, activations)?;
                        let y = &linear_many(&act, &[&down], activations)?[0];
                        assert_eq!((routed.dtype(), y.dims()), (DType::F32, &[m, hidden][..]));
                        seconds.push(began.elapsed().as_secs_f64());
                    }
                    seconds.sort_by(f64::total_cmp);
                    let median = seconds[seconds.len() / 2];
                    if m == 1 {
                        plain = median;
                    }
                    let bytes = (distinct * one + beside) as f64;
                    println!(
                        "{name:8} {activations:?} {how:12} {m} rows, {distinct:2} experts: {:8.0} us, C {:5.2}, {:5.1} GB/s",
                        median * 1e6,
                        median / plain,
                        bytes / median / 1e9
                    );
                }
            }
        }
    }
    Ok(())
}
