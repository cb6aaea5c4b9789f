//! Tencent Hy3, `hy_v3`: a mixture trunk with one nextn layer (`reference/hy_v3.md`).
//!
//! ```text
//! block:  x += o(attend(rope(q_norm(q u)), rope(k_norm(k u)), v u)),  u = input_layernorm(x)
//!         x += ffn(post_attention_layernorm(x)); ffn = a gated MLP in the first layers, after them routed experts + a shared one
//! logits: lm_head(norm(x))
//! head:   x = eh_proj [ enorm(embed(t_{i+1})) ; hnorm(h_i) ];  g = final_layernorm(block(x));  logits = lm_head(g)
//! ```

mod config;
mod layout;
#[cfg(test)]
mod tests;

use self::config::Config;
pub(super) use self::layout::LAYOUT;
use super::parts::{
    Module, check_donor, check_routing, check_trunk_layer, embed_and_hidden, found_head, in_head,
    kv_size, layer_cache, layer_modules, lm_head, module, must_be_there, no_head, norm_module,
    open_donor, tally, trunk_modules,
};
use super::{HeadFeed, HeadStatus, LoadOptions, Model, MtpHead, Trunk, TrunkShape, Wiring};
use crate::cache::{Cache, LayerCache};
use crate::nn::{
    Attention, BlockParts, Embedding, Ffn, LevelParts, Linear, Moe, Norm, Rope, Router, Score,
    TrunkParts,
};
use crate::weights::{Checkpoint, Weights};
use crate::{EngineError, Result};
use candle_core::Tensor;
use foretoken_kernels::{Activations, add};

/// The head was trained on the normed state: vLLM, SGLang, llama.cpp and transformers feed it so, and MTPLX measured 77 %
/// agreement on the release against 39 % (`reference/hy_v3.md` 4.1). The fixture's test pins it.
const FEED: HeadFeed = HeadFeed::PostNorm;

/// (published, ours): the original names; experts under `experts` in every storage, the head under `mtp` or its number.
const NAMES: &[(&str, &str)] = &[
    ("^language_model.", ""),
    // MLX
    (".mlp.switch_mlp.", ".mlp.experts."),
    (".mlp.router.expert_bias", ".mlp.expert_bias"),
    ("^model.mtp.", "mtp."),
    ("mtp.layer.", "mtp."),
    // saved again by transformers
    (".mlp.gate.", ".mlp.router.gate."),
    (".mlp.e_score_correction_bias", ".mlp.expert_bias"),
    (".mlp.shared_experts.", ".mlp.shared_mlp."),
    (".mlp.experts.gate_up_proj$", ".mlp.experts.gate_up_proj.weight"),
    (".mlp.experts.down_proj$", ".mlp.experts.down_proj.weight"),
];

/// The head's tensors besides its decoder layer.
const HEAD_PARTS: [&str; 4] =
    ["enorm.weight", "hnorm.weight", "eh_proj.weight", "final_layernorm.weight"];

struct Block {
    input_layernorm: Norm,
    self_attn: Attention,
    post_attention_layernorm: Norm,
    ffn: Ffn,
}

fn moe(w: &Weights<'_>, c: &Config) -> Result<Moe> {
    let (h, width) = (c.hidden_size, c.expert_width()?);
    // Counted, not configured: a pruned trunk has fewer experts than the head it carries (`reference/hy_v3.md` 4.7).
    let n_experts = w.n_rows("router.gate")?;
    // A choice between near equals must not hang on rounding.
    let gate = w.linear("router.gate", n_experts, h)?.seeing(Activations::Exact);
    check_routing("num_experts_per_tok", c.num_experts_per_tok, n_experts)?;
    let n_shared = c.num_shared_experts.unwrap_or(1);
    let shared = || w.at("shared_mlp").mlp(n_shared * width, h, None);
    let biased = c.moe_router_enable_expert_bias.unwrap_or(true);
    let bias = || w.vector("expert_bias", &[n_experts]);
    let softmax = c.moe_router_use_sigmoid == Some(false);
    Ok(Moe {
        router: Router {
            gate,
            selection_bias: biased.then(bias).transpose()?,
            score: if softmax { Score::Softmax } else { Score::Sigmoid },
            n_experts_per_token: c.num_experts_per_tok,
            renormalise: c.route_norm.unwrap_or(true),
            scale: c.router_scaling_factor.unwrap_or(1.0) as f32,
        },
        experts: w.at("experts").experts(n_experts, width, h)?,
        shared: (n_shared > 0).then(shared).transpose()?,
    })
}

impl Block {
    fn load(w: &Weights<'_>, c: &Config, layer: usize, rope: &Rope) -> Result<Self> {
        let (h, eps, m) = (c.hidden_size, c.eps(), w.at("mlp"));
        let norms = c.qk_norm.unwrap_or(true).then_some(eps);
        Ok(Self {
            input_layernorm: w.norm("input_layernorm", h, eps)?,
            self_attn: w.at("self_attn").attention(c.attention(), h, rope.clone(), norms)?,
            post_attention_layernorm: w.norm("post_attention_layernorm", h, eps)?,
            ffn: if c.is_moe(layer)? {
                Ffn::Moe(moe(&m, c)?)
            } else {
                Ffn::Dense(m.mlp(c.intermediate_size, h, None)?)
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

    fn parts(&self) -> BlockParts<'_> {
        BlockParts {
            input_norm: &self.input_layernorm,
            attention: &self.self_attn,
            feed_norm: &self.post_attention_layernorm,
            feed: (&self.ffn).into(),
        }
    }
}

struct Hy3Trunk {
    shape: TrunkShape,
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: Norm,
    lm_head: Linear,
}

impl Trunk for Hy3Trunk {
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
        Some(TrunkParts {
            embed_tokens: &self.embed_tokens,
            blocks: self.layers.iter().map(Block::parts).collect(),
            norm: &self.norm,
            lm_head: &self.lm_head,
        })
    }
}

/// One nextn layer for every depth; what it hands on is its own normed output (`reference/hy_v3.md` 4.2).
struct NextnHead {
    embed_tokens: Embedding,
    enorm: Norm,
    hnorm: Norm,
    eh_proj: Linear,
    layer: Block,
    final_layernorm: Norm,
    lm_head: Linear,
    wiring: Wiring,
}

impl MtpHead for NextnHead {
    fn levels(&self) -> usize {
        1
    }

    fn feed(&self) -> HeadFeed {
        if self.wiring == Wiring::OtherHidden { HeadFeed::PreNorm } else { FEED }
    }

    fn new_cache(&self, _level: usize) -> Cache {
        Cache::new(vec![layer_cache(self.layer.self_attn.spec)])
    }

    fn forward(
        &self,
        _level: usize,
        next_tokens: &[u32],
        hidden: &Tensor,
        cache: &mut Cache,
    ) -> Result<Tensor> {
        let embed = self.enorm.forward(&self.embed_tokens.forward(next_tokens)?)?;
        let x = embed_and_hidden(embed, self.hnorm.forward(hidden)?, self.wiring)?;
        let x = self.layer.forward(&self.eh_proj.forward(&x)?, &mut cache.layers[0])?;
        self.final_layernorm.forward(&x)
    }

    fn logits(&self, _level: usize, hidden: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(hidden)
    }

    fn parts(&self, _level: usize) -> Option<LevelParts<'_>> {
        Some(LevelParts {
            embed_tokens: &self.embed_tokens,
            enorm: &self.enorm,
            hnorm: &self.hnorm,
            eh_proj: &self.eh_proj,
            hidden_first: self.wiring == Wiring::FlippedConcat,
            block: self.layer.parts(),
            hand_on: Some(&self.final_layernorm),
            logits_norm: None,
            lm_head: &self.lm_head,
            draft_lm_head: None,
        })
    }
}

impl NextnHead {
    fn load(w: &Weights<'_>, c: &Config, trunk: &Hy3Trunk, wiring: Wiring) -> Result<Self> {
        let (h, eps) = (c.hidden_size, c.eps());
        Ok(Self {
            embed_tokens: trunk.embed_tokens.clone(),
            enorm: w.norm("enorm", h, eps)?,
            hnorm: w.norm("hnorm", h, eps)?,
            eh_proj: w.linear("eh_proj", h, 2 * h)?,
            layer: Block::load(w, c, c.num_hidden_layers, &Rope::new(c.rope()?))?,
            final_layernorm: w.norm("final_layernorm", h, eps)?,
            lm_head: trunk.lm_head.clone(),
            wiring,
        })
    }

    fn modules(&self) -> Vec<Module> {
        let norms = [&self.enorm, &self.hnorm, &self.final_layernorm].map(norm_module);
        let eh_proj = module("eh_proj", &self.eh_proj);
        self.layer.modules().into_iter().chain([eh_proj]).chain(norms).collect()
    }
}

/// `w` and `c` are those of the checkpoint that has the head, `trunk` may be another's.
fn load_head(
    w: &Weights<'_>,
    c: &Config,
    trunk: &Hy3Trunk,
    wiring: Wiring,
) -> Result<(Option<NextnHead>, HeadStatus)> {
    let places = [w.at("mtp"), w.at("model.layers").at(c.num_hidden_layers)];
    let Some(w) = places.into_iter().find(|place| !place.is_empty()) else {
        // One layer, however many are promised.
        let promised = c.num_nextn_predict_layers.unwrap_or(0).min(1);
        return Ok((None, no_head(promised, c.num_hidden_layers)));
    };
    let missing = w.missing(&HEAD_PARTS);
    if !missing.is_empty() {
        return Err(EngineError::HeadIncomplete { missing });
    }
    check_donor(trunk.shape, c.hidden_size, c.vocab_size)?;
    let head = NextnHead::load(&w, c, trunk, wiring).map_err(in_head)?;
    Ok((Some(head), found_head(&w)))
}

fn load_trunk(w: &Weights<'_>, c: &Config) -> Result<Hy3Trunk> {
    let (h, vocab, m) = (c.hidden_size, c.vocab_size, w.at("model"));
    let rope = Rope::new(c.rope()?);
    let embed_tokens = Embedding::new(m.matrix("embed_tokens", vocab, h)?);
    let layers = (0..c.num_hidden_layers)
        .map(|i| {
            let w = m.at("layers").at(i);
            check_trunk_layer(&w, i, c.num_hidden_layers)?;
            Block::load(&w, c, i, &rope)
        })
        .collect::<Result<Vec<_>>>()?;
    let lm_head = lm_head(w, &embed_tokens, c.tie_word_embeddings, (vocab, h))?;
    let context = c.max_position_embeddings;
    let shape = TrunkShape { n_layers: layers.len(), hidden: h, vocab, context };
    Ok(Hy3Trunk { shape, embed_tokens, layers, norm: m.norm("norm", h, c.eps())?, lm_head })
}

pub(super) fn load(
    checkpoint: &Checkpoint,
    w: &Weights<'_>,
    options: LoadOptions<'_>,
) -> Result<Model> {
    let (c, w) = (Config::read(checkpoint)?, w.renamed(NAMES, None)?);
    let trunk = load_trunk(&w, &c)?;
    let (head, head_status) = match options.head {
        None => load_head(&w, &c, &trunk, options.wiring)?,
        Some(folder) => {
            let donor = open_donor(folder, "hy_v3")?;
            let w = Weights::root(&donor).seeing(w.activations()).renamed(NAMES, None)?;
            // The trunk says how far a text goes.
            let c =
                Config { max_position_embeddings: trunk.shape.context, ..Config::read(&donor)? };
            let head = load_head(&w, &c, &trunk, options.wiring)?;
            w.refuse_biases()?;
            must_be_there(head, c.num_hidden_layers)?
        }
    };
    let kv_layers = trunk.layers.iter().chain(head.iter().map(|head| &head.layer));
    Ok(Model {
        family: "hy_v3",
        trunk_modules: trunk_modules(
            &trunk.embed_tokens,
            trunk.layers.iter().flat_map(Block::modules),
            &trunk.norm,
            &trunk.lm_head,
        ),
        head_modules: tally(head.iter().flat_map(NextnHead::modules)),
        kv: kv_size(kv_layers.map(|layer| &layer.self_attn)),
        trunk: Box::new(trunk),
        head: head.map(|head| Box::new(head) as Box<dyn MtpHead>),
        head_status,
        leftovers: Vec::new(),
    })
}
