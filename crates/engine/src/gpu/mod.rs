//! A loaded model's passes as lists of launches: one list a pass, run by whatever [`Runner`] there is.
//!
//! [`move_to`] takes the model's parts (`nn::parts`), puts their weights where the runner's kernels read them, and puts a
//! trunk and a head in the place of the old ones that answer to the same traits. The caches keep their bookkeeping
//! (`cache::LayerCache`); only their rows lie in the runner's buffers (`slots`).
//!
//! Does not: know a family, a platform, or the language of a kernel.

mod device;
mod head;
mod layer;
mod slots;
mod trunk;

use self::device::Device;
use self::head::GpuHead;
use self::trunk::GpuTrunk;
use crate::EngineError;
use crate::models::{KvSize, Model, MtpHead};
use foretoken_kernels::metal::{GpuError, LaunchError, Shelf};
pub use foretoken_kernels::metal::{Runner, this_gpu};
use std::sync::Arc;

/// Why a model stays where it is.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{0} has a bias, for which there is no kernel")]
    Bias(&'static str),
    #[error("the norms of a layer differ in their epsilon")]
    Epsilons,
    #[error("{0} query heads share a key head, and a kernel takes 64")]
    Heads(usize),
    #[error("models of this family cannot be taken apart")]
    Parts,
    #[error("{need} bytes are needed and the GPU works well with {budget}")]
    TooLarge { need: u64, budget: u64 },
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<LaunchError> for Refusal {
    fn from(error: LaunchError) -> Self {
        Self::Gpu(error.into())
    }
}

/// Context whose keys and values must fit beside the weights.
const USUAL_CONTEXT: u64 = 4096;

/// Bytes of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    pub weights: u64,
    /// Of these, what could not be read where it lies in its file: norms always, and tensors that are not aligned.
    pub copied: u64,
}

/// From now on `runner` computes, once every kernel the model needs has passed its trial. On a refusal the model is as it was.
pub fn move_to(model: &mut Model, runner: Arc<dyn Runner>) -> Result<Moved, Refusal> {
    // The caches hold activations.
    let kv = KvSize { width: runner.activations().size() as u64, ..model.kv };
    let modules = model.trunk_modules.iter().chain(&model.head_modules);
    let weights = modules.map(|module| module.bytes).sum::<u64>();
    let context = USUAL_CONTEXT.min(model.trunk.shape().context as u64);
    let need = weights + context * kv.bytes();
    let Some(budget) = runner.budget() else {
        return place(model, runner, kv, None);
    };
    let room = budget.checked_sub(need).ok_or(Refusal::TooLarge { need, budget })?;
    // What has to be copied takes memory beside its file.
    place(model, runner, kv, Some(room)).map_err(|refusal| match refusal {
        Refusal::Gpu(GpuError::Copies(more)) => Refusal::TooLarge { need: need + more, budget },
        other => other,
    })
}

/// `room` as of [`Shelf::new`].
fn place(
    model: &mut Model,
    runner: Arc<dyn Runner>,
    kv: KvSize,
    room: Option<u64>,
) -> Result<Moved, Refusal> {
    let device = Arc::new(Device::new(runner.clone())?);
    let mut shelf = Shelf::new(&*runner, room);
    let parts = model.trunk.parts().ok_or(Refusal::Parts)?;
    let caches = model.trunk.new_cache();
    let trunk = GpuTrunk::new(&device, &mut shelf, &parts, model.trunk.shape(), caches)?;
    trunk.prepare()?;
    let head = match &model.head {
        Some(head) => {
            let head = GpuHead::new(&device, &mut shelf, &**head)?;
            head.prepare()?;
            Some(Box::new(head) as Box<dyn MtpHead>)
        }
        None => None,
    };
    model.trunk = Box::new(trunk);
    model.head = head;
    model.kv = kv;
    Ok(Moved { weights: shelf.n_bytes, copied: shelf.n_copied })
}
