use crate::fit::{self, Shape, Sizes};
use crate::inspect;
use crate::memory;
use crate::metal;
use crate::options::recommended;
use foretoken_engine::text::{ChatTemplate, GenerationDefaults, Tokenizer, stop_set};
use foretoken_engine::weights::Checkpoint;
use foretoken_engine::{EngineError, Result, models};
use foretoken_protocol::LoadedModel;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

pub use foretoken_engine::models::Activations;

/// A model in memory with everything a conversation needs.
pub struct LoadedCheckpoint {
    pub model: Arc<models::Model>,
    pub tokenizer: Tokenizer,
    /// `None` = it could not be used; the reason comes when somebody chats. Token ids are answered without it.
    pub template: Option<ChatTemplate>,
    pub folder: PathBuf,
    pub stops: BTreeSet<u32>,
    pub defaults: GenerationDefaults,
    pub info: LoadedModel,
}

/// Where a model lies.
#[derive(Debug, Clone)]
pub struct ModelPlace {
    /// What the person called it.
    pub id: String,
    pub folder: PathBuf,
    /// A folder whose MTP head is put on the trunk, in place of one of its own.
    pub head: Option<PathBuf>,
    /// How products with quantised weights see their x.
    pub activations: Activations,
    /// Load it although it does not seem to fit.
    pub anyway: bool,
}

/// Stages of a load, for its progress bar.
const STAGES: [&str; 4] = ["names and shapes", "weights", "tokenizer", "chat template"];

impl LoadedCheckpoint {
    /// `progress(done, total, what)`; returns `None` when `cancelled` says so between two stages.
    pub fn open(
        place: &ModelPlace,
        mut progress: impl FnMut(u64, u64, &str),
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<Self>> {
        let began = Instant::now();
        let (folder, head) = (place.folder.as_path(), place.head.as_deref());
        let mut stage = |i: usize| {
            progress(i as u64, STAGES.len() as u64, STAGES.get(i).copied().unwrap_or("ready"));
            cancelled()
        };
        if stage(0) {
            return Ok(None);
        }
        if !place.anyway {
            refuse_too_large(folder, head)?;
        }
        let checkpoint = Checkpoint::open(folder)?;
        if stage(1) {
            return Ok(None);
        }
        let mut model = models::load_checkpoint(
            &checkpoint,
            models::LoadOptions { head, activations: place.activations, ..Default::default() },
        )?;
        let mut report = inspect::report(&checkpoint, &model, head, None);
        let computes = metal::choose(&mut model, place.activations);
        report.notes.extend(computes.note);
        if stage(2) {
            return Ok(None);
        }
        let tokenizer = Tokenizer::from_dir(folder)?;
        let (stops, defaults) =
            (stop_set(folder, &tokenizer)?, GenerationDefaults::from_dir(folder)?);
        if stage(3) {
            return Ok(None);
        }
        let template = ChatTemplate::from_dir(folder, &tokenizer).ok();
        stage(4);
        let info = LoadedModel {
            id: place.id.clone(),
            name: report.name.clone(),
            label: inspect::label(&model),
            recommended: recommended(&defaults),
            thinks: template.as_ref().is_some_and(inspect::thinks),
            load_ms: began.elapsed().as_secs_f64() * 1e3,
            device: computes.device,
            report,
        };
        Ok(Some(Self {
            model: Arc::new(model),
            tokenizer,
            template,
            folder: folder.to_owned(),
            stops,
            defaults,
            info,
        }))
    }
}

/// Before anything is read: what does not fit would push everything else out first.
fn refuse_too_large(folder: &Path, head: Option<&Path>) -> Result<()> {
    // What cannot be read here is named by the load that follows.
    let (Some(shape), Ok(sizes)) = (Shape::of_folder(folder), Sizes::of_folder(folder, head))
    else {
        return Ok(());
    };
    let fit = fit::fit(&shape, sizes, memory::machine(folder), None);
    if fit.fits {
        return Ok(());
    }
    Err(EngineError::NotEnoughMemory { need: fit.needed, available: fit.machine.available })
}
