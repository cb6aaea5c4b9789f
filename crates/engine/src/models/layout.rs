//! How a family's checkpoints are stored, for a converter and for `inspect`; the families hold the tables.

use crate::Result;
use crate::weights::{Checkpoint, Names, ZeroCentred};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// (from, to), gone through in order, see [`crate::weights::Names`].
pub(crate) type Renames = &'static [(&'static str, &'static str)];

/// A family's tensors under the names MLX loaders know.
pub(crate) struct Layout {
    /// Published names -> the family's own.
    pub names: Renames,
    /// The family's own -> MLX; experts stacked by matrix under `switch_mlp`.
    pub mlx: Renames,
    /// The convention of the norms under this configuration; MLX stores factors.
    pub norms: fn(&Value) -> Option<ZeroCentred>,
    /// The family's own place of nextn level i; `None` = not a level the head has. Without one, names stay as published.
    pub level: Option<fn(usize) -> Option<String>>,
    /// End of a router's own name: its choices flip on coarse codes.
    pub router: Option<&'static str>,
}

impl Layout {
    /// Dense families are published under the names MLX uses.
    pub const AS_PUBLISHED: Self =
        Self { names: &[], mlx: &[], norms: |_| None, level: None, router: None };
}

/// How the norms of a file are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormConvention {
    /// Factors, in a family that has no other.
    Plain,
    /// Factors of a family with zero-centred norms: the converter added the one.
    OneAdded,
    /// Without the one, which is added at load.
    AsTrained,
}

/// By file name, of the files that hold norms.
pub fn norm_conventions(checkpoint: &Checkpoint) -> Result<Vec<(String, NormConvention)>> {
    let layout = super::layout(checkpoint)?;
    let zero_centred = (layout.norms)(&checkpoint.config);
    let names = Names::new(checkpoint, layout.names, zero_centred)?;
    let is_norm = |name: &&str| name.ends_with("norm.weight");
    let files: BTreeSet<&Path> = checkpoint
        .names()
        .filter(is_norm)
        .filter_map(|name| checkpoint.get(name))
        .map(|place| place.file.as_path())
        .collect();
    let convention = |file: &Path| match zero_centred {
        None => NormConvention::Plain,
        Some(_) if names.is_zero_centred(file) => NormConvention::AsTrained,
        Some(_) => NormConvention::OneAdded,
    };
    let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(files.into_iter().map(|file| (name(file), convention(file))).collect())
}
