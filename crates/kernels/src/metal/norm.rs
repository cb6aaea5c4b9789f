//! The launches of `norm.metal`.

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
        .data(3, &[Field::N(d), Field::F(eps), Field::N(d), Field::F(0.0)])
        .grid([rows, 1, 1], 256);
    match adds {
        Some((delta, kept)) => launch.read(4, delta, bytes).write(5, kept, bytes),
        None => launch,
    }
}

/// One of the two norms of [`norm_pair`].
#[derive(Debug, Clone, Copy)]
pub struct PairedNorm {
    /// [rows, d].
    pub x: View,
    pub weight: FloatArray,
    pub eps: f32,
}

/// y [rows, 2 d] = the RMSNorm of the left x beside that of the right one. Their weights are of one type.
pub fn norm_pair(
    act: FloatType,
    (rows, d): (usize, usize),
    left: &PairedNorm,
    right: &PairedNorm,
    y: View,
) -> Launch {
    let (bytes, float) = (rows * d * act.size(), left.weight.float);
    debug_assert!(float == right.weight.float);
    Launch::new("rms_norm", Some(act))
        .floats(float)
        .flag(constant::HAS_SECOND, true)
        .read(0, left.x, bytes)
        .read(1, left.weight.at, d * float.size())
        .write(2, y, 2 * bytes)
        .data(3, &[Field::N(d), Field::F(left.eps), Field::N(2 * d), Field::F(right.eps)])
        .read(6, right.x, bytes)
        .read(7, right.weight.at, d * float.size())
        .grid([rows, 2, 1], 256)
}
