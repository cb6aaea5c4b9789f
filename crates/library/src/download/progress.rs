//! How far, how fast, how long still.

use crate::hub::HubError;
use std::time::{Duration, Instant};

/// Weight of the newest second in the speed; smooth enough to read, quick enough to believe.
const NEWEST: f64 = 0.3;
/// A gap between two samples that only a sleeping machine leaves.
const ASLEEP: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Progress {
    /// Bytes on the disk, those of earlier runs included.
    pub done: u64,
    pub total: u64,
    /// Bytes per second, lately.
    pub speed: f64,
    /// `None` while nothing moves.
    pub remaining: Option<Duration>,
    pub files_ready: usize,
    pub files: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileState {
    /// Bytes of an earlier run are hashed.
    Checking,
    Fetching {
        /// Bytes that were there already.
        from: u64,
    },
    /// It goes on by itself after `wait`.
    Waiting { error: HubError, wait: Duration },
    /// Another program fetches it.
    Elsewhere,
    /// The hash was wrong; it is fetched again.
    Again,
    /// Verified and in its place.
    Ready,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Progress(Progress),
    File { path: String, state: FileState },
}

/// Speed from samples of a monotonic clock. The wall clock is not asked: it jumps.
#[derive(Debug, Default)]
struct Meter {
    last: Option<(Duration, u64)>,
    speed: f64,
}

impl Meter {
    /// Speed at `now`, in bytes per second.
    fn sample(&mut self, now: Duration, done: u64) -> f64 {
        let Some((before, was)) = self.last else {
            self.last = Some((now, done));
            return 0.0;
        };
        let gap = now.saturating_sub(before);
        if gap > ASLEEP || done < was {
            // It says nothing about the line.
            self.last = Some((now, done));
            return self.speed;
        }
        if gap < Duration::from_millis(100) {
            return self.speed;
        }
        let newest = (done - was) as f64 / gap.as_secs_f64();
        let weight = 1.0 - (1.0 - NEWEST).powf(gap.as_secs_f64());
        self.speed =
            if self.speed == 0.0 { newest } else { self.speed + weight * (newest - self.speed) };
        self.last = Some((now, done));
        self.speed
    }
}

/// Tells how far a download is.
pub(crate) struct Reporter {
    notify: super::Notify,
    meter: Meter,
    began: Instant,
    total: u64,
    files: usize,
}

impl Reporter {
    /// How often is often enough.
    pub const EVERY: Duration = Duration::from_millis(250);

    pub fn new(notify: super::Notify, total: u64, files: usize) -> Self {
        Self { notify, meter: Meter::default(), began: Instant::now(), total, files }
    }

    pub fn report(&mut self, done: u64, files_ready: usize) {
        let speed = self.meter.sample(self.began.elapsed(), done);
        (self.notify)(Event::Progress(Progress {
            done,
            total: self.total,
            speed,
            remaining: remaining(self.total.saturating_sub(done), speed),
            files_ready,
            files: self.files,
        }));
    }
}

fn remaining(left: u64, speed: f64) -> Option<Duration> {
    if left == 0 {
        return Some(Duration::ZERO);
    }
    (speed >= 1.0).then(|| Duration::from_secs_f64((left as f64 / speed).min(1e9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_and_jumps_do_not_move_the_speed() {
        let mut meter = Meter::default();
        let at = |seconds: f64| Duration::from_secs_f64(seconds);
        meter.sample(at(0.0), 0);
        for i in 1..40 {
            meter.sample(at(f64::from(i) * 0.25), i as u64 * 250);
        }
        let speed = meter.sample(at(10.0), 10_000);
        assert!((speed - 1000.0).abs() < 1.0, "{speed}");
        // Eight hours of sleep, a clock that stands still or goes back, a file that is fetched again.
        for (now, done) in
            [(28_000.0, 10_000), (28_000.0, 10_500), (27_000.0, 10_500), (28_001.0, 0)]
        {
            let speed = meter.sample(at(now), done);
            assert!((speed - 1000.0).abs() < 1.0, "{now}: {speed}");
        }
        assert_eq!(remaining(5000, 1000.0), Some(at(5.0)));
        assert_eq!(remaining(5000, 0.0), None);
        assert_eq!(remaining(0, 0.0), Some(at(0.0)));
        assert!(remaining(u64::MAX, 1.0).is_some());
    }
}
