//! What families share besides the leaves of `nn`: reading a configuration, counting modules, saying what a head lacks.

use super::{HeadStatus, KvSize, ModuleUse, TrunkShape, Wiring};
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
use std::path::Path;

pub(super) fn unsupported(key: &str, value: impl std::fmt::Display) -> EngineError {
    EngineError::UnsupportedConfig { key: key.to_owned(), value: value.to_string() }
}

/// Settings that count something a model must have. Sizes are products of two of them, which must not overflow.
const COUNTS: [&str; 12] = [
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "expert_hidden_dim",
    "share_expert_dim",
    "share_expert_dims",
    "num_hidden_layers",
    "num_attention_heads",
    "num_attention_groups",
    "num_key_value_heads",
    "num_shared_experts",
    "vocab_size",
];
/// More than any model has of anything.
const MOST: usize = 1 << 24;

/// The family's settings, in sizes a model can have.
pub(super) fn read_config<C: DeserializeOwned>(checkpoint: &Checkpoint) -> Result<C> {
    let number = |key: &str| checkpoint.config.get(key).and_then(Value::as_u64);
    for (key, n) in COUNTS.iter().filter_map(|key| Some((key, number(key)?))) {
        let least = u64::from(*key != "num_shared_experts");
        if !(least..=MOST as u64).contains(&n) {
            return Err(unsupported(key, n));
        }
    }
    let eps = checkpoint.config.get("rms_norm_eps").and_then(Value::as_f64);
    if let Some(eps) = eps.filter(|eps| *eps < 0.0) {
        return Err(unsupported("rms_norm_eps", eps));
    }
    let read = |config: Value| serde_json::from_value(config).map_err(|e| e.to_string());
    read(checkpoint.config.clone()).map_err(|e| {
        // The parser names what is missing, but not what is of the wrong kind: that is the setting whose absence is another
        // error, or none.
        let names_it = e.starts_with("missing field");
        let without = |key: &&String| {
            if names_it {
                return false;
            }
            let mut rest = checkpoint.config.clone();
            rest.as_object_mut().map(|settings| settings.remove(*key));
            read(rest).map_or_else(|other: String| other != e, |_: C| true)
        };
        let key = checkpoint.config.as_object().and_then(|settings| settings.keys().find(without));
        let key = key.map_or_else(String::new, |key| format!("{key}: "));
        let why = format!("a setting is missing or of the wrong kind ({key}{e})");
        EngineError::Corrupt { file: checkpoint.folder.join("config.json"), why }
    })
}

/// Widths of a head the attention kernel takes, in steps of 16.
pub(super) const HEAD_DIMS: std::ops::RangeInclusive<usize> = 16..=1024;

/// What a layer's attention and rotation can be run with.
pub(super) fn check_attention(spec: &AttentionSpec, rope: &RopeSpec) -> Result<()> {
    let AttentionSpec { n_heads, n_kv_heads, head_dim, window } = *spec;
    let RopeSpec { theta, width, context, .. } = *rope;
    let shares = n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads);
    let turns = (1..=head_dim).contains(&width) && width.is_multiple_of(2);
    let (rows, lengths) = (window.unwrap_or(1), 1..=super::MAX_CONTEXT);
    for (key, value, fits) in [
        ("num_attention_heads", n_heads.to_string(), (1..=MOST).contains(&n_heads)),
        ("the number of key-value heads", format!("{n_kv_heads} for {n_heads}"), shares),
        (
            "head_dim",
            head_dim.to_string(),
            HEAD_DIMS.contains(&head_dim) && head_dim.is_multiple_of(16),
        ),
        ("sliding_window", rows.to_string(), lengths.contains(&rows)),
        ("the rotated width", format!("{width} of {head_dim}"), turns),
        ("rope_theta", theta.to_string(), theta.is_finite() && theta > 0.0),
        ("max_position_embeddings", context.to_string(), lengths.contains(&context)),
    ] {
        if !fits {
            return Err(unsupported(key, value));
        }
    }
    Ok(())
}

/// A router's choice must exist.
pub(super) fn check_routing(key: &str, n_per_token: usize, n_experts: usize) -> Result<()> {
    if (1..=n_experts).contains(&n_per_token) {
        return Ok(());
    }
    Err(unsupported(key, format!("{n_per_token} of {n_experts} experts")))
}

/// A list by layer must reach to the end of the trunk: what it leaves out is not for us to guess.
pub(super) fn check_list(key: &str, len: usize, n_layers: usize) -> Result<()> {
    if len >= n_layers {
        return Ok(());
    }
    Err(unsupported(key, format!("{len} entries for {n_layers} layers")))
}

/// A trunk layer with a head's tensors: the configuration counts the head's layers as the trunk's.
pub(super) fn check_trunk_layer(w: &Weights<'_>, layer: usize, n_layers: usize) -> Result<()> {
    if !w.has("eh_proj.weight") {
        return Ok(());
    }
    Err(unsupported("num_hidden_layers", format!("{n_layers}, but layer {layer} is an MTP layer,")))
}

/// `lm_head`, when the checkpoint has one: the flag tells what to do without. A model that was tied in earnest has none or
/// the embedding once more, so one that differs was trained by itself, and the flag is what is wrong.
pub(super) fn lm_head(
    w: &Weights<'_>,
    embed_tokens: &Embedding,
    tied: Option<bool>,
    (vocab, hidden): (usize, usize),
) -> Result<Linear> {
    if tied.unwrap_or(true) && !w.has("lm_head.weight") {
        return Ok(embed_tokens.as_linear().seeing(w.activations()));
    }
    w.linear("lm_head", vocab, hidden)
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
        let number =
            number.ok_or_else(|| unsupported(&format!("rope_scaling.{key}"), "missing"))?;
        if number > 0.0 {
            return Ok(number);
        }
        Err(unsupported(&format!("rope_scaling.{key}"), number))
    };
    let kind = table.get("rope_type").or(table.get("type")).filter(|kind| !kind.is_null());
    let text = |kind: &Value| kind.as_str().map_or_else(|| kind.to_string(), str::to_owned);
    Ok(match kind.map_or_else(|| "default".to_owned(), text).as_str() {
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
pub(super) fn kv_size<'a>(layers: impl IntoIterator<Item = &'a Attention>) -> KvSize {
    let growing = layers.into_iter().filter(|attention| attention.spec.window.is_none());
    growing.fold(KvSize::default(), |sum, attention| KvSize {
        numbers: sum.numbers + (2 * attention.spec.n_kv_heads * attention.spec.head_dim) as u64,
        width: attention.kv_type().size_in_bytes() as u64,
    })
}

/// Why a checkpoint has no head and where one is, for a person. `first` = the layer a head would begin at.
pub(super) fn no_head(promised: usize, first: usize) -> HeadStatus {
    let why = match promised {
        0 => "No MTP head in this checkpoint.".to_owned(),
        n => {
            let last = if n > 1 { format!(" to {}", first + n - 1) } else { String::new() };
            format!(
                "The configuration promises an MTP head, but the repack lost it: the original release has it as model.layers.{first}{last}."
            )
        }
    };
    HeadStatus::Absent { why }
}

/// The head was found where its `eh_proj` lies.
pub(super) fn found_head(w: &Weights<'_>) -> HeadStatus {
    let file = w.place("eh_proj.weight").and_then(|file| file.file_name()).unwrap_or_default();
    HeadStatus::Found { place: file.to_string_lossy().into_owned() }
}

/// The folder a head is asked for from.
pub(super) fn open_donor(folder: &Path, family: &str) -> Result<Checkpoint> {
    let donor = Checkpoint::open_head(folder)?;
    match donor.config.get("model_type").and_then(Value::as_str) {
        Some(other) if other != family => Err(mismatch("model_type", other, family)),
        _ => Ok(donor),
    }
}

/// A head from another folder must read and write what this trunk does.
pub(super) fn check_donor(trunk: TrunkShape, hidden: usize, vocab: usize) -> Result<()> {
    for (key, head, trunk) in
        [("hidden_size", hidden, trunk.hidden), ("vocab_size", vocab, trunk.vocab)]
    {
        if head != trunk {
            return Err(mismatch(key, head, trunk));
        }
    }
    Ok(())
}

fn mismatch(
    key: &'static str,
    head: impl std::fmt::Display,
    trunk: impl std::fmt::Display,
) -> EngineError {
    EngineError::HeadMismatch { key, head: head.to_string(), trunk: trunk.to_string() }
}

/// Whoever names a folder for its head is told when it has none.
pub(super) fn must_be_there<H>(
    (head, status): (Option<H>, HeadStatus),
    layer: usize,
) -> Result<(Option<H>, HeadStatus)> {
    if head.is_some() {
        return Ok((head, status));
    }
    Err(EngineError::HeadIncomplete {
        missing: vec![format!("model.layers.{layer}.eh_proj.weight")],
    })
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
