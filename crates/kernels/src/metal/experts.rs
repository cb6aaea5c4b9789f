//! Launches of `experts.metal`: routed experts over the runs that `router` wrote.

use super::launch::{Field, Launch, LaunchError, Matrix, View, constant};
use super::linear::{check_alike, check_rows};
use super::router::RouterViews;
use crate::FloatType;

/// The matrices of a layer's experts, each [n_experts, n, k] in one piece; the matrix says n and k.
#[derive(Debug, Clone, Copy)]
pub struct ExpertStack {
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
    pub n_chosen: usize,
    pub limit: Option<f32>,
}

/// Kernels are built for runs of up to this many rows.
fn run_rows(rows: usize) -> usize {
    rows.next_power_of_two()
}

/// y [rows * n_chosen, width] = the activation of every pair. `touched`: distinct experts, which only the count of bytes
/// needs to know; at most rows * n_chosen.
pub fn experts_gate_up(
    act: FloatType,
    rows: usize,
    stack: &ExpertStack,
    x: View,
    routed: &RouterViews,
    y: View,
    touched: usize,
) -> Result<Launch, LaunchError> {
    check_rows(rows)?;
    check_alike(&stack.gate, &stack.up)?;
    let Matrix { n, k, storage, .. } = stack.gate;
    let pairs = rows * stack.n_chosen;
    Ok(Launch::new(&format!("experts_gate_up_b{}_r{}", storage.bits(), run_rows(rows)), Some(act))
        .storage(storage)
        .flag(constant::HAS_LIMIT, stack.limit.is_some())
        .matrix(0, &stack.gate, touched * n)
        .matrix(3, &stack.up, touched * n)
        .read(6, x, rows * k * act.size())
        .write(7, y, pairs * n * act.size())
        .data(
            8,
            &[
                Field::N(k),
                Field::N(n),
                Field::N(stack.n_chosen),
                Field::F(stack.limit.unwrap_or(0.0)),
            ],
        )
        .read(9, routed.order, pairs * 4)
        .read(10, routed.runs, pairs * 12)
        .grid([n.div_ceil(4), 1, pairs], 64))
}

/// y [rows * n_chosen, hidden] f32 = x [rows * n_chosen, width] down^T, each pair by its expert.
pub fn experts_down(
    act: FloatType,
    rows: usize,
    stack: &ExpertStack,
    x: View,
    routed: &RouterViews,
    y: View,
    touched: usize,
) -> Result<Launch, LaunchError> {
    check_rows(rows)?;
    stack.down.check()?;
    let Matrix { n, k, storage, .. } = stack.down;
    let pairs = rows * stack.n_chosen;
    Ok(Launch::new(&format!("experts_down_b{}_r{}", storage.bits(), run_rows(rows)), Some(act))
        .storage(storage)
        .matrix(0, &stack.down, touched * n)
        .read(3, x, pairs * k * act.size())
        .write(4, y, pairs * n * 4)
        .data(5, &[Field::N(k), Field::N(n), Field::N(stack.n_chosen), Field::F(0.0)])
        .read(6, routed.order, pairs * 4)
        .read(7, routed.runs, pairs * 12)
        .grid([n.div_ceil(8), 1, pairs], 64))
}

/// y [rows, n] = rest + the weighted sum of a row's pairs, in ascending order of the experts.
pub fn experts_sum(
    act: FloatType,
    (rows, n): (usize, usize),
    n_chosen: usize,
    x: View,
    weights: View,
    rest: View,
    y: View,
) -> Launch {
    let pairs = rows * n_chosen;
    Launch::new("experts_sum", Some(act))
        .read(0, x, pairs * n * 4)
        .read(1, weights, pairs * 4)
        .read(2, rest, rows * n * act.size())
        .write(3, y, rows * n * act.size())
        .data(4, &[Field::N(n), Field::N(n_chosen), Field::N(rows * n)])
        .grid([(rows * n).div_ceil(256), 1, 1], 256)
}
