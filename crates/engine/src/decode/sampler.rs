//! From logits to the distribution the person asked for.
//!
//! Order, as in mlx-lm: repetition, presence and frequency penalty on the logits of the last [`PENALTY_WINDOW`] tokens;
//! then top-p, min-p and top-k on the probabilities at temperature 1; then the temperature. (Other engines divide by the temperature
//! first; the two differ whenever a filter is on and the temperature is not 1.)

use super::Distribution;
use crate::{EngineError, Result};
use foretoken_kernels as kernels;

/// Tokens that count for the penalties, mlx-lm's default.
pub const PENALTY_WINDOW: usize = 20;
/// Candidates sorted first for top-p; only flatter distributions need the whole vocabulary sorted.
const SHORTLIST: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerSettings {
    /// 0 = greedy.
    pub temperature: f32,
    /// 1 = off.
    pub top_p: f32,
    /// 0 = off.
    pub top_k: u32,
    /// 0 = off.
    pub min_p: f32,
    /// 1 = off. Positive logits of seen tokens are divided by it, negative ones multiplied.
    pub repetition_penalty: f32,
    /// Subtracted once from a seen token's logit; 0 = off.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was seen; 0 = off.
    pub frequency_penalty: f32,
}

impl Default for SamplerSettings {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

impl SamplerSettings {
    /// Errors name the first value that is out of range.
    pub fn check(&self) -> Result<()> {
        let s = self;
        let rules = [
            ("temperature", s.temperature, (0.0..=100.0).contains(&s.temperature), "0 to 100"),
            ("top-p", s.top_p, s.top_p > 0.0 && s.top_p <= 1.0, "above 0 and at most 1"),
            ("min-p", s.min_p, (0.0..1.0).contains(&s.min_p), "0 or more and below 1"),
            (
                "repetition penalty",
                s.repetition_penalty,
                s.repetition_penalty > 0.0 && s.repetition_penalty <= 100.0,
                "above 0 and at most 100",
            ),
            (
                "presence penalty",
                s.presence_penalty,
                s.presence_penalty.abs() <= 100.0,
                "-100 to 100",
            ),
            (
                "frequency penalty",
                s.frequency_penalty,
                s.frequency_penalty.abs() <= 100.0,
                "-100 to 100",
            ),
        ];
        for (name, value, ok, allowed) in rules {
            if !ok {
                return Err(EngineError::InvalidOption { name, value: value.to_string(), allowed });
            }
        }
        Ok(())
    }

    fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// The law of the next token. `ids` (ascending) names the tokens the logits stand for; `None` = 0, 1, 2, ...
    /// `history` = all tokens before, prompt included. Errors on logits that are not finite.
    pub fn distribution(
        &self,
        logits: &[f32],
        ids: Option<&[u32]>,
        history: &[u32],
    ) -> Result<Distribution> {
        if logits.is_empty() || logits.iter().any(|v| !v.is_finite()) {
            return Err(EngineError::NotFinite);
        }
        let penalised;
        let logits = if self.has_penalties() && !history.is_empty() {
            penalised = self.penalise(logits, ids, history);
            penalised.as_slice()
        } else {
            logits
        };
        let id = |at: usize| ids.map_or(at as u32, |ids| ids[at]);
        if self.temperature == 0.0 {
            return Ok(Distribution::one_hot(id(argmax(logits))));
        }
        let Some(mut kept) = self.filter(logits) else {
            let probs = kernels::softmax(logits, self.temperature);
            return Ok(Distribution::new((0..logits.len()).map(id).collect(), probs));
        };
        kept.sort_unstable();
        let chosen: Vec<f32> = kept.iter().map(|at| logits[*at]).collect();
        Ok(Distribution::new(
            kept.into_iter().map(id).collect(),
            kernels::softmax(&chosen, self.temperature),
        ))
    }

    fn penalise(&self, logits: &[f32], ids: Option<&[u32]>, history: &[u32]) -> Vec<f32> {
        let mut out = logits.to_vec();
        let mut recent = history[history.len().saturating_sub(PENALTY_WINDOW)..].to_vec();
        recent.sort_unstable();
        for run in recent.chunk_by(|a, b| a == b) {
            let at = ids.map_or(Some(run[0] as usize), |ids| ids.binary_search(&run[0]).ok());
            let Some(logit) = at.and_then(|at| out.get_mut(at)) else { continue };
            *logit = if *logit < 0.0 {
                *logit * self.repetition_penalty
            } else {
                *logit / self.repetition_penalty
            };
            *logit -= self.presence_penalty + self.frequency_penalty * run.len() as f32;
        }
        out
    }

    /// Indices that pass top-p, min-p and top-k; `None` = all. Each filter ranks by the same logits, so what passes all
    /// three is the intersection, whatever their order among themselves.
    fn filter(&self, logits: &[f32]) -> Option<Vec<usize>> {
        let top_k = Some(self.top_k as usize).filter(|k| *k > 0 && *k < logits.len());
        if self.top_p >= 1.0 && self.min_p <= 0.0 && top_k.is_none() {
            return None;
        }
        // Best first; the lower id where two are equal.
        let better = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
        let mut kept: Vec<usize> = (0..logits.len()).collect();
        if self.min_p > 0.0 {
            let floor = logits[argmax(logits)] + self.min_p.ln();
            kept.retain(|at| logits[*at] >= floor);
        }
        if let Some(k) = top_k.filter(|k| *k < kept.len()) {
            kept.select_nth_unstable_by(k - 1, better);
            kept.truncate(k);
        }
        if self.top_p < 1.0 {
            let probs = kernels::softmax(logits, 1.0);
            let shortlist = SHORTLIST.min(kept.len());
            if shortlist < kept.len() {
                kept.select_nth_unstable_by(shortlist - 1, better);
            }
            kept[..shortlist].sort_unstable_by(better);
            let mut n = nucleus(&kept[..shortlist], &probs, self.top_p);
            if n.is_none() && shortlist < kept.len() {
                kept.sort_unstable_by(better);
                n = nucleus(&kept, &probs, self.top_p);
            }
            if let Some(n) = n {
                kept.truncate(n);
            }
        }
        Some(kept)
    }
}

/// How many of the best are needed to reach `top_p`; `None` when all together do not.
fn nucleus(best_first: &[usize], probs: &[f32], top_p: f32) -> Option<usize> {
    let mut sum = 0.0;
    best_first
        .iter()
        .position(|at| {
            sum += f64::from(probs[*at]);
            sum >= f64::from(top_p)
        })
        .map(|at| at + 1)
}

/// The lowest index of the largest value.
fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (at, v) in logits.iter().enumerate() {
        if *v > logits[best] {
            best = at;
        }
    }
    best
}
