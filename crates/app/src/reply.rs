//! One reply, on the engine thread: prompt to events.

use crate::live::{Meter, Moment};
use crate::loaded::LoadedCheckpoint;
use crate::{from_engine, sampler_settings};
use foretoken_engine::Result;
use foretoken_engine::decode::{
    DepthController, MAX_DEPTH, Phase, Probe, Rule, SamplerSettings, Sequence,
};
use foretoken_engine::text::{ChatTemplate, RenderOptions, TextStream, ThoughtState, TurnText};
use foretoken_protocol::{
    DraftMode, DraftRule, FinishReason, GenerationOptions, LiveStats, ReplyStats, WireError,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two events with text: one frame of the window.
const FRAME: Duration = Duration::from_millis(16);

pub enum Prompt {
    /// A conversation, rendered by the model's own template.
    Turns(Vec<TurnText>),
    /// Token ids as they are.
    Ids(Vec<u32>),
}

pub struct ReplyRequest {
    pub prompt: Prompt,
    pub options: GenerationOptions,
    /// Read once per cycle.
    pub stop: Arc<AtomicBool>,
}

/// The stream of one reply; the last is `Finished` or `Failed`.
pub enum ReplyEvent {
    Prefill {
        done: u32,
        total: u32,
        reused: u32,
    },
    Step {
        text: String,
        thought: String,
        live: LiveStats,
    },
    Finished {
        reason: FinishReason,
        stats: ReplyStats,
        live: Option<LiveStats>,
        token_ids: Vec<u32>,
    },
    Failed(WireError),
}

/// Options the person changes while a reply runs.
#[derive(Default)]
pub(crate) struct LiveOptions {
    version: AtomicU64,
    value: Mutex<Option<GenerationOptions>>,
}

impl LiveOptions {
    pub fn set(&self, options: GenerationOptions) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(options);
        self.version.fetch_add(1, Ordering::Release);
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn newer_than(&self, seen: &mut u64) -> Option<GenerationOptions> {
        let version = self.version();
        if version == *seen {
            return None;
        }
        *seen = version;
        self.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The cycle's clock.
struct Clock {
    phase: Phase,
    since: Instant,
    /// Draft, verify, sample, other; milliseconds of this cycle.
    ms: [f64; 4],
}

impl Clock {
    fn new() -> Self {
        Self { phase: Phase::Other, since: Instant::now(), ms: [0.0; 4] }
    }

    /// The times of the cycle so far, which start again from zero.
    fn take(&mut self) -> [f64; 4] {
        self.enter(Phase::Other);
        std::mem::take(&mut self.ms)
    }
}

impl Probe for Clock {
    fn enter(&mut self, phase: Phase) {
        let now = Instant::now();
        self.ms[self.phase as usize] += (now - self.since).as_secs_f64() * 1e3;
        (self.phase, self.since) = (phase, now);
    }
}

struct Chosen {
    settings: SamplerSettings,
    rule: Rule,
    draft: DraftMode,
}

fn resolve(options: &GenerationOptions, loaded: &LoadedCheckpoint) -> Result<Chosen> {
    let settings = sampler_settings(&options.sampling, &loaded.defaults);
    settings.check()?;
    let rule = match options.rule {
        DraftRule::Residual => Rule::Residual,
        DraftRule::Match => Rule::Match,
    };
    Ok(Chosen { settings, rule, draft: options.draft })
}

/// Runs a reply to its end. All outcomes, errors included, go through `on`. `live_options` come with the version the request
/// already knows.
pub(crate) fn run(
    loaded: &LoadedCheckpoint,
    sequence: &mut Sequence,
    controller: &mut DepthController,
    live_options: (&LiveOptions, u64),
    request: ReplyRequest,
    on: &mut dyn FnMut(ReplyEvent),
) {
    if let Err(e) = generate(loaded, sequence, controller, live_options, request, on) {
        on(ReplyEvent::Failed(from_engine(&e)));
    }
}

fn prompt_ids(loaded: &LoadedCheckpoint, prompt: Prompt) -> Result<(Vec<u32>, ThoughtState)> {
    match prompt {
        Prompt::Ids(ids) => Ok((ids, ThoughtState::default())),
        Prompt::Turns(turns) => {
            let again;
            let template = match &loaded.template {
                Some(template) => template,
                // Read again for its error, which then says what is wrong now.
                None => {
                    again = ChatTemplate::from_dir(&loaded.folder, &loaded.tokenizer)?;
                    &again
                }
            };
            let text = template.render(
                &turns,
                &RenderOptions { add_generation_prompt: true, ..Default::default() },
            )?;
            // The template writes the special tokens itself.
            Ok((loaded.tokenizer.encode(&text, false)?, template.thought_state(&text)))
        }
    }
}

fn generate(
    loaded: &LoadedCheckpoint,
    sequence: &mut Sequence,
    controller: &mut DepthController,
    live_options: (&LiveOptions, u64),
    request: ReplyRequest,
    on: &mut dyn FnMut(ReplyEvent),
) -> Result<()> {
    let began = Instant::now();
    let (live_options, mut seen) = live_options;
    let mut chosen = resolve(&request.options, loaded)?;
    let (prompt, thought) = prompt_ids(loaded, request.prompt)?;
    let total = prompt.len();
    let reused = sequence.set_prompt(&prompt)?;
    sequence.seed(request.options.sampling.seed.unwrap_or_else(fresh_seed));

    let mut done = reused;
    while sequence.needs_prefill() {
        on(ReplyEvent::Prefill { done: done as u32, total: total as u32, reused: reused as u32 });
        if request.stop.load(Ordering::Acquire) {
            let stats = ReplyStats {
                prompt_tokens: total as u32,
                reused_tokens: reused as u32,
                ..Default::default()
            };
            on(ReplyEvent::Finished {
                reason: FinishReason::Stopped,
                stats,
                live: None,
                token_ids: Vec::new(),
            });
            return Ok(());
        }
        done = sequence.prefill(loaded.model.trunk.prompt_rows())?;
    }
    on(ReplyEvent::Prefill { done: total as u32, total: total as u32, reused: reused as u32 });
    let prefill_ms = began.elapsed().as_secs_f64() * 1e3;

    let has_head = loaded.model.head.is_some();
    let mut meter = Meter::new(total, reused, began, prefill_ms);
    let mut text = TextStream::new(&loaded.tokenizer, thought);
    let mut token_ids: Vec<u32> = Vec::new();
    let (mut waiting_text, mut waiting_thought) = (String::new(), String::new());
    let mut last_event: Option<Instant> = None;
    let mut clock = Clock::new();
    let reason = loop {
        if request.stop.load(Ordering::Acquire) {
            break FinishReason::Stopped;
        }
        if let Some(options) = live_options.newer_than(&mut seen) {
            chosen = resolve(&options, loaded)?;
        }
        let room = loaded.model.trunk.shape().context - sequence.tokens().len();
        let left =
            request.options.max_tokens.map_or(usize::MAX, |max| max as usize - token_ids.len());
        if room == 0 {
            break FinishReason::ContextFull;
        }
        if left == 0 {
            break FinishReason::Length;
        }
        // A reply's first cycle is plain: the first token comes soonest, and the cost without drafting stays known.
        let wanted = match chosen.draft {
            _ if !has_head || token_ids.is_empty() => 0,
            DraftMode::Off => 0,
            DraftMode::Fixed { depth } => usize::from(depth).min(MAX_DEPTH),
            DraftMode::Auto => controller.choose(MAX_DEPTH),
        };
        clock.take();
        let step =
            sequence.step(wanted.min(left - 1), &chosen.settings, chosen.rule, &mut clock)?;
        let phases = clock.take();
        controller.record(step.drafted, step.accepted, phases.iter().sum());
        meter.cycle(&step, phases);

        let end = step.tokens.iter().position(|id| loaded.stops.contains(id));
        let shown = end.unwrap_or(step.tokens.len());
        let kept = end.map_or(step.tokens.len(), |end| end + 1);
        token_ids.extend(&step.tokens[..kept]);
        meter.tokens(kept);
        let piece = text.push(&step.tokens[..shown]);
        waiting_text.push_str(&piece.text);
        waiting_thought.push_str(&piece.thought);
        if end.is_some() {
            sequence.end_at(total + token_ids.len());
            break FinishReason::Stop;
        }
        if last_event.is_none_or(|at| at.elapsed() >= FRAME) {
            last_event = Some(Instant::now());
            let (text, thought) =
                (std::mem::take(&mut waiting_text), std::mem::take(&mut waiting_thought));
            let live = meter.live(&moment(loaded, sequence, controller, &chosen));
            on(ReplyEvent::Step { text, thought, live });
        }
    };
    let piece = text.finish();
    waiting_text.push_str(&piece.text);
    waiting_thought.push_str(&piece.thought);
    let live = meter.live(&moment(loaded, sequence, controller, &chosen));
    if !waiting_text.is_empty() || !waiting_thought.is_empty() {
        on(ReplyEvent::Step { text: waiting_text, thought: waiting_thought, live: live.clone() });
    }
    let stats = meter.stats(chosen.rule);
    on(ReplyEvent::Finished { reason, stats, live: Some(live), token_ids });
    Ok(())
}

fn moment<'a>(
    loaded: &'a LoadedCheckpoint,
    sequence: &Sequence,
    controller: &'a DepthController,
    chosen: &Chosen,
) -> Moment<'a> {
    Moment {
        controller,
        draft: chosen.draft,
        head: &loaded.info.report.head,
        context_used: sequence.tokens().len(),
        context_size: loaded.model.trunk.shape().context,
        kv_bytes: sequence.n_bytes() as u64,
    }
}

fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hasher keys come from the system's random source.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
