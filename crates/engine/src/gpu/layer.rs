//! Blocks: their description for the kernels, and the launches of a stack of them for one pass.

use super::Refusal;
use super::device::{CHUNK, Device, Inputs, LAYER_SCRATCH, MAX_ROWS, Path, Scratch};
use crate::Result;
use crate::cache::LayerCache;
use crate::nn::{BlockParts, FeedParts, Linear, Mlp, Moe, Norm, Score};
use foretoken_kernels::metal::{
    self, Cache, ExpertStack, Feed, FloatArray, Gated, Heads, Launch, Layer, Matrix, PairedNorm,
    RouterSpec, Shelf, View, decode_layer, prefill_layer, rms_norm,
};
use foretoken_kernels::{FloatType, RopeTable};
use std::sync::Arc;

/// Query rows times heads a key head may have in one launch.
const MAX_QUERIES: usize = 64;

/// A layer without what changes from pass to pass.
pub(super) struct Block {
    layer: Layer,
    table: Arc<RopeTable>,
}

pub(super) fn matrix(
    shelf: &mut Shelf<'_>,
    what: &'static str,
    linear: &Linear,
) -> Result<Matrix, Refusal> {
    if linear.bias().is_some() {
        return Err(Refusal::Bias(what));
    }
    Ok(shelf.matrix(linear.weight())?)
}

/// A norm for [`GpuNorm::launch`].
#[derive(Clone, Copy)]
pub(super) struct GpuNorm {
    weight: FloatArray,
    width: usize,
    eps: f32,
}

impl GpuNorm {
    pub fn new(shelf: &mut Shelf<'_>, norm: &Norm) -> Result<Self, Refusal> {
        let weight = shelf.floats(norm.weight())?;
        Ok(Self { weight, width: norm.width(), eps: norm.eps() })
    }

    pub fn launch(&self, device: &Device, rows: usize, x: View, y: View) -> Launch {
        let how = (self.weight, false, self.eps);
        rms_norm(device.act, (rows, self.width), x, how, y, None)
    }

    /// Of `x`, for [`metal::norm_pair`].
    pub fn paired(&self, x: View) -> PairedNorm {
        PairedNorm { x, weight: self.weight, eps: self.eps }
    }

    pub fn width(&self) -> usize {
        self.width
    }
}

fn gated(shelf: &mut Shelf<'_>, mlp: &Mlp) -> Result<Gated, Refusal> {
    let mut some = |linear| matrix(shelf, "an MLP", linear);
    let (gate, up, down) = (some(&mlp.gate)?, some(&mlp.up)?, some(&mlp.down)?);
    Ok(Gated { gate, up, down, limit: mlp.limit })
}

fn mixture(shelf: &mut Shelf<'_>, moe: &Moe) -> Result<metal::Moe, Refusal> {
    let (router, experts) = (&moe.router, &moe.experts);
    let n_chosen = router.n_experts_per_token;
    let spec = RouterSpec {
        n_experts: router.gate.weight().dims().0,
        n_chosen,
        softmax: router.score == Score::Softmax,
        bias: router.selection_bias.as_ref().map(|bias| shelf.floats(bias)).transpose()?,
        renormalise: router.renormalise,
        scale: router.scale,
    };
    let stack = ExpertStack {
        gate: shelf.stack(&experts.gate)?,
        up: shelf.stack(&experts.up)?,
        down: shelf.stack(&experts.down)?,
        n_chosen,
        limit: experts.limit.is_finite().then_some(experts.limit),
    };
    let router = matrix(shelf, "a router", &router.gate)?;
    let shared = moe.shared.as_ref().map(|mlp| gated(shelf, mlp)).transpose()?;
    Ok(metal::Moe { router, spec, stack, shared })
}

/// The biases of these maps in one piece, zeros where one has none; `None` = none of them has.
fn bias_of(shelf: &mut Shelf<'_>, maps: [&Linear; 3]) -> Result<Option<View>, Refusal> {
    if maps.iter().all(|map| map.bias().is_none()) {
        return Ok(None);
    }
    let mut all: Vec<f32> = Vec::new();
    for map in maps {
        match map.bias() {
            Some(bias) => all.extend(bias.to_vec1::<f32>().map_err(crate::EngineError::from)?),
            None => all.resize(all.len() + map.weight().dims().0, 0.0),
        }
    }
    Ok(Some(shelf.floats(&all)?.at))
}

impl Block {
    pub fn new(shelf: &mut Shelf<'_>, parts: &BlockParts<'_>) -> Result<Self, Refusal> {
        let attention = parts.attention;
        let spec = attention.spec;
        let norms = [parts.input_norm, parts.feed_norm];
        let mut norms = norms.into_iter().chain(&attention.q_norm).chain(&attention.k_norm);
        let eps = parts.input_norm.eps();
        if norms.any(|norm| norm.eps().to_bits() != eps.to_bits()) {
            return Err(Refusal::Epsilons);
        }
        let group = spec.n_heads / spec.n_kv_heads.max(1);
        if group > MAX_QUERIES {
            return Err(Refusal::Heads(group));
        }
        let inputs = [&attention.q, &attention.k, &attention.v];
        let bias = bias_of(shelf, inputs)?;
        let [q, k, v] = inputs.map(|linear| shelf.matrix(linear.weight()));
        let (q, k, v) = (q?, k?, v?);
        let mut some = |linear| matrix(shelf, "attention", linear);
        let o = some(&attention.o)?;
        let gate = attention.gate.as_ref().map(some).transpose()?;
        let mut norm = |norm: &Norm| shelf.floats(norm.weight());
        let q_norm = attention.q_norm.as_ref().map(&mut norm).transpose()?;
        let k_norm = attention.k_norm.as_ref().map(&mut norm).transpose()?;
        let (input_norm, feed_norm) = (norm(parts.input_norm)?, norm(parts.feed_norm)?);
        let table = attention.rope.table().clone();
        // Known when a pass begins.
        let later = View::start(0);
        let layer = Layer {
            heads: Heads { q: spec.n_heads, kv: spec.n_kv_heads, dim: spec.head_dim },
            q,
            k,
            v,
            o,
            gate,
            q_norm,
            k_norm,
            bias,
            input_norm,
            feed_norm,
            plus_one: false,
            eps,
            cosines: later,
            sines: later,
            positions: 0,
            half_turn: table.half_turn(),
            scale: 1.0 / (spec.head_dim as f32).sqrt(),
            window: spec.window,
            origin: 0,
            cache: Cache { keys: later, values: later, base: 0, capacity: 0, ring: false },
            feed: match parts.feed {
                FeedParts::Dense(mlp) => Feed::Dense(gated(shelf, mlp)?),
                FeedParts::Moe(moe) => Feed::Moe(mixture(shelf, moe)?),
            },
        };
        Ok(Self { layer, table })
    }

    /// Channels of keys a row has.
    pub fn kv_width(&self) -> usize {
        self.layer.heads.kv * self.layer.heads.dim
    }

    /// Rows one list of a step's launches takes.
    pub fn max_rows(&self) -> usize {
        let Heads { q, kv, .. } = self.layer.heads;
        (MAX_QUERIES * kv / q).clamp(1, MAX_ROWS)
    }

    /// Distinct experts that so many rows can go to.
    fn touched(&self, rows: usize) -> usize {
        match &self.layer.feed {
            Feed::Moe(moe) => (rows * moe.spec.n_chosen).min(moe.spec.n_experts),
            Feed::Dense(_) => 0,
        }
    }
}

type LaunchesOf = fn(
    FloatType,
    usize,
    usize,
    &Layer,
    (View, View, View),
    u32,
    usize,
) -> Result<Vec<Launch>, metal::LaunchError>;

/// The launches of all `blocks` over `x` [rows, hidden], which stand at the caches' ends; returns where they leave the rows.
/// More rows than a list takes go through the stack in runs of as many.
pub(super) fn stack(
    device: &Device,
    inputs: &mut Inputs,
    blocks: &[Block],
    caches: &mut [LayerCache],
    (path, rows, x): (Path, usize, View),
    list: &mut Vec<Launch>,
) -> Result<View> {
    let position = caches.first().map_or(0, LayerCache::len);
    let (at_once, launches_of): (usize, LaunchesOf) = match path {
        Path::Step => (blocks.iter().map(Block::max_rows).min().unwrap_or(MAX_ROWS), decode_layer),
        Path::Prefill => (CHUNK, prefill_layer),
    };
    let starts: Vec<u32> =
        (position..position + rows).step_by(at_once).map(|start| start as u32).collect();
    let start = inputs.starts(device, &starts)?;
    let mut layers = Vec::with_capacity(blocks.len());
    for (block, cache) in blocks.iter().zip(caches) {
        let (cosines, sines, positions) = inputs.table(device, &block.table, position + rows)?;
        let slots = cache.extend(rows)?;
        let cache = Cache {
            keys: slots.keys,
            values: slots.values,
            base: slots.first,
            capacity: slots.capacity,
            ring: false,
        };
        let origin = slots.origin;
        layers.push((block, Layer { cosines, sines, positions, origin, cache, ..block.layer }));
    }
    let mut out = x;
    for (run, first) in (0..rows).step_by(at_once).enumerate() {
        let some = at_once.min(rows - first);
        out = x;
        for (i, (block, layer)) in layers.iter().enumerate() {
            let row = layer.o.n * device.act.size();
            let y = if i % 2 == 0 { Scratch::Even } else { Scratch::Odd }.view();
            let places = (out.plus(first * row), start.plus(4 * run), y.plus(first * row));
            let touched = block.touched(some);
            let at = position + first;
            let launches = launches_of(device.act, some, at, layer, places, LAYER_SCRATCH, touched);
            list.extend(launches.map_err(metal::GpuError::from)?);
            out = y;
        }
    }
    Ok(out)
}
