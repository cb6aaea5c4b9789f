use super::files::read_object;
use super::{TextError, Tokenizer};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::Path;

/// Tokens that end a turn: the union of what the tokenizer, `config.json` (also its `text_config`) and
/// `generation_config.json` name. The published files often disagree, and each is right about some token.
///
/// Absent files are fine. Errors: [`TextError::ConfigCorrupt`], [`TextError::Io`].
pub fn stop_set(dir: &Path, tokenizer: &Tokenizer) -> Result<BTreeSet<u32>, TextError> {
    let mut stops: BTreeSet<u32> =
        tokenizer.eos_text().and_then(|text| tokenizer.token_id(text)).into_iter().collect();
    let config = read_config(dir, "config.json")?;
    let nested = config.get("text_config").and_then(Value::as_object);
    for map in std::iter::once(&config).chain(nested) {
        for key in ["eos_token_id", "eod_token_id"] {
            stops.extend(ids(dir, "config.json", map, key)?);
        }
    }
    let generation = read_config(dir, "generation_config.json")?;
    stops.extend(ids(dir, "generation_config.json", &generation, "eos_token_id")?);
    Ok(stops)
}

/// The sampling a model's makers recommend. `None` = they say nothing, or nothing that makes sense.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
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
    /// `Some(false)` sets the temperature to 0.
    pub do_sample: Option<bool>,
}

impl GenerationDefaults {
    /// Reads `generation_config.json`. Numbers out of range are left out and logged: a bad recommendation is no reason
    /// to refuse a model.
    ///
    /// Errors: [`TextError::ConfigCorrupt`], [`TextError::Io`].
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let map = read_config(dir, "generation_config.json")?;
        let number = |key: &str, fits: fn(f64) -> bool| -> Option<f64> {
            let value = map.get(key).filter(|value| !value.is_null())?;
            let number = value.as_f64().filter(|&number| fits(number));
            if number.is_none() {
                tracing::warn!(key, %value, "recommended sampling value ignored");
            }
            number
        };
        let do_sample = map.get("do_sample").and_then(Value::as_bool);
        let temperature = number("temperature", |x| (0.0..=100.0).contains(&x)).map(|x| x as f32);
        Ok(Self {
            temperature: if do_sample == Some(false) { Some(0.0) } else { temperature },
            top_p: number("top_p", |x| x > 0.0 && x <= 1.0).map(|x| x as f32),
            // -1 and 0 both mean off.
            top_k: number("top_k", |x| (-1.0..=f64::from(u32::MAX)).contains(&x))
                .map(|x| x.max(0.0) as u32),
            min_p: number("min_p", |x| (0.0..1.0).contains(&x)).map(|x| x as f32),
            repetition_penalty: number("repetition_penalty", |x| x > 0.0 && x <= 100.0)
                .map(|x| x as f32),
            do_sample,
        })
    }
}

fn read_config(dir: &Path, name: &str) -> Result<Map<String, Value>, TextError> {
    let file = dir.join(name);
    Ok(read_object(&file, |why| TextError::ConfigCorrupt { file: file.clone(), why })?
        .unwrap_or_default())
}

/// A token id, a list of them, or nothing. Negative ids mean "none" in some configurations.
fn ids(dir: &Path, name: &str, map: &Map<String, Value>, key: &str) -> Result<Vec<u32>, TextError> {
    let list = match map.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let bad =
        || TextError::ConfigCorrupt { file: dir.join(name), why: format!("{key} is no token id") };
    let all: Vec<i64> =
        list.iter().map(|value| value.as_i64().ok_or_else(bad)).collect::<Result<_, _>>()?;
    Ok(all.into_iter().filter_map(|id| u32::try_from(id).ok()).collect())
}
