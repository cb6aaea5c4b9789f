//! Time of one linear map by rows, for a matrix that stays in the cache and for many that do not.
//!
//! `cargo run --release -p foretoken-kernels --example linear_speed`
#![allow(clippy::print_stdout)]

use candle_core::{Device, Tensor};
use foretoken_kernels::{Activations, Affine, Bytes, FloatType, Weight, linear_many};
use std::time::Instant;

fn weight(n: usize, k: usize, bits: usize) -> Weight {
    let bytes =
        |len: usize| Bytes::from_vec((0..len).map(|i| (i * 73 % 251) as u8 & 0x3b).collect());
    let scales = || bytes(n * k / 32 * 2);
    Weight::Affine(
        Affine::new(
            bytes(n * k * bits / 8),
            scales(),
            scales(),
            FloatType::F16,
            (bits, 32),
            (n, k),
        )
        .expect("sizes fit"),
    )
}

fn main() -> candle_core::Result<()> {
    for (n, k, bits) in [(1536, 576, 4), (576, 1536, 4), (576, 576, 4), (49152, 576, 8)] {
        for copies in [1, 48] {
            let copies = if n > 10_000 { 1 } else { copies };
            let weights: Vec<Weight> = (0..copies).map(|_| weight(n, k, bits)).collect();
            let mb = weights.iter().map(Weight::n_bytes).sum::<usize>() as f64 / 1e6;
            for (m, activations) in [1, 2, 3, 4, 8, 128]
                .into_iter()
                .flat_map(|m| [(m, Activations::Exact), (m, Activations::Int8)])
            {
                let x = Tensor::ones((m, k), candle_core::DType::F32, &Device::Cpu)?;
                let mut best = f64::MAX;
                for _ in 0..if m > 8 { 5 } else { 30 } {
                    let began = Instant::now();
                    for w in &weights {
                        linear_many(&x, &[w], activations)?;
                    }
                    best = best.min(began.elapsed().as_secs_f64());
                }
                println!(
                    "{n:5}x{k} {bits}-bit, {mb:6.1} MB, {m:3} rows {activations:?}: {:8.1} us, {:5.1} GB/s",
                    best * 1e6,
                    mb / best / 1e3
                );
            }
        }
    }
    Ok(())
}
