//! What the command line does with a checkpoint besides chatting.

use crate::{error, from_engine, inspect};
use foretoken_engine::EngineError;
use foretoken_engine::convert::convert_gguf;
use foretoken_engine::models::{self, LoadOptions};
use foretoken_engine::tensors;
use foretoken_engine::weights::Checkpoint;
use foretoken_protocol::{ErrorCode, InspectReport, WireError};
use std::path::Path;

pub use foretoken_engine::convert::Written;

/// `head` = a folder whose MTP head is put on the trunk; `context` = tokens to judge the memory at.
pub fn inspect_folder(
    folder: &Path,
    head: Option<&Path>,
    context: Option<u32>,
) -> Result<InspectReport, WireError> {
    let report = || {
        let checkpoint = Checkpoint::open(folder)?;
        let options = LoadOptions { head, ..Default::default() };
        let model = models::load_checkpoint(&checkpoint, options)?;
        Ok(inspect::report(&checkpoint, &model, head, context))
    };
    report().map_err(|e| from_engine(&e))
}

/// Writes logits and hidden states of `ids` to `out`; answers the names and shapes, sorted.
pub fn export_logits(
    folder: &Path,
    head: Option<&Path>,
    ids: &[u32],
    out: &Path,
) -> Result<Vec<(String, Vec<usize>)>, WireError> {
    let export = || {
        let model = models::load(folder, LoadOptions { head, ..Default::default() })?;
        let tensors = tensors::compute(&model, ids)?;
        tensors::write(&tensors, out)?;
        let mut shapes: Vec<_> =
            tensors.into_iter().map(|(name, t)| (name, t.dims().to_vec())).collect();
        shapes.sort();
        Ok(shapes)
    };
    export().map_err(|e: EngineError| from_engine(&e))
}

/// Repacks a GGUF file into a new or empty folder; `progress(done, total)` counts tensors.
pub fn convert(
    source: &Path,
    target: &Path,
    head: Option<&Path>,
    progress: impl FnMut(usize, usize),
) -> Result<Written, WireError> {
    if source.is_dir() {
        let message =
            "Only GGUF files can be converted yet, and this is a folder. Name the .gguf file.";
        return Err(error(ErrorCode::Unsupported, message));
    }
    if !source.is_file() {
        return Err(from_engine(&EngineError::FileMissing { file: source.to_owned() }));
    }
    if std::fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_some()) {
        let message = format!("The folder {} is not empty. Name a new folder.", target.display());
        return Err(error(ErrorCode::Disk, message));
    }
    convert_gguf(source, target, head, progress).map_err(|e| from_engine(&e))
}
