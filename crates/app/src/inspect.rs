//! What a checkpoint is, in numbers.

use crate::fit::{Shape, USUAL_CONTEXT};
use crate::memory;
use foretoken_engine::models::{self, HeadStatus, Model};
use foretoken_engine::text::{ChatTemplate, RenderOptions, TurnText};
use foretoken_engine::weights::Checkpoint;
use foretoken_library::name_of;
use foretoken_protocol::{
    HeadInfo, InspectReport, MemoryUse, ModuleQuant, NormConvention, NormStorage,
};
use std::path::Path;

/// `donor` = the folder the head was taken from, if it is another; `context` = tokens to judge the memory at, `None` = 4096,
/// or the model's own when that is shorter.
pub fn report(
    checkpoint: &Checkpoint,
    model: &Model,
    donor: Option<&Path>,
    context: Option<u32>,
) -> InspectReport {
    let shape = model.trunk.shape();
    let context = context.unwrap_or(USUAL_CONTEXT).min(shape.context as u32);
    let sum = |modules: &[foretoken_engine::models::ModuleUse]| {
        modules.iter().map(|m| m.bytes).sum::<u64>()
    };
    let parameters = |modules: &[foretoken_engine::models::ModuleUse]| {
        modules.iter().map(|m| m.parameters).sum::<u64>()
    };
    let (weights, head) = (sum(&model.trunk_modules), sum(&model.head_modules));
    // The planner knows sliding layers as well; a configuration it cannot read counts by the token.
    let planned = Shape::read(&checkpoint.config);
    let kv_at_context = planned.as_ref().map_or_else(
        || model.kv.bytes() * u64::from(context),
        |shape| shape.kv(u64::from(context), model.head.is_some()),
    );
    let working = planned.map_or(0, |shape| shape.working());
    let mut quantisation: Vec<ModuleQuant> = Vec::new();
    for (prefix, modules) in [("", &model.trunk_modules), ("head ", &model.head_modules)] {
        quantisation.extend(modules.iter().map(|m| ModuleQuant {
            kind: format!("{prefix}{}", m.kind),
            storage: m.storage.clone(),
            modules: m.modules as u32,
            bytes: m.bytes,
        }));
    }
    let head_info = match (&model.head, &model.head_status) {
        (Some(found), HeadStatus::Found { place }) => {
            let levels = found.levels() as u8;
            let layers =
                if levels == 1 { "one level".to_owned() } else { format!("{levels} levels") };
            let from = donor.map_or(String::new(), |folder| format!(", from {}", name_of(folder)));
            HeadInfo {
                found: true,
                levels,
                sentence: format!("MTP head with {layers} in {place}{from}."),
            }
        }
        (_, HeadStatus::Absent { why }) => {
            HeadInfo { found: false, levels: 0, sentence: why.clone() }
        }
        (None, HeadStatus::Found { .. }) => HeadInfo {
            found: false,
            levels: 0,
            sentence: "No MTP head in this checkpoint.".to_owned(),
        },
    };
    let mut notes = Vec::new();
    if !model.leftovers.is_empty() {
        let names = model.leftovers.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        let more = if model.leftovers.len() > 8 { ", ..." } else { "" };
        notes.push(format!("{} tensors are not used: {names}{more}.", model.leftovers.len()));
    }
    let name = checkpoint
        .config
        .pointer("/trunk/name")
        .and_then(serde_json::Value::as_str)
        .map(str::to_owned);
    InspectReport {
        name: name.unwrap_or_else(|| name_of(&checkpoint.folder)),
        folder: checkpoint.folder.to_string_lossy().into_owned(),
        family: model.family.to_owned(),
        layers: shape.n_layers as u32,
        parameters: parameters(&model.trunk_modules),
        head_parameters: parameters(&model.head_modules),
        context_size: shape.context as u32,
        vocab_size: shape.vocab as u32,
        quantisation,
        head: head_info,
        memory: MemoryUse {
            weights,
            head,
            kv_per_token: model.kv.bytes(),
            kv_at_context,
            context,
            needed: weights + head + kv_at_context + working,
            available: memory::machine(&checkpoint.folder).available,
        },
        norms: norms(checkpoint),
        load: None,
        notes,
    }
}

/// How each file's norms are stored.
pub(crate) fn norms(checkpoint: &Checkpoint) -> Vec<NormStorage> {
    // A model that has loaded has a layout; a head's folder without one says nothing.
    let found = models::norm_conventions(checkpoint).unwrap_or_default();
    let convention = |convention| match convention {
        models::NormConvention::Plain => NormConvention::Plain,
        models::NormConvention::OneAdded => NormConvention::OneAdded,
        models::NormConvention::AsTrained => NormConvention::AsTrained,
    };
    let of = |(file, c)| NormStorage { file, convention: convention(c) };
    found.into_iter().map(of).collect()
}

/// e.g. "4-bit g32 · head bf16": the storage most bytes are in.
pub(crate) fn label(model: &Model) -> String {
    let main = |modules: &[foretoken_engine::models::ModuleUse]| {
        let matrices = modules
            .iter()
            .filter(|m| !matches!(m.kind, "embedding" | "lm_head" | "norm" | "draft vocabulary"));
        matrices.max_by_key(|m| m.bytes).map(|m| m.storage.clone())
    };
    let trunk = main(&model.trunk_modules).unwrap_or_default();
    match main(&model.head_modules) {
        Some(head) => format!("{trunk} · head {head}"),
        None => format!("{trunk} · no head"),
    }
}

/// Whether a reply of this template starts inside a thought.
pub(crate) fn thinks(template: &ChatTemplate) -> bool {
    let turn = TurnText { role: "user".to_owned(), content: "Hello".to_owned(), reasoning: None };
    let options = RenderOptions { add_generation_prompt: true, ..Default::default() };
    template.render(&[turn], &options).is_ok_and(|text| template.starts_in_thought(&text).is_some())
}
