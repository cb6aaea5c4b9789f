//! The launch of `swiglu.metal`.

use super::launch::{Field, Launch, View, constant};
use crate::FloatType;

/// y [n] = min(silu(gate), limit) * clamp(up, -limit, limit).
pub fn swiglu(
    act: FloatType,
    n: usize,
    (gate, up): (View, View),
    limit: Option<f32>,
    y: View,
) -> Launch {
    let bytes = n * act.size();
    Launch::new("swiglu", Some(act))
        .flag(constant::HAS_LIMIT, limit.is_some())
        .read(0, gate, bytes)
        .read(1, up, bytes)
        .write(2, y, bytes)
        .data(3, &[Field::F(limit.unwrap_or(0.0))])
        .data(4, &[Field::N(n)])
        .grid([n.div_ceil(256), 1, 1], 256)
}
