//! What the command line does with a checkpoint besides chatting.

use crate::memory::resident;
use crate::{error, from_engine, inspect, metal};
use foretoken_engine::EngineError;
use foretoken_engine::convert::{GROUPS, convert_folder, convert_gguf};
use foretoken_engine::models::{self, Activations, LoadOptions};
use foretoken_engine::tensors;
use foretoken_engine::weights::Checkpoint;
use foretoken_protocol::{ErrorCode, InspectReport, LoadMeasure, NormStorage, WireError};
use std::path::Path;
use std::time::Instant;

pub use foretoken_engine::convert::{Keep, QuantisePlan, Written};

/// `head` = a folder whose MTP head is put on the trunk; `context` = tokens to judge the memory at; `measure` = say what the
/// load took.
pub fn inspect_folder(
    folder: &Path,
    head: Option<&Path>,
    context: Option<u32>,
    measure: bool,
) -> Result<InspectReport, WireError> {
    let report = || {
        let (before, began) = (resident(), Instant::now());
        let checkpoint = Checkpoint::open(folder)?;
        // As the app loads it.
        let options = LoadOptions { head, activations: Activations::Int8, ..Default::default() };
        let mut model = models::load_checkpoint(&checkpoint, options)?;
        let computes = metal::choose(&mut model, options.activations);
        let (load_ms, after) = (began.elapsed().as_secs_f64() * 1e3, resident());
        let mut report = inspect::report(&checkpoint, &model, head, context);
        if let Some(head) = head {
            let files = inspect::norms(&Checkpoint::open_head(head)?);
            let name = |file: String| head.join(file).to_string_lossy().into_owned();
            report.norms.extend(files.into_iter().map(|n| NormStorage { file: name(n.file), ..n }));
        }
        report.notes.extend(computes.note);
        report.load = measure.then(|| LoadMeasure {
            load_ms,
            resident: after.total,
            copied: after.anonymous.zip(before.anonymous).map(|(a, b)| a.saturating_sub(b)),
        });
        Ok(report)
    };
    report().map_err(|e| from_engine(&e))
}

/// Writes logits and hidden states of `ids` to `out`; answers the names and shapes, sorted.
pub fn export_logits(
    folder: &Path,
    (head, activations): (Option<&Path>, Activations),
    ids: &[u32],
    out: &Path,
) -> Result<Vec<(String, Vec<usize>)>, WireError> {
    let options = LoadOptions { head, activations, ..Default::default() };
    let mut model = models::load(folder, options).map_err(|e| from_engine(&e))?;
    metal::demand(&mut model)?;
    let export = || {
        let tensors = tensors::compute(&model, ids)?;
        tensors::write(&tensors, out)?;
        let mut shapes: Vec<_> =
            tensors.into_iter().map(|(name, t)| (name, t.dims().to_vec())).collect();
        shapes.sort();
        Ok(shapes)
    };
    export().map_err(|e: EngineError| from_engine(&e))
}

/// A GGUF file repacked, or a checkpoint folder written in the MLX layout, into a new or empty folder.
///
/// `plan` is for folders: a GGUF file keeps the bits it has. `progress(done, total)` counts tensors or bytes.
pub fn convert(
    source: &Path,
    target: &Path,
    head: Option<&Path>,
    plan: Option<&QuantisePlan>,
    mut progress: impl FnMut(u64, u64),
) -> Result<Written, WireError> {
    if !source.exists() {
        return Err(from_engine(&EngineError::FileMissing { file: source.to_owned() }));
    }
    // What an interrupted conversion left is written over.
    let left_over =
        |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|e| e == "partial");
    if std::fs::read_dir(target)
        .is_ok_and(|entries| entries.flatten().any(|entry| !left_over(&entry)))
    {
        let message = format!("The folder {} is not empty. Name a new folder.", target.display());
        return Err(error(ErrorCode::Disk, message));
    }
    let unquantised =
        QuantisePlan { bits: None, head_bits: None, group: GROUPS[1], keep: Vec::new() };
    let written = match (source.is_dir(), plan) {
        (true, plan) => {
            convert_folder(source, target, head, plan.unwrap_or(&unquantised), progress)
        }
        (false, Some(_)) => {
            let message = "A GGUF file is repacked with the bits it has. Leave --bits, --head-bits and --keep out.";
            return Err(error(ErrorCode::Unsupported, message));
        }
        (false, None) => {
            convert_gguf(source, target, head, |done, total| progress(done as u64, total as u64))
        }
    };
    written.map_err(|e| from_engine(&e))
}
