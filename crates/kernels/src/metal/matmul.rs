//! The launch of `matmul.metal`: products of any number of rows, for prefill.

use super::launch::{Field, Launch, LaunchError, Matrix, View, constant};
use crate::FloatType;

/// y [rows, n] = x W^T (+ residual [rows, n]).
pub fn matmul(
    act: FloatType,
    rows: usize,
    x: View,
    m: &Matrix,
    residual: Option<View>,
    y: View,
) -> Result<Launch, LaunchError> {
    m.check()?;
    if rows == 0 {
        return Err(LaunchError::Rows(0, usize::MAX));
    }
    let launch = Launch::new(&format!("matmul_b{}", m.storage.bits()), Some(act))
        .storage(m.storage)
        .flag(constant::HAS_RESIDUAL, residual.is_some())
        .matrix(0, m, m.n)
        .read(3, x, rows * m.k * act.size())
        .write(4, y, rows * m.n * act.size())
        .data(5, &[Field::N(m.k), Field::N(m.n), Field::N(rows)])
        .grid([m.n.div_ceil(32), rows.div_ceil(32), 1], 128);
    Ok(match residual {
        Some(residual) => launch.read(6, residual, rows * m.n * act.size()),
        None => launch,
    })
}
