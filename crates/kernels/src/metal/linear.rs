//! Launches of `linear.metal`: products of 1 to 8 rows.

use super::launch::{Field, Launch, LaunchError, Matrix, View, constant};
use crate::FloatType;

/// Rows of one launch of decode and verify; more go through [`super::matmul`].
pub(super) const MAX_ROWS: usize = 8;

pub(super) fn check_rows(rows: usize) -> Result<(), LaunchError> {
    if (1..=MAX_ROWS).contains(&rows) { Ok(()) } else { Err(LaunchError::Rows(rows, MAX_ROWS)) }
}

/// What becomes of the product of a single matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Finish {
    Keep,
    /// y = product + residual [rows, n].
    Add(View),
    /// y = swiglu(gate [rows, n], product), limited if asked: for a gate and an up of different storage.
    Gate(View, Option<f32>),
}

/// y [rows, n] = x W^T for one to four matrices of one storage and k, each with its own y; `finish` is
/// for a single one. `float_out`: y is f32 whatever the activations are, for logits.
pub fn linear(
    act: FloatType,
    rows: usize,
    x: View,
    parts: &[(Matrix, View)],
    finish: Finish,
    float_out: bool,
) -> Result<Launch, LaunchError> {
    check_rows(rows)?;
    let Some((first, _)) = parts.first() else {
        return Err(LaunchError::Shape("no matrix"));
    };
    let alike = parts.iter().all(|(m, _)| m.storage == first.storage && m.k == first.k);
    if parts.len() > 4 || !alike || (finish != Finish::Keep && parts.len() > 1) {
        return Err(LaunchError::Shape("matrices of one launch must be alike"));
    }
    let k = first.k;
    let mut n = [Field::N(0), Field::N(0), Field::N(0), Field::N(0)];
    let y_size = if float_out { 4 } else { act.size() };
    let mut launch = Launch::new(&format!("linear_b{}_r{rows}", first.storage.bits()), Some(act))
        .storage(first.storage)
        .flag(constant::FLOAT_OUT, float_out)
        .flag(constant::HAS_RESIDUAL, finish != Finish::Keep)
        .flag(constant::GATES, matches!(finish, Finish::Gate(..)))
        .flag(constant::HAS_LIMIT, matches!(finish, Finish::Gate(_, Some(_))))
        .read(3, x, rows * k * act.size());
    let mut tiles = 0;
    for (i, (m, y)) in parts.iter().enumerate() {
        m.check()?;
        n[i] = Field::N(m.n);
        tiles += m.n.div_ceil(8);
        // The first matrix stands before x, the others after the residual.
        let (at, y_at) = if i == 0 { (0, 4) } else { (3 + 4 * i as u32, 6 + 4 * i as u32) };
        launch = launch.matrix(at, m, m.n).write(y_at, *y, rows * m.n * y_size);
        if i > 0 {
            launch = launch.flag(constant::HAS_SECOND + i as u32 - 1, true);
        }
    }
    if let Finish::Add(other) | Finish::Gate(other, _) = finish {
        launch = launch.read(6, other, rows * first.n * act.size());
    }
    let limit = if let Finish::Gate(_, Some(limit)) = finish { limit } else { 0.0 };
    let [a, b, c, d] = n;
    Ok(launch.data(5, &[Field::N(k), a, b, c, d, Field::F(limit)]).grid([tiles, 1, 1], 64))
}

/// y [rows, n] = min(silu(x gate^T), limit) * clamp(x up^T); the two matrices are alike.
pub fn gate_up(
    act: FloatType,
    rows: usize,
    x: View,
    (gate, up): (&Matrix, &Matrix),
    limit: Option<f32>,
    y: View,
) -> Result<Launch, LaunchError> {
    check_rows(rows)?;
    check_alike(gate, up)?;
    let (n, k) = (gate.n, gate.k);
    Ok(Launch::new(&format!("gate_up_b{}_r{rows}", gate.storage.bits()), Some(act))
        .storage(gate.storage)
        .flag(constant::HAS_LIMIT, limit.is_some())
        .matrix(0, gate, n)
        .matrix(3, up, n)
        .read(6, x, rows * k * act.size())
        .write(7, y, rows * n * act.size())
        .data(8, &[Field::N(k), Field::N(n), Field::F(limit.unwrap_or(0.0))])
        .grid([n.div_ceil(4), 1, 1], 64))
}

pub(super) fn check_alike(gate: &Matrix, up: &Matrix) -> Result<(), LaunchError> {
    gate.check()?;
    up.check()?;
    if (gate.storage, gate.n, gate.k) != (up.storage, up.n, up.k) {
        return Err(LaunchError::Shape("gate and up must be alike"));
    }
    Ok(())
}
