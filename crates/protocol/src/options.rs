use serde::{Deserialize, Serialize};

/// How many tokens the MTP head drafts per cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum DraftMode {
    /// Plain decoding: depth 0 of the same loop.
    Off,
    /// The depth with the best tokens per second by running averages, 0 included.
    Auto,
    /// A depth of 1..=8 chosen by the person.
    Fixed { depth: u8 },
}

/// How a drafted token is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "lowercase")]
pub enum DraftRule {
    /// Accept with min(1, p/q), else sample from the normalised max(p-q, 0).
    Residual,
    /// Accept when the trunk's own sample equals the draft.
    Match,
}

/// Sampling controls. `None` means the model's recommended value (`generation_config.json`), else the neutral one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", default)]
pub struct Sampling {
    /// 0 = greedy.
    pub temperature: Option<f32>,
    /// (0, 1]; 1 = off.
    pub top_p: Option<f32>,
    /// 0 = off.
    pub top_k: Option<u32>,
    /// [0, 1); 0 = off.
    pub min_p: Option<f32>,
    /// > 0; 1 = off.
    pub repetition_penalty: Option<f32>,
    /// 0 = off.
    pub presence_penalty: Option<f32>,
    /// 0 = off.
    pub frequency_penalty: Option<f32>,
    /// `None` = another text each time.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub seed: Option<u64>,
}

/// What a reply is generated with. All of it but `max_tokens` may change while the reply runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", default)]
pub struct GenerationOptions {
    pub draft: DraftMode,
    pub rule: DraftRule,
    pub sampling: Sampling,
    /// Longest reply in tokens; `None` = to the end of the context.
    pub max_tokens: Option<u32>,
    /// Instructions placed before the conversation; `None` = the template's own default.
    pub system_prompt: Option<String>,
}

impl Default for GenerationOptions {
    fn default() -> Self {
        Self {
            draft: DraftMode::Auto,
            rule: DraftRule::Residual,
            sampling: Sampling::default(),
            max_tokens: None,
            system_prompt: None,
        }
    }
}
