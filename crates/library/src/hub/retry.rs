//! How long to wait before the next try.

use super::{Cure, HubError};
use std::time::Duration;

/// Longest wait a server may ask for; beyond it a person should know.
const LONGEST: Duration = Duration::from_secs(3600);

/// Tries in a row without a new byte, and the waits between them.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// For a lost line. A night without a network is no reason to give up a download.
    pub line: u32,
    /// For a server that fails or asks for patience.
    pub server: u32,
    /// First wait; it doubles.
    pub first: Duration,
    /// Longest wait of its own.
    pub longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            line: u32::MAX,
            server: 8,
            first: Duration::from_millis(500),
            longest: Duration::from_secs(30),
        }
    }
}

impl Retry {
    /// For a question somebody waits for.
    pub const ASK: Self = Self {
        line: 2,
        server: 4,
        first: Duration::from_millis(250),
        longest: Duration::from_secs(2),
    };

    /// Wait before try number `failed + 1`; `None` = give up.
    pub fn wait(&self, error: &HubError, failed: u32) -> Option<Duration> {
        let (limit, asked) = match error.cure() {
            Cure::None => return None,
            Cure::Line => (self.line, None),
            Cure::Server(asked) => (self.server, asked),
        };
        if failed >= limit || asked.is_some_and(|asked| asked > LONGEST) {
            return None;
        }
        let doubled = self.first.saturating_mul(1 << failed.min(16));
        // Many files lose the line in the same moment; they should not all come back in one.
        let own = doubled.min(self.longest).mul_f64(fastrand::f64().mul_add(0.5, 0.75));
        Some(asked.map_or(own, |asked| asked.max(own)))
    }
}

/// `Retry-After`: seconds. The other form, a date, depends on two clocks agreeing, so it only counts as "some time".
pub(super) fn retry_after(value: &str) -> Option<Duration> {
    value.trim().parse().ok().map(Duration::from_secs)
}

/// `RateLimit: "api";r=0;t=55`, which the hub sends with every answer: seconds until its window ends, when none of
/// the window's requests is left. One more, because they are rounded.
pub(super) fn window_left(value: &str) -> Option<Duration> {
    let mut parts = value.split(';').map(str::trim);
    let of = |key: &str, part: &str| part.strip_prefix(key)?.parse::<u64>().ok();
    let left = parts.find_map(|part| of("r=", part))?;
    let seconds = parts.find_map(|part| of("t=", part))?;
    (left == 0).then(|| Duration::from_secs(seconds.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_a_server_is_believed() {
        let retry = Retry { line: 3, ..Retry::default() };
        let lost = HubError::Dropped { host: String::new(), why: String::new() };
        let at = |failed| retry.wait(&lost, failed);
        assert!(at(1).expect("tries again") >= Duration::from_millis(750));
        assert!(at(2).expect("tries again") <= Duration::from_millis(2500));
        assert_eq!(at(3), None);
        assert!(
            Retry::default().wait(&lost, 1_000_000).expect("for ever") <= Duration::from_secs(38)
        );
        let limited = |seconds| HubError::RateLimited { wait: Some(Duration::from_secs(seconds)) };
        assert_eq!(retry.wait(&limited(7), 0), Some(Duration::from_secs(7)));
        assert_eq!(retry.wait(&limited(4000), 0), None);
        assert_eq!(retry.wait(&HubError::StaleToken, 0), None);
        assert_eq!(window_left("\"api\";r=0;t=55"), Some(Duration::from_secs(56)));
        assert_eq!(window_left("\"api\"; r=3; t=55"), None);
        assert_eq!(window_left("unlimited"), None);
        assert_eq!(retry_after(" 12 "), Some(Duration::from_secs(12)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), None);
    }
}
