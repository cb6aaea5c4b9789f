//! The launch of `embed.metal`.

use super::launch::{Field, Launch, LaunchError, Matrix, View};
use crate::FloatType;

/// y [rows, k] = the rows of `table` that `ids` (u32) name.
pub fn embed(
    act: FloatType,
    rows: usize,
    table: &Matrix,
    ids: View,
    y: View,
) -> Result<Launch, LaunchError> {
    table.check()?;
    Ok(Launch::new(&format!("embed_b{}", table.storage.bits()), Some(act))
        .storage(table.storage)
        .matrix(0, table, rows)
        .read(3, ids, rows * 4)
        .write(4, y, rows * table.k * act.size())
        .data(5, &[Field::N(table.k), Field::N(table.n)])
        .grid([table.k.div_ceil(256), rows, 1], 32))
}
