//! What families share besides the leaves of `nn`: reading a configuration, counting modules, saying what a head lacks.

use super::{HeadStatus, ModuleUse, TrunkShape, Wiring};
use crate::cache::{CacheKind, LayerCache};
use crate::nn::{
    Attention, AttentionSpec, Embedding, Ffn, Linear, Mlp, Norm, Rope, RopeScaling, RopeSpec,
};
use crate::weights::{Checkpoint, Weights};
use crate::{EngineError, Result};
use candle_core::Tensor;
use foretoken_kernels::Weight;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) fn unsupported(key: &str, value: impl std::fmt::Display) -> EngineError {
    EngineError::UnsupportedConfig { key: key.to_owned(), value: value.to_string() }
}

/// The family's settings; a model without layers is none.
pub(super) fn read_config<C: DeserializeOwned>(checkpoint: &Checkpoint) -> Result<C> {
    if checkpoint.config.get("num_hidden_layers").and_then(Value::as_u64) == Some(0) {
        return Err(unsupported("num_hidden_layers", 0));
    }
    serde_json::from_value(checkpoint.config.clone()).map_err(|e| EngineError::Corrupt {
        file: checkpoint.folder.join("config.json"),
        why: format!("a setting is missing or of the wrong kind ({e})"),
    })
}

/// Widths of a head the attention kernel takes, in steps of 16.
pub(super) const HEAD_DIMS: std::ops::RangeInclusive<usize> = 16..=1024;

/// What a layer's attention and rotation can be run with.
pub(super) fn check_attention(spec: &AttentionSpec, rope: &RopeSpec) -> Result<()> {
    let AttentionSpec { n_heads, n_kv_heads, head_dim, window } = *spec;
    let fits = [
        ("the number of key-value heads", n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads)),
        ("head_dim", HEAD_DIMS.contains(&head_dim) && head_dim.is_multiple_of(16)),
        ("sliding_window", window != Some(0)),
        (
            "the rotated width",
            rope.width > 0 && rope.width <= head_dim && rope.width.is_multiple_of(2),
        ),
        ("rope_theta", rope.theta.is_finite() && rope.theta > 0.0),
        ("max_position_embeddings", (1..=super::MAX_CONTEXT).contains(&rope.context)),
    ];
    match fits.iter().find(|(_, fits)| !fits) {
        Some((key, _)) => Err(unsupported(key, format!("{spec:?}, {rope:?}"))),
        None => Ok(()),
    }
}

/// A router's choice must exist.
pub(super) fn check_routing(n_experts_per_token: usize, n_experts: usize) -> Result<()> {
    if (1..=n_experts).contains(&n_experts_per_token) {
        return Ok(());
    }
    Err(unsupported("the number of experts per token", n_experts_per_token))
}

/// What `eh_proj` reads: the embedding first, in every family known.
pub(super) fn embed_and_hidden(embed: Tensor, hidden: Tensor, wiring: Wiring) -> Result<Tensor> {
    let flipped = wiring == Wiring::FlippedConcat;
    let halves = if flipped { [hidden, embed] } else { [embed, hidden] };
    Ok(Tensor::cat(&halves, 1)?)
}

/// `rope_scaling`, or what `rope_parameters` says of it.
pub(super) fn rope_scaling(table: Option<&Value>) -> Result<Option<RopeScaling>> {
    let Some(table) = table.filter(|table| table.is_object()) else { return Ok(None) };
    let need = |key: &str| {
        let number = table.get(key).and_then(Value::as_f64);
        number.ok_or_else(|| unsupported(&format!("rope_scaling.{key}"), "missing"))
    };
    let kind = table.get("rope_type").or(table.get("type")).and_then(Value::as_str);
    Ok(match kind.unwrap_or("default") {
        "default" => None,
        "linear" => Some(RopeScaling::Linear { factor: need("factor")? }),
        "llama3" => Some(RopeScaling::Llama3 {
            factor: need("factor")?,
            low: need("low_freq_factor")?,
            high: need("high_freq_factor")?,
            original_context: need("original_max_position_embeddings")?,
        }),
        other => return Err(unsupported("rope_type", other)),
    })
}

/// Rotation tables, one per kind of layer.
#[derive(Default)]
pub(super) struct Ropes(Vec<(RopeSpec, Rope)>);

impl Ropes {
    pub fn get(&mut self, spec: RopeSpec) -> Rope {
        if let Some((_, rope)) = self.0.iter().find(|(known, _)| *known == spec) {
            return rope.clone();
        }
        let rope = Rope::new(spec);
        self.0.push((spec, rope.clone()));
        rope
    }
}

pub(super) fn layer_cache(spec: AttentionSpec) -> LayerCache {
    let kind = match spec.window {
        Some(window) => CacheKind::Sliding { window, slack: super::MAX_TAKEN_BACK },
        None => CacheKind::Full,
    };
    LayerCache::new(kind, spec.n_kv_heads * spec.head_dim)
}

/// KV bytes that each token adds, f32; a sliding layer stops growing and counts for nothing.
pub(super) fn kv_bytes(layers: impl IntoIterator<Item = AttentionSpec>) -> u64 {
    let growing = layers.into_iter().filter(|spec| spec.window.is_none());
    growing.map(|spec| (2 * 4 * spec.n_kv_heads * spec.head_dim) as u64).sum()
}

/// Why a checkpoint has no head, for a person.
pub(super) fn no_head(promised: bool) -> HeadStatus {
    let why = if promised {
        "The configuration promises an MTP head, but this checkpoint does not contain its tensors: the repack lost it."
    } else {
        "No MTP head in this checkpoint."
    };
    HeadStatus::Absent { why: why.to_owned() }
}

/// The head was found where its `eh_proj` lies.
pub(super) fn found_head(w: &Weights<'_>) -> HeadStatus {
    let file = w.place("eh_proj.weight").and_then(|file| file.file_name()).unwrap_or_default();
    HeadStatus::Found { place: file.to_string_lossy().into_owned() }
}

/// A head from another folder must read and write what this trunk does.
pub(super) fn check_donor(trunk: TrunkShape, hidden: usize, vocab: usize) -> Result<()> {
    let sizes = [("hidden_size", hidden, trunk.hidden), ("vocab_size", vocab, trunk.vocab)];
    match sizes.into_iter().find(|(_, head, trunk)| head != trunk) {
        Some((key, head, trunk)) => {
            Err(EngineError::HeadMismatch { key, head: head.to_string(), trunk: trunk.to_string() })
        }
        None => Ok(()),
    }
}

/// A tensor that is missing from a head which is otherwise there.
pub(super) fn in_head(error: EngineError) -> EngineError {
    match error {
        EngineError::MissingTensor { name, .. } => {
            EngineError::HeadIncomplete { missing: vec![name] }
        }
        error => error,
    }
}

pub(super) type Module = (&'static str, String, u64, u64);

fn matrix_module(kind: &'static str, weight: &Weight) -> Module {
    let (n, k) = weight.dims();
    (kind, weight.storage(), (n * k) as u64, weight.n_bytes() as u64)
}

pub(super) fn module(kind: &'static str, linear: &Linear) -> Module {
    matrix_module(kind, linear.weight())
}

pub(super) fn norm_module(norm: &Norm) -> Module {
    ("norm", "f32".to_owned(), norm.width() as u64, norm.n_bytes() as u64)
}

pub(super) fn layer_modules(a: &Attention, ffn: &Ffn, norms: [&Norm; 2]) -> Vec<Module> {
    let mut out: Vec<_> = [&a.q, &a.k, &a.v, &a.o].map(|l| module("attention", l)).into();
    out.extend(a.gate.iter().map(|l| module("attention", l)));
    let mlp = |mlp: &Mlp, kind| [&mlp.gate, &mlp.up, &mlp.down].map(|l| module(kind, l));
    match ffn {
        Ffn::Dense(dense) => out.extend(mlp(dense, "mlp")),
        Ffn::Moe(moe) => {
            out.push(module("router", &moe.router.gate));
            out.extend(moe.shared.iter().flat_map(|shared| mlp(shared, "shared expert")));
            let e = &moe.experts;
            let all = e.gate.iter().chain(&e.up).chain(&e.down);
            out.extend(all.map(|weight| matrix_module("experts", weight)));
        }
    }
    out.extend(norms.into_iter().chain(&a.q_norm).chain(&a.k_norm).map(norm_module));
    out
}

/// Everything in a trunk; a tied head is counted once.
pub(super) fn trunk_modules(
    embed_tokens: &Embedding,
    layers: impl Iterator<Item = Module>,
    norm: &Norm,
    lm_head: &Linear,
) -> Vec<ModuleUse> {
    let tied = std::ptr::eq(embed_tokens.weight(), lm_head.weight());
    let ends = [matrix_module("embedding", embed_tokens.weight()), norm_module(norm)];
    let lm_head = (!tied).then(|| module("lm_head", lm_head));
    tally(ends.into_iter().chain(layers).chain(lm_head))
}

/// Sums modules of one kind and storage.
pub(super) fn tally(modules: impl IntoIterator<Item = Module>) -> Vec<ModuleUse> {
    let mut out: Vec<ModuleUse> = Vec::new();
    for (kind, storage, parameters, bytes) in modules {
        match out.iter_mut().find(|m| m.kind == kind && m.storage == storage) {
            Some(m) => {
                m.modules += 1;
                m.parameters += parameters;
                m.bytes += bytes;
            }
            None => out.push(ModuleUse { kind, storage, modules: 1, parameters, bytes }),
        }
    }
    out
}
