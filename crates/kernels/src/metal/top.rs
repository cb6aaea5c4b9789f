//! The launch of `top.metal`.

use super::launch::{Field, Launch, LaunchError, View};

/// The k largest of each row of `logits` [rows, n] f32: `ids` u32 and `values` f32 [rows, k], largest first.
pub fn top(
    (rows, n): (usize, usize),
    k: usize,
    logits: View,
    (ids, values): (View, View),
) -> Result<Launch, LaunchError> {
    if k == 0 || k > n {
        return Err(LaunchError::Shape("more candidates than logits"));
    }
    Ok(Launch::new("top", None)
        .read(0, logits, rows * n * 4)
        .write(1, ids, rows * k * 4)
        .write(2, values, rows * k * 4)
        .data(3, &[Field::N(n), Field::N(k)])
        .grid([rows, 1, 1], 1024))
}
