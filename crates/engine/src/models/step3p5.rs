//! Step 3.5 Flash, `step3p5`: full and sliding layers, routed experts, and a head of three chained levels
//! (`reference/step3p5.md`). All norms are zero-centred.
//!
//! ```text
//! block:  x += o(gate_heads(attend(rope(q_norm(q u)), rope(k_norm(k u)), v u), g u)),  u = input_layernorm(x)
//!         x += ffn(post_attention_layernorm(x)); ffn = a gated MLP, or routed experts + a shared one, limited in some layers
//! logits: lm_head(norm(x))
//! level d: x = eh_proj [ enorm(embed(t_{i+1+d})) ; hnorm(h_i^d) ];  h_i^{d+1} = block(x)
//!          logits = shared_head.output(shared_head.norm(h_i^{d+1}));  h^0 = the trunk's stream
//! ```

use super::parts::{
    Module, Ropes, check_heads, in_head, kv_bytes, layer_cache, layer_modules, module, no_head,
    norm_module, read_config, rope_scaling, tally, unsupported,
};
use super::{HeadFeed, HeadStatus, LoadOptions, Model, MtpHead, Trunk, TrunkShape, Wiring};
use crate::cache::{Cache, LayerCache};
use crate::nn::{
    Attention, AttentionSpec, Embedding, Ffn, Linear, Moe, Norm, RopeSpec, Router, Score,
};
use crate::weights::{Checkpoint, Weights, ZeroCentred};
use crate::{EngineError, Result};
use candle_core::Tensor;
use serde::Deserialize;
use serde_json::Value;

/// The head reads the stream before the trunk's final norm: vLLM, SGLang, llama.cpp and MTPLX; a public port measured 73-80 %
/// accepted against 1-2 % (`reference/step3p5.md` 4). The fixture's logits pin it.
const FEED: HeadFeed = HeadFeed::PreNorm;

/// (published, ours): the original names without `experts` and `transformer`; the head under `mtp.layers` or layer numbers.
const NAMES: &[(&str, &str)] = &[
    ("^language_model.", ""),
    (".moe.experts.", ".moe."),
    // MLX
    (".mlp.switch_mlp.", ".moe."),
    (".mlp.gate.gate.", ".moe.gate."),
    (".mlp.gate.router_bias", ".moe.router_bias"),
    (".mlp.share_expert.", ".share_expert."),
    // heads
    ("^model.mtp.", "mtp."),
    (".mtp_block.", "."),
    (".transformer.shared_head.", ".shared_head."),
    (".shared_head.head.", ".shared_head.output."),
    (".shared_head_norm.", ".shared_head.norm."),
    (".shared_head_head.", ".shared_head.output."),
];
/// MLX converters store 1 + w (`reference/step3p5.md` 2).
const NORMS: ZeroCentred =
    ZeroCentred { added: &["switch_mlp", "mtp."], original: &[".moe.", ".eh_proj."] };

/// A level's tensors besides its decoder layer.
const LEVEL_PARTS: [&str; 5] = [
    "enorm.weight",
    "hnorm.weight",
    "eh_proj.weight",
    "shared_head.norm.weight",
    "shared_head.output.weight",
];

#[derive(Debug, Deserialize)]
struct Config {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_nextn_predict_layers: Option<usize>,
    vocab_size: usize,
    layer_types: Vec<String>,
    num_attention_heads: usize,
    num_attention_groups: usize,
    head_dim: usize,
    attention_other_setting: Option<OtherAttention>,
    sliding_window: Option<usize>,
    rope_theta: Value,
    partial_rotary_factors: Option<Vec<f64>>,
    rope_scaling: Option<Value>,
    yarn_only_types: Option<Vec<String>>,
    use_rope_layers: Option<Vec<bool>>,
    max_position_embeddings: Option<usize>,
    max_seq_len: Option<usize>,
    use_head_wise_attn_gate: Option<bool>,
    use_qk_norm: Option<bool>,
    zero_centered: Option<bool>,
    rms_norm_eps: Option<f64>,
    moe_layers_enum: Option<Value>,
    moe_top_k: usize,
    moe_intermediate_size: usize,
    #[serde(alias = "share_expert_dims")]
    share_expert_dim: usize,
    moe_router_activation: Option<String>,
    use_moe_router_bias: Option<bool>,
    moe_router_scaling_factor: Option<f64>,
    norm_expert_weight: Option<bool>,
    swiglu_limits: Option<Vec<Option<f64>>>,
    swiglu_limits_shared: Option<Vec<Option<f64>>>,
    tie_word_embeddings: Option<bool>,
}

/// Attention of the layers of one type, where it differs.
#[derive(Debug, Deserialize)]
struct OtherAttention {
    attention_type: String,
    num_attention_heads: usize,
    num_attention_groups: usize,
    head_dim: usize,
}

/// What one layer is, all lists looked up.
#[derive(Debug, Clone, PartialEq)]
struct LayerSpec {
    attention: AttentionSpec,
    rope: RopeSpec,
    moe: bool,
    /// Of the routed experts, and of the shared expert or the dense MLP.
    limits: (Option<f32>, Option<f32>),
}

impl Config {
    fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let c: Self = read_config(checkpoint)?;
        if c.use_rope_layers.iter().flatten().any(|rope| !rope) {
            return Err(unsupported("use_rope_layers", "false"));
        }
        match c.moe_router_activation.as_deref().unwrap_or("sigmoid") {
            "sigmoid" | "softmax" => Ok(c),
            other => Err(unsupported("moe_router_activation", other)),
        }
    }

    fn eps(&self) -> f32 {
        self.rms_norm_eps.unwrap_or(1e-5) as f32
    }

    fn context(&self) -> usize {
        self.max_position_embeddings.or(self.max_seq_len).unwrap_or(4096)
    }

    /// The place in per-layer lists; a list that ends with the trunk lends a nextn layer its first sliding entry.
    fn entry(&self, layer: usize, len: usize) -> usize {
        let sliding = || self.layer_types.iter().position(|kind| kind == "sliding_attention");
        if layer < len { layer } else { sliding().unwrap_or(0) }
    }

    fn is_moe(&self, layer: usize) -> bool {
        let listed = match &self.moe_layers_enum {
            Some(Value::String(list)) => list.split(',').any(|n| n.trim().parse() == Ok(layer)),
            Some(Value::Array(list)) => list.iter().any(|n| n.as_u64() == Some(layer as u64)),
            _ => layer > 0,
        };
        listed && layer < self.num_hidden_layers
    }

    fn layer(&self, layer: usize) -> Result<LayerSpec> {
        let at = |len| self.entry(layer, len);
        let kind = self.layer_types.get(at(self.layer_types.len()));
        let kind = kind.ok_or_else(|| unsupported("layer_types", "too short"))?;
        let other = self.attention_other_setting.as_ref().filter(|o| o.attention_type == *kind);
        let (n_heads, n_kv_heads, head_dim) = match other {
            Some(o) => (o.num_attention_heads, o.num_attention_groups, o.head_dim),
            None => (self.num_attention_heads, self.num_attention_groups, self.head_dim),
        };
        let window = match kind.as_str() {
            "full_attention" => None,
            "sliding_attention" => {
                Some(self.sliding_window.ok_or_else(|| unsupported("sliding_window", "missing"))?)
            }
            other => return Err(unsupported("layer_types", other)),
        };
        let attention = AttentionSpec { n_heads, n_kv_heads, head_dim, window };
        check_heads(&attention)?;
        let theta = match &self.rope_theta {
            Value::Array(list) => list.get(at(list.len())).and_then(Value::as_f64),
            one => one.as_f64(),
        };
        let theta = theta.ok_or_else(|| unsupported("rope_theta", &self.rope_theta))?;
        let factor = self.partial_rotary_factors.as_ref().and_then(|f| f.get(at(f.len())));
        let width = (head_dim as f64 * factor.unwrap_or(&1.0)) as usize;
        let scaled = self.yarn_only_types.as_ref().is_none_or(|types| types.contains(kind));
        let scaling = rope_scaling(self.rope_scaling.as_ref().filter(|_| scaled))?;
        let limit = |list: &Option<Vec<Option<f64>>>| {
            let of_layer = list.as_ref().and_then(|list| *list.get(layer)?);
            of_layer.filter(|limit| *limit > 0.0).map(|limit| limit as f32)
        };
        Ok(LayerSpec {
            attention,
            rope: RopeSpec { theta, width, scaling, context: self.context() },
            moe: self.is_moe(layer),
            limits: (limit(&self.swiglu_limits), limit(&self.swiglu_limits_shared)),
        })
    }

    /// The routed experts and the shared one; Step's names put them beside each other.
    fn moe(&self, w: &Weights<'_>, (routed, shared): (Option<f32>, Option<f32>)) -> Result<Moe> {
        let (h, m) = (self.hidden_size, w.at("moe"));
        let n_experts = m.n_rows("gate")?;
        if self.moe_top_k == 0 || self.moe_top_k > n_experts {
            return Err(unsupported("moe_top_k", self.moe_top_k));
        }
        let bias = self.use_moe_router_bias.unwrap_or(true);
        let softmax = self.moe_router_activation.as_deref() == Some("softmax");
        let mut experts = m.experts(n_experts, self.moe_intermediate_size, h)?;
        experts.limit = routed.unwrap_or(f32::INFINITY);
        Ok(Moe {
            router: Router {
                gate: m.linear("gate", n_experts, h)?,
                selection_bias: bias.then(|| m.vector("router_bias", &[n_experts])).transpose()?,
                score: if softmax { Score::Softmax } else { Score::Sigmoid },
                n_experts_per_token: self.moe_top_k,
                renormalise: self.norm_expert_weight.unwrap_or(true),
                scale: self.moe_router_scaling_factor.unwrap_or(1.0) as f32,
            },
            experts,
            shared: Some(w.at("share_expert").mlp(self.share_expert_dim, h, shared)?),
        })
    }
}

struct Block {
    input_layernorm: Norm,
    self_attn: Attention,
    post_attention_layernorm: Norm,
    ffn: Ffn,
}

impl Block {
    fn load(w: &Weights<'_>, c: &Config, layer: usize, ropes: &mut Ropes) -> Result<Self> {
        let LayerSpec { attention: spec, rope, moe, limits } = c.layer(layer)?;
        let (h, eps, a) = (c.hidden_size, c.eps(), w.at("self_attn"));
        let norms = c.use_qk_norm.unwrap_or(true).then_some(eps);
        let gated = c.use_head_wise_attn_gate.unwrap_or(true);
        Ok(Self {
            input_layernorm: w.norm("input_layernorm", h, eps)?,
            self_attn: Attention {
                gate: gated.then(|| a.linear("g_proj", spec.n_heads, h)).transpose()?,
                ..a.attention(spec, h, ropes.get(rope), norms)?
            },
            post_attention_layernorm: w.norm("post_attention_layernorm", h, eps)?,
            ffn: if moe {
                Ffn::Moe(c.moe(w, limits)?)
            } else {
                Ffn::Dense(w.at("mlp").mlp(c.intermediate_size, h, limits.1)?)
            },
        })
    }

    fn forward(&self, x: &Tensor, cache: &mut LayerCache) -> Result<Tensor> {
        let x = (x + self.self_attn.forward(&self.input_layernorm.forward(x)?, cache)?)?;
        let y = self.ffn.forward(&self.post_attention_layernorm.forward(&x)?)?;
        Ok((x + y)?)
    }

    fn modules(&self) -> Vec<Module> {
        let norms = [&self.input_layernorm, &self.post_attention_layernorm];
        layer_modules(&self.self_attn, &self.ffn, norms)
    }
}

struct StepTrunk {
    shape: TrunkShape,
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: Norm,
    lm_head: Linear,
}

impl Trunk for StepTrunk {
    fn shape(&self) -> TrunkShape {
        self.shape
    }

    fn new_cache(&self) -> Cache {
        Cache::new(self.layers.iter().map(|layer| layer_cache(layer.self_attn.spec)).collect())
    }

    fn forward(&self, tokens: &[u32], cache: &mut Cache) -> Result<Tensor> {
        let mut x = self.embed_tokens.forward(tokens)?;
        for (layer, cache) in self.layers.iter().zip(&mut cache.layers) {
            x = layer.forward(&x, cache)?;
        }
        Ok(x)
    }

    fn norm(&self, hidden: &Tensor) -> Result<Tensor> {
        self.norm.forward(hidden)
    }

    fn logits(&self, normed: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(normed)
    }
}

/// One nextn layer with an output matrix of its own (the trunk's gives 2-4 %, `reference/step3p5.md` 4).
struct Level {
    enorm: Norm,
    hnorm: Norm,
    eh_proj: Linear,
    layer: Block,
    shared_head_norm: Norm,
    shared_head_output: Linear,
}

/// The levels, chained by their un-normed outputs.
struct StepHead {
    embed_tokens: Embedding,
    levels: Vec<Level>,
    wiring: Wiring,
}

impl StepHead {
    fn level(&self, level: usize) -> &Level {
        &self.levels[if self.wiring == Wiring::FirstLevelOnly { 0 } else { level }]
    }
}

impl MtpHead for StepHead {
    fn levels(&self) -> usize {
        self.levels.len()
    }

    fn feed(&self) -> HeadFeed {
        if self.wiring == Wiring::OtherHidden { HeadFeed::PostNorm } else { FEED }
    }

    fn new_cache(&self, level: usize) -> Cache {
        Cache::new(vec![layer_cache(self.level(level).layer.self_attn.spec)])
    }

    fn forward(
        &self,
        level: usize,
        next_tokens: &[u32],
        hidden: &Tensor,
        cache: &mut Cache,
    ) -> Result<Tensor> {
        let level = self.level(level);
        let embed = level.enorm.forward(&self.embed_tokens.forward(next_tokens)?)?;
        let mut halves = [embed, level.hnorm.forward(hidden)?];
        if self.wiring == Wiring::FlippedConcat {
            halves.reverse();
        }
        let x = level.eh_proj.forward(&Tensor::cat(&halves, 1)?)?;
        level.layer.forward(&x, &mut cache.layers[0])
    }

    fn logits(&self, level: usize, hidden: &Tensor) -> Result<Tensor> {
        let level = self.level(level);
        level.shared_head_output.forward(&level.shared_head_norm.forward(hidden)?)
    }
}

impl Level {
    fn load(w: &Weights<'_>, c: &Config, layer: usize, ropes: &mut Ropes) -> Result<Self> {
        let (h, eps) = (c.hidden_size, c.eps());
        Ok(Self {
            enorm: w.norm("enorm", h, eps)?,
            hnorm: w.norm("hnorm", h, eps)?,
            eh_proj: w.linear("eh_proj", h, 2 * h)?,
            layer: Block::load(w, c, layer, ropes)?,
            shared_head_norm: w.norm("shared_head.norm", h, eps)?,
            shared_head_output: w.linear("shared_head.output", c.vocab_size, h)?,
        })
    }

    fn modules(&self) -> Vec<Module> {
        let mut out = self.layer.modules();
        out.extend([module("eh_proj", &self.eh_proj), module("lm_head", &self.shared_head_output)]);
        out.extend([&self.enorm, &self.hnorm, &self.shared_head_norm].map(norm_module));
        out
    }
}

/// `w` and `c` are those of the checkpoint that has the head, `trunk` may be another's.
fn load_head(
    w: &Weights<'_>,
    c: &Config,
    trunk: &StepTrunk,
    ropes: &mut Ropes,
    wiring: Wiring,
) -> Result<(Option<StepHead>, HeadStatus)> {
    let first = c.num_hidden_layers;
    let place = |i: usize| {
        let places = [w.at("mtp.layers").at(i), w.at("model.layers").at(first + i)];
        places.into_iter().find(|place| !place.is_empty())
    };
    let promised = c.num_nextn_predict_layers.unwrap_or(0);
    let n_found = (0..).take_while(|i| place(*i).is_some()).count();
    let n_levels = if promised > 0 { promised } else { n_found };
    if (0..n_levels).all(|i| place(i).is_none()) {
        return Ok((None, no_head(promised > 0)));
    }
    let wanted = |i: usize| place(i).unwrap_or_else(|| w.at("model.layers").at(first + i));
    let missing: Vec<String> =
        (0..n_levels).flat_map(|i| wanted(i).missing(&LEVEL_PARTS)).collect();
    if !missing.is_empty() {
        return Err(EngineError::HeadIncomplete { missing });
    }
    if (c.hidden_size, c.vocab_size) != (trunk.shape.hidden, trunk.shape.vocab) {
        let sizes = format!("{}, {}", c.hidden_size, c.vocab_size);
        return Err(unsupported("hidden_size and vocab_size of the head's folder", sizes));
    }
    let mut levels = (0..n_levels)
        .map(|i| Level::load(&wanted(i), c, first + i, ropes).map_err(in_head))
        .collect::<Result<Vec<_>>>()?;
    if wiring == Wiring::TrunkLmHead {
        levels.iter_mut().for_each(|level| level.shared_head_output = trunk.lm_head.clone());
    }
    let file = wanted(0).place("eh_proj.weight").and_then(|f| f.file_name()).unwrap_or_default();
    let place = file.to_string_lossy().into_owned();
    let head = StepHead { embed_tokens: trunk.embed_tokens.clone(), levels, wiring };
    Ok((Some(head), HeadStatus::Found { place }))
}

pub(super) fn load(
    checkpoint: &Checkpoint,
    w: &Weights<'_>,
    options: LoadOptions<'_>,
) -> Result<Model> {
    let c = Config::read(checkpoint)?;
    let norms = |c: &Config| c.zero_centered.unwrap_or(true).then_some(NORMS);
    let w = w.renamed(NAMES, norms(&c))?;
    let (h, vocab, mut ropes) = (c.hidden_size, c.vocab_size, Ropes::default());
    let m = w.at("model");
    let embed_tokens = Embedding::new(m.matrix("embed_tokens", vocab, h)?);
    let layers = (0..c.num_hidden_layers)
        .map(|i| Block::load(&m.at("layers").at(i), &c, i, &mut ropes))
        .collect::<Result<Vec<_>>>()?;
    let tied = c.tie_word_embeddings.unwrap_or(!w.has("lm_head.weight"));
    let lm_head = if tied { embed_tokens.as_linear() } else { w.linear("lm_head", vocab, h)? };
    let shape = TrunkShape { n_layers: layers.len(), hidden: h, vocab, context: c.context() };
    let norm = m.norm("norm", h, c.eps())?;
    let trunk = StepTrunk { shape, embed_tokens, layers, norm, lm_head };

    let wiring = options.wiring;
    let (head, head_status) = match options.head {
        None if wiring == Wiring::NormsWithoutOne => {
            load_head(&w.renamed(NAMES, None)?, &c, &trunk, &mut ropes, wiring)?
        }
        None => load_head(&w, &c, &trunk, &mut ropes, wiring)?,
        Some(folder) => {
            let donor = Checkpoint::open_head(folder)?;
            let c = Config::read(&donor)?;
            let w = Weights::root(&donor).renamed(NAMES, norms(&c))?;
            load_head(&w, &c, &trunk, &mut ropes, wiring)?
        }
    };

    let mut trunk_modules = vec![module("embedding", &trunk.embed_tokens.as_linear())];
    trunk_modules.extend(trunk.layers.iter().flat_map(Block::modules));
    trunk_modules.push(norm_module(&trunk.norm));
    if !tied {
        trunk_modules.push(module("lm_head", &trunk.lm_head));
    }
    let levels = || head.iter().flat_map(|head| &head.levels);
    let kv_layers = trunk.layers.iter().chain(levels().map(|level| &level.layer));
    Ok(Model {
        family: "step3p5",
        trunk_modules: tally(trunk_modules),
        head_modules: tally(levels().flat_map(Level::modules)),
        kv_bytes_per_token: kv_bytes(kv_layers.map(|layer| layer.self_attn.spec)),
        trunk: Box::new(trunk),
        head: head.map(|head| Box::new(head) as Box<dyn MtpHead>),
        head_status,
        leftovers: Vec::new(),
    })
}
