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

mod config;
mod layout;
mod parts;
#[cfg(test)]
mod tests;

use self::config::{Config, LayerSpec};
pub(super) use self::layout::LAYOUT;
use super::parts::{
    Module, Ropes, check_donor, check_routing, check_trunk_layer, embed_and_hidden, found_head,
    in_head, kv_size, layer_cache, layer_modules, lm_head, module, must_be_there, no_head,
    norm_module, open_donor, tally, trunk_modules,
};
use super::{HeadFeed, HeadStatus, LoadOptions, Model, MtpHead, Trunk, TrunkShape, Wiring};
use crate::cache::{Cache, LayerCache};
use crate::decode::MAX_DEPTH;
use crate::nn::{
    Attention, Embedding, Ffn, LevelParts, Linear, Moe, Norm, Router, Score, TrunkParts,
};
use crate::weights::{Checkpoint, Weights, ZeroCentred};
use crate::{EngineError, Result};
use candle_core::Tensor;
use foretoken_kernels::{Activations, add};

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

/// The routed experts and the shared one; Step's names put them beside each other.
fn moe(w: &Weights<'_>, c: &Config, (routed, shared): (Option<f32>, Option<f32>)) -> Result<Moe> {
    let (h, m) = (c.hidden_size, w.at("moe"));
    let n_experts = m.n_rows("gate")?;
    // A choice between near equals must not hang on rounding.
    let gate = m.linear("gate", n_experts, h)?.seeing(Activations::Exact);
    check_routing("moe_top_k", c.moe_top_k, n_experts)?;
    let bias = c.use_moe_router_bias.unwrap_or(true);
    let softmax = c.moe_router_activation.as_deref() == Some("softmax");
    let mut experts = m.experts(n_experts, c.moe_intermediate_size, h)?;
    experts.limit = routed.unwrap_or(f32::INFINITY);
    Ok(Moe {
        router: Router {
            gate,
            selection_bias: bias.then(|| m.vector("router_bias", &[n_experts])).transpose()?,
            score: if softmax { Score::Softmax } else { Score::Sigmoid },
            n_experts_per_token: c.moe_top_k,
            renormalise: c.norm_expert_weight.unwrap_or(true),
            scale: c.moe_router_scaling_factor.unwrap_or(1.0) as f32,
        },
        experts,
        shared: Some(w.at("share_expert").mlp(c.share_expert_dim, h, shared)?),
    })
}

struct Block {
    input_layernorm: Norm,
    self_attn: Attention,
    post_attention_layernorm: Norm,
    ffn: Ffn,
}

impl Block {
    fn load(w: &Weights<'_>, c: &Config, layer: usize, ropes: &mut Ropes) -> Result<Self> {
        let LayerSpec { attention: spec, rope, is_moe, limits } = c.layer(layer)?;
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
            ffn: if is_moe {
                Ffn::Moe(moe(w, c, limits)?)
            } else {
                Ffn::Dense(w.at("mlp").mlp(c.intermediate_size, h, limits.1)?)
            },
        })
    }

    fn forward(&self, x: &Tensor, cache: &mut LayerCache) -> Result<Tensor> {
        let x = add(x, &self.self_attn.forward(&self.input_layernorm.forward(x)?, cache)?)?;
        let y = self.ffn.forward(&self.post_attention_layernorm.forward(&x)?)?;
        Ok(add(&x, &y)?)
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

    fn parts(&self) -> Option<TrunkParts<'_>> {
        Some(self.described())
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
        let x = embed_and_hidden(embed, level.hnorm.forward(hidden)?, self.wiring)?;
        level.layer.forward(&level.eh_proj.forward(&x)?, &mut cache.layers[0])
    }

    fn logits(&self, level: usize, hidden: &Tensor) -> Result<Tensor> {
        let level = self.level(level);
        level.shared_head_output.forward(&level.shared_head_norm.forward(hidden)?)
    }

    fn parts(&self, level: usize) -> Option<LevelParts<'_>> {
        Some(self.described(self.level(level)))
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
    let n_levels = if promised > 0 { promised } else { n_found }.min(MAX_DEPTH);
    if (0..n_levels).all(|i| place(i).is_none()) {
        return Ok((None, no_head(promised.min(MAX_DEPTH), first)));
    }
    let wanted = |i: usize| place(i).unwrap_or_else(|| w.at("model.layers").at(first + i));
    let missing: Vec<String> =
        (0..n_levels).flat_map(|i| wanted(i).missing(&LEVEL_PARTS)).collect();
    if !missing.is_empty() {
        return Err(EngineError::HeadIncomplete { missing });
    }
    check_donor(trunk.shape, c.hidden_size, c.vocab_size)?;
    let mut levels = (0..n_levels)
        .map(|i| Level::load(&wanted(i), c, first + i, ropes).map_err(in_head))
        .collect::<Result<Vec<_>>>()?;
    if wiring == Wiring::TrunkLmHead {
        levels.iter_mut().for_each(|level| level.shared_head_output = trunk.lm_head.clone());
    }
    let head = StepHead { embed_tokens: trunk.embed_tokens.clone(), levels, wiring };
    Ok((Some(head), found_head(&wanted(0))))
}

fn load_trunk(w: &Weights<'_>, c: &Config, ropes: &mut Ropes) -> Result<StepTrunk> {
    let (h, vocab, m) = (c.hidden_size, c.vocab_size, w.at("model"));
    let embed_tokens = Embedding::new(m.matrix("embed_tokens", vocab, h)?);
    let layers = (0..c.num_hidden_layers)
        .map(|i| {
            let w = m.at("layers").at(i);
            check_trunk_layer(&w, i, c.num_hidden_layers)?;
            Block::load(&w, c, i, ropes)
        })
        .collect::<Result<Vec<_>>>()?;
    let lm_head = lm_head(w, &embed_tokens, c.tie_word_embeddings, (vocab, h))?;
    let shape = TrunkShape { n_layers: layers.len(), hidden: h, vocab, context: c.context() };
    Ok(StepTrunk { shape, embed_tokens, layers, norm: m.norm("norm", h, c.eps())?, lm_head })
}

pub(super) fn load(
    checkpoint: &Checkpoint,
    w: &Weights<'_>,
    options: LoadOptions<'_>,
) -> Result<Model> {
    let (c, mut ropes, wiring) = (Config::read(checkpoint)?, Ropes::default(), options.wiring);
    let norms = |c: &Config| c.zero_centered.unwrap_or(true).then_some(NORMS);
    let w = w.renamed(NAMES, norms(&c))?;
    let trunk = load_trunk(&w, &c, &mut ropes)?;
    let (head, head_status) = match options.head {
        None if wiring == Wiring::NormsWithoutOne => {
            load_head(&w.renamed(NAMES, None)?, &c, &trunk, &mut ropes, wiring)?
        }
        None => load_head(&w, &c, &trunk, &mut ropes, wiring)?,
        Some(folder) => {
            let donor = open_donor(folder, "step3p5")?;
            // The trunk says how far a text goes.
            let c = Config::read(&donor)?.reaching(trunk.shape.context);
            let w = Weights::root(&donor).seeing(w.activations()).renamed(NAMES, norms(&c))?;
            let head = load_head(&w, &c, &trunk, &mut ropes, wiring)?;
            w.refuse_biases()?;
            must_be_there(head, c.num_hidden_layers)?
        }
    };
    let levels = || head.iter().flat_map(|head| &head.levels);
    let kv_layers = trunk.layers.iter().chain(levels().map(|level| &level.layer));
    Ok(Model {
        family: "step3p5",
        trunk_modules: trunk_modules(
            &trunk.embed_tokens,
            trunk.layers.iter().flat_map(Block::modules),
            &trunk.norm,
            &trunk.lm_head,
        ),
        head_modules: tally(levels().flat_map(Level::modules)),
        kv: kv_size(kv_layers.map(|layer| &layer.self_attn)),
        trunk: Box::new(trunk),
        head: head.map(|head| Box::new(head) as Box<dyn MtpHead>),
        head_status,
        leftovers: Vec::new(),
    })
}
