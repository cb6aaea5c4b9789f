//! Model families: one file each, in a table keyed by `model_type`.
//!
//! Adding a family: (1) `Config` with the published names of `config.json`; (2) per-layer settings resolved once, with a
//! unit test; (3) names and a strict load of the tiny fixture; (4) forward, against the fixture's golden values;
//! (5) the head, then the cycle's tests; (6) a row in `FAMILIES`, a row in the README's table.
//!
//! Does not: sample, draft, loop, print or measure.

mod hy_v3;
mod layout;
mod llama;
mod parts;
mod step3p5;

pub(crate) use self::layout::Layout;
pub use self::layout::{NormConvention, norm_conventions};
use crate::cache::Cache;
use crate::nn::{LevelParts, TrunkParts};
use crate::weights::{Checkpoint, QuantTable, Weights};
use crate::{EngineError, Result};
use candle_core::Tensor;
pub use foretoken_kernels::Activations;
use std::path::Path;

/// Which of the trunk's hidden states a head was trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadFeed {
    /// The residual stream before the trunk's final norm.
    PreNorm,
    /// After the trunk's final norm.
    PostNorm,
}

/// Longest context a configuration may claim: what is sized by it stays small until it is used.
pub(crate) const MAX_CONTEXT: usize = 1 << 24;

/// Rows a cycle may take back: the deepest draft and the rows a head is fed again, with room.
pub(crate) const MAX_TAKEN_BACK: usize = 2 * crate::decode::MAX_DEPTH + 2;

/// Sizes that callers outside a family need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrunkShape {
    pub n_layers: usize,
    pub hidden: usize,
    pub vocab: usize,
    /// Longest sequence in tokens.
    pub context: usize,
}

/// A decoder stack. Immutable; the state is the caller's [`Cache`].
pub trait Trunk: Send + Sync {
    fn shape(&self) -> TrunkShape;
    fn new_cache(&self) -> Cache;
    /// Rows of a prompt that are worth one [`Self::forward`].
    fn prompt_rows(&self) -> usize {
        128
    }
    /// Whether a row has the same bits from [`Self::forward`] and from [`Self::pass`]. Within one of them it always has.
    fn rounds_alike(&self) -> bool {
        true
    }
    /// Tokens at positions `cache.len()..` -> the residual stream before the final norm [rows, hidden], f32.
    fn forward(&self, tokens: &[u32], cache: &mut Cache) -> Result<Tensor>;
    /// The final norm: [rows, hidden] -> [rows, hidden].
    fn norm(&self, hidden: &Tensor) -> Result<Tensor>;
    /// Vocabulary logits of normed hidden states: [rows, hidden] -> [rows, vocab].
    fn logits(&self, normed: &Tensor) -> Result<Tensor>;
    /// Everything of one pass, for a verify step; where that is worth one submission, in one.
    fn pass(&self, tokens: &[u32], cache: &mut Cache) -> Result<Pass> {
        let hidden = self.forward(tokens, cache)?;
        let normed = self.norm(&hidden)?;
        let logits = self.logits(&normed)?;
        Ok(Pass { hidden, normed, logits })
    }
    /// What it is made of; `None` = nobody else can run it.
    fn parts(&self) -> Option<TrunkParts<'_>> {
        None
    }
}

/// What [`Trunk::forward`], [`Trunk::norm`] and [`Trunk::logits`] give.
pub struct Pass {
    pub hidden: Tensor,
    pub normed: Tensor,
    pub logits: Tensor,
}

/// The checkpoint's own predictor of tokens further ahead.
pub trait MtpHead: Send + Sync {
    /// Number of nextn layers. Past the last one, a draft re-applies it to its own output.
    fn levels(&self) -> usize;
    fn feed(&self) -> HeadFeed;
    fn new_cache(&self, level: usize) -> Cache;
    /// Row i reads the token that follows its own by `level + 1` and the hidden state of the level before at row i (level 0:
    /// the trunk's). Returns what the next level is fed with, [rows, hidden].
    fn forward(
        &self,
        level: usize,
        next_tokens: &[u32],
        hidden: &Tensor,
        cache: &mut Cache,
    ) -> Result<Tensor>;
    /// Vocabulary logits of what `forward` returned: [rows, hidden] -> [rows, vocab].
    fn logits(&self, level: usize, hidden: &Tensor) -> Result<Tensor>;
    /// Token ids the draft logits stand for, when the head drafts from a part of the vocabulary.
    fn draft_vocab(&self) -> Option<&[u32]> {
        None
    }
    /// Logits over `draft_vocab`, or over the whole vocabulary when there is none.
    fn draft_logits(&self, level: usize, hidden: &Tensor) -> Result<Tensor> {
        self.logits(level, hidden)
    }
    /// [`Self::forward`], and [`Self::draft_logits`] of its last row; where that is worth one submission, in one.
    fn draft(
        &self,
        level: usize,
        next_tokens: &[u32],
        hidden: &Tensor,
        cache: &mut Cache,
    ) -> Result<(Tensor, Tensor)> {
        let out = self.forward(level, next_tokens, hidden, cache)?;
        let logits = self.draft_logits(level, &out.narrow(0, out.dim(0)? - 1, 1)?)?;
        Ok((out, logits))
    }
    /// What a level is made of; `None` = nobody else can run it.
    fn parts(&self, _level: usize) -> Option<LevelParts<'_>> {
        None
    }
}

/// One kind of module and how it is stored, summed over the layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleUse {
    pub kind: &'static str,
    pub storage: String,
    pub modules: usize,
    pub parameters: u64,
    pub bytes: u64,
}

/// Where the head was found, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadStatus {
    Found {
        place: String,
    },
    /// A sentence for a person.
    Absent {
        why: String,
    },
}

/// A loaded checkpoint.
pub struct Model {
    pub family: &'static str,
    pub trunk: Box<dyn Trunk>,
    /// `None` = a checkpoint without a head, see `head_status`.
    pub head: Option<Box<dyn MtpHead>>,
    pub head_status: HeadStatus,
    pub trunk_modules: Vec<ModuleUse>,
    pub head_modules: Vec<ModuleUse>,
    /// Keys and values a token leaves in the layers of trunk and head that keep every token.
    pub kv: KvSize,
    /// Tensors that nothing uses, harmless.
    pub leftovers: Vec<String>,
}

/// What a token takes in the caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvSize {
    /// Numbers.
    pub numbers: u64,
    /// Bytes of one.
    pub width: u64,
}

impl KvSize {
    pub fn bytes(self) -> u64 {
        self.numbers * self.width
    }
}

/// What a caller can ask for at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions<'a> {
    /// Draft from the checkpoint's reduced vocabulary, when it ships one.
    pub reduced_draft_vocab: bool,
    /// A folder whose head is put on this trunk, instead of one of its own.
    pub head: Option<&'a Path>,
    /// How products with quantised weights see their x. A router's choice and weights stored as floats stay exact.
    pub activations: Activations,
    /// For tests that show what a wrong wiring costs.
    #[doc(hidden)]
    pub wiring: Wiring,
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        Self {
            reduced_draft_vocab: true,
            head: None,
            activations: Activations::Exact,
            wiring: Wiring::AsTrained,
        }
    }
}

/// Mistakes that load, run and leave the text as it is; only the accept rate shows them.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    AsTrained,
    /// Hidden state before embedding.
    FlippedConcat,
    /// The trunk's hidden state of the other side of the final norm.
    OtherHidden,
    /// The first level at every depth.
    FirstLevelOnly,
    /// The trunk's `lm_head` in place of the head's own.
    TrunkLmHead,
    /// Norm weights of the head without the one that makes them factors.
    NormsWithoutOne,
}

type Load = fn(&Checkpoint, &Weights<'_>, LoadOptions<'_>) -> Result<Model>;

/// `model_type` -> loader, and how its tensors are written.
const FAMILIES: &[(&str, Load, Layout)] = &[
    ("llama", llama::load, Layout::AS_PUBLISHED),
    ("qwen2", llama::load, Layout::AS_PUBLISHED),
    ("qwen3", llama::load, Layout::AS_PUBLISHED),
    ("hy_v3", hy_v3::load, hy_v3::LAYOUT),
    ("step3p5", step3p5::load, step3p5::LAYOUT),
];

/// Every family's head joins embedding and hidden state with a matrix of this name.
const HEAD_MARK: &str = "eh_proj.weight";

/// Whether a folder holds the tensors of a head, judged by their names: reads headers, no weights. Whether the head fits a
/// trunk only loading tells.
pub fn has_head(folder: &Path) -> Result<bool> {
    let checkpoint = Checkpoint::open_head(folder)?;
    Ok(checkpoint.names().any(|name| name.ends_with(HEAD_MARK)))
}

/// Whether a configuration names a family and a storage of weights that can be loaded; what else is wrong only loading tells.
pub fn check_config(config: &serde_json::Value) -> Result<()> {
    family_of(config)?;
    QuantTable::from_config(config).map(drop)
}

fn family(checkpoint: &Checkpoint) -> Result<&'static (&'static str, Load, Layout)> {
    family_of(&checkpoint.config)
}

fn family_of(config: &serde_json::Value) -> Result<&'static (&'static str, Load, Layout)> {
    let model_type = config.get("model_type").and_then(serde_json::Value::as_str).unwrap_or("");
    let family = FAMILIES.iter().find(|(name, ..)| *name == model_type);
    family.ok_or_else(|| EngineError::UnsupportedModel { model_type: model_type.to_owned() })
}

pub(crate) fn layout(checkpoint: &Checkpoint) -> Result<&'static Layout> {
    Ok(&family(checkpoint)?.2)
}

/// Loads a checkpoint folder. Refuses when a trunk tensor is missing; lists what nothing asked for.
pub fn load(folder: &Path, options: LoadOptions<'_>) -> Result<Model> {
    let checkpoint = Checkpoint::open(folder)?;
    load_checkpoint(&checkpoint, options)
}

pub fn load_checkpoint(checkpoint: &Checkpoint, options: LoadOptions<'_>) -> Result<Model> {
    let load = family(checkpoint)?.1;
    let weights = Weights::root(checkpoint).seeing(options.activations);
    let mut model = load(checkpoint, &weights, options)?;
    weights.refuse_biases()?;
    model.leftovers = weights.leftovers();
    Ok(model)
}
