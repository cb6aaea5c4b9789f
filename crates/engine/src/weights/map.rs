//! The memory map, the engine's one use of `unsafe`.

use crate::{EngineError, Result};
use foretoken_kernels::{Bytes, FloatType};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maps a whole file, read-only.
#[allow(unsafe_code)]
pub fn map_file(path: &Path) -> Result<Bytes> {
    let file = File::open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => EngineError::FileMissing { file: path.to_owned() },
        _ => EngineError::Io { path: path.to_owned(), source: e },
    })?;
    let len = file.metadata().map_err(EngineError::io(path))?.len() as usize;
    if len == 0 {
        return Ok(Bytes::from_vec(Vec::new()));
    }
    // SAFETY: the file is opened read-only and never written by us. A person who truncates a model file while it is
    // loaded can still make the process fault; no copy-free way to read it avoids that.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(EngineError::io(path))?;
    // SAFETY: a map begins at a page and ends with one, see above for writes.
    Ok(unsafe { Bytes::of_map(Arc::new(map)) })
}

/// What a download can leave in the place of a file.
pub(super) fn other_content(raw: &[u8]) -> Option<&'static str> {
    let start = raw.iter().take(256).map(u8::to_ascii_lowercase);
    let start: Vec<u8> = start.skip_while(u8::is_ascii_whitespace).collect();
    let starts_with = |what: &[&str]| what.iter().any(|what| start.starts_with(what.as_bytes()));
    if raw.is_empty() {
        Some("it is empty; download it again")
    } else if starts_with(&["version https://git-lfs"]) {
        Some("it is a git-lfs pointer; the file itself was not downloaded")
    } else if starts_with(&["<!doctype", "<html", "<?xml"]) {
        Some("it is a web page; download it again")
    } else {
        None
    }
}

#[derive(Debug, Clone)]
pub(super) struct TensorInShard {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Bytes,
    /// Where `data` begins in the file, in bytes.
    pub at: u64,
}

/// One safetensors file.
#[derive(Debug)]
pub struct Shard {
    pub(super) file: PathBuf,
    pub(super) tensors: BTreeMap<String, TensorInShard>,
    pub n_bytes: u64,
}

impl Shard {
    /// Errors name what the file looks like when it is not safetensors at all.
    pub fn open(path: &Path) -> Result<Self> {
        let map = map_file(path)?;
        let raw = map.as_slice();
        let corrupt = |why: String| EngineError::Corrupt { file: path.to_owned(), why };
        if let Some(other) = other_content(raw) {
            return Err(corrupt(other.to_owned()));
        }
        if raw.len() > 8 {
            let header = u64::from_le_bytes(raw[..8].try_into().expect("eight bytes"));
            if header > raw.len() as u64 - 8 {
                return Err(corrupt(format!(
                    "it is not a safetensors file or was cut off: the header should have {header} bytes, the file has {}",
                    raw.len()
                )));
            }
        }
        let (header, metadata) = SafeTensors::read_metadata(raw).map_err(|e| match e {
            safetensors::SafeTensorError::MetadataIncompleteBuffer => {
                corrupt("it was cut off: the tensors do not fill the file".to_owned())
            }
            e => corrupt(format!("it is not a valid safetensors file ({e})")),
        })?;
        let mut tensors = BTreeMap::new();
        for (name, info) in metadata.tensors() {
            let (from, to) = info.data_offsets;
            let data =
                (header + 8).checked_add(from).and_then(|at| map.slice(at, to.checked_sub(from)?));
            let data =
                data.ok_or_else(|| corrupt(format!("the tensor {name} lies outside the file")))?;
            let (dtype, shape, at) = (info.dtype, info.shape.clone(), (header + 8 + from) as u64);
            tensors.insert(name, TensorInShard { dtype, shape, data, at });
        }
        Ok(Self { file: path.to_owned(), tensors, n_bytes: raw.len() as u64 })
    }

    /// The bytes of a tensor as they lie there.
    pub fn raw(&self, name: &str) -> Option<Bytes> {
        self.tensors.get(name).map(|tensor| tensor.data.clone())
    }

    /// A list of non-negative integers; `None` when there is no such tensor or one does not fit u32.
    pub fn integers(&self, name: &str) -> Option<Vec<u32>> {
        let tensor = self.tensors.get(name)?;
        let raw = tensor.data.as_slice();
        match tensor.dtype {
            Dtype::I32 | Dtype::U32 => raw
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| u32::try_from(i32::from_le_bytes(*b)).ok())
                .collect(),
            Dtype::I64 | Dtype::U64 => raw
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| u32::try_from(i64::from_le_bytes(*b)).ok())
                .collect(),
            _ => None,
        }
    }

    /// A float tensor as f32, with its shape; for golden values and inspection.
    pub fn floats(&self, name: &str) -> Option<(Vec<f32>, Vec<usize>)> {
        let tensor = self.tensors.get(name)?;
        let float = match tensor.dtype {
            Dtype::F32 => FloatType::F32,
            Dtype::F16 => FloatType::F16,
            Dtype::BF16 => FloatType::BF16,
            _ => return None,
        };
        let raw = tensor.data.as_slice();
        Some((
            (0..raw.len() / float.size()).map(|i| float.get(raw, i)).collect(),
            tensor.shape.clone(),
        ))
    }
}
