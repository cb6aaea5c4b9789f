//! What a conversion will write, decided before its first byte.

use super::writer::Entry;
use super::{Keep, QuantisePlan};
use crate::models::Layout;
use crate::weights::{Checkpoint, Names, Packing, QuantTable, renamed};
use crate::{EngineError, Result};
use foretoken_kernels::FloatType;
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The fusion projection mixes two streams of different size; coarse codes cost acceptance (`reference/mlx_quantization.md` 2).
const FUSION: &str = ".eh_proj";
/// Least width of a router's codes: its top-k flips on less.
const ROUTER_BITS: usize = 8;

/// How a tensor gets from the source into the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    Copy,
    /// The file's norms lack the one.
    AddOne(FloatType),
    /// f32 to bf16.
    Halve,
    /// Floats [.., k] to codes, scales and biases.
    Quantise {
        float: FloatType,
        k: usize,
        packing: Packing,
    },
}

/// A stretch of a source file. Read, not mapped: touched pages of a map stay in memory as long as there is room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub file: PathBuf,
    /// Bytes from the file's beginning.
    pub at: u64,
    pub n_bytes: usize,
}

/// Source tensors that become one module.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// Module path, or the whole name of a tensor that is no module's weight.
    pub path: String,
    /// One after another.
    pub pieces: Vec<Piece>,
    pub treatment: Treatment,
    /// One, or codes, scales and biases.
    pub entries: Vec<Entry>,
    pub in_head: bool,
    /// Of codes the source already has.
    pub kept: Option<Packing>,
}

impl Job {
    pub fn n_bytes(&self) -> u64 {
        self.entries.iter().map(Entry::n_bytes).sum()
    }

    pub fn source_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.n_bytes as u64).sum()
    }

    /// e.g. "4-bit g64", "bf16".
    pub fn storage(&self) -> String {
        match (self.treatment, self.entries.first()) {
            (Treatment::Quantise { packing, .. }, _) => {
                format!("{}-bit g{}", packing.bits, packing.group)
            }
            (_, Some(entry)) => format!("{:?}", entry.dtype).to_lowercase(),
            (_, None) => String::new(),
        }
    }
}

/// A tensor under its MLX name, put together from the source's.
pub(super) struct Gathered {
    dtype: Dtype,
    /// Without the axis over experts.
    shape: Vec<usize>,
    /// By expert; a tensor without experts has one, `None`.
    pieces: BTreeMap<Option<usize>, Piece>,
    /// In the source, for its place in the quantisation table.
    pub published: String,
    add_one: bool,
    pub in_head: bool,
    is_router: bool,
}

/// The jobs, by name. `quant` = the source's table.
pub(super) fn plan(
    gathered: &BTreeMap<String, Gathered>,
    quant: &QuantTable,
    wanted: &QuantisePlan,
) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for (name, tensor) in gathered {
        let path = name.trim_end_matches(".weight").to_owned();
        let quantised = gathered.contains_key(&format!("{path}.scales"));
        let mut job = job(name, path, tensor, quantised, wanted)?;
        if quantised && name.ends_with(".weight") {
            let said = quant.for_module(module_of(&tensor.published));
            job.kept = said.unwrap_or(quant.default_packing());
        }
        jobs.push(job);
    }
    Ok(jobs)
}

/// A pattern that names nothing is a mistake, not a wish.
pub(super) fn expect_patterns(jobs: &[Job], wanted: &QuantisePlan) -> Result<()> {
    let names_nothing = |pattern: &str| !jobs.iter().any(|job| job.path.contains(pattern));
    match wanted.keep.iter().find(|(pattern, _)| names_nothing(pattern)) {
        None => Ok(()),
        Some((pattern, _)) => Err(EngineError::InvalidOption {
            name: "pattern of --keep",
            value: format!("“{pattern}”"),
            allowed: "a part of a module's path in this model, e.g. self_attn",
        }),
    }
}

/// Whether a name of the family's own belongs to the head, as its level and the rest.
fn level_of(ours: &str, n_layers: usize) -> Option<(usize, &str)> {
    let (layer, rest) = ours.strip_prefix("model.layers.")?.split_once('.')?;
    Some((layer.parse::<usize>().ok()?.checked_sub(n_layers)?, rest))
}

pub(super) fn gather(
    checkpoint: &Checkpoint,
    layout: &Layout,
) -> Result<BTreeMap<String, Gathered>> {
    let names = Names::new(checkpoint, layout.names, (layout.norms)(&checkpoint.config))?;
    let n_layers = checkpoint.config.get("num_hidden_layers").and_then(serde_json::Value::as_u64);
    let n_layers = n_layers.map_or(usize::MAX, |n| n as usize);
    let mut out: BTreeMap<String, Gathered> = BTreeMap::new();
    for published in checkpoint.names() {
        let Some(place) = checkpoint.get(published) else { continue };
        let mut ours = names.ours(published).to_owned();
        let mut in_head = ours.starts_with("mtp.");
        if let Some((level, rest)) = level_of(&ours, n_layers) {
            in_head = true;
            if let Some(renumber) = layout.level {
                // A level past those the head has is nothing anyone reads.
                let Some(place) = renumber(level) else { continue };
                ours = format!("{place}.{rest}");
            }
        }
        let (stem, expert) = without_expert(&ours);
        let is_norm = place.shape.len() == 1 && stem.ends_with("norm.weight");
        let tensor = |dtype: Dtype, shape: &[usize]| Gathered {
            dtype,
            shape: shape.to_vec(),
            pieces: BTreeMap::new(),
            published: published.to_owned(),
            add_one: is_norm && names.is_zero_centred(&place.file),
            in_head,
            is_router: layout.router.is_some_and(|router| module_of(&stem).ends_with(router)),
        };
        let mut add = |ours: &str,
                       expert: Option<usize>,
                       shape: &[usize],
                       (offset, n_bytes): (usize, usize)| {
            let piece = Piece { file: place.file.clone(), at: place.at + offset as u64, n_bytes };
            let tensor_of = || tensor(place.dtype, shape);
            let entry = out.entry(renamed(ours, layout.mlx)).or_insert_with(tensor_of);
            let same = entry.dtype == place.dtype && entry.shape == shape;
            entry.pieces.insert(expert, piece);
            if same {
                return Ok(());
            }
            let (want, got) = (entry.shape.clone(), shape.to_vec());
            Err(EngineError::ShapeMismatch { name: published.to_owned(), want, got })
        };
        match (stem.split_once(".gate_up_proj."), place.shape.as_slice()) {
            // Gate and up of all experts in one: gate first.
            (Some((before, part)), &[n, rows, width]) if rows % 2 == 0 && n > 0 => {
                let half = place.data.len() / n / 2;
                for e in 0..n {
                    for (i, matrix) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                        let piece = ((2 * e + i) * half, half);
                        let name = format!("{before}.{matrix}.{part}");
                        add(&name, Some(e), &[rows / 2, width], piece)?;
                    }
                }
            }
            _ => add(&stem, expert, &place.shape, (0, place.data.len()))?,
        }
    }
    Ok(out)
}

fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// `a.experts.7.b` is expert 7 of `a.experts.b`; a number after `layers` is not an expert's.
fn without_expert(name: &str) -> (String, Option<usize>) {
    let parts: Vec<&str> = name.split('.').collect();
    let at = (1..parts.len()).find(|i| {
        parts[*i].parse::<usize>().is_ok() && !matches!(parts[*i - 1], "layers" | "mtp" | "layer")
    });
    let Some(at) = at else { return (name.to_owned(), None) };
    let rest: Vec<&str> = [&parts[..at], &parts[at + 1..]].concat();
    (rest.join("."), parts[at].parse().ok())
}

fn job(
    name: &str,
    path: String,
    tensor: &Gathered,
    quantised: bool,
    wanted: &QuantisePlan,
) -> Result<Job> {
    let experts = tensor.pieces.len();
    let stacked = !tensor.pieces.contains_key(&None);
    if stacked && let Some(gap) = (0..experts).find(|e| !tensor.pieces.contains_key(&Some(*e))) {
        let name = format!("{} of expert {gap}", tensor.published);
        return Err(EngineError::MissingTensor { name, folder: Default::default() });
    }
    let shape =
        if stacked { [&[experts], &tensor.shape[..]].concat() } else { tensor.shape.clone() };
    let float = match tensor.dtype {
        Dtype::F32 => Some(FloatType::F32),
        Dtype::F16 => Some(FloatType::F16),
        Dtype::BF16 => Some(FloatType::BF16),
        _ => None,
    };
    let is_matrix = shape.len() >= 2 && name.ends_with(".weight") && !quantised;
    let k = *shape.last().unwrap_or(&0);
    let treatment = match (float, wanted.storage(&path, tensor.in_head, tensor.is_router)) {
        (Some(float), _) if tensor.add_one => Treatment::AddOne(float),
        (Some(float), Storage::Codes(packing))
            if is_matrix && k > 0 && k.is_multiple_of(packing.group) =>
        {
            Treatment::Quantise { float, k, packing }
        }
        (Some(FloatType::F32), Storage::Half) if is_matrix => Treatment::Halve,
        _ => Treatment::Copy,
    };
    let entries = match treatment {
        Treatment::Quantise { packing, .. } => {
            let of = |columns: usize| [&shape[..shape.len() - 1], &[columns]].concat();
            let entry = |part: &str, dtype, columns| Entry {
                name: format!("{path}.{part}"),
                dtype,
                shape: of(columns),
            };
            vec![
                entry("weight", Dtype::U32, k * packing.bits / 32),
                entry("scales", tensor.dtype, k / packing.group),
                entry("biases", tensor.dtype, k / packing.group),
            ]
        }
        Treatment::Halve => vec![Entry { name: name.to_owned(), dtype: Dtype::BF16, shape }],
        _ => vec![Entry { name: name.to_owned(), dtype: tensor.dtype, shape }],
    };
    let pieces = tensor.pieces.values().cloned().collect();
    Ok(Job { path, pieces, treatment, entries, in_head: tensor.in_head, kept: None })
}

/// What a matrix is to be stored as.
enum Storage {
    AsItIs,
    /// 16 bits.
    Half,
    Codes(Packing),
}

impl QuantisePlan {
    fn storage(&self, path: &str, in_head: bool, is_router: bool) -> Storage {
        let codes = |bits| Storage::Codes(Packing { bits, group: self.group });
        let named = self.keep.iter().find(|(pattern, _)| path.contains(pattern.as_str()));
        match (named, if in_head { self.head_bits } else { self.bits }) {
            (Some((_, Keep::Bf16)), _) => Storage::Half,
            (Some((_, Keep::Bits(bits))), _) => codes(*bits),
            (None, None) => Storage::AsItIs,
            (None, Some(_)) if path.ends_with(FUSION) => Storage::Half,
            (None, Some(bits)) => codes(if is_router { bits.max(ROUTER_BITS) } else { bits }),
        }
    }
}
