//! Whether the GPU computes. Nobody has run this on a Mac yet, so it is off unless the environment asks for it.

use crate::error;
use crate::fit::gb;
use foretoken_engine::device_name;
use foretoken_engine::gpu::{self, Refusal};
use foretoken_engine::models::{Activations, Model};
use foretoken_protocol::{ErrorCode, WireError};

/// `1` = use Metal where it can be used.
const SWITCH: &str = "FORETOKEN_METAL";

/// What computes, and what a person should know of it.
pub(crate) struct Computes {
    /// For people, e.g. "CPU (AVX-512, 2 threads)".
    pub device: String,
    pub note: Option<String>,
}

/// Moves the model to the GPU when that was asked for and can be; else it stays, and the note says why.
pub(crate) fn choose(model: &mut Model, activations: Activations) -> Computes {
    choose_if(is_wanted(), model, activations)
}

/// The same for whoever compares devices: what was asked for and cannot be is an error.
pub(crate) fn demand(model: &mut Model) -> Result<(), WireError> {
    if !is_wanted() {
        return Ok(());
    }
    let refused = |refusal: Refusal| {
        let why = sentence(&refusal);
        let message = format!("Metal is not used: {why}. Unset {SWITCH} for the CPU's numbers.");
        error(ErrorCode::Unsupported, message)
    };
    on_metal(model).map(drop).map_err(refused)
}

fn is_wanted() -> bool {
    std::env::var_os(SWITCH).is_some_and(|value| value == "1")
}

fn choose_if(wanted: bool, model: &mut Model, activations: Activations) -> Computes {
    if !wanted {
        return Computes { device: device_name(activations), note: None };
    }
    match on_metal(model) {
        Ok(device) => {
            let note = format!(
                "{device} computes, as {SWITCH}=1 asks. This is new: compare with the CPU."
            );
            Computes { device, note: Some(note) }
        }
        Err(refusal) => {
            let cpu = device_name(activations);
            tracing::warn!("Metal is not used: {refusal}");
            // Short, for a label.
            let device = format!("{cpu}, Metal is not used");
            let note = format!("Metal is not used: {}. The CPU computes.", sentence(&refusal));
            Computes { device, note: Some(note) }
        }
    }
}

fn on_metal(model: &mut Model) -> Result<String, Refusal> {
    let runner = gpu::this_gpu()?;
    let device = format!("Metal ({}, {})", runner.name(), runner.activations().name());
    let moved = gpu::move_to(model, runner)?;
    tracing::info!("{} bytes of weights, {} of them copied", moved.weights, moved.copied);
    Ok(device)
}

fn sentence(refusal: &Refusal) -> String {
    match refusal {
        Refusal::TooLarge { need, budget } => {
            format!("it takes {} or more and this GPU works well with {}", gb(*need), gb(*budget))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foretoken_engine::models::{LoadOptions, load};
    use std::path::Path;

    #[test]
    fn off_says_nothing_and_a_refusal_says_why() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama-tiny");
        let mut model = load(&folder, LoadOptions::default()).expect("loads");
        let off = choose_if(false, &mut model, Activations::Exact);
        assert_eq!((off.device, off.note), (device_name(Activations::Exact), None));
        if gpu::this_gpu().is_ok() {
            return;
        }
        let refused = choose_if(true, &mut model, Activations::Exact);
        assert!(refused.device.starts_with(&device_name(Activations::Exact)), "{}", refused.device);
        let note = refused.note.expect("a reason");
        assert!(note.contains("no GPU that Metal can use"), "{note}");
        let pass = model.trunk.forward(&[1], &mut model.trunk.new_cache()).expect("as before");
        assert_eq!(pass.dims()[0], 1);
    }
}
