//! The numbers of the live panel and the sentence about drafting.

use foretoken_engine::decode::{DepthController, MAX_DEPTH, Rule, Step};
use foretoken_protocol::{
    DepthCount, DraftMode, Drafting, DraftingState, HeadInfo, LiveStats, PhaseMs, ReplyStats,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// "Now" is the last second.
const NOW: Duration = Duration::from_secs(1);
/// Drafting cycles that count as recent.
const RECENT: usize = 32;

/// What else the panel needs to know at one moment.
pub(crate) struct Moment<'a> {
    pub controller: &'a DepthController,
    pub draft: DraftMode,
    pub head: &'a HeadInfo,
    pub context_used: usize,
    pub context_size: usize,
    pub kv_bytes: u64,
}

/// Counts of one reply.
pub(crate) struct Meter {
    prompt: usize,
    reused: usize,
    began: Instant,
    prefill_ms: f64,
    first_token: Option<Instant>,
    newest_token: Instant,
    tokens: usize,
    cycles: u32,
    by_depth: [DepthCount; MAX_DEPTH],
    recent: VecDeque<(usize, usize)>,
    phases: [f64; 4],
    committed: VecDeque<(Instant, usize)>,
    depth: usize,
    /// Depth the panel names: that of the newest cycle that drafted.
    drafted_depth: usize,
}

impl Meter {
    pub fn new(prompt: usize, reused: usize, began: Instant, prefill_ms: f64) -> Self {
        Self {
            prompt,
            reused,
            began,
            prefill_ms,
            first_token: None,
            newest_token: began,
            tokens: 0,
            cycles: 0,
            by_depth: Default::default(),
            recent: VecDeque::new(),
            phases: [0.0; 4],
            committed: VecDeque::new(),
            depth: 0,
            drafted_depth: 0,
        }
    }

    pub fn cycle(&mut self, step: &Step, phases: [f64; 4]) {
        self.cycles += 1;
        self.depth = step.drafted;
        for (sum, ms) in self.phases.iter_mut().zip(phases) {
            *sum += ms;
        }
        for (i, count) in self.by_depth.iter_mut().enumerate().take(step.drafted) {
            count.drafted += 1;
            count.accepted += u32::from(i < step.accepted);
        }
        if step.drafted > 0 {
            self.drafted_depth = step.drafted;
            self.recent.push_back((step.drafted, step.accepted));
            if self.recent.len() > RECENT {
                self.recent.pop_front();
            }
        }
    }

    /// `n` tokens of the reply were committed now.
    pub fn tokens(&mut self, n: usize) {
        let now = Instant::now();
        self.tokens += n;
        self.newest_token = now;
        self.first_token.get_or_insert(now);
        self.committed.push_back((now, n));
        while self.committed.front().is_some_and(|(at, _)| now - *at > NOW) {
            self.committed.pop_front();
        }
    }

    fn ttft_ms(&self) -> f64 {
        self.first_token.map_or(0.0, |at| (at - self.began).as_secs_f64() * 1e3)
    }

    /// Tokens after the first over the time since it.
    fn decode_tok_s(&self) -> f64 {
        let Some(first) = self.first_token else { return 0.0 };
        per_second(self.tokens.saturating_sub(1), self.newest_token - first)
    }

    fn now_tok_s(&self) -> f64 {
        match (self.committed.front(), self.committed.back()) {
            // The first entry only marks where the time begins.
            (Some((from, n)), Some((to, _))) if to > from => {
                per_second(self.committed.iter().map(|(_, n)| n).sum::<usize>() - n, *to - *from)
            }
            _ => self.decode_tok_s(),
        }
    }

    fn prefill_tok_s(&self) -> f64 {
        let read = self.prompt.saturating_sub(self.reused);
        if self.prefill_ms > 0.0 { read as f64 / self.prefill_ms * 1e3 } else { 0.0 }
    }

    fn accept_rate(&self) -> Option<f64> {
        let (drafted, accepted) =
            self.by_depth.iter().fold((0, 0), |(d, a), c| (d + c.drafted, a + c.accepted));
        (drafted > 0).then(|| f64::from(accepted) / f64::from(drafted))
    }

    fn tokens_per_cycle(&self) -> f64 {
        if self.cycles == 0 { 0.0 } else { self.tokens as f64 / f64::from(self.cycles) }
    }

    fn used_depths(&self) -> impl Iterator<Item = &DepthCount> {
        self.by_depth.iter().take_while(|count| count.drafted > 0)
    }

    pub fn live(&self, m: &Moment<'_>) -> LiveStats {
        let (drafted, accepted) = self.recent.iter().fold((0, 0), |(d, a), r| (d + r.0, a + r.1));
        let drafting = self.drafting(m);
        let n = f64::from(self.cycles.max(1));
        LiveStats {
            now_tok_s: self.now_tok_s(),
            decode_tok_s: self.decode_tok_s(),
            prefill_tok_s: self.prefill_tok_s(),
            ttft_ms: self.ttft_ms(),
            tokens: self.tokens as u32,
            cycles: self.cycles,
            by_depth: self.used_depths().copied().collect(),
            accept_rate: self.accept_rate(),
            accept_rate_recent: (drafted > 0).then(|| accepted as f64 / drafted as f64),
            tokens_per_cycle: self.tokens_per_cycle(),
            break_even: (drafting.depth > 0)
                .then(|| m.controller.estimate(usize::from(drafting.depth)))
                .flatten()
                .map(|e| e.break_even),
            phase_ms: phase_ms(self.phases.map(|ms| ms / n)),
            drafting,
            context_used: m.context_used as u32,
            context_size: m.context_size as u32,
            kv_bytes: m.kv_bytes,
        }
    }

    fn drafting(&self, m: &Moment<'_>) -> Drafting {
        let plain = |state, sentence: String| Drafting { state, depth: 0, speedup: None, sentence };
        if !m.head.found {
            return plain(DraftingState::NoHead, m.head.sentence.clone());
        }
        match m.draft {
            DraftMode::Off => plain(DraftingState::Off, "Drafting off.".to_owned()),
            DraftMode::Auto if m.controller.paused() => {
                let sentence = match (m.controller.estimate(0), m.controller.estimate(1)) {
                    (Some(none), Some(one)) => format!(
                        "Drafting paused: a draft costs {:.1} ms and saves {:.1} ms here. Trying again in {} tokens.",
                        one.cycle_ms - none.cycle_ms,
                        (one.tokens_per_cycle - 1.0) * none.cycle_ms,
                        m.controller.retry_in()
                    ),
                    _ => format!(
                        "Drafting paused. Trying again in {} tokens.",
                        m.controller.retry_in()
                    ),
                };
                plain(DraftingState::Paused, sentence)
            }
            DraftMode::Auto | DraftMode::Fixed { .. } => {
                let depth = match m.draft {
                    DraftMode::Fixed { depth } if self.drafted_depth == 0 => usize::from(depth),
                    _ => self.drafted_depth,
                };
                let speedup =
                    (depth > 0).then(|| m.controller.estimate(depth)).flatten().map(|e| e.speedup);
                Drafting {
                    state: DraftingState::On,
                    depth: depth as u8,
                    speedup,
                    sentence: sentence_on(depth, speedup),
                }
            }
        }
    }

    pub fn stats(&self, rule: Rule) -> ReplyStats {
        ReplyStats {
            prompt_tokens: self.prompt as u32,
            reused_tokens: self.reused as u32,
            generated_tokens: self.tokens as u32,
            ttft_ms: self.ttft_ms(),
            prefill_tok_s: self.prefill_tok_s(),
            decode_tok_s: self.decode_tok_s(),
            cycles: self.cycles,
            drafted: self.used_depths().map(|c| c.drafted).collect(),
            accepted: self.used_depths().map(|c| c.accepted).collect(),
            accept_rate: self.accept_rate(),
            tokens_per_cycle: self.tokens_per_cycle(),
            depth: self.depth as u8,
            rule: match rule {
                Rule::Residual => "residual".to_owned(),
                Rule::Match => "match".to_owned(),
            },
            phase_ms: phase_ms(self.phases),
        }
    }
}

fn per_second(n: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}

fn phase_ms([draft, verify, sample, other]: [f64; 4]) -> PhaseMs {
    PhaseMs { draft, verify, sample, other }
}

fn sentence_on(depth: usize, speedup: Option<f64>) -> String {
    match (depth, speedup) {
        (0, _) => "Drafting on: measuring.".to_owned(),
        (_, None) => format!("Drafting on, depth {depth}: measuring."),
        (_, Some(x)) if x >= 1.03 => {
            format!("Drafting on, depth {depth}: {x:.1}x faster than without.")
        }
        (_, Some(x)) if x > 0.97 => {
            format!("Drafting on, depth {depth}: about as fast as without.")
        }
        (_, Some(x)) => format!("Drafting on, depth {depth}: slower than without, {x:.1}x."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_depth_and_says_so() {
        let mut meter = Meter::new(10, 4, Instant::now(), 3.0);
        let step = |drafted, accepted| Step { tokens: vec![7; accepted + 1], drafted, accepted };
        for s in [step(0, 0), step(2, 2), step(2, 1), step(2, 0)] {
            meter.cycle(&s, [1.0, 2.0, 0.5, 0.1]);
            meter.tokens(s.tokens.len());
        }
        let stats = meter.stats(Rule::Residual);
        assert_eq!((stats.drafted, stats.accepted), (vec![3, 3], vec![2, 1]));
        assert_eq!((stats.cycles, stats.generated_tokens), (4, 7));
        assert_eq!(stats.accept_rate, Some(0.5));
        assert_eq!(stats.tokens_per_cycle, 1.75);
        assert_eq!(stats.phase_ms.verify, 8.0);
        assert_eq!(stats.prefill_tok_s, 2000.0);
        assert!(sentence_on(2, Some(1.38)).contains("depth 2: 1.4x faster"));
        assert!(sentence_on(1, Some(0.81)).contains("slower"));
    }
}
