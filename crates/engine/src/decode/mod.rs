//! From a prompt to committed tokens: sampler, accept rule, speculative cycle, depth controller.
//!
//! Drafting off is depth 0 of the same cycle, so the switch cannot change the law of the text, and at temperature 0 not
//! the text itself. Knows only [`crate::models::Trunk`] and [`crate::models::MtpHead`].
//!
//! Does not: know a family, decode text, print, read a clock, or decide what ends a chat.

mod accept;
mod cycle;
mod depth;
mod distribution;
mod rows;
mod sampler;

pub use accept::{Draft, Rule, Verdict, accept_probability, judge, residual};
pub use cycle::{Phase, Probe, Sequence, Step};
pub use depth::{DepthController, Estimate};
pub use distribution::Distribution;
pub use sampler::{PENALTY_WINDOW, SamplerSettings};

/// Deepest draft per cycle.
pub const MAX_DEPTH: usize = 8;
