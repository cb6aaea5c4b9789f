//! The launches of `attend.metal`: parts of the cache, then their merging; for many rows one without parts.

use super::launch::{Cache, Field, Heads, Launch, LaunchError, View, constant};
use super::linear::check_rows;
use crate::FloatType;

/// Keys per part, cut at multiples of it.
const PART: usize = 256;
const SIMDGROUPS: usize = 8;
/// (row, head) pairs of a key head in one threadgroup.
const MAX_QUERIES: usize = 64;

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

/// Channels a lane owns, of the numbers the kernels are built for.
fn channels(dim: usize) -> usize {
    match dim.div_ceil(32) {
        5 => 6,
        7 => 8,
        n => n,
    }
}

/// Bytes of the keys that the rows see, and again of the values; refuses what the kernels cannot do.
fn seen_bytes(
    act: FloatType,
    rows: usize,
    position: usize,
    s: &AttendLaunch,
) -> Result<usize, LaunchError> {
    let Heads { q, kv, dim } = s.heads;
    if kv == 0 || !q.is_multiple_of(kv) || dim == 0 || dim > 256 {
        return Err(LaunchError::Shape("heads of at most 256 channels in whole groups"));
    }
    let newest = position + rows;
    let oldest = first_key(position, s.origin, s.window);
    let fits =
        if s.cache.ring { newest - oldest } else { newest - s.cache.base } <= s.cache.capacity;
    if !fits || oldest < s.cache.base && !s.cache.ring {
        return Err(LaunchError::Shape("keys that are not in the cache"));
    }
    Ok((newest - oldest) * kv * dim * act.size())
}

fn shape(rows: usize, parts: usize, tile_rows: usize, s: &AttendLaunch) -> [Field; 11] {
    [
        Field::N(s.heads.q),
        Field::N(s.heads.kv),
        Field::N(s.heads.dim),
        Field::N(rows),
        Field::N(s.cache.base),
        Field::N(s.cache.capacity),
        Field::N(s.origin),
        Field::N(s.window.unwrap_or(0)),
        Field::N(parts),
        Field::F(s.scale),
        Field::N(tile_rows),
    ]
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
    let seen = seen_bytes(act, rows, position, s)?;
    let Heads { q, kv, dim } = s.heads;
    let per_simdgroup = (q / kv * rows).div_ceil(SIMDGROUPS);
    let Some(pairs) = [1, 2, 4, 8].into_iter().find(|n| *n >= per_simdgroup) else {
        return Err(LaunchError::Shape("more than 64 query rows for a key head"));
    };
    let parts = n_parts(position, rows, s.origin, s.window);
    let size = act.size();
    let (sums, tops) = (rows * q * parts * dim * 4, rows * q * parts * 2 * 4);
    let (shape, channels) = (shape(rows, parts, 0, s), channels(dim));
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

/// The same for any number of rows, in one launch that uses no parts; its sums run in another order.
pub fn attend_rows(
    act: FloatType,
    rows: usize,
    position: usize,
    s: &AttendLaunch,
) -> Result<Launch, LaunchError> {
    if rows == 0 {
        return Err(LaunchError::Rows(0, usize::MAX));
    }
    let seen = seen_bytes(act, rows, position, s)?;
    let Heads { q, kv, dim } = s.heads;
    let tile_rows = MAX_QUERIES / (q / kv);
    if tile_rows == 0 {
        return Err(LaunchError::Shape("more than 64 query heads for a key head"));
    }
    let size = act.size();
    let launch = Launch::new(&format!("attend_rows_e{}", channels(dim)), Some(act))
        .flag(constant::HAS_WINDOW, s.window.is_some())
        .flag(constant::CACHE_IS_RING, s.cache.ring)
        .flag(constant::HAS_GATE, s.gate.is_some())
        .read(0, s.q, rows * q * dim * size)
        .read(1, s.cache.keys, seen)
        .read(2, s.cache.values, seen)
        .read(3, s.start, 4)
        .write(4, s.y, rows * q * dim * size)
        .data(5, &shape(rows, 0, tile_rows, s))
        .grid([kv, rows.div_ceil(tile_rows), 1], 32 * SIMDGROUPS);
    Ok(match s.gate {
        Some(gate) => launch.read(6, gate, rows * q * size),
        None => launch,
    })
}
