//! The trunk: one list for a pass, one for a norm or logits alone. `pass` always takes a step's kernels and `forward` always those of
//! prefill, so that a row's bits depend on which of the two it went through, and not on the number of rows.

use super::Refusal;
use super::device::{CHUNK, Device, Inputs, MAX_ROWS, Path, Scratch};
use super::layer::{Block, GpuNorm, matrix, stack};
use super::slots::GpuSlots;
use crate::Result;
use crate::cache::{Cache, LayerCache};
use crate::models::{Pass, Trunk, TrunkShape};
use crate::nn::TrunkParts;
use candle_core::Tensor;
use foretoken_kernels::metal::{GpuError, Launch, Matrix, Shelf, View, embed};
use std::sync::Arc;

pub(super) struct GpuTrunk {
    device: Arc<Device>,
    shape: TrunkShape,
    /// What each layer remembers; never filled.
    kinds: Vec<LayerCache>,
    embed_tokens: Matrix,
    blocks: Vec<Block>,
    norm: GpuNorm,
    lm_head: Matrix,
}

/// Caches of these kinds whose rows lie in the device's buffers.
pub(super) fn new_cache(device: &Arc<Device>, kinds: &[LayerCache], blocks: &[Block]) -> Cache {
    let layers = kinds
        .iter()
        .zip(blocks)
        .map(|(kind, block)| kind.in_slots(Box::new(GpuSlots::new(device, block.kv_width()))));
    Cache::new(layers.collect())
}

impl GpuTrunk {
    pub fn new(
        device: &Arc<Device>,
        shelf: &mut Shelf<'_>,
        parts: &TrunkParts<'_>,
        shape: TrunkShape,
        kinds: Cache,
    ) -> Result<Self, Refusal> {
        let blocks = parts.blocks.iter().map(|block| Block::new(shelf, block));
        Ok(Self {
            device: device.clone(),
            shape,
            kinds: kinds.layers,
            blocks: blocks.collect::<Result<_, _>>()?,
            embed_tokens: shelf.matrix(parts.embed_tokens.weight())?,
            norm: GpuNorm::new(shelf, parts.norm)?,
            lm_head: matrix(shelf, "lm_head", parts.lm_head)?,
        })
    }

    /// Every kernel of every number of rows passes its trial, or this says which does not.
    pub fn prepare(&self) -> Result<(), Refusal> {
        let mut inputs = self.device.inputs();
        for rows in 1..=MAX_ROWS {
            let mut list = Vec::new();
            let (tokens, mut cache) = (vec![0; rows], self.new_cache());
            self.hidden(&mut inputs, (Path::Step, &tokens), &mut cache, &mut list)?;
            let x = Scratch::Input.view();
            list.push(self.norm.launch(&self.device, rows, x, Scratch::Normed.view()));
            self.lm(rows, Scratch::Normed.view(), &mut list)?;
            self.device.runner.prepare(&list)?;
        }
        // These kernels take any number of rows.
        let mut list = Vec::new();
        self.hidden(&mut inputs, (Path::Prefill, &[0]), &mut self.new_cache(), &mut list)?;
        self.device.runner.prepare(&list)?;
        Ok(())
    }

    fn hidden(
        &self,
        inputs: &mut Inputs,
        (path, tokens): (Path, &[u32]),
        cache: &mut Cache,
        list: &mut Vec<Launch>,
    ) -> Result<View> {
        let (device, x) = (&*self.device, Scratch::Input.view());
        let ids = inputs.tokens(device, tokens)?;
        let launch = embed(device.act, tokens.len(), &self.embed_tokens, ids, x);
        list.push(launch.map_err(GpuError::from)?);
        stack(device, inputs, &self.blocks, &mut cache.layers, (path, tokens.len(), x), list)
    }

    fn lm(&self, rows: usize, x: View, list: &mut Vec<Launch>) -> Result<View> {
        let y = Scratch::Logits.view();
        self.device
            .product((Path::Step, rows), (x, &self.lm_head, y), true, list)
            .map_err(GpuError::from)?;
        Ok(y)
    }
}

impl Trunk for GpuTrunk {
    fn shape(&self) -> TrunkShape {
        self.shape
    }

    fn new_cache(&self) -> Cache {
        new_cache(&self.device, &self.kinds, &self.blocks)
    }

    fn prompt_rows(&self) -> usize {
        CHUNK
    }

    fn rounds_alike(&self) -> bool {
        false
    }

    fn forward(&self, tokens: &[u32], cache: &mut Cache) -> Result<Tensor> {
        let (mut inputs, mut list) = (self.device.inputs(), Vec::new());
        let hidden = self.hidden(&mut inputs, (Path::Prefill, tokens), cache, &mut list)?;
        self.device.runner.run(&list)?;
        self.device.read(hidden, (tokens.len(), self.shape.hidden))
    }

    fn norm(&self, hidden: &Tensor) -> Result<Tensor> {
        let mut inputs = self.device.inputs();
        let (rows, y) = (hidden.dims2()?, Scratch::Normed.view());
        let x = inputs.rows(&self.device, hidden)?;
        self.device.runner.run(&[self.norm.launch(&self.device, rows.0, x, y)])?;
        self.device.read(y, rows)
    }

    fn logits(&self, normed: &Tensor) -> Result<Tensor> {
        let (mut inputs, mut list) = (self.device.inputs(), Vec::new());
        let rows = normed.dim(0)?;
        let x = inputs.rows(&self.device, normed)?;
        let y = self.lm(rows, x, &mut list)?;
        self.device.runner.run(&list)?;
        self.device.read_floats(y, (rows, self.shape.vocab))
    }

    fn pass(&self, tokens: &[u32], cache: &mut Cache) -> Result<Pass> {
        let (mut inputs, mut list) = (self.device.inputs(), Vec::new());
        let (rows, at) = (tokens.len(), Scratch::Normed.view());
        let hidden = self.hidden(&mut inputs, (Path::Step, tokens), cache, &mut list)?;
        list.push(self.norm.launch(&self.device, rows, hidden, at));
        let logits = self.lm(rows, at, &mut list)?;
        self.device.runner.run(&list)?;
        Ok(Pass {
            hidden: self.device.read(hidden, (rows, self.shape.hidden))?,
            normed: self.device.read(at, (rows, self.shape.hidden))?,
            logits: self.device.read_floats(logits, (rows, self.shape.vocab))?,
        })
    }
}
