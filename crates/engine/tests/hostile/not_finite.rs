//! Weights that are not numbers: nobody reads 110 GB to find them, so they load, and the first pass says it.

use super::maker::{Folder, Stored};
use crate::support::{ids, json};
use crate::{HY, HY_BARE, HY_MLX, STEP, STEP_MLX, golden};
use foretoken_engine::EngineError;
use foretoken_engine::decode::{Rule, SamplerSettings, Sequence};
use foretoken_engine::models::{LoadOptions, load};
use safetensors::Dtype;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A tensor's name without the numbers of its layer and expert: what is alike is tried once.
fn kind(name: &str) -> String {
    let parts = name.split('.').map(|part| if part.parse::<u32>().is_ok() { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

fn is_float(t: &Stored) -> bool {
    matches!(t.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// The first element, or of what only some tokens or rows go through, all.
fn places(t: &Stored) -> std::ops::Range<usize> {
    let some = t.name.contains("expert") || t.name.contains("switch_mlp");
    let all = some || t.name.contains(".moe.") || t.name.starts_with("model.embed_tokens");
    0..if all { t.len() } else { 1 }
}

/// What comes of a prompt: the tokens before the error, and the error.
fn generate(f: &Folder, fixture: &str, depth: usize) -> (usize, foretoken_engine::Result<()>) {
    let model = Arc::new(load(f.path(), LoadOptions::default()).expect("loads"));
    let case = json(&golden(fixture).join("golden.json"))["sequences"][0].clone();
    let prompt = ids(&case[if fixture.starts_with("hy") { "prompt_ids" } else { "ids" }]);
    let mut sequence = Sequence::new(model);
    sequence.set_prompt(&prompt).expect("fits");
    let mut n = 0;
    let mut go = || {
        while sequence.needs_prefill() {
            sequence.prefill(64)?;
        }
        for _ in 0..4 {
            let step =
                sequence.step(depth, &SamplerSettings::default(), Rule::Residual, &mut ())?;
            n += step.tokens.len();
        }
        Ok(())
    };
    let end = go();
    (n, end)
}

fn is_head(name: &str) -> bool {
    let numbers = ["layers.5.", "layers.6.", "layers.7."];
    name.starts_with("mtp.") || numbers.iter().any(|layer| name.contains(layer))
}

/// Every kind of float tensor in the trunk, in every layer that has it.
#[test]
fn never_a_token_of_a_trunk_with_what_is_not_a_number() {
    let mut wrong = Vec::new();
    for fixture in [STEP, HY_BARE, STEP_MLX, HY_MLX] {
        let whole = Folder::of(fixture);
        let head = |name: &str| is_head(name) || (fixture == HY && name.contains("layers.4."));
        let mut kinds = BTreeSet::new();
        whole.shard_by_shard(|tensors| {
            let trunk = tensors.iter().filter(|t| is_float(t) && !head(&t.name));
            kinds.extend(trunk.map(|t| kind(&t.name)));
        });
        assert!(kinds.len() > 15, "{kinds:?}");
        for wanted in &kinds {
            for value in [f32::NAN, -f32::NAN, f32::INFINITY] {
                // An infinite weight may stand where the others outweigh it: only norms touch every number.
                if value.is_infinite() && !wanted.ends_with("norm.weight") {
                    continue;
                }
                let f = Folder::of(fixture);
                let hit = |name: &str| kind(name) == *wanted && !head(name);
                f.each(hit, |t| t.set(places(t), value));
                if let (n, end) = generate(&f, fixture, 0)
                    && !(n == 0 && matches!(end, Err(EngineError::NotFinite)))
                {
                    wrong.push(format!("\n  {fixture} {wanted} {value}: {n} tokens, {end:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

/// In the last layer alone, where limits could hide it.
#[test]
fn limits_do_not_hide_what_is_not_a_number() {
    for part in ["moe.up_proj", "moe.gate_proj", "share_expert.gate_proj", "share_expert.up_proj"] {
        let f = Folder::of(STEP);
        let name = format!("model.layers.4.{part}.weight");
        f.tensor(&name, |t| t.set(0..t.len(), f32::NAN));
        let (n, end) = generate(&f, STEP, 0);
        assert!(n == 0 && matches!(end, Err(EngineError::NotFinite)), "{name}: {n}, {end:?}");
    }
}

/// A head with such weights cannot draft. Without drafts the text is the trunk's.
#[test]
fn a_head_with_what_is_not_a_number_spoils_drafts_only() {
    for (fixture, name) in [
        (STEP, "model.layers.5.eh_proj.weight"),
        (STEP, "model.layers.6.enorm.weight"),
        (HY, "model.layers.4.hnorm.weight"),
        (HY, "model.layers.4.mlp.router.gate.weight"),
        (HY, "model.layers.4.mlp.expert_bias"),
    ] {
        for value in [f32::NAN, f32::INFINITY] {
            let f = Folder::of(fixture);
            f.tensor(name, |t| t.set(0..t.len(), value));
            let (n, end) = generate(&f, fixture, 0);
            assert!(n == 4 && end.is_ok(), "{name}: {n} tokens, {end:?}");
            // The first cycle drafts, and nothing of it is committed.
            let (n, end) = generate(&f, fixture, 2);
            assert!(n == 0 && matches!(end, Err(EngineError::NotFinite)), "{name}: {n}, {end:?}");
        }
    }
}
