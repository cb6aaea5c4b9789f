//! The two launches of `attend.metal`: parts of the cache, then their merging.

use super::launch::{Cache, Field, Heads, Launch, LaunchError, View, constant};
use super::linear::check_rows;
use crate::FloatType;

/// Keys per part, cut at multiples of it.
const PART: usize = 256;
const SIMDGROUPS: usize = 8;

#[derive(Debug, Clone, Copy)]
pub struct AttendLaunch {
    pub heads: Heads,
    /// [rows, q heads * dim], turned.
    pub q: View,
    pub cache: Cache,
    /// One u32: the absolute position of row 0.
    pub start: View,
    pub origin: usize,
    pub window: Option<usize>,
    pub scale: f32,
    /// [rows, q heads], before the sigmoid.
    pub gate: Option<View>,
    pub part_sum: View,
    pub part_top: View,
    pub y: View,
}

fn first_key(position: usize, origin: usize, window: Option<usize>) -> usize {
    window.map_or(0, |w| (position + 1).saturating_sub(w)).max(origin)
}

/// Parts that rows from `position` on can see.
pub fn n_parts(position: usize, rows: usize, origin: usize, window: Option<usize>) -> usize {
    (position + rows - 1) / PART - first_key(position, origin, window) / PART + 1
}

/// For row 0 at `position`. The kernels read the position from `start`: a launch encoded for a larger one does the same
/// work with some parts empty.
pub fn attend(
    act: FloatType,
    rows: usize,
    position: usize,
    s: &AttendLaunch,
) -> Result<[Launch; 2], LaunchError> {
    check_rows(rows)?;
    let Heads { q, kv, dim } = s.heads;
    if kv == 0 || !q.is_multiple_of(kv) || dim == 0 || dim > 256 {
        return Err(LaunchError::Shape("heads of at most 256 channels in whole groups"));
    }
    let per_simdgroup = (q / kv * rows).div_ceil(SIMDGROUPS);
    let Some(pairs) = [1, 2, 4, 8].into_iter().find(|n| *n >= per_simdgroup) else {
        return Err(LaunchError::Shape("more than 64 query rows for a key head"));
    };
    let channels = match dim.div_ceil(32) {
        5 => 6,
        7 => 8,
        n => n,
    };
    let newest = position + rows;
    let oldest = first_key(position, s.origin, s.window);
    let fits =
        if s.cache.ring { newest - oldest } else { newest - s.cache.base } <= s.cache.capacity;
    if !fits || oldest < s.cache.base && !s.cache.ring {
        return Err(LaunchError::Shape("keys that are not in the cache"));
    }
    let parts = n_parts(position, rows, s.origin, s.window);
    let size = act.size();
    let seen = (newest - oldest) * kv * dim * size;
    let (sums, tops) = (rows * q * parts * dim * 4, rows * q * parts * 2 * 4);
    let shape = [
        Field::N(q),
        Field::N(kv),
        Field::N(dim),
        Field::N(rows),
        Field::N(s.cache.base),
        Field::N(s.cache.capacity),
        Field::N(s.origin),
        Field::N(s.window.unwrap_or(0)),
        Field::N(parts),
        Field::F(s.scale),
    ];
    let first = Launch::new(&format!("attend_e{channels}_q{pairs}"), Some(act))
        .flag(constant::HAS_WINDOW, s.window.is_some())
        .flag(constant::CACHE_IS_RING, s.cache.ring)
        .read(0, s.q, rows * q * dim * size)
        .read(1, s.cache.keys, seen)
        .read(2, s.cache.values, seen)
        .read(3, s.start, 4)
        .write(4, s.part_sum, sums)
        .write(5, s.part_top, tops)
        .data(6, &shape)
        .grid([kv, parts, 1], 32 * SIMDGROUPS);
    let merge = Launch::new("attend_merge", Some(act))
        .flag(constant::HAS_GATE, s.gate.is_some())
        .read(0, s.part_sum, sums)
        .read(1, s.part_top, tops)
        .write(2, s.y, rows * q * dim * size)
        .data(3, &shape)
        .grid([q, rows, 1], 32);
    Ok([
        first,
        match s.gate {
            Some(gate) => merge.read(4, gate, rows * q * size),
            None => merge,
        },
    ])
}
