use crate::from_engine;
use foretoken_engine::EngineError;
use foretoken_engine::decode::{MAX_DEPTH, SamplerSettings};
use foretoken_engine::text::GenerationDefaults;
use foretoken_protocol::{DraftMode, GenerationOptions, Sampling, WireError};

/// What the person chose, else what the model recommends, else neutral (temperature 0: the same text each time).
pub fn sampler_settings(chosen: &Sampling, recommended: &GenerationDefaults) -> SamplerSettings {
    let neutral = SamplerSettings::default();
    SamplerSettings {
        temperature: chosen.temperature.or(recommended.temperature).unwrap_or(neutral.temperature),
        top_p: chosen.top_p.or(recommended.top_p).unwrap_or(neutral.top_p),
        top_k: chosen.top_k.or(recommended.top_k).unwrap_or(neutral.top_k),
        min_p: chosen.min_p.or(recommended.min_p).unwrap_or(neutral.min_p),
        repetition_penalty: chosen
            .repetition_penalty
            .or(recommended.repetition_penalty)
            .unwrap_or(neutral.repetition_penalty),
        presence_penalty: chosen.presence_penalty.unwrap_or(neutral.presence_penalty),
        frequency_penalty: chosen.frequency_penalty.unwrap_or(neutral.frequency_penalty),
    }
}

/// Refuses values out of range before anything is stored or started.
pub fn check_options(options: &GenerationOptions) -> Result<(), WireError> {
    let invalid = |name, value: String, allowed| {
        Err(from_engine(&EngineError::InvalidOption { name, value, allowed }))
    };
    if let DraftMode::Fixed { depth } = options.draft
        && !(1..=MAX_DEPTH).contains(&usize::from(depth))
    {
        return invalid("draft depth", depth.to_string(), "1 to 8");
    }
    if options.max_tokens == Some(0) {
        return invalid("longest reply", "0".to_owned(), "1 or more tokens");
    }
    sampler_settings(&options.sampling, &GenerationDefaults::default())
        .check()
        .map_err(|e| from_engine(&e))
}

/// As the window shows it.
pub(crate) fn recommended(defaults: &GenerationDefaults) -> Sampling {
    Sampling {
        temperature: defaults.temperature,
        top_p: defaults.top_p,
        top_k: defaults.top_k,
        min_p: defaults.min_p,
        repetition_penalty: defaults.repetition_penalty,
        ..Sampling::default()
    }
}
