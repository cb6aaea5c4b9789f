//! The speculative cycle (`reference/style.md` 2.2).
//!
//! Bookkeeping: tokens t_0..t_L are committed, the trunk has seen t_0..t_{L-1}, t_L is pending. Level j of the head
//! (0-based), at row i, reads token t_{i+1+j} and the hidden state of the level before at row i (level 0: the trunk's) and
//! predicts t_{i+2+j}. Nothing ever "feeds the accepted token": each level takes every row it has not had yet and whose
//! token is known, whether the row comes from the prompt, an accepted draft or a correction.
//!
//! Invariant after every cycle: level j has at most `tokens.len() - 1 - j` rows, all made of committed tokens and trunk
//! hidden states.

#[cfg(test)]
mod tests;

use super::rows::Rows;
use super::{Draft, MAX_DEPTH, Rule, SamplerSettings, Verdict, judge};
use crate::cache::Cache;
use crate::models::{HeadFeed, MAX_TAKEN_BACK, Model, Pass};
use crate::{EngineError, Result};
use candle_core::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// Where the time of a cycle goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Draft,
    Verify,
    Sample,
    Other,
}

/// Told when a phase begins; the cycle itself reads no clock.
pub trait Probe {
    fn enter(&mut self, phase: Phase);
}

impl Probe for () {
    fn enter(&mut self, _: Phase) {}
}

/// What one cycle committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Accepted drafts and the trunk's own token, in order.
    pub tokens: Vec<u32>,
    pub drafted: usize,
    pub accepted: usize,
}

/// Waiting rows above which they are fed to the head although nobody drafts: bounds memory, and keeps switching drafting on cheap.
const WAITING: usize = 256;

struct HeadState {
    /// One per level.
    caches: Vec<Cache>,
    /// `feeds[j]`: what level j reads; [0] the trunk's hidden states, then the outputs of the level before.
    feeds: Vec<Rows>,
    /// Per level, the first row of the prompt it is fed.
    starts: Vec<usize>,
}

impl HeadState {
    /// For a prompt of `end` tokens: a level of sliding layers is primed only as far back as its outputs can still matter, here
    /// and in the levels after it; rows that may be taken back included.
    fn set_starts(&mut self, end: usize) {
        let windows: Vec<_> = self.caches.iter().map(Cache::window).collect();
        let mut reach = windows.iter().flatten().max().map(|most| most + MAX_TAKEN_BACK);
        for (start, window) in self.starts.iter_mut().zip(&windows).rev() {
            reach = reach.zip(*window).map(|(reach, window)| reach + window - 1);
            *start = reach.map_or(0, |reach| end.saturating_sub(reach));
        }
    }
}

/// One running text: committed tokens with the caches that belong to them.
pub struct Sequence {
    model: Arc<Model>,
    tokens: Vec<u32>,
    /// Tokens the caller took, where the last cycle gave more.
    taken: Option<usize>,
    trunk: Cache,
    head: Option<HeadState>,
    rng: fastrand::Rng,
}

impl Sequence {
    pub fn new(model: Arc<Model>) -> Self {
        let trunk = model.trunk.new_cache();
        let head = model.head.as_ref().map(|head| HeadState {
            caches: (0..head.levels()).map(|level| head.new_cache(level)).collect(),
            feeds: (0..head.levels()).map(|_| Rows::default()).collect(),
            starts: vec![0; head.levels()],
        });
        Self { model, tokens: Vec::new(), taken: None, trunk, head, rng: fastrand::Rng::new() }
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Committed tokens, prompt included.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Bytes the caches hold now.
    pub fn n_bytes(&self) -> usize {
        let head =
            self.head.iter().flat_map(|head| &head.caches).map(Cache::n_bytes).sum::<usize>();
        self.trunk.n_bytes() + head
    }

    pub fn seed(&mut self, seed: u64) {
        self.rng = fastrand::Rng::with_seed(seed);
    }

    /// Starts over with a prompt, keeping what the caches already have of it. Returns the prompt tokens that need not be read
    /// again. Errors when the prompt is empty, does not leave room for one token, or has an id outside the vocabulary.
    pub fn set_prompt(&mut self, prompt: &[u32]) -> Result<usize> {
        let shape = self.model.trunk.shape();
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt.len() >= shape.context {
            return Err(EngineError::ContextFull { prompt: prompt.len(), context: shape.context });
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= shape.vocab) {
            return Err(EngineError::TokenOutOfRange { id: *id, vocab: shape.vocab });
        }
        // Rows that wait while nobody drafts would count as missing.
        if !self.tokens.is_empty() {
            self.guarded(Self::catch_up)?;
        }
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // Tokens after the end of a text are there only when they were drafted.
        let known = self
            .taken
            .map_or(self.trunk.len(), |taken| self.trunk.len().min(taken.saturating_sub(1)));
        let common = common.min(prompt.len() - 1).min(known);
        // A level j row i is made of tokens up to i + 1 + j and needs hidden states that are no longer kept, so the trunk
        // reads the newest `levels` rows again.
        let levels = self.head.as_ref().map_or(0, |head| head.caches.len());
        let mut kept = common.saturating_sub(levels);
        if let Some(head) = &self.head {
            // A level that lags behind (drafting was off, or shallower) can only go on where it stopped.
            kept = head.caches.iter().map(Cache::len).fold(kept, usize::min);
        }
        let caches =
            || std::iter::once(&self.trunk).chain(self.head.iter().flat_map(|h| &h.caches));
        // How far back a sliding layer can go depends on when its rows were moved, and so on the drafts there were. Where rows
        // read again have other bits, only what it can do in any case counts.
        let always = self.model.trunk.rounds_alike()
            || known.saturating_sub(kept) + MAX_DEPTH <= MAX_TAKEN_BACK;
        let possible = caches().all(|cache| cache.can_rewind(kept) && (always || !cache.slides()));
        self.rewind_all(if possible { kept } else { 0 });
        self.taken = None;
        self.tokens.clear();
        self.tokens.extend_from_slice(prompt);
        if let Some(head) = &mut self.head {
            head.set_starts(prompt.len());
        }
        Ok(self.trunk.len())
    }

    fn rewind_all(&mut self, len: usize) {
        self.trunk.rewind(len);
        if let Some(head) = &mut self.head {
            for cache in &mut head.caches {
                cache.rewind(len);
            }
            head.feeds.iter_mut().for_each(Rows::clear);
        }
    }

    /// The text ends after `len` tokens, prompt included: what the last cycle committed beyond is not used, and the next prompt
    /// finds the same in the caches as if it had not been drafted.
    pub fn end_at(&mut self, len: usize) {
        self.taken = (len < self.tokens.len()).then_some(len);
    }

    /// Forgets everything; the way back after an error inside a pass.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.taken = None;
        self.rewind_all(0);
    }

    /// Reads up to `rows` more prompt tokens, all but the last of which go through the trunk here. Returns how many the
    /// caches have now; prefill is over when that is `tokens().len() - 1`.
    pub fn prefill(&mut self, rows: usize) -> Result<usize> {
        let first = self.trunk.len();
        let end = (first + rows.max(1)).min(self.tokens.len().saturating_sub(1));
        if first < end {
            self.guarded(|s| {
                let hidden = s.model.trunk.forward(&s.tokens[first..end], &mut s.trunk)?;
                s.take_hidden(first, &hidden, None)?;
                s.catch_up()
            })?;
        }
        Ok(self.trunk.len())
    }

    pub fn needs_prefill(&self) -> bool {
        self.trunk.len() + 1 < self.tokens.len()
    }

    /// Leaves empty caches behind when `f` fails, instead of layers of different lengths.
    fn guarded<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        f(self).inspect_err(|_| self.clear())
    }

    /// Keeps the trunk's hidden rows for the head.
    fn take_hidden(
        &mut self,
        first: usize,
        hidden: &Tensor,
        normed: Option<&Tensor>,
    ) -> Result<()> {
        let (Some(head), Some(state)) = (&self.model.head, &mut self.head) else { return Ok(()) };
        match (head.feed(), normed) {
            (HeadFeed::PreNorm, _) => state.feeds[0].put(first, hidden),
            (HeadFeed::PostNorm, Some(normed)) => state.feeds[0].put(first, normed),
            (HeadFeed::PostNorm, None) => {
                state.feeds[0].put(first, &self.model.trunk.norm(hidden)?)
            }
        }
    }

    /// Feeds every level the rows whose token is known, all but the newest: a draft starts from that row's output.
    fn catch_up(&mut self) -> Result<()> {
        let (Some(head), Some(state)) = (&self.model.head, &mut self.head) else { return Ok(()) };
        for level in 0..head.levels() {
            if let Some((rows, hidden)) = due(state, level, &self.tokens, 1)? {
                let next = &self.tokens[rows.start + 1 + level..rows.end + 1 + level];
                let out = head.forward(level, next, &hidden, &mut state.caches[level])?;
                feed_next(state, level, rows.start, &out)?;
            }
        }
        settle(state, self.tokens.len())
    }

    /// One cycle: drafts up to `depth` tokens, verifies them in one pass of the trunk, commits what stands.
    ///
    /// Prefill must be over. Commits 1..=depth+1 tokens; the depth is cut so that the context is never exceeded.
    pub fn step(
        &mut self,
        depth: usize,
        settings: &SamplerSettings,
        rule: Rule,
        probe: &mut dyn Probe,
    ) -> Result<Step> {
        let context = self.model.trunk.shape().context;
        if self.tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if self.tokens.len() >= context {
            return Err(EngineError::ContextFull { prompt: self.tokens.len(), context });
        }
        self.taken = None;
        let depth = depth.min(MAX_DEPTH).min(context - self.tokens.len() - 1);
        self.guarded(|s| s.cycle(depth, settings, rule, probe))
    }

    fn cycle(
        &mut self,
        depth: usize,
        settings: &SamplerSettings,
        rule: Rule,
        probe: &mut dyn Probe,
    ) -> Result<Step> {
        probe.enter(Phase::Draft);
        let drafts = self.draft(depth, settings)?;

        probe.enter(Phase::Verify);
        let base = self.trunk.len();
        let committed = self.tokens.len();
        self.tokens.extend(drafts.iter().map(|draft| draft.token));
        let Pass { hidden, normed, logits } =
            self.model.trunk.pass(&self.tokens[committed - 1..], &mut self.trunk)?;

        probe.enter(Phase::Sample);
        let vocab = self.model.trunk.shape().vocab;
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let (accepted, next) =
            self.verdict(&drafts, logits.chunks(vocab), committed, settings, rule)?;

        probe.enter(Phase::Other);
        self.tokens.truncate(committed + accepted);
        self.tokens.push(next);
        self.trunk.rewind(base + 1 + accepted);
        let kept = |t: &Tensor| t.narrow(0, 0, accepted + 1);
        self.take_hidden(base, &kept(&hidden)?, Some(&kept(&normed)?))?;
        if self.head.as_ref().is_some_and(|head| {
            head.feeds
                .iter()
                .zip(&head.caches)
                .any(|(feed, cache)| feed.end() > cache.len() + WAITING)
        }) {
            self.catch_up()?;
        }
        Ok(Step { tokens: self.tokens[committed..].to_vec(), drafted: drafts.len(), accepted })
    }

    /// How many drafts stand, and the token after them. Row i of the logits follows draft i; `tokens` holds the drafts.
    fn verdict<'l>(
        &mut self,
        drafts: &[Draft],
        mut logits: impl Iterator<Item = &'l [f32]>,
        committed: usize,
        settings: &SamplerSettings,
        rule: Rule,
    ) -> Result<(usize, u32)> {
        let rng = &mut self.rng;
        let mut row = |i: usize| {
            let logits = logits.next().ok_or(EngineError::NotFinite)?;
            settings.distribution(logits, None, &self.tokens[..committed + i])
        };
        for (i, draft) in drafts.iter().enumerate() {
            match judge(draft, &row(i)?, rule, &mut || rng.f64()) {
                Verdict::Accepted => {}
                Verdict::Replaced(next) => return Ok((i, next)),
            }
        }
        let bonus = row(drafts.len())?;
        Ok((drafts.len(), bonus.sample(rng.f64())))
    }

    /// Guesses up to `depth` tokens. They live in `tokens` only inside this function.
    fn draft(&mut self, depth: usize, settings: &SamplerSettings) -> Result<Vec<Draft>> {
        let (Some(head), Some(state)) = (&self.model.head, &mut self.head) else {
            return Ok(Vec::new());
        };
        let committed = self.tokens.len();
        // The very first token of a text has no row the head could start from.
        if depth == 0 || self.trunk.is_empty() {
            return Ok(Vec::new());
        }
        let levels = head.levels();
        let mut drafts: Vec<Draft> = Vec::with_capacity(depth);
        let mut carried: Option<Tensor> = None;
        for d in 0..depth {
            let level = d.min(levels - 1);
            let (out, logits) = match carried {
                // Past the last level, that level goes on at the next row from its own output.
                Some(ref own) if d >= levels => {
                    let own = own.narrow(0, own.dims()[0] - 1, 1)?;
                    let newest = &self.tokens[self.tokens.len() - 1..];
                    head.draft(level, newest, &own, &mut state.caches[level])?
                }
                _ => {
                    let Some((rows, hidden)) = due(state, level, &self.tokens, 0)? else { break };
                    let next = &self.tokens[rows.start + 1 + level..rows.end + 1 + level];
                    let drafted = head.draft(level, next, &hidden, &mut state.caches[level])?;
                    feed_next(state, level, rows.start, &drafted.0)?;
                    drafted
                }
            };
            let logits = logits.flatten_all()?.to_vec1::<f32>()?;
            let q = settings.distribution(&logits, head.draft_vocab(), &self.tokens)?;
            let token = q.sample(self.rng.f64());
            self.tokens.push(token);
            drafts.push(Draft { token, q });
            carried = Some(out);
        }
        self.tokens.truncate(committed);
        settle(state, committed)?;
        Ok(drafts)
    }

    /// Teacher-forced hidden states the head's `level` gives over a text, without touching this sequence's caches; for checks
    /// and `foretoken logits`. `hidden` are the trunk's states [rows, hidden] before the norm.
    pub fn teacher_forced(model: &Model, tokens: &[u32], hidden: &Tensor) -> Result<Vec<Tensor>> {
        let Some(head) = &model.head else { return Ok(Vec::new()) };
        let feed = match head.feed() {
            HeadFeed::PreNorm => hidden.clone(),
            HeadFeed::PostNorm => model.trunk.norm(hidden)?,
        };
        let mut carried = feed;
        let mut out = Vec::new();
        for level in 0..head.levels() {
            let rows = tokens.len().saturating_sub(1 + level);
            if rows == 0 {
                break;
            }
            let input = carried.narrow(0, 0, rows)?.force_contiguous()?;
            carried =
                head.forward(level, &tokens[1 + level..], &input, &mut head.new_cache(level))?;
            out.push(carried.clone());
        }
        Ok(out)
    }
}

/// The rows that `level` has not had and whose token is known, but for the newest `held` ones, and what it reads for them.
/// `None` = no such row.
fn due(
    state: &mut HeadState,
    level: usize,
    tokens: &[u32],
    held: usize,
) -> Result<Option<(Range<usize>, Tensor)>> {
    let end =
        tokens.len().saturating_sub(1 + level).min(state.feeds[level].end()).saturating_sub(held);
    let start = state.starts[level].min(end);
    if state.caches[level].len() < start {
        state.caches[level].skip_to(start);
    }
    let first = state.caches[level].len();
    if first >= end {
        return Ok(None);
    }
    Ok(Some((first..end, state.feeds[level].get(first, end)?)))
}

/// A level's output from row `first` on becomes the next level's feed.
fn feed_next(state: &mut HeadState, level: usize, first: usize, out: &Tensor) -> Result<()> {
    state.feeds.get_mut(level + 1).map_or(Ok(()), |next| next.put(first, out))
}

/// Takes back what was made of guesses, given the number of committed tokens, and drops hidden rows nobody will ask for again.
fn settle(state: &mut HeadState, committed: usize) -> Result<()> {
    for (level, cache) in state.caches.iter_mut().enumerate() {
        cache.rewind(cache.len().min(committed.saturating_sub(1 + level)));
        if let Some(next) = state.feeds.get_mut(level + 1) {
            next.truncate(cache.len())?;
        }
        state.feeds[level].drop_before(cache.len())?;
    }
    Ok(())
}
