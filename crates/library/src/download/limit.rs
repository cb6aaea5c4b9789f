//! One bandwidth limit for everything a download fetches at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// A wait is cut into pieces of this length, so that a new limit is felt.
const PIECE: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(crate) struct Limiter {
    /// Bytes per second; 0 = as fast as it goes.
    rate: AtomicU64,
    /// When everything taken so far will have been paid for.
    paid_at: Mutex<Option<Instant>>,
}

impl Limiter {
    pub fn set(&self, rate: Option<u64>) {
        self.rate.store(rate.unwrap_or(0), Ordering::Relaxed);
        *self.paid_at.lock().expect("nothing panics while it is held") = None;
    }

    /// Returns when `n` bytes more may be taken.
    pub async fn take(&self, n: usize) {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let until = {
            let mut paid_at = self.paid_at.lock().expect("nothing panics while it is held");
            let from = paid_at.map_or_else(Instant::now, |at| at.max(Instant::now()));
            *paid_at = Some(from + Duration::from_secs_f64(n as f64 / rate as f64));
            from
        };
        while Instant::now() < until && self.rate.load(Ordering::Relaxed) == rate {
            tokio::time::sleep_until(until.min(Instant::now() + PIECE)).await;
        }
    }
}
