//! The dense trunks `llama`, `qwen2` and `qwen3`, with an optional nextn head (`reference/mimo.md`, dense trunks; the
//! head's wiring: `assets/starter-head/README.md`).
//!
//! ```text
//! block:  x += o(attend(rope(q_norm(q u)), rope(k_norm(k u)), v u)),  u = input_layernorm(x)
//!         x += down(silu(gate w) * up w),                             w = post_attention_layernorm(x)
//! logits: lm_head(norm(x)); a tied lm_head is the embedding
//! head:   x = eh_proj [ enorm(embed(t_{i+1})) ; hnorm(h_i) ];  g = block(x);  logits = lm_head(shared_head.norm(g))
//! ```

use super::parts::{
    HEAD_DIMS, check_donor, check_trunk_layer, in_head, kv_size, lm_head, module, must_be_there,
    no_head, norm_module, open_donor, read_config, rope_scaling, tally, unsupported,
};
use super::{HeadFeed, HeadStatus, LoadOptions, Model, MtpHead, Trunk, TrunkShape};
use crate::cache::{Cache, CacheKind, LayerCache};
use crate::nn::{
    Attention, AttentionSpec, BlockParts, Embedding, FeedParts, LevelParts, Linear, Mlp, Norm,
    Rope, RopeSpec, TrunkParts,
};
use crate::weights::{Checkpoint, Shard, Weights};
use crate::{EngineError, Result};
use candle_core::Tensor;
use foretoken_kernels::add;
use serde::Deserialize;
use serde_json::Value;

/// Chosen when the head was trained: its stream and the trunk's play the same part (starter-head README, "Wiring").
const FEED: HeadFeed = HeadFeed::PreNorm;
/// The head's tensors besides its decoder layer.
const HEAD_PARTS: [&str; 4] =
    ["enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"];

#[derive(Debug, Deserialize)]
struct Config {
    model_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Value>,
    rope_parameters: Option<Value>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    hidden_act: Option<String>,
    num_nextn_predict_layers: Option<usize>,
    mtp_hidden: Option<String>,
    draft_vocab_file: Option<String>,
    draft_vocab_size_suggested: Option<usize>,
    use_sliding_window: Option<bool>,
    sliding_window: Option<usize>,
}

impl Config {
    fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let config: Self = read_config(checkpoint)?;
        let act = config.hidden_act.as_deref().unwrap_or("silu");
        if act != "silu" {
            return Err(unsupported("hidden_act", act));
        }
        if config.mlp_bias == Some(true) {
            return Err(unsupported("mlp_bias", true));
        }
        if let Some(hidden) = config.mtp_hidden.as_deref().filter(|hidden| *hidden != "pre_norm") {
            return Err(unsupported("mtp_hidden", hidden));
        }
        let heads = (config.num_attention_heads, config.n_kv_heads());
        if heads.1 == 0 || !heads.0.is_multiple_of(heads.1) {
            return Err(unsupported("num_key_value_heads", heads.1));
        }
        let in_range = [
            (
                "head_dim",
                config.head_dim() as f64,
                HEAD_DIMS.contains(&config.head_dim()) && config.head_dim().is_multiple_of(16),
            ),
            (
                "max_position_embeddings",
                config.context() as f64,
                (1..=super::MAX_CONTEXT).contains(&config.context()),
            ),
            ("sliding_window", 0.0, config.attention().window != Some(0)),
        ];
        match in_range.iter().find(|(_, _, fits)| !fits) {
            Some((key, value, _)) => Err(unsupported(key, value)),
            None => Ok(config),
        }
    }

    fn n_kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    fn eps(&self) -> f32 {
        self.rms_norm_eps.unwrap_or(1e-6) as f32
    }

    fn context(&self) -> usize {
        self.max_position_embeddings.unwrap_or(2048)
    }

    fn attention(&self) -> AttentionSpec {
        let window = self.sliding_window.filter(|_| self.use_sliding_window == Some(true));
        AttentionSpec {
            n_heads: self.num_attention_heads,
            n_kv_heads: self.n_kv_heads(),
            head_dim: self.head_dim(),
            window,
        }
    }

    /// Both spellings: `rope_theta` + `rope_scaling`, or `rope_parameters` with everything.
    fn rope(&self) -> Result<RopeSpec> {
        let table =
            self.rope_parameters.as_ref().or(self.rope_scaling.as_ref()).filter(|v| v.is_object());
        let scaling = rope_scaling(table)?;
        let theta = table.and_then(|table| table.get("rope_theta")).and_then(Value::as_f64);
        let theta = theta.or(self.rope_theta).unwrap_or(10_000.0);
        if !theta.is_finite() || theta <= 0.0 {
            return Err(unsupported("rope_theta", theta));
        }
        Ok(RopeSpec { theta, width: self.head_dim(), scaling, context: self.context() })
    }
}

struct Block {
    input_layernorm: Norm,
    self_attn: Attention,
    post_attention_layernorm: Norm,
    mlp: Mlp,
}

impl Block {
    fn load(w: &Weights<'_>, c: &Config, rope: &Rope) -> Result<Self> {
        let spec = c.attention();
        let (h, q_width, kv_width) =
            (c.hidden_size, spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim);
        let (a, m) = (w.at("self_attn"), w.at("mlp"));
        // qwen2 always has biases here, the others when the config says so.
        let bias = c.attention_bias.unwrap_or(c.model_type == "qwen2");
        let project =
            |name, n| if bias { a.linear_with_bias(name, n, h) } else { a.linear(name, n, h) };
        let head_norm = |name| {
            (c.model_type == "qwen3").then(|| a.norm(name, spec.head_dim, c.eps())).transpose()
        };
        let o = if bias && a.has("o_proj.bias") {
            a.linear_with_bias("o_proj", h, q_width)?
        } else {
            a.linear("o_proj", h, q_width)?
        };
        Ok(Self {
            input_layernorm: w.norm("input_layernorm", h, c.eps())?,
            self_attn: Attention {
                spec,
                q: project("q_proj", q_width)?,
                k: project("k_proj", kv_width)?,
                v: project("v_proj", kv_width)?,
                o,
                q_norm: head_norm("q_norm")?,
                k_norm: head_norm("k_norm")?,
                gate: None,
                rope: rope.clone(),
            },
            post_attention_layernorm: w.norm("post_attention_layernorm", h, c.eps())?,
            mlp: Mlp {
                gate: m.linear("gate_proj", c.intermediate_size, h)?,
                up: m.linear("up_proj", c.intermediate_size, h)?,
                down: m.linear("down_proj", h, c.intermediate_size)?,
                limit: None,
            },
        })
    }

    fn forward(&self, x: &Tensor, cache: &mut LayerCache) -> Result<Tensor> {
        let x = add(x, &self.self_attn.forward(&self.input_layernorm.forward(x)?, cache)?)?;
        let y = self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?;
        Ok(add(&x, &y)?)
    }

    fn new_cache(&self) -> LayerCache {
        let spec = self.self_attn.spec;
        let kind = match spec.window {
            Some(window) => CacheKind::Sliding { window, slack: super::MAX_TAKEN_BACK },
            None => CacheKind::Full,
        };
        LayerCache::new(kind, spec.n_kv_heads * spec.head_dim)
    }

    fn modules(&self) -> Vec<(&'static str, String, u64, u64)> {
        let a = &self.self_attn;
        let mut out: Vec<_> =
            [&a.q, &a.k, &a.v, &a.o].into_iter().map(|l| module("attention", l)).collect();
        out.extend(
            [&self.mlp.gate, &self.mlp.up, &self.mlp.down].into_iter().map(|l| module("mlp", l)),
        );
        out.extend(
            [&self.input_layernorm, &self.post_attention_layernorm].into_iter().map(norm_module),
        );
        out
    }

    fn parts(&self) -> BlockParts<'_> {
        BlockParts {
            input_norm: &self.input_layernorm,
            attention: &self.self_attn,
            feed_norm: &self.post_attention_layernorm,
            feed: FeedParts::Dense(&self.mlp),
        }
    }
}

struct LlamaTrunk {
    shape: TrunkShape,
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: Norm,
    lm_head: Linear,
}

impl Trunk for LlamaTrunk {
    fn shape(&self) -> TrunkShape {
        self.shape
    }

    fn new_cache(&self) -> Cache {
        Cache::new(self.layers.iter().map(Block::new_cache).collect())
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

/// One nextn layer, re-applied for every depth.
struct NextnHead {
    embed_tokens: Embedding,
    enorm: Norm,
    hnorm: Norm,
    eh_proj: Linear,
    layer: Block,
    shared_head_norm: Norm,
    lm_head: Linear,
    /// Most frequent tokens and the rows of `lm_head` for them.
    reduced: Option<(Vec<u32>, Linear)>,
}

impl MtpHead for NextnHead {
    fn levels(&self) -> usize {
        1
    }

    fn feed(&self) -> HeadFeed {
        FEED
    }

    fn new_cache(&self, _level: usize) -> Cache {
        Cache::new(vec![self.layer.new_cache()])
    }

    fn forward(
        &self,
        _level: usize,
        next_tokens: &[u32],
        hidden: &Tensor,
        cache: &mut Cache,
    ) -> Result<Tensor> {
        let embed = self.enorm.forward(&self.embed_tokens.forward(next_tokens)?)?;
        let x = Tensor::cat(&[embed, self.hnorm.forward(hidden)?], 1)?;
        self.layer.forward(&self.eh_proj.forward(&x)?, &mut cache.layers[0])
    }

    fn logits(&self, _level: usize, hidden: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(&self.shared_head_norm.forward(hidden)?)
    }

    fn draft_vocab(&self) -> Option<&[u32]> {
        self.reduced.as_ref().map(|(ids, _)| ids.as_slice())
    }

    fn draft_logits(&self, level: usize, hidden: &Tensor) -> Result<Tensor> {
        match &self.reduced {
            Some((_, lm_head)) => lm_head.forward(&self.shared_head_norm.forward(hidden)?),
            None => self.logits(level, hidden),
        }
    }

    fn parts(&self, _level: usize) -> Option<LevelParts<'_>> {
        Some(LevelParts {
            embed_tokens: &self.embed_tokens,
            enorm: &self.enorm,
            hnorm: &self.hnorm,
            eh_proj: &self.eh_proj,
            hidden_first: false,
            block: self.layer.parts(),
            hand_on: None,
            logits_norm: Some(&self.shared_head_norm),
            lm_head: &self.lm_head,
            draft_lm_head: self.reduced.as_ref().map(|(_, lm_head)| lm_head),
        })
    }
}

/// The first `draft_vocab_size_suggested` ids of the file the config names (starter-head README, "pack_notes").
fn draft_vocab(checkpoint: &Checkpoint, c: &Config) -> Result<Option<Vec<u32>>> {
    let Some(name) = &c.draft_vocab_file else { return Ok(None) };
    let file = checkpoint.folder.join(name);
    let corrupt = |why: &str| EngineError::Corrupt { file: file.clone(), why: why.to_owned() };
    if std::path::Path::new(name).file_name().is_none_or(|plain| plain != name.as_str()) {
        return Err(corrupt("draft_vocab_file must be a plain file name"));
    }
    let shard = Shard::open(&file)?;
    let ids = shard
        .integers("draft_vocab_ids")
        .ok_or_else(|| corrupt("it holds no int32 list draft_vocab_ids"))?;
    let mut ids: Vec<u32> =
        ids.iter().copied().take(c.draft_vocab_size_suggested.unwrap_or(usize::MAX)).collect();
    // Ascending, as the sampler wants them; the file is ordered by frequency.
    ids.sort_unstable();
    if ids.is_empty()
        || ids.windows(2).any(|w| w[0] == w[1])
        || ids.iter().any(|id| *id as usize >= c.vocab_size)
    {
        return Err(corrupt("draft_vocab_ids is empty, repeats an id or leaves the vocabulary"));
    }
    Ok(Some(ids))
}

/// `w`, `checkpoint`, `c` and `rope` are those of the folder that has the head, the rest is the trunk's.
fn load_head(
    w: &Weights<'_>,
    checkpoint: &Checkpoint,
    c: &Config,
    rope: &Rope,
    (embed_tokens, lm_head, trunk): (&Embedding, &Linear, TrunkShape),
    options: LoadOptions<'_>,
) -> Result<(Option<NextnHead>, HeadStatus)> {
    let w = w.at("model.layers").at(c.num_hidden_layers);
    let missing = w.missing(&HEAD_PARTS);
    if missing.len() == HEAD_PARTS.len() {
        let promised = c.num_nextn_predict_layers.unwrap_or(0).min(1);
        return Ok((None, no_head(promised, c.num_hidden_layers)));
    }
    if !missing.is_empty() {
        return Err(EngineError::HeadIncomplete { missing });
    }
    let (h, eps) = (c.hidden_size, c.eps());
    check_donor(trunk, h, c.vocab_size)?;
    let layer = Block::load(&w, c, rope).map_err(in_head)?;
    let ids = if options.reduced_draft_vocab { draft_vocab(checkpoint, c)? } else { None };
    let reduced = ids.map(|ids| Ok::<_, EngineError>((lm_head.select(&ids)?, ids))).transpose()?;
    let head = NextnHead {
        embed_tokens: embed_tokens.clone(),
        enorm: w.norm("enorm", h, eps)?,
        hnorm: w.norm("hnorm", h, eps)?,
        eh_proj: w.linear("eh_proj", h, 2 * h).map_err(in_head)?,
        layer,
        shared_head_norm: w.norm("shared_head.norm", h, eps)?,
        lm_head: lm_head.clone(),
        reduced: reduced.map(|(linear, ids)| (ids, linear)),
    };
    let file = w
        .place("eh_proj.weight")
        .and_then(|f| f.file_name())
        .map_or(String::new(), |f| f.to_string_lossy().into_owned());
    Ok((Some(head), HeadStatus::Found { place: file }))
}

pub(super) fn load(
    checkpoint: &Checkpoint,
    w: &Weights<'_>,
    options: LoadOptions<'_>,
) -> Result<Model> {
    let c = Config::read(checkpoint)?;
    let rope = Rope::new(c.rope()?);
    let m = w.at("model");
    let embed_tokens = Embedding::new(m.matrix("embed_tokens", c.vocab_size, c.hidden_size)?);
    let layers = (0..c.num_hidden_layers)
        .map(|i| {
            let w = m.at("layers").at(i);
            check_trunk_layer(&w, i, c.num_hidden_layers)?;
            Block::load(&w, &c, &rope)
        })
        .collect::<Result<Vec<_>>>()?;
    let sizes = (c.vocab_size, c.hidden_size);
    let lm_head = lm_head(w, &embed_tokens, c.tie_word_embeddings, sizes)?;
    let shape = TrunkShape {
        n_layers: layers.len(),
        hidden: c.hidden_size,
        vocab: c.vocab_size,
        context: c.context(),
    };
    let of_trunk = (&embed_tokens, &lm_head, shape);
    let (head, head_status) = match options.head {
        None => load_head(w, checkpoint, &c, &rope, of_trunk, options)?,
        Some(folder) => {
            let donor = open_donor(folder, &c.model_type)?;
            // The trunk says how far a text goes.
            let reach = Some(shape.context);
            let c = Config { max_position_embeddings: reach, ..Config::read(&donor)? };
            let (w, rope) = (Weights::root(&donor), Rope::new(c.rope()?));
            let head = load_head(&w, &donor, &c, &rope, of_trunk, options)?;
            w.refuse_biases()?;
            must_be_there(head, c.num_hidden_layers)?
        }
    };
    let norm = m.norm("norm", c.hidden_size, c.eps())?;

    let mut trunk_modules = vec![module("embedding", &embed_tokens.as_linear())];
    trunk_modules.extend(layers.iter().flat_map(Block::modules));
    trunk_modules.push(norm_module(&norm));
    if !std::ptr::eq(embed_tokens.weight(), lm_head.weight()) {
        trunk_modules.push(module("lm_head", &lm_head));
    }
    let head_modules = head.iter().flat_map(|head| {
        let mut all = head.layer.modules();
        all.push(module("eh_proj", &head.eh_proj));
        all.extend([&head.enorm, &head.hnorm, &head.shared_head_norm].map(norm_module));
        all.extend(head.reduced.iter().map(|(_, lm_head)| {
            ("draft vocabulary", lm_head.weight().storage(), 0, lm_head.weight().n_bytes() as u64)
        }));
        all
    });
    let kv_layers = layers.iter().chain(head.iter().map(|head| &head.layer));
    let kv = kv_size(kv_layers.map(|layer| &layer.self_attn));
    Ok(Model {
        family: "llama",
        head_modules: tally(head_modules),
        trunk_modules: tally(trunk_modules),
        trunk: Box::new(LlamaTrunk { shape, embed_tokens, layers, norm, lm_head }),
        head: head.map(|head| Box::new(head) as Box<dyn MtpHead>),
        head_status,
        kv,
        leftovers: Vec::new(),
    })
}
