//! A model looked at from afar: its configuration, whether it has an MTP head, and where, before anything is fetched.

use super::{Hub, HubError, Listing, RemoteFile, RemoteTensor, RepoRef};
use crate::hash::Hasher;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The table of which tensor is in which shard.
const INDEX: &str = "model.safetensors.index.json";
/// Files that may hold a head without being in the index (`reference/hy_v3.md` 2.3).
const HEAD_FILES: [&str; 2] = ["mtp.safetensors", "model-mtp.safetensors"];
/// Small files that are read whole.
const MAX_SMALL: u64 = 32 << 20;

/// Where a model's own head is, by its tensors: what the configuration promises is not asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadPlace {
    /// In files that hold nothing else.
    OwnFiles(Vec<String>),
    /// Among the trunk's tensors.
    Shards(Vec<String>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct RemoteModel {
    pub listing: Listing,
    pub config: Value,
    /// `model_type` of the configuration or of its text part.
    pub model_type: Option<String>,
    pub n_layers: Option<u64>,
    /// Bytes of all weight files.
    pub weights: u64,
    /// The configuration's own bytes, for a copy of it.
    pub(crate) config_text: Vec<u8>,
    /// The head's tensors in the order they lie in their files; none = the repository has no head.
    pub head: Vec<RemoteTensor>,
    pub head_place: Option<HeadPlace>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl RemoteModel {
    pub fn head_bytes(&self) -> u64 {
        self.head.iter().map(|tensor| tensor.at.end - tensor.at.start).sum()
    }

    /// Bits of the default quantisation, in the MLX layout.
    pub fn bits(&self) -> Option<u64> {
        self.config.get("quantization")?.get("bits")?.as_u64()
    }
}

impl Hub {
    /// Lists a repository and reads its configuration and what headers the question needs.
    pub fn inspect(&self, repo: &RepoRef) -> Result<RemoteModel, HubError> {
        let (hub, repo) = (self.clone(), repo.clone());
        self.wait_for(async move { hub.inspect_now(hub.list_now(&repo).await?).await })
    }

    /// A small file of a listing in memory, verified.
    pub fn read_small(&self, listing: &Listing, path: &str) -> Result<Vec<u8>, HubError> {
        let (hub, listing, path) = (self.clone(), listing.clone(), path.to_owned());
        self.wait_for(async move { hub.small_file(&listing, &path).await })
    }

    pub(crate) async fn inspect_now(&self, listing: Listing) -> Result<RemoteModel, HubError> {
        let config_text = self.small_file(&listing, "config.json").await?;
        let config: Value = parse(&config_text, "config.json")?;
        let text = config.get("text_config").unwrap_or(&config);
        let either = |key: &str| text.get(key).or_else(|| config.get(key)).cloned();
        let n_layers = either("num_hidden_layers").and_then(|n| n.as_u64());
        let model_type = either("model_type").and_then(|t| Some(t.as_str()?.to_owned()));

        let weight_files = || listing.files.iter().filter(|f| f.path.ends_with(".safetensors"));
        let mut look_in: BTreeSet<String> = weight_files()
            .map(|f| f.path.clone())
            .filter(|path| HEAD_FILES.contains(&path.as_str()))
            .collect();
        if listing.file(INDEX).is_some() {
            let index: Index = parse(&self.small_file(&listing, INDEX).await?, INDEX)?;
            let shards = index.weight_map.into_iter().filter(|(name, _)| is_head(name, n_layers));
            look_in.extend(shards.map(|(_, shard)| shard));
        } else {
            let top = weight_files().map(|f| f.path.clone()).filter(|path| !path.contains('/'));
            look_in.extend(top);
        }

        let (mut head, mut own, mut mixed) = (Vec::new(), Vec::new(), Vec::new());
        let mut names = BTreeSet::new();
        for path in look_in {
            let file = file(&listing, &path)?;
            let all = self.tensors(&listing, file).await?;
            let n_all = all.len();
            let found: Vec<_> =
                all.into_iter().filter(|tensor| is_head(&tensor.name, n_layers)).collect();
            if !found.is_empty() {
                if found.len() == n_all { own.push(path) } else { mixed.push(path) }
            }
            // A head that is there twice, in the shards and in a file of its own, counts once.
            head.extend(found.into_iter().filter(|tensor| names.insert(tensor.name.clone())));
        }
        let head_place = match (own.is_empty(), mixed.is_empty()) {
            (true, true) => None,
            (false, true) => Some(HeadPlace::OwnFiles(own)),
            (_, false) => {
                mixed.extend(own);
                Some(HeadPlace::Shards(mixed))
            }
        };
        let weights = weight_files().map(|f| f.size).sum();
        Ok(RemoteModel {
            config,
            config_text,
            model_type,
            n_layers,
            weights,
            head,
            head_place,
            listing,
        })
    }

    /// A whole file in memory, verified.
    async fn small_file(&self, listing: &Listing, path: &str) -> Result<Vec<u8>, HubError> {
        let bad = |why: String| HubError::BadAnswer { what: path.to_owned(), why };
        let file = file(listing, path)?;
        if file.size > MAX_SMALL {
            return Err(bad(format!("{} bytes are too many for it", file.size)));
        }
        let bytes = self.read_range(listing, file, 0..file.size).await?;
        let mut hash = Hasher::new(&file.id, file.size);
        hash.update(&bytes);
        if hash.hex() != file.id.hex() {
            return Err(bad("it arrives damaged".to_owned()));
        }
        Ok(bytes)
    }
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8], path: &str) -> Result<T, HubError> {
    // An editor's byte order mark is not part of the text.
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    serde_json::from_slice(text)
        .map_err(|e| HubError::BadAnswer { what: path.to_owned(), why: e.to_string() })
}

fn file<'a>(listing: &'a Listing, path: &str) -> Result<&'a RemoteFile, HubError> {
    listing
        .file(path)
        .ok_or_else(|| HubError::NoFile { repo: listing.repo.clone(), file: path.to_owned() })
}

/// Whether a tensor belongs to an MTP head: it says so, or its layer comes after the trunk's last one.
pub fn is_head(name: &str, n_layers: Option<u64>) -> bool {
    let inner = name.strip_prefix("language_model.").unwrap_or(name);
    let inner = inner.strip_prefix("model.").unwrap_or(inner);
    let inner = inner.strip_prefix("language_model.").unwrap_or(inner);
    if inner.starts_with("mtp.") || inner.starts_with("mtp_layers.") {
        return true;
    }
    let layer =
        inner.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
    matches!((layer, n_layers), (Some(layer), Some(n)) if layer >= n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_known_by_their_names() {
        for name in [
            "mtp.layers.0.eh_proj.weight",
            "mtp.fc.weight",
            "model.mtp.layer.enorm.weight",
            "model.mtp_layers.0.input_proj.weight",
            "language_model.mtp.norm.weight",
            "model.language_model.mtp.norm.weight",
            "model.layers.45.eh_proj.weight",
            "language_model.model.layers.47.transformer.shared_head.output.weight",
        ] {
            assert!(is_head(name, Some(45)), "{name}");
        }
        for name in [
            "model.layers.44.mlp.up_proj.weight",
            "lm_head.weight",
            "visual.layers.60.mlp.weight",
            "model.embed_tokens.weight",
            "model.mtpx.weight",
        ] {
            assert!(!is_head(name, Some(45)), "{name}");
        }
        assert!(!is_head("model.layers.45.eh_proj.weight", None));
    }
}
