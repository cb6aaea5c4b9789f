//! The leaves of a decoder. Shared by the families, which write the wiring out themselves.
//!
//! Does not: know a `config.json`, a family or a cache's bookkeeping beyond `append`.

mod attention;
mod linear;
mod mlp;
mod moe;
mod norm;
mod parts;
mod rope;

pub use attention::{Attention, AttentionSpec};
pub use linear::{Embedding, Linear};
pub use mlp::Mlp;
pub use moe::{Ffn, Moe, Router, Score};
pub use norm::Norm;
pub use parts::{BlockParts, FeedParts, LevelParts, TrunkParts};
pub use rope::{Rope, RopeScaling, RopeSpec};
