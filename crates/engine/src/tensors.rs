//! Logits and hidden states of a text, for comparison with other implementations (`foretoken logits`).

use crate::decode::Sequence;
use crate::models::Model;
use crate::{EngineError, Result};
use candle_core::Tensor;
use std::collections::HashMap;
use std::path::Path;

/// `logits` [T, vocab], `hidden_pre` and `hidden_post` [T, hidden], `mtp{d}.logits` [T-1-d, vocab] for each level d, all f32:
/// one pass over `ids`, the head teacher-forced.
pub fn compute(model: &Model, ids: &[u32]) -> Result<HashMap<String, Tensor>> {
    let shape = model.trunk.shape();
    if ids.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    if ids.len() > shape.context {
        return Err(EngineError::ContextFull { prompt: ids.len(), context: shape.context });
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= shape.vocab) {
        return Err(EngineError::TokenOutOfRange { id: *id, vocab: shape.vocab });
    }
    let hidden_pre = model.trunk.forward(ids, &mut model.trunk.new_cache())?;
    let hidden_post = model.trunk.norm(&hidden_pre)?;
    let mut out = HashMap::from([("logits".to_owned(), model.trunk.logits(&hidden_post)?)]);
    if let Some(head) = &model.head {
        for (level, hidden) in Sequence::teacher_forced(model, ids, &hidden_pre)?.iter().enumerate()
        {
            out.insert(format!("mtp{level}.logits"), head.logits(level, hidden)?);
        }
    }
    out.insert("hidden_pre".to_owned(), hidden_pre);
    out.insert("hidden_post".to_owned(), hidden_post);
    Ok(out)
}

/// Writes what `compute` gave as safetensors.
pub fn write(tensors: &HashMap<String, Tensor>, file: &Path) -> Result<()> {
    candle_core::safetensors::save(tensors, file)
        .map_err(|e| EngineError::Io { path: file.to_owned(), source: std::io::Error::other(e) })
}
