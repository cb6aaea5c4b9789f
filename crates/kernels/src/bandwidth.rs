//! How fast this machine reads memory, with the threads the products have: what a decode step is measured against.

use crate::lanes::{Lanes, dispatch};
use crate::pool;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Bytes a thread takes at a time.
const CHUNK: usize = 256 << 10;

/// Bytes per second over a buffer of `n_bytes` (at least a chunk), read `passes` times; the median pass.
pub fn read_bandwidth(n_bytes: usize, passes: usize) -> f64 {
    let n_chunks = n_bytes.div_ceil(CHUNK).max(1);
    // Not zeros: the system would map one page for all of them.
    let words = vec![1u64; n_chunks * CHUNK / 8];
    let mut seconds: Vec<f64> = (0..passes.max(1))
        .map(|_| {
            let (began, total) = (Instant::now(), AtomicU64::new(0));
            pool::run(n_chunks, &|chunk| {
                let mut sum = 0;
                add_up(&words[chunk * CHUNK / 8..(chunk + 1) * CHUNK / 8], &mut sum);
                total.fetch_add(sum, Relaxed);
            });
            let seconds = began.elapsed().as_secs_f64();
            assert_eq!(total.into_inner(), words.len() as u64, "every word is read");
            seconds
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    (n_chunks * CHUNK) as f64 / seconds[seconds.len() / 2]
}

dispatch! { fn add_up(words: &[u64], sum: &mut u64) = body }

#[inline(always)]
unsafe fn body<L: Lanes>(words: &[u64], sum: &mut u64) {
    let mut lanes = [0u64; 64];
    for line in words.chunks_exact(64) {
        for i in 0..64 {
            lanes[i] += line[i];
        }
    }
    *sum = lanes.iter().sum();
}
