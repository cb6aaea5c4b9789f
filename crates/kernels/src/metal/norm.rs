//! The launch of `norm.metal`.

use super::launch::{Field, FloatArray, Launch, View, constant};
use crate::FloatType;

/// y [rows, d] = RMSNorm of x, or of x + delta, which is then also kept; `adds` = (delta, where the sum goes). `plus_one`:
/// the weight is stored around zero.
pub fn rms_norm(
    act: FloatType,
    (rows, d): (usize, usize),
    x: View,
    (weight, plus_one, eps): (FloatArray, bool, f32),
    y: View,
    adds: Option<(View, View)>,
) -> Launch {
    let bytes = rows * d * act.size();
    let launch = Launch::new("rms_norm", Some(act))
        .floats(weight.float)
        .flag(constant::PLUS_ONE, plus_one)
        .flag(constant::NORM_ADDS, adds.is_some())
        .read(0, x, bytes)
        .read(1, weight.at, d * weight.float.size())
        .write(2, y, bytes)
        .data(3, &[Field::N(d), Field::F(eps)])
        .grid([rows, 1, 1], 256);
    match adds {
        Some((delta, kept)) => launch.read(4, delta, bytes).write(5, kept, bytes),
        None => launch,
    }
}
