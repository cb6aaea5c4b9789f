//! A safetensors checkpoint folder to the MLX layout, tensor by tensor, with its head.
//!
//! The head goes to `mtp.safetensors`, which the index does not name: MLX loaders read `model*.safetensors` and refuse what
//! they do not know there (`reference/step3p5.md` 8). Files have `.partial` names until all are complete, the configuration last.

use super::plan::{Job, Piece, Treatment, expect_patterns, gather, plan};
use super::quantise::{BITS, Codes, GROUPS, put, quantise};
use super::writer::{Entry, ShardWriter};
use super::{QuantisePlan, Written};
use crate::models::{self, LoadOptions};
use crate::weights::{Checkpoint, Packing};
use crate::{EngineError, Result};
use foretoken_kernels::FloatType;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Files are closed when the next module would take them past this.
const SHARD_BYTES: u64 = 5 << 30;
/// Source bytes worked on at a time.
const BLOCK_BYTES: usize = 32 << 20;
const HEAD_FILE: &str = "mtp.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
const CONFIG_FILE: &str = "config.json";
/// What comes along as it is.
const SIDE_FILES: [&str; 9] = [
    "draft_vocab.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
];
/// Settings of another folder's head that the trunk's configuration may not have.
const HEAD_KEYS: [&str; 1] = ["num_nextn_predict_layers"];

/// Writes `source` into the folder `target` (made if absent) with the head of `head`, or its own.
///
/// `progress(done, total)` counts bytes of the source. A source that would not load is refused before anything is written,
/// one without a trunk becomes a folder with a head alone. Memory stays at some blocks of 32 MiB whatever the size.
pub fn convert_folder(
    source: &Path,
    target: &Path,
    head: Option<&Path>,
    wanted: &QuantisePlan,
    mut progress: impl FnMut(u64, u64),
) -> Result<Written> {
    check(wanted)?;
    let checkpoint = Checkpoint::open_head(source)?;
    let layout = models::layout(&checkpoint)?;
    let donor = head.map(Checkpoint::open_head).transpose()?;
    let mut gathered = gather(&checkpoint, layout)?;
    let has_trunk = gathered.values().any(|tensor| !tensor.in_head);
    let mut notes = Vec::new();
    if has_trunk {
        let options = LoadOptions { head, ..Default::default() };
        let unused = models::load_checkpoint(&checkpoint, options)?.leftovers;
        gathered.retain(|_, tensor| !unused.contains(&tensor.published));
        // A head of its own is unused beside another one.
        if !unused.is_empty() {
            notes.push(format!("{} tensors that nothing uses are left out.", unused.len()));
        }
    }
    let mut jobs = plan(&gathered, &checkpoint.quant, wanted)?;
    if let Some(donor) = &donor {
        let mut gathered = gather(donor, models::layout(donor)?)?;
        gathered.retain(|_, tensor| tensor.in_head);
        jobs.extend(plan(&gathered, &donor.quant, wanted)?);
    }
    expect_patterns(&jobs, wanted)?;
    let config = config(&checkpoint, donor.as_ref(), &jobs, wanted);
    let files = files(jobs);
    let need: u64 = files.iter().flat_map(|(_, jobs)| jobs).map(Job::n_bytes).sum();
    std::fs::create_dir_all(target).map_err(EngineError::io(target))?;
    let available = fs4::available_space(target).map_err(EngineError::io(target))?;
    if need > available {
        return Err(EngineError::DiskFull { folder: target.to_owned(), need, available });
    }
    let mut partial = Partial::new(target);
    let total: u64 = files.iter().flat_map(|(_, jobs)| jobs).map(Job::source_bytes).sum();
    let mut done = 0;
    for (name, jobs) in &files {
        write_file(&partial.path(name), jobs, |bytes| {
            done += bytes;
            progress(done, total);
        })?;
    }
    if has_trunk {
        partial.json(INDEX_FILE, &index(&files))?;
    }
    for name in SIDE_FILES {
        let from = source.join(name);
        if from.is_file() {
            std::fs::copy(&from, partial.path(name)).map_err(EngineError::io(&from))?;
        }
    }
    partial.json(CONFIG_FILE, &config)?;
    partial.complete()?;
    let jobs: Vec<&Job> = files.iter().flat_map(|(_, jobs)| jobs).collect();
    if has_trunk {
        // The last check: every name, shape and width is what the loader expects.
        models::load(target, LoadOptions::default())?;
    }
    let mut written = written(&jobs, need, has_trunk);
    written.notes.extend(notes);
    Ok(written)
}

fn check(wanted: &QuantisePlan) -> Result<()> {
    let named = wanted.keep.iter().filter_map(|(_, keep)| match keep {
        super::Keep::Bits(bits) => Some(*bits),
        super::Keep::Bf16 => None,
    });
    let bad = wanted.bits.into_iter().chain(wanted.head_bits).chain(named);
    if let Some(bits) = bad.into_iter().find(|bits| !BITS.contains(bits)) {
        let allowed = "2, 3, 4, 5, 6 or 8";
        return Err(EngineError::InvalidOption {
            name: "number of bits",
            value: bits.to_string(),
            allowed,
        });
    }
    if !GROUPS.contains(&wanted.group) {
        let (name, value) = ("group", wanted.group.to_string());
        return Err(EngineError::InvalidOption { name, value, allowed: "32, 64 or 128" });
    }
    Ok(())
}

/// File name -> what it holds; the trunk in shards, the head apart.
fn files(jobs: Vec<Job>) -> Vec<(String, Vec<Job>)> {
    let (head, trunk): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.in_head);
    let mut shards: Vec<Vec<Job>> = Vec::new();
    let mut size = u64::MAX;
    // Codes, scales and biases copied as they are stay together: a module is one path.
    let mut last = String::new();
    for job in trunk {
        let module = job.path.trim_end_matches(".scales").trim_end_matches(".biases").to_owned();
        if size.saturating_add(job.n_bytes()) > SHARD_BYTES && module != last {
            shards.push(Vec::new());
            size = 0;
        }
        size += job.n_bytes();
        last = module;
        if let Some(shard) = shards.last_mut() {
            shard.push(job);
        }
    }
    let n = shards.len();
    let name = |i: usize| match n {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
    };
    let mut files: Vec<_> = shards.into_iter().enumerate().map(|(i, s)| (name(i), s)).collect();
    if !head.is_empty() {
        files.push((HEAD_FILE.to_owned(), head));
    }
    files
}

fn index(files: &[(String, Vec<Job>)]) -> Value {
    let trunk = || files.iter().filter(|(name, _)| name != HEAD_FILE);
    let map: Map<String, Value> = trunk()
        .flat_map(|(file, jobs)| jobs.iter().map(move |job| (file, job)))
        .flat_map(|(file, job)| job.entries.iter().map(move |e| (e.name.clone(), json!(file))))
        .collect();
    let total: u64 = trunk().flat_map(|(_, jobs)| jobs).map(Job::n_bytes).sum();
    json!({"metadata": {"total_size": total}, "weight_map": map})
}

fn write_file(path: &Path, jobs: &[Job], mut progress: impl FnMut(u64)) -> Result<()> {
    let entries: Vec<Entry> = jobs.iter().flat_map(|job| job.entries.iter().cloned()).collect();
    let mut writer = ShardWriter::create(path, &entries)?;
    let (mut first, mut source, mut buffer) = (0, Source::default(), Vec::new());
    for job in jobs {
        let mut written = [0u64; 3];
        for piece in &job.pieces {
            let step = block_bytes(job.treatment);
            for from in (0..piece.n_bytes).step_by(step) {
                buffer.resize(step.min(piece.n_bytes - from), 0);
                source.read(piece, from as u64, &mut buffer)?;
                let (block, parts) = (&buffer, treat(&buffer, job.treatment));
                for (i, part) in parts.iter().enumerate() {
                    writer.write(first + i, written[i], part)?;
                    written[i] += part.len() as u64;
                }
                progress(block.len() as u64);
            }
        }
        first += job.entries.len();
    }
    writer.finish()
}

/// The file read last: pieces of one come one after another.
#[derive(Default)]
struct Source(Option<(PathBuf, File)>);

impl Source {
    /// Fills `out` from `offset` bytes into the piece on.
    fn read(&mut self, piece: &Piece, offset: u64, out: &mut [u8]) -> Result<()> {
        let io = || EngineError::io(&piece.file);
        let file = match &mut self.0 {
            Some((path, file)) if *path == piece.file => file,
            other => {
                let file = File::open(&piece.file).map_err(io())?;
                &mut other.insert((piece.file.clone(), file)).1
            }
        };
        let at = SeekFrom::Start(piece.at + offset);
        file.seek(at).and_then(|_| file.read_exact(out)).map_err(io())
    }
}

/// Whole rows, where rows matter.
fn block_bytes(treatment: Treatment) -> usize {
    match treatment {
        Treatment::Quantise { float, k, .. } => {
            let row = k * float.size();
            (BLOCK_BYTES / row).max(1) * row
        }
        _ => BLOCK_BYTES,
    }
}

fn treat(block: &[u8], treatment: Treatment) -> Vec<std::borrow::Cow<'_, [u8]>> {
    match treatment {
        Treatment::Copy => vec![block.into()],
        Treatment::AddOne(float) => {
            let mut out = block.to_vec();
            for i in 0..block.len() / float.size() {
                put(float, &mut out, i, float.get(block, i) + 1.0);
            }
            vec![out.into()]
        }
        Treatment::Halve => {
            let mut out = vec![0; block.len() / 2];
            for i in 0..block.len() / 4 {
                put(FloatType::BF16, &mut out, i, FloatType::F32.get(block, i));
            }
            vec![out.into()]
        }
        Treatment::Quantise { float, k, packing } => {
            let Codes { codes, scales, biases } = quantise(block, float, k, packing);
            vec![codes.into(), scales.into(), biases.into()]
        }
    }
}

/// The source's configuration with the table of what was written.
fn config(
    checkpoint: &Checkpoint,
    donor: Option<&Checkpoint>,
    jobs: &[Job],
    wanted: &QuantisePlan,
) -> Value {
    let mut config = checkpoint.config.as_object().cloned().unwrap_or_default();
    for key in HEAD_KEYS {
        if let Some(value) = donor.and_then(|donor| donor.config.get(key)) {
            config.insert(key.to_owned(), value.clone());
        }
    }
    let of = |job: &Job| match job.treatment {
        Treatment::Quantise { packing, .. } => Some(packing),
        _ => job.kept,
    };
    // `remove` would move the last key into the hole.
    config.shift_remove("quantization");
    config.shift_remove("quantization_config");
    let mut uses: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for packing in jobs.iter().filter(|job| !job.in_head).filter_map(of) {
        *uses.entry((packing.bits, packing.group)).or_default() += 1;
    }
    let most = uses.iter().max_by_key(|(_, n)| **n).map(|(packing, _)| *packing);
    let asked = wanted.bits.or(wanted.head_bits).map(|bits| (bits, wanted.group));
    let Some((bits, group)) = asked.or(most) else { return config.into() };
    let default = Packing { bits, group };
    let entry = |p: Packing| json!({"group_size": p.group, "bits": p.bits});
    let mut table = Map::new();
    table.insert("group_size".to_owned(), json!(group));
    table.insert("bits".to_owned(), json!(bits));
    table.insert("mode".to_owned(), json!("affine"));
    let is_matrix = |job: &&Job| {
        let weight = job.entries.first().filter(|e| e.name.ends_with(".weight"));
        weight.is_some_and(|e| e.shape.len() >= 2)
    };
    for job in jobs.iter().filter(is_matrix) {
        match of(job) {
            Some(packing) if packing == default => {}
            Some(packing) => {
                table.insert(job.path.clone(), entry(packing));
            }
            None => {
                table.insert(job.path.clone(), json!(false));
            }
        }
    }
    config.insert("quantization".to_owned(), table.clone().into());
    // The same again: older MLX loaders look here.
    config.insert("quantization_config".to_owned(), table.into());
    config.into()
}

fn written(jobs: &[&Job], bytes: u64, has_trunk: bool) -> Written {
    let mut out = Written { bytes, head: jobs.iter().any(|job| job.in_head), ..Default::default() };
    for job in jobs {
        out.tensors += job.entries.len();
        *out.by_storage.entry(job.storage()).or_default() += job.n_bytes();
    }
    let kept = jobs.iter().filter(|job| job.kept.is_some()).count();
    if kept > 0 {
        out.notes.push(format!(
            "{kept} modules were quantised already and were kept as they are: quantising twice only loses."
        ));
    }
    if !has_trunk {
        out.notes
            .push("There is no trunk in the source: the folder holds a head alone.".to_owned());
    } else if !out.head {
        out.notes.push(
            "There is no MTP head in the source: name a folder that has it with --head.".to_owned(),
        );
    }
    let whole: BTreeSet<&str> = jobs
        .iter()
        .filter(|job| job.treatment == Treatment::Copy && job.kept.is_none())
        .filter(|job| job.entries.iter().any(|e| e.name.ends_with(".weight") && e.shape.len() > 1))
        .map(|job| job.path.as_str())
        .collect();
    if !whole.is_empty() && out.by_storage.keys().any(|storage| storage.contains("-bit")) {
        let names = whole.iter().take(4).copied().collect::<Vec<_>>().join(", ");
        let more = if whole.len() > 4 { ", ..." } else { "" };
        out.notes.push(format!("{} matrices stay unquantised: {names}{more}.", whole.len()));
    }
    out
}

/// Files under `.partial` names, removed unless completed.
struct Partial<'a> {
    target: &'a Path,
    names: Vec<String>,
}

impl<'a> Partial<'a> {
    fn new(target: &'a Path) -> Self {
        Self { target, names: Vec::new() }
    }

    fn path(&mut self, name: &str) -> PathBuf {
        self.names.push(name.to_owned());
        partial_path(self.target, name)
    }

    fn json(&mut self, name: &str, value: &Value) -> Result<()> {
        let path = self.path(name);
        let text = serde_json::to_string_pretty(value).expect("a JSON object serialises");
        std::fs::write(&path, text + "\n").map_err(EngineError::io(path))
    }

    /// Gives every file its name, in the order they were begun.
    fn complete(mut self) -> Result<()> {
        for name in std::mem::take(&mut self.names) {
            let (from, to) = (partial_path(self.target, &name), self.target.join(&name));
            std::fs::rename(from, &to).map_err(EngineError::io(to))?;
        }
        Ok(())
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            // Nothing more can be done for a file that does not go; a new conversion writes over it.
            let _ = std::fs::remove_file(partial_path(self.target, name));
        }
    }
}

fn partial_path(target: &Path, name: &str) -> PathBuf {
    target.join(format!("{name}.partial"))
}
