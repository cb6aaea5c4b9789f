//! Which depth pays, from measured cycle times and accept rates.

use super::MAX_DEPTH;

/// Weight of the newest cycle time in its running average: about the last ten count.
const NEWEST_COST: f64 = 0.1;
/// Weight of the newest verdict: accepted or not says less than a time, so about the last forty count.
const NEWEST_VERDICT: f64 = 0.025;
/// Cycles after which an average that is one depth off the best is measured again.
const STALE: u32 = 64;
/// Tokens without a draft before drafting is tried again.
const RETRY_TOKENS: u32 = 128;
/// Cycles of a first look at a depth.
const FIRST_LOOK: u32 = 3;
/// A deeper draft must promise this much more before it is tried: the measurement itself costs.
const MARGIN: f64 = 1.01;

#[derive(Debug, Clone, Copy, Default)]
struct Average {
    value: f64,
    n: u32,
}

impl Average {
    fn add(&mut self, x: f64, newest: f64) {
        self.n = self.n.saturating_add(1);
        // The first few count alike; one pause of the machine must not stand for a depth.
        let weight = newest.max(1.0 / f64::from(self.n));
        let x = if self.n > 3 { x.min(self.value * 4.0) } else { x };
        self.value += weight * (x - self.value);
    }

    fn get(&self) -> Option<f64> {
        (self.n > 0).then_some(self.value)
    }
}

/// What the averages say about one depth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub tokens_per_cycle: f64,
    pub cycle_ms: f64,
    /// Relative to depth 0.
    pub speedup: f64,
    /// Accepted per drafted token at which this depth would bring exactly what it costs.
    pub break_even: f64,
}

/// Running averages of what a cycle costs at each depth and how often each draft position is accepted.
#[derive(Debug, Default)]
pub struct DepthController {
    cost: [Average; MAX_DEPTH + 1],
    /// Acceptance of draft i, given that those before it were.
    accept: [Average; MAX_DEPTH],
    since: [u32; MAX_DEPTH + 1],
    tokens_without_draft: u32,
    look: Option<(usize, u32)>,
    paused: bool,
}

impl DepthController {
    /// A cycle at `depth` drafts took `cycle_ms` and had `accepted` of them stand.
    pub fn record(&mut self, depth: usize, accepted: usize, cycle_ms: f64) {
        let depth = depth.min(MAX_DEPTH);
        self.cost[depth].add(cycle_ms, NEWEST_COST);
        for i in 0..depth.min(accepted + 1) {
            self.accept[i].add(if i < accepted { 1.0 } else { 0.0 }, NEWEST_VERDICT);
        }
        self.since.iter_mut().for_each(|n| *n = n.saturating_add(1));
        self.since[depth] = 0;
        self.tokens_without_draft = if depth == 0 { self.tokens_without_draft + 1 } else { 0 };
    }

    /// Conditional acceptance of draft position i; an unseen position is guessed from the one before.
    fn acceptance(&self, i: usize) -> f64 {
        match self.accept[i].get() {
            Some(value) => value,
            None if i == 0 => 0.6,
            None => self.acceptance(i - 1) * 0.95,
        }
    }

    fn tokens_per_cycle(&self, depth: usize) -> f64 {
        let mut product = 1.0;
        let mut sum = 1.0;
        for i in 0..depth {
            product *= self.acceptance(i);
            sum += product;
        }
        sum
    }

    /// Cycle time at a depth; unmeasured depths from the nearest measured ones below.
    fn cycle_ms(&self, depth: usize) -> Option<f64> {
        if let Some(ms) = self.cost[depth].get() {
            return Some(ms);
        }
        let below = (0..depth).rev().find(|d| self.cost[*d].n > 0)?;
        let further = (0..below).rev().find(|d| self.cost[*d].n > 0)?;
        let (a, b) = (self.cost[further].value, self.cost[below].value);
        Some(b + (b - a).max(0.0) / (below - further) as f64 * (depth - below) as f64)
    }

    /// Tokens per millisecond; 0 where nothing is known.
    fn rate(&self, depth: usize) -> f64 {
        self.cycle_ms(depth).map_or(0.0, |ms| self.tokens_per_cycle(depth) / ms.max(1e-9))
    }

    /// `None` until depth 0 and this depth are known.
    pub fn estimate(&self, depth: usize) -> Option<Estimate> {
        let depth = depth.min(MAX_DEPTH);
        let (plain, cycle_ms) = (self.cost[0].get()?, self.cycle_ms(depth)?);
        let tokens_per_cycle = self.tokens_per_cycle(depth);
        let ratio = cycle_ms / plain;
        Some(Estimate {
            tokens_per_cycle,
            cycle_ms,
            speedup: tokens_per_cycle / ratio,
            break_even: break_even(depth, ratio),
        })
    }

    /// Auto found drafting not worth it.
    pub fn paused(&self) -> bool {
        self.paused
    }

    /// Tokens until a paused draft is tried again.
    pub fn retry_in(&self) -> u32 {
        RETRY_TOKENS.saturating_sub(self.tokens_without_draft)
    }

    /// The depth of the next cycle, at most `limit`.
    pub fn choose(&mut self, limit: usize) -> usize {
        let limit = limit.min(MAX_DEPTH);
        if limit == 0 {
            return 0;
        }
        if let Some((depth, left)) = self.look.take()
            && left > 0
            && depth <= limit
        {
            self.look = Some((depth, left - 1));
            return depth;
        }
        for depth in [0, 1, 2] {
            if depth <= limit && self.cost[depth].n < FIRST_LOOK {
                return depth;
            }
        }
        let known = (0..=limit).filter(|d| self.cost[*d].n > 0);
        let best = known.max_by(|a, b| self.rate(*a).total_cmp(&self.rate(*b))).unwrap_or(0);
        self.paused = best == 0;
        if best == 0 {
            if self.tokens_without_draft >= RETRY_TOKENS {
                return self.look_at(1);
            }
            return 0;
        }
        if best < limit
            && self.cost[best + 1].n < FIRST_LOOK
            && self.rate(best + 1) > self.rate(best) * MARGIN
        {
            return self.look_at(best + 1);
        }
        // Neighbours and plain decoding are looked at again now and then: the text and the machine change.
        let stale = [best + 1, best - 1, 0]
            .into_iter()
            .find(|d| *d <= limit && self.cost[*d].n > 0 && self.since[*d] > STALE);
        stale.unwrap_or(best)
    }

    fn look_at(&mut self, depth: usize) -> usize {
        self.look = Some((depth, FIRST_LOOK - 1));
        depth
    }
}

/// Accepted per drafted token at which a cycle of this depth brings what it costs: 1 + depth * rate = ratio.
fn break_even(depth: usize, ratio: f64) -> f64 {
    if depth == 0 { 0.0 } else { ((ratio - 1.0) / depth as f64).clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the controller against a machine with known costs and acceptance: share of cycles by depth, and tokens per millisecond.
    fn simulate(
        cost: impl Fn(usize) -> f64,
        acceptance: f64,
        cycles: usize,
    ) -> ([usize; MAX_DEPTH + 1], f64, DepthController) {
        let mut c = DepthController::default();
        let mut rng = fastrand::Rng::with_seed(5);
        let mut counts = [0; MAX_DEPTH + 1];
        let (mut tokens, mut ms) = (0, 0.0);
        for _ in 0..cycles {
            let depth = c.choose(MAX_DEPTH);
            counts[depth] += 1;
            let accepted = (0..depth).take_while(|_| rng.f64() < acceptance).count();
            let time = cost(depth) * (0.9 + 0.2 * rng.f64());
            c.record(depth, accepted, time);
            tokens += accepted + 1;
            ms += time;
        }
        (counts, tokens as f64 / ms, c)
    }

    #[test]
    fn comes_close_to_the_best_depth() {
        for (draft, acceptance) in [(2.0, 0.5), (2.0, 0.7), (2.0, 0.85), (1.0, 0.6), (4.0, 0.9)] {
            let cost = |d: usize| 10.0 + draft * d as f64;
            let rate =
                |d: usize| (0..=d).map(|i| f64::powi(acceptance, i as i32)).sum::<f64>() / cost(d);
            let best = (0..=MAX_DEPTH).map(rate).fold(0.0, f64::max);
            let (counts, got, _) = simulate(cost, acceptance, 3000);
            assert!(
                got > 0.95 * best,
                "{got:.4} of {best:.4} tokens/ms for acceptance {acceptance}: {counts:?}"
            );
        }
    }

    #[test]
    fn stops_drafting_when_it_loses_and_tries_again() {
        let (counts, got, c) = simulate(|d| 10.0 + 9.0 * d as f64, 0.3, 2000);
        assert!(counts[0] > 1850, "{counts:?}");
        assert!(counts[1] > 15, "never tried again: {counts:?}");
        assert!(got > 0.95 / 10.0, "trying costs more than a twentieth: {got}");
        assert!(c.paused() && c.retry_in() <= RETRY_TOKENS);
    }

    #[test]
    fn the_estimate_is_arithmetic() {
        let mut c = DepthController::default();
        for _ in 0..50 {
            c.record(0, 0, 10.0);
            c.record(1, 1, 12.0);
            c.record(1, 0, 12.0);
        }
        let e = c.estimate(1).expect("both are known");
        assert!(
            (e.tokens_per_cycle - 1.5).abs() < 0.1 && (e.speedup - 1.5 / 1.2).abs() < 0.1,
            "{e:?}"
        );
        assert!((e.break_even - 0.2).abs() < 1e-3);
        assert!(DepthController::default().estimate(1).is_none());
    }
}
