//! The launches of `matmul.metal`: products of any number of rows, for prefill.

use super::launch::{Field, Launch, LaunchError, Matrix, View, constant};
use super::linear::Finish;
use super::router::{TILE_ROWS, Tiles};
use crate::FloatType;

/// Outputs of a threadgroup.
const TILE_OUTPUTS: usize = 32;

/// y [rows, n] = x W^T, and what `finish` says; `float_out` as of [`super::linear`].
pub fn matmul(
    act: FloatType,
    rows: usize,
    x: View,
    m: &Matrix,
    finish: Finish,
    (y, float_out): (View, bool),
) -> Result<Launch, LaunchError> {
    if rows == 0 {
        return Err(LaunchError::Rows(0, usize::MAX));
    }
    let launch = product(act, m, 1, finish, rows, (y, float_out))?
        .read(3, x, rows * m.k * act.size())
        .data(5, &shape(m, rows, 1, finish))
        .grid([rows.div_ceil(TILE_ROWS), m.n.div_ceil(TILE_OUTPUTS), 1], 128);
    Ok(launch)
}

/// What a pair of [`matmul_tiles`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairInput {
    /// The row of x [rows, k] it belongs to.
    Row,
    /// A row of its own, of x [pairs, k].
    Own,
}

/// y [pairs, n] = the product of every pair and its expert's matrix of the stack `m`; `finish` is by pairs too.
pub fn matmul_tiles(
    act: FloatType,
    rows: usize,
    (x, input): (View, PairInput),
    m: &Matrix,
    tiles: &Tiles,
    finish: Finish,
    (y, float_out): (View, bool),
) -> Result<Launch, LaunchError> {
    let pairs = rows * tiles.n_chosen;
    let (share, x_rows) = match input {
        PairInput::Row => (tiles.n_chosen, rows),
        PairInput::Own => (1, pairs),
    };
    let launch = product(act, m, tiles.touched, finish, pairs, (y, float_out))?
        .flag(constant::HAS_TILES, true)
        .read(3, x, x_rows * m.k * act.size())
        .data(5, &shape(m, pairs, share, finish))
        .read(7, tiles.order, pairs * 4)
        .read(8, tiles.tiles, tiles.n * 12)
        .grid([tiles.n, m.n.div_ceil(TILE_OUTPUTS), 1], 128);
    Ok(launch)
}

/// What both have in common: `stacked` matrices are read, `rows` rows written.
fn product(
    act: FloatType,
    m: &Matrix,
    stacked: usize,
    finish: Finish,
    rows: usize,
    (y, float_out): (View, bool),
) -> Result<Launch, LaunchError> {
    m.check()?;
    let y_size = if float_out { 4 } else { act.size() };
    let launch = Launch::new(&format!("matmul_b{}", m.storage.bits()), Some(act))
        .storage(m.storage)
        .flag(constant::FLOAT_OUT, float_out)
        .flag(constant::HAS_RESIDUAL, finish != Finish::Keep)
        .flag(constant::GATES, matches!(finish, Finish::Gate(..)))
        .flag(constant::HAS_LIMIT, matches!(finish, Finish::Gate(_, Some(_))))
        .matrix(0, m, stacked * m.n)
        .write(4, y, rows * m.n * y_size);
    Ok(match finish {
        Finish::Keep => launch,
        Finish::Add(other) | Finish::Gate(other, _) => {
            launch.read(6, other, rows * m.n * act.size())
        }
    })
}

fn shape(m: &Matrix, rows: usize, n_chosen: usize, finish: Finish) -> [Field; 5] {
    let limit = if let Finish::Gate(_, Some(limit)) = finish { limit } else { 0.0 };
    [Field::N(m.k), Field::N(m.n), Field::N(rows), Field::N(n_chosen), Field::F(limit)]
}
