//! The launches of `router.metal`: from logits to chosen experts, weights and runs, without the host.

use super::launch::{Field, FloatArray, Launch, LaunchError, View, constant};
use super::linear::check_rows;

const MAX_EXPERTS: usize = 512;

/// Rows of a tile of `matmul.metal`.
pub(super) const TILE_ROWS: usize = 32;

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
    let pairs = rows * n_chosen * 4;
    let launch = chooser("router", spec)?
        .read(0, logits, rows * n_experts * 4)
        .write(1, to.chosen, pairs)
        .write(2, to.weights, pairs)
        .write(3, to.order, pairs)
        .write(4, to.runs, 3 * pairs)
        .data(5, &[Field::N(rows), Field::N(n_experts), Field::N(n_chosen), Field::F(spec.scale)])
        .grid([1, 1, 1], 256);
    Ok(launch)
}

/// A launch with what a row's choice depends on.
fn chooser(kernel: &str, spec: &RouterSpec) -> Result<Launch, LaunchError> {
    let RouterSpec { n_experts, n_chosen, .. } = *spec;
    if n_experts > MAX_EXPERTS || n_chosen > 16 || n_chosen == 0 || n_chosen > n_experts {
        return Err(LaunchError::Shape("at most 16 of at most 512 experts"));
    }
    let launch = Launch::new(kernel, None)
        .floats(spec.bias.map_or(crate::FloatType::F32, |b| b.float))
        .flag(constant::ROUTER_SOFTMAX, spec.softmax)
        .flag(constant::ROUTER_BIAS, spec.bias.is_some())
        .flag(constant::ROUTER_RENORMALISE, spec.renormalise);
    Ok(match spec.bias {
        Some(bias) => launch.read(6, bias.at, n_experts * bias.float.size()),
        None => launch,
    })
}

/// Pairs of one expert that [`super::matmul`] takes at once: experts and places as in [`RouterViews`], but of up to 32.
#[derive(Debug, Clone, Copy)]
pub struct Tiles {
    /// Pairs sorted by expert.
    pub order: View,
    /// [n, 3].
    pub tiles: View,
    pub n: usize,
    pub n_chosen: usize,
    /// Distinct experts, for the count of bytes.
    pub touched: usize,
}

/// The choices of any number of rows, and the tiles that `tiles` says: more than it has room for cannot be.
pub fn router_rows(
    rows: usize,
    spec: &RouterSpec,
    logits: View,
    (chosen, weights): (View, View),
    tiles: &Tiles,
) -> Result<[Launch; 2], LaunchError> {
    let RouterSpec { n_experts, n_chosen, .. } = *spec;
    let pairs = rows * n_chosen;
    if rows == 0 {
        return Err(LaunchError::Rows(0, usize::MAX));
    }
    if tiles.n < n_tiles(rows, spec) {
        return Err(LaunchError::Shape("tiles without room"));
    }
    let choose = chooser("router_rows", spec)?
        .read(0, logits, rows * n_experts * 4)
        .write(1, chosen, pairs * 4)
        .write(2, weights, pairs * 4)
        .data(3, &[Field::N(rows), Field::N(n_experts), Field::N(n_chosen), Field::F(spec.scale)])
        .grid([rows.div_ceil(8), 1, 1], 256);
    let sort = Launch::new("router_tiles", None)
        .read(0, chosen, pairs * 4)
        .write(1, tiles.order, pairs * 4)
        .write(2, tiles.tiles, tiles.n * 12)
        .data(3, &[Field::N(pairs), Field::N(n_experts), Field::N(tiles.n)])
        .grid([1, 1, 1], MAX_EXPERTS);
    Ok([choose, sort])
}

/// The most tiles there can be: every expert may end with one that is not full.
pub(super) fn n_tiles(rows: usize, spec: &RouterSpec) -> usize {
    let pairs = rows * spec.n_chosen;
    pairs.min(pairs / TILE_ROWS + spec.n_experts)
}
