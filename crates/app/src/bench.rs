//! Measurements anyone can repeat: speed with and without drafting, and whether the text stays the same.

mod passes;

pub use self::passes::{Bandwidth, ContextCost, PassCost, PrefillSpeed};
use crate::LoadedCheckpoint;
use foretoken_engine::decode::{MAX_DEPTH, Rule, SamplerSettings, Sequence};
use foretoken_engine::text::{RenderOptions, TurnText};
use foretoken_engine::{EngineError, Result};
use serde::Serialize;
use std::time::Instant;

/// A held-out prompt with its class.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct HeldOut {
    pub id: u32,
    pub class: String,
    pub prompt: String,
}

/// The 60 prompts the starter's head was measured on, never trained on (`assets/starter-head/README.md`).
pub fn held_out() -> Vec<HeldOut> {
    let lines = include_str!("../../../assets/starter-head/heldout_prompts.jsonl").lines();
    lines
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).expect("a committed data file"))
        .collect()
}

/// What one greedy continuation gave.
#[derive(Debug, Clone)]
pub struct Run {
    pub tokens: Vec<u32>,
    pub drafted: Vec<u32>,
    pub accepted: Vec<u32>,
    pub cycles: u32,
    /// Decode time without the prompt, milliseconds.
    pub decode_ms: f64,
}

/// Continues a prompt greedily to a stop token or `max_tokens`. The first token is always plain, as in a chat.
pub fn greedy(
    loaded: &LoadedCheckpoint,
    prompt: &[u32],
    depth: usize,
    max_tokens: usize,
) -> Result<Run> {
    let mut sequence = Sequence::new(loaded.model.clone());
    sequence.set_prompt(prompt)?;
    while sequence.needs_prefill() {
        sequence.prefill(128)?;
    }
    let mut run = Run {
        tokens: Vec::new(),
        drafted: vec![0; MAX_DEPTH],
        accepted: vec![0; MAX_DEPTH],
        cycles: 0,
        decode_ms: 0.0,
    };
    let settings = SamplerSettings::default();
    let began = Instant::now();
    while run.tokens.len() < max_tokens {
        let depth =
            if run.tokens.is_empty() { 0 } else { depth.min(max_tokens - run.tokens.len() - 1) };
        let step = sequence.step(depth, &settings, Rule::Residual, &mut ())?;
        run.cycles += 1;
        for i in 0..step.drafted {
            run.drafted[i] += 1;
            run.accepted[i] += u32::from(i < step.accepted);
        }
        let end = step.tokens.iter().position(|id| loaded.stops.contains(id));
        run.tokens.extend(&step.tokens[..end.map_or(step.tokens.len(), |end| end + 1)]);
        if end.is_some() {
            break;
        }
    }
    run.decode_ms = began.elapsed().as_secs_f64() * 1e3;
    Ok(run)
}

/// A user message as the model's template writes it.
pub fn chat_prompt(loaded: &LoadedCheckpoint, text: &str) -> Result<Vec<u32>> {
    let template = loaded
        .template
        .as_ref()
        .ok_or(EngineError::Text(foretoken_engine::text::TextError::TemplateMissing))?;
    let turn = TurnText { role: "user".to_owned(), content: text.to_owned(), reasoning: None };
    let text = template
        .render(&[turn], &RenderOptions { add_generation_prompt: true, ..Default::default() })?;
    Ok(loaded.tokenizer.encode(&text, false)?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct DepthResult {
    pub class: String,
    pub depth: usize,
    /// Median over prompts and repetitions.
    pub tok_s: f64,
    /// Median of the ratio to plain decoding of the same prompt in the same repetition.
    pub ratio_to_plain: f64,
    pub accept_rate: Option<f64>,
    pub tokens_per_cycle: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    pub model: String,
    pub device: String,
    pub max_tokens: usize,
    pub repetitions: usize,
    pub decode: Vec<DepthResult>,
    pub threads: usize,
    /// C(m) for m = 1..=8.
    pub passes: Vec<PassCost>,
    pub prefill: Vec<PrefillSpeed>,
    /// A plain step after a short and after a long context, when it was asked for.
    pub contexts: Vec<ContextCost>,
    pub bandwidth: Option<Bandwidth>,
    /// Best ratio to plain decoding by class.
    pub best: Vec<DepthResult>,
}

#[derive(Debug, Clone, Copy)]
pub struct BenchPlan {
    pub prompts_per_class: usize,
    pub max_tokens: usize,
    pub repetitions: usize,
    pub deepest: usize,
    /// Also measure a plain step after so many tokens, beside one after 512.
    pub long: Option<usize>,
}

/// Depths 0..=deepest interleaved prompt by prompt, so that a slow moment of the machine meets all of them.
pub fn run(
    loaded: &LoadedCheckpoint,
    plan: BenchPlan,
    mut progress: impl FnMut(&str),
) -> Result<BenchReport> {
    let mut decode = Vec::new();
    let deepest = if loaded.model.head.is_some() { plan.deepest.min(MAX_DEPTH) } else { 0 };
    for class in ["code", "list", "prose"] {
        let prompts: Vec<_> = held_out()
            .into_iter()
            .filter(|p| p.class == class)
            .take(plan.prompts_per_class)
            .collect();
        let mut speed = vec![Vec::new(); deepest + 1];
        let mut ratio = vec![Vec::new(); deepest + 1];
        let mut counts = vec![(0u32, 0u32, 0u32, 0usize); deepest + 1];
        for repetition in 0..plan.repetitions {
            for prompt in &prompts {
                progress(&format!("{class} {}, repetition {}", prompt.id, repetition + 1));
                let ids = chat_prompt(loaded, &prompt.prompt)?;
                let mut plain = 0.0;
                for depth in 0..=deepest {
                    let run = greedy(loaded, &ids, depth, plan.max_tokens)?;
                    let tok_s = run.tokens.len() as f64 / run.decode_ms * 1e3;
                    if depth == 0 {
                        plain = tok_s;
                    }
                    speed[depth].push(tok_s);
                    ratio[depth].push(tok_s / plain);
                    let c = &mut counts[depth];
                    c.0 += run.drafted.iter().sum::<u32>();
                    c.1 += run.accepted.iter().sum::<u32>();
                    c.2 += run.cycles;
                    c.3 += run.tokens.len();
                }
            }
        }
        for (depth, (speed, ratio)) in speed.into_iter().zip(ratio).enumerate() {
            let (drafted, accepted, cycles, tokens) = counts[depth];
            decode.push(DepthResult {
                class: class.to_owned(),
                depth,
                tok_s: median(speed),
                ratio_to_plain: median(ratio),
                accept_rate: (drafted > 0).then(|| f64::from(accepted) / f64::from(drafted)),
                tokens_per_cycle: tokens as f64 / f64::from(cycles.max(1)),
            });
        }
    }
    let ids = chat_prompt(
        loaded,
        &held_out().iter().map(|p| p.prompt.as_str()).collect::<Vec<_>>().join(" "),
    )?;
    progress("passes of 1 to 8 rows");
    let passes = passes::passes(loaded, &ids, 10 * plan.repetitions.max(1))?;
    let mut prefill = Vec::new();
    for (tokens, turns) in [(512, plan.repetitions.max(3)), (2048, plan.repetitions)] {
        progress(&format!("prefill of {tokens}"));
        prefill.push(passes::prefill(loaded, &ids, tokens, turns)?);
    }
    let mut contexts = Vec::new();
    for tokens in plan.long.into_iter().flat_map(|long| [512, long]) {
        progress(&format!("a step after {tokens} tokens"));
        contexts.push(passes::at_context(loaded, &ids, tokens, 10 * plan.repetitions.max(3))?);
    }
    progress("bandwidth");
    let bandwidth = passes::bandwidth(loaded, passes[0].ms);
    let classes = ["code", "list", "prose"];
    let best = classes.iter().filter_map(|class| {
        let of = decode.iter().filter(|d| d.class == *class && d.depth > 0);
        of.max_by(|a, b| a.ratio_to_plain.total_cmp(&b.ratio_to_plain)).cloned()
    });
    Ok(BenchReport {
        model: loaded.info.name.clone(),
        device: loaded.info.device.clone(),
        max_tokens: plan.max_tokens,
        repetitions: plan.repetitions,
        best: best.collect(),
        decode,
        threads: foretoken_engine::n_threads(),
        passes,
        prefill,
        contexts,
        bandwidth,
    })
}

#[derive(Debug, Clone, Serialize)]
pub struct ExactReport {
    pub prompts: usize,
    pub max_tokens: usize,
    pub tokens: usize,
    /// Continuations that differ from depth 0.
    pub different: Vec<Difference>,
    /// Accept rate of the first draft at depth 1.
    pub accept_rate_depth_1: Option<f64>,
    /// By depth 0..=8.
    pub tokens_per_cycle: Vec<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    pub prompt: u32,
    pub depth: usize,
    /// First token that differs.
    pub at: usize,
}

/// Greedy text at every depth 0..=8 against depth 0, token by token.
pub fn exact(
    loaded: &LoadedCheckpoint,
    prompts: &[HeldOut],
    max_tokens: usize,
    mut progress: impl FnMut(&str),
) -> Result<ExactReport> {
    let mut report = ExactReport {
        prompts: prompts.len(),
        max_tokens,
        tokens: 0,
        different: Vec::new(),
        accept_rate_depth_1: None,
        tokens_per_cycle: Vec::new(),
    };
    let mut counts = [(0usize, 0u32); MAX_DEPTH + 1];
    let (mut drafted, mut accepted) = (0u32, 0u32);
    for prompt in prompts {
        progress(&format!("prompt {}", prompt.id));
        let ids = chat_prompt(loaded, &prompt.prompt)?;
        let plain = greedy(loaded, &ids, 0, max_tokens)?;
        report.tokens += plain.tokens.len();
        for (depth, count) in counts.iter_mut().enumerate() {
            let run =
                if depth == 0 { plain.clone() } else { greedy(loaded, &ids, depth, max_tokens)? };
            if run.tokens != plain.tokens {
                let at = run.tokens.iter().zip(&plain.tokens).take_while(|(a, b)| a == b).count();
                report.different.push(Difference { prompt: prompt.id, depth, at });
            }
            count.0 += run.tokens.len();
            count.1 += run.cycles;
            if depth == 1 {
                drafted += run.drafted[0];
                accepted += run.accepted[0];
            }
        }
    }
    report.accept_rate_depth_1 = (drafted > 0).then(|| f64::from(accepted) / f64::from(drafted));
    report.tokens_per_cycle = counts
        .iter()
        .map(|(tokens, cycles)| *tokens as f64 / f64::from((*cycles).max(1)))
        .collect();
    Ok(report)
}
