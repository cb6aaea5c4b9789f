//! The launch of `heads.metal`: norm and rotation of queries and keys, keys and values into the cache.

use super::launch::{Cache, Field, FloatArray, Heads, Launch, LaunchError, View, constant};
use crate::FloatType;

#[derive(Debug, Clone, Copy)]
pub struct HeadsLaunch {
    pub heads: Heads,
    /// q, k, v as they come from the projections: [rows, heads * dim].
    pub q: View,
    pub k: View,
    pub v: View,
    /// [positions, half_turn] f32 each, see [`crate::RopeTable`].
    pub cosines: View,
    pub sines: View,
    /// Pairs that turn: half of the rotated channels.
    pub half_turn: usize,
    /// One u32: the absolute position of row 0.
    pub start: View,
    pub q_norm: Option<FloatArray>,
    pub k_norm: Option<FloatArray>,
    /// [q heads + 2 kv heads, dim] f32.
    pub bias: Option<View>,
    pub plus_one: bool,
    pub eps: f32,
    pub cache: Cache,
    pub q_out: View,
}

/// For any number of rows.
pub fn heads(act: FloatType, rows: usize, s: &HeadsLaunch) -> Result<Launch, LaunchError> {
    if rows == 0 {
        return Err(LaunchError::Rows(0, usize::MAX));
    }
    let Heads { q, kv, dim } = s.heads;
    if dim > 256 || 2 * s.half_turn > dim {
        return Err(LaunchError::Shape("a head of at most 256 channels turns"));
    }
    if let (Some(a), Some(b)) = (s.q_norm, s.k_norm)
        && a.float != b.float
    {
        return Err(LaunchError::Shape("the norms of queries and keys must be alike"));
    }
    let size = act.size();
    let weight = s.q_norm.or(s.k_norm);
    // The rows land in slots that the start decides, which lies in a buffer: anywhere in the cache.
    let cache = s.cache.capacity * kv * dim * size;
    let mut launch = Launch::new("heads", Some(act))
        .floats(weight.map_or(FloatType::F32, |w| w.float))
        .flag(constant::QUERY_NORM, s.q_norm.is_some())
        .flag(constant::KEY_NORM, s.k_norm.is_some())
        .flag(constant::PLUS_ONE, s.plus_one)
        .flag(constant::CACHE_IS_RING, s.cache.ring)
        .flag(constant::HAS_BIAS, s.bias.is_some())
        .read(0, s.q, rows * q * dim * size)
        .read(1, s.k, rows * kv * dim * size)
        .read(2, s.v, rows * kv * dim * size)
        .read(3, s.cosines, rows * s.half_turn * 4)
        .read(4, s.sines, rows * s.half_turn * 4)
        .read(5, s.start, 4)
        .write(6, s.q_out, rows * q * dim * size)
        .write(7, s.cache.keys, cache)
        .write(8, s.cache.values, cache)
        .data(
            9,
            &[
                Field::N(q),
                Field::N(kv),
                Field::N(dim),
                Field::N(s.half_turn),
                Field::N(s.cache.base),
                Field::N(s.cache.capacity),
                Field::F(s.eps),
            ],
        )
        .grid([q + 2 * kv, rows, 1], 32);
    for (index, norm) in [(10, s.q_norm), (11, s.k_norm)] {
        if let Some(norm) = norm {
            launch = launch.read(index, norm.at, dim * norm.float.size());
        }
    }
    if let Some(bias) = s.bias {
        launch = launch.read(12, bias, (q + 2 * kv) * dim * 4);
    }
    Ok(launch)
}
