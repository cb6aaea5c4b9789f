//! What a converter must know of a family to write it in the MLX layout; the families hold the tables.

use crate::weights::ZeroCentred;
use serde_json::Value;

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
