use serde::{Deserialize, Serialize};

/// Drafted and accepted tokens at one draft position (0 = first draft of a cycle).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct DepthCount {
    pub drafted: u32,
    pub accepted: u32,
}

/// Milliseconds by phase. In live numbers: the mean per cycle; in reply statistics: the sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct PhaseMs {
    pub draft: f64,
    pub verify: f64,
    pub sample: f64,
    pub other: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum DraftingState {
    On,
    Off,
    /// Auto found that drafting costs more than it brings, and tries again later.
    Paused,
    /// The checkpoint has no MTP head.
    NoHead,
}

/// What drafting does right now, with the sentence the panel shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Drafting {
    pub state: DraftingState,
    /// Depth of the newest cycle.
    pub depth: u8,
    /// Estimated speed relative to no drafting, from measured draft and verify times. `None` until both are measured.
    pub speedup: Option<f64>,
    pub sentence: String,
}

/// The numbers of the live panel, sent with every batch of text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct LiveStats {
    /// Decode speed over the last second.
    pub now_tok_s: f64,
    /// Decode speed over the reply so far.
    pub decode_tok_s: f64,
    pub prefill_tok_s: f64,
    pub ttft_ms: f64,
    /// Tokens generated so far.
    pub tokens: u32,
    pub cycles: u32,
    pub by_depth: Vec<DepthCount>,
    /// accepted / drafted over all depths; `None` before the first draft.
    pub accept_rate: Option<f64>,
    /// accepted / drafted over the last 32 drafting cycles.
    pub accept_rate_recent: Option<f64>,
    pub tokens_per_cycle: f64,
    /// Accept rate per draft above which the current depth pays, from measured costs; `None` until measured.
    pub break_even: Option<f64>,
    /// Mean per cycle.
    pub phase_ms: PhaseMs,
    pub drafting: Drafting,
    pub context_used: u32,
    pub context_size: u32,
    #[cfg_attr(test, ts(type = "number"))]
    pub kv_bytes: u64,
}

/// The facts of a finished (or stopped) reply; also the result object of `foretoken chat --json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct ReplyStats {
    pub prompt_tokens: u32,
    /// Prompt tokens whose cache was still there.
    pub reused_tokens: u32,
    pub generated_tokens: u32,
    pub ttft_ms: f64,
    pub prefill_tok_s: f64,
    pub decode_tok_s: f64,
    pub cycles: u32,
    /// By draft position.
    pub drafted: Vec<u32>,
    pub accepted: Vec<u32>,
    pub accept_rate: Option<f64>,
    pub tokens_per_cycle: f64,
    /// Depth of the newest cycle.
    pub depth: u8,
    pub rule: String,
    /// Sums over the reply.
    pub phase_ms: PhaseMs,
}
