use super::map::{Shard, TensorInShard, other_content};
use super::quant::QuantTable;
use crate::{EngineError, Result};
use foretoken_kernels::Bytes;
use safetensors::Dtype;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A tensor's storage and where it was found.
#[derive(Debug, Clone)]
pub struct TensorPlace {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Bytes,
    pub file: PathBuf,
    /// Where `data` begins in the file, in bytes.
    pub at: u64,
}

/// All tensors of a checkpoint folder by name, with its `config.json`.
#[derive(Debug)]
pub struct Checkpoint {
    pub folder: PathBuf,
    pub config: Value,
    pub quant: QuantTable,
    tensors: BTreeMap<String, TensorPlace>,
    pub n_bytes: u64,
}

/// Files beside the main index that may hold the MTP head (`reference/hy_v3.md` 2.3, the starter's `mtp.safetensors`).
const HEAD_FILES: [&str; 2] = ["mtp.safetensors", "model-mtp.safetensors"];

/// JSON of a file in the folder; `None` when the file is absent.
pub(crate) fn read_json(path: &Path) -> Result<Option<Value>> {
    let raw = match std::fs::read(path) {
        Ok(raw) => raw,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(EngineError::Io { path: path.to_owned(), source: e }),
    };
    // An editor's byte order mark is not part of the text.
    let text = raw.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&raw);
    let value = serde_json::from_slice(text).map_err(|e| EngineError::Corrupt {
        file: path.to_owned(),
        why: other_content(text)
            .map_or_else(|| format!("it is not valid JSON ({e})"), str::to_owned),
    })?;
    Ok(Some(value))
}

impl Checkpoint {
    /// Reads names and places, no weights. AppleDouble files (`._*`) are passed over.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_some(folder, false)
    }

    /// A folder that need not hold more than a head.
    pub fn open_head(folder: &Path) -> Result<Self> {
        Self::open_some(folder, true)
    }

    fn open_some(folder: &Path, head_is_enough: bool) -> Result<Self> {
        if !folder.is_dir() {
            return Err(EngineError::FolderMissing { folder: folder.to_owned() });
        }
        let config_file = folder.join("config.json");
        let config = read_json(&config_file)?
            .ok_or(EngineError::FileMissing { file: config_file.clone() })?;
        if !config.is_object() {
            return Err(EngineError::Corrupt {
                file: config_file,
                why: "it is not a JSON object".to_owned(),
            });
        }
        let quant = QuantTable::from_config(&config)?;
        let mut checkpoint =
            Self { folder: folder.to_owned(), config, quant, tensors: BTreeMap::new(), n_bytes: 0 };
        for file in shard_files(folder, head_is_enough)? {
            checkpoint.add(Shard::open(&file)?)?;
        }
        Ok(checkpoint)
    }

    fn add(&mut self, shard: Shard) -> Result<()> {
        self.n_bytes += shard.n_bytes;
        for (name, TensorInShard { dtype, shape, data, at }) in shard.tensors {
            if let Some(first) = self.tensors.get(&name) {
                let why =
                    format!("it holds {name} again, which {} already has", first.file.display());
                return Err(EngineError::Corrupt { file: shard.file, why });
            }
            let file = shard.file.clone();
            self.tensors.insert(name, TensorPlace { dtype, shape, data, file, at });
        }
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&TensorPlace> {
        self.tensors.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

/// The shards of a folder: those the index names, or every safetensors file; plus a head's own file.
fn shard_files(folder: &Path, head_is_enough: bool) -> Result<Vec<PathBuf>> {
    let index_file = folder.join("model.safetensors.index.json");
    let mut names = BTreeSet::new();
    if let Some(index) = read_json(&index_file)? {
        let corrupt =
            |why: &str| EngineError::Corrupt { file: index_file.clone(), why: why.to_owned() };
        let map = index
            .get("weight_map")
            .and_then(Value::as_object)
            .ok_or_else(|| corrupt("it has no weight_map"))?;
        for shard in map.values() {
            let shard = shard
                .as_str()
                .ok_or_else(|| corrupt("its weight_map holds something else than file names"))?;
            // A name from a checkpoint must not lead out of its folder.
            if Path::new(shard).file_name().is_none_or(|name| name != shard) {
                return Err(corrupt("its weight_map names a file outside the folder"));
            }
            if !folder.join(shard).is_file() {
                return Err(EngineError::ShardMissing {
                    index: index_file,
                    shard: shard.to_owned(),
                });
            }
            names.insert(shard.to_owned());
        }
        names.extend(
            HEAD_FILES.iter().filter(|f| folder.join(f).is_file()).map(|f| (*f).to_owned()),
        );
    } else {
        for entry in std::fs::read_dir(folder).map_err(EngineError::io(folder))? {
            let name = entry.map_err(EngineError::io(folder))?.file_name();
            let Some(name) = name.to_str() else { continue };
            // Other files of this kind (golden values, a draft vocabulary) are not weights of the model.
            let weights = name == "model.safetensors"
                || name.starts_with("model-")
                || HEAD_FILES.contains(&name);
            if weights && name.ends_with(".safetensors") {
                names.insert(name.to_owned());
            }
        }
        let is_trunk = |name: &String| !HEAD_FILES.contains(&name.as_str());
        if !names.iter().any(|name| head_is_enough || is_trunk(name)) {
            return Err(EngineError::FileMissing { file: folder.join("model.safetensors") });
        }
    }
    Ok(names
        .into_iter()
        .filter(|name| !name.starts_with("._"))
        .map(|name| folder.join(name))
        .collect())
}
