//! The head: for each level one list for its pass, one for its logits, one for both. Its rows decide nothing but drafts, so their
//! number says which kernels read them with the least traffic.

use super::Refusal;
use super::device::{Device, Inputs, MAX_ROWS, Path, Scratch};
use super::layer::{Block, GpuNorm, matrix, stack};
use super::trunk::new_cache;
use crate::cache::{Cache, LayerCache};
use crate::models::{HeadFeed, MtpHead};
use crate::nn::LevelParts;
use crate::{EngineError, Result};
use candle_core::Tensor;
use foretoken_kernels::metal::{GpuError, Launch, Matrix, Shelf, View, embed, norm_pair};
use std::sync::Arc;

struct Level {
    kinds: Vec<LayerCache>,
    embed_tokens: Matrix,
    enorm: GpuNorm,
    hnorm: GpuNorm,
    eh_proj: Matrix,
    hidden_first: bool,
    blocks: Vec<Block>,
    hand_on: Option<GpuNorm>,
    logits_norm: Option<GpuNorm>,
    lm_head: Matrix,
    draft_lm_head: Option<Matrix>,
}

pub(super) struct GpuHead {
    device: Arc<Device>,
    levels: Vec<Level>,
    feed: HeadFeed,
    draft_vocab: Option<Vec<u32>>,
}

impl Level {
    fn new(shelf: &mut Shelf<'_>, parts: &LevelParts<'_>, kinds: Cache) -> Result<Self, Refusal> {
        let norm = |shelf: &mut Shelf<'_>, norm: Option<&crate::nn::Norm>| {
            norm.map(|norm| GpuNorm::new(shelf, norm)).transpose()
        };
        let draft = parts.draft_lm_head.map(|linear| matrix(shelf, "lm_head", linear));
        Ok(Self {
            kinds: kinds.layers,
            embed_tokens: shelf.matrix(parts.embed_tokens.weight())?,
            enorm: GpuNorm::new(shelf, parts.enorm)?,
            hnorm: GpuNorm::new(shelf, parts.hnorm)?,
            eh_proj: matrix(shelf, "eh_proj", parts.eh_proj)?,
            hidden_first: parts.hidden_first,
            blocks: vec![Block::new(shelf, &parts.block)?],
            hand_on: norm(shelf, parts.hand_on)?,
            logits_norm: norm(shelf, parts.logits_norm)?,
            lm_head: matrix(shelf, "lm_head", parts.lm_head)?,
            draft_lm_head: draft.transpose()?,
        })
    }

    /// Embedding and hidden state of each row side by side, through `eh_proj` and the block.
    fn pass(
        &self,
        device: &Device,
        inputs: &mut Inputs,
        tokens: &[u32],
        hidden: View,
        cache: &mut Cache,
        list: &mut Vec<Launch>,
    ) -> Result<View> {
        let rows = tokens.len();
        let ids = inputs.tokens(device, tokens)?;
        let embedded = Scratch::Embedded.view();
        let launch = embed(device.act, rows, &self.embed_tokens, ids, embedded);
        list.push(launch.map_err(GpuError::from)?);
        let (joined, x) = (Scratch::Joined.view(), Scratch::Input.view());
        let (e, h) = (self.enorm.paired(embedded), self.hnorm.paired(hidden));
        let (left, right) = if self.hidden_first { (h, e) } else { (e, h) };
        list.push(norm_pair(device.act, (rows, self.enorm.width()), &left, &right, joined));
        let path = Path::of(rows);
        let product = (joined, &self.eh_proj, x);
        device.product((path, rows), product, false, list).map_err(GpuError::from)?;
        let out = stack(device, inputs, &self.blocks, &mut cache.layers, (path, rows, x), list)?;
        let Some(hand_on) = &self.hand_on else { return Ok(out) };
        let handed_on = Scratch::HandedOn.view();
        list.push(hand_on.launch(device, rows, out, handed_on));
        Ok(handed_on)
    }

    fn draft_lm_head(&self) -> &Matrix {
        self.draft_lm_head.as_ref().unwrap_or(&self.lm_head)
    }

    fn logits(
        &self,
        device: &Device,
        (rows, hidden): (usize, View),
        lm_head: &Matrix,
        list: &mut Vec<Launch>,
    ) -> Result<View> {
        let x = self.logits_norm.map_or(hidden, |norm| {
            let normed = Scratch::Normed.view();
            list.push(norm.launch(device, rows, hidden, normed));
            normed
        });
        let y = Scratch::Logits.view();
        device.product((Path::Step, rows), (x, lm_head, y), true, list).map_err(GpuError::from)?;
        Ok(y)
    }
}

impl GpuHead {
    pub fn new(
        device: &Arc<Device>,
        shelf: &mut Shelf<'_>,
        head: &dyn MtpHead,
    ) -> Result<Self, Refusal> {
        let level = |level| {
            let parts = head.parts(level).ok_or(Refusal::Parts)?;
            Level::new(shelf, &parts, head.new_cache(level))
        };
        Ok(Self {
            device: device.clone(),
            levels: (0..head.levels()).map(level).collect::<Result<_, _>>()?,
            feed: head.feed(),
            draft_vocab: head.draft_vocab().map(<[u32]>::to_vec),
        })
    }

    /// As of the trunk.
    pub fn prepare(&self) -> Result<(), Refusal> {
        let mut inputs = self.device.inputs();
        let hidden = Scratch::Even.view();
        for (i, level) in self.levels.iter().enumerate() {
            for rows in 1..=MAX_ROWS {
                let (mut list, mut cache) = (Vec::new(), self.new_cache(i));
                let tokens = vec![0; rows];
                level.pass(&self.device, &mut inputs, &tokens, hidden, &mut cache, &mut list)?;
                for lm_head in [Some(&level.lm_head), level.draft_lm_head.as_ref()] {
                    let Some(lm_head) = lm_head else { continue };
                    level.logits(&self.device, (rows, hidden), lm_head, &mut list)?;
                }
                self.device.runner.prepare(&list)?;
            }
            let (mut list, mut cache) = (Vec::new(), self.new_cache(i));
            let tokens = vec![0; MAX_ROWS + 1];
            level.pass(&self.device, &mut inputs, &tokens, hidden, &mut cache, &mut list)?;
            self.device.runner.prepare(&list)?;
        }
        Ok(())
    }

    fn level(&self, level: usize) -> Result<&Level> {
        let none = || EngineError::HeadIncomplete { missing: vec![format!("level {level}")] };
        self.levels.get(level).ok_or_else(none)
    }

    fn logits_by(&self, level: usize, hidden: &Tensor, draft: bool) -> Result<Tensor> {
        let level = self.level(level)?;
        let lm_head = if draft { level.draft_lm_head() } else { &level.lm_head };
        let (mut inputs, mut list) = (self.device.inputs(), Vec::new());
        let rows = hidden.dim(0)?;
        let x = inputs.rows(&self.device, hidden)?;
        let y = level.logits(&self.device, (rows, x), lm_head, &mut list)?;
        self.device.runner.run(&list)?;
        self.device.read_floats(y, (rows, lm_head.n))
    }
}

impl MtpHead for GpuHead {
    fn levels(&self) -> usize {
        self.levels.len()
    }

    fn feed(&self) -> HeadFeed {
        self.feed
    }

    fn new_cache(&self, level: usize) -> Cache {
        let of = |level: &Level| new_cache(&self.device, &level.kinds, &level.blocks);
        self.levels.get(level).map_or_else(|| Cache::new(Vec::new()), of)
    }

    fn forward(
        &self,
        level: usize,
        next_tokens: &[u32],
        hidden: &Tensor,
        cache: &mut Cache,
    ) -> Result<Tensor> {
        let level = self.level(level)?;
        let (mut inputs, mut list) = (self.device.inputs(), Vec::new());
        let x = inputs.rows(&self.device, hidden)?;
        let out = level.pass(&self.device, &mut inputs, next_tokens, x, cache, &mut list)?;
        self.device.runner.run(&list)?;
        self.device.read(out, (next_tokens.len(), level.eh_proj.n))
    }

    fn draft(
        &self,
        level: usize,
        next_tokens: &[u32],
        hidden: &Tensor,
        cache: &mut Cache,
    ) -> Result<(Tensor, Tensor)> {
        let (device, level) = (&*self.device, self.level(level)?);
        let (rows, n, lm_head) = (next_tokens.len(), level.eh_proj.n, level.draft_lm_head());
        let (mut inputs, mut list) = (device.inputs(), Vec::new());
        let x = inputs.rows(device, hidden)?;
        let out = level.pass(device, &mut inputs, next_tokens, x, cache, &mut list)?;
        let last = out.plus(rows.saturating_sub(1) * n * device.act.size());
        let logits = level.logits(device, (1, last), lm_head, &mut list)?;
        device.runner.run(&list)?;
        Ok((device.read(out, (rows, n))?, device.read_floats(logits, (1, lm_head.n))?))
    }

    fn logits(&self, level: usize, hidden: &Tensor) -> Result<Tensor> {
        self.logits_by(level, hidden, false)
    }

    fn draft_vocab(&self) -> Option<&[u32]> {
        self.draft_vocab.as_deref()
    }

    fn draft_logits(&self, level: usize, hidden: &Tensor) -> Result<Tensor> {
        self.logits_by(level, hidden, true)
    }
}
