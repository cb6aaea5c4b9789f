//! The launch of `router.metal`: from logits to chosen experts, weights and runs, without the host.

use super::launch::{Field, FloatArray, Launch, LaunchError, View, constant};
use super::linear::check_rows;

#[derive(Debug, Clone, Copy)]
pub struct RouterSpec {
    pub n_experts: usize,
    pub n_chosen: usize,
    /// Scores are a softmax over all experts; else each the sigmoid of its logit.
    pub softmax: bool,
    /// Added to the scores for choosing only.
    pub bias: Option<FloatArray>,
    pub renormalise: bool,
    pub scale: f32,
}

/// Where it writes, each [rows * n_chosen] of four bytes; `runs` has three such for each.
#[derive(Debug, Clone, Copy)]
pub struct RouterViews {
    pub chosen: View,
    pub weights: View,
    /// Pairs sorted by expert.
    pub order: View,
    /// (expert, first place in `order`, count); count 0 pads.
    pub runs: View,
}

/// `logits` is [rows, n_experts] f32.
pub fn router(
    rows: usize,
    spec: &RouterSpec,
    logits: View,
    to: &RouterViews,
) -> Result<Launch, LaunchError> {
    check_rows(rows)?;
    let RouterSpec { n_experts, n_chosen, .. } = *spec;
    if n_experts > 512 || n_chosen > 16 || n_chosen == 0 || n_chosen > n_experts {
        return Err(LaunchError::Shape("at most 16 of at most 512 experts"));
    }
    let pairs = rows * n_chosen * 4;
    let launch = Launch::new("router", None)
        .floats(spec.bias.map_or(crate::FloatType::F32, |b| b.float))
        .flag(constant::ROUTER_SOFTMAX, spec.softmax)
        .flag(constant::ROUTER_BIAS, spec.bias.is_some())
        .flag(constant::ROUTER_RENORMALISE, spec.renormalise)
        .read(0, logits, rows * n_experts * 4)
        .write(1, to.chosen, pairs)
        .write(2, to.weights, pairs)
        .write(3, to.order, pairs)
        .write(4, to.runs, 3 * pairs)
        .data(5, &[Field::N(rows), Field::N(n_experts), Field::N(n_chosen), Field::F(spec.scale)])
        .grid([1, 1, 1], 256);
    Ok(match spec.bias {
        Some(bias) => launch.read(6, bias.at, n_experts * bias.float.size()),
        None => launch,
    })
}
