//! What passes cost by themselves: a verify pass of m rows over a plain step, the prompt's, and the bytes a step reads.

use super::median;
use crate::LoadedCheckpoint;
use foretoken_engine::decode::Sequence;
use foretoken_engine::models::ModuleUse;
use foretoken_engine::{Result, read_bandwidth};
use serde::Serialize;
use std::time::Instant;

/// Rows of the widest pass.
const WIDEST: usize = 8;
/// Tokens in the cache before a pass.
const BEFORE: usize = 64;

/// Trunk and logits over some rows, the median of interleaved passes.
#[derive(Debug, Clone, Serialize)]
pub struct PassCost {
    pub rows: usize,
    pub ms: f64,
    /// C(rows): over a plain step's of the same turn.
    pub ratio_to_plain: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct PrefillSpeed {
    pub tokens: usize,
    /// Median.
    pub tok_s: f64,
}

/// Bytes of weights that a plain step reads, and how fast, beside how fast the machine reads as many.
#[derive(Debug, Clone, Serialize)]
pub struct Bandwidth {
    pub step_bytes: u64,
    pub step_gb_s: f64,
    pub machine_gb_s: f64,
}

pub(super) fn passes(
    loaded: &LoadedCheckpoint,
    ids: &[u32],
    turns: usize,
) -> Result<Vec<PassCost>> {
    let trunk = &loaded.model.trunk;
    let mut cache = trunk.new_cache();
    let ids: Vec<u32> = ids.iter().copied().cycle().take(BEFORE + WIDEST).collect();
    trunk.forward(&ids[..BEFORE], &mut cache)?;
    let (mut ms, mut ratio) = (vec![Vec::new(); WIDEST], vec![Vec::new(); WIDEST]);
    for _ in 0..turns {
        let mut plain = 0.0;
        for rows in 1..=WIDEST {
            let began = Instant::now();
            trunk.pass(&ids[BEFORE..BEFORE + rows], &mut cache)?;
            let own = began.elapsed().as_secs_f64() * 1e3;
            cache.rewind(BEFORE);
            if rows == 1 {
                plain = own;
            }
            ms[rows - 1].push(own);
            ratio[rows - 1].push(own / plain);
        }
    }
    let cost =
        |(i, (ms, ratio))| PassCost { rows: i + 1, ms: median(ms), ratio_to_plain: median(ratio) };
    Ok(ms.into_iter().zip(ratio).enumerate().map(cost).collect())
}

pub(super) fn prefill(
    loaded: &LoadedCheckpoint,
    ids: &[u32],
    tokens: usize,
    turns: usize,
) -> Result<PrefillSpeed> {
    let tokens = tokens.min(loaded.model.trunk.shape().context - 1);
    let ids: Vec<u32> = ids.iter().copied().cycle().take(tokens + 1).collect();
    let mut speed = Vec::new();
    for _ in 0..turns {
        let mut sequence = Sequence::new(loaded.model.clone());
        sequence.set_prompt(&ids)?;
        let began = Instant::now();
        while sequence.needs_prefill() {
            sequence.prefill(128)?;
        }
        speed.push(tokens as f64 / began.elapsed().as_secs_f64());
    }
    Ok(PrefillSpeed { tokens, tok_s: median(speed) })
}

/// A plain step after `tokens` tokens.
#[derive(Debug, Clone, Serialize)]
pub struct ContextCost {
    pub tokens: usize,
    /// Median.
    pub ms: f64,
}

pub(super) fn at_context(
    loaded: &LoadedCheckpoint,
    ids: &[u32],
    tokens: usize,
    turns: usize,
) -> Result<ContextCost> {
    let trunk = &loaded.model.trunk;
    let tokens = tokens.min(trunk.shape().context - 1);
    let mut cache = trunk.new_cache();
    let ids: Vec<u32> = ids.iter().copied().cycle().take(tokens + 1).collect();
    for part in ids[..tokens].chunks(trunk.prompt_rows()) {
        trunk.forward(part, &mut cache)?;
    }
    let mut ms = Vec::new();
    for _ in 0..turns {
        let began = Instant::now();
        trunk.pass(&ids[tokens..], &mut cache)?;
        ms.push(began.elapsed().as_secs_f64() * 1e3);
        cache.rewind(tokens);
    }
    Ok(ContextCost { tokens, ms: median(ms) })
}

/// `None` for mixtures: what they read is the router's choice.
pub(super) fn bandwidth(loaded: &LoadedCheckpoint, plain_ms: f64) -> Option<Bandwidth> {
    let modules = &loaded.model.trunk_modules;
    if modules.iter().any(|m| m.kind == "experts") {
        return None;
    }
    // A table beside a head of its own is looked up row by row.
    let untied = modules.iter().any(|m| m.kind == "lm_head");
    let is_read = |m: &&ModuleUse| !(untied && m.kind == "embedding");
    let step_bytes: u64 = modules.iter().filter(is_read).map(|m| m.bytes).sum();
    Some(Bandwidth {
        step_bytes,
        step_gb_s: step_bytes as f64 / plain_ms / 1e6,
        machine_gb_s: read_bandwidth(step_bytes as usize, 9) / 1e9,
    })
}
