//! Keys and values of the rows a model has seen, with the one operation speculation needs: `rewind(len)`.
//!
//! A [`Cache`] is one [`LayerCache`] per layer. The trunk and each level of a head own caches of their own.
//! Does not: know weights, drafting or positions other than row numbers.

use crate::Result;
use candle_core::{DType, Device, Tensor};

/// What a layer remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheKind {
    /// Every row.
    Full,
    /// At least the newest `window + slack` rows, so that up to `slack` rows can be taken back.
    Sliding { window: usize, slack: usize },
}

/// The rows that the newest queries may look at.
pub struct Seen {
    /// [rows, width], f32.
    pub keys: Tensor,
    pub values: Tensor,
    /// Absolute position of row 0.
    pub first_position: usize,
    /// Rows before this one never were.
    pub origin: usize,
}

/// Keys and values of one layer: rows `first..first + used` in order, in a buffer that grows by doubling.
#[derive(Debug)]
pub struct LayerCache {
    kind: CacheKind,
    width: usize,
    buffers: Option<(Tensor, Tensor)>,
    first: usize,
    used: usize,
    origin: usize,
}

/// Smallest buffer, and what a sliding layer lets pile up before it moves its rows to the front.
const STEP: usize = 256;

impl LayerCache {
    /// `width` = kv_heads * head_dim.
    pub fn new(kind: CacheKind, width: usize) -> Self {
        Self { kind, width, buffers: None, first: 0, used: 0, origin: 0 }
    }

    /// Rows seen so far, kept or not.
    pub fn len(&self) -> usize {
        self.first + self.used
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn capacity(&self) -> usize {
        self.buffers.as_ref().map_or(0, |(k, _)| k.dims()[0])
    }

    /// Bytes held now.
    pub fn n_bytes(&self) -> usize {
        2 * 4 * self.width * self.capacity()
    }

    /// Adds rows (`keys`, `values` [rows, width]) and returns what they may look at: with them, everything that is kept,
    /// so that the first of several new rows still sees its whole window.
    pub fn append(&mut self, keys: &Tensor, values: &Tensor) -> Result<Seen> {
        let rows = keys.dims2()?.0;
        self.make_room(rows)?;
        let Some((k, v)) = &self.buffers else { unreachable!("make_room leaves buffers") };
        k.slice_set(keys, 0, self.used)?;
        v.slice_set(values, 0, self.used)?;
        self.used += rows;
        Ok(Seen {
            keys: k.narrow(0, 0, self.used)?,
            values: v.narrow(0, 0, self.used)?,
            first_position: self.first,
            origin: self.origin,
        })
    }

    fn make_room(&mut self, rows: usize) -> Result<()> {
        if let CacheKind::Sliding { window, slack } = self.kind {
            let keep = window.saturating_add(slack);
            // Moving a little at every row would cost more than the memory of a step is worth.
            if self.used >= keep + STEP {
                self.move_to_front(self.used - keep)?;
            }
        }
        if self.used + rows <= self.capacity() {
            return Ok(());
        }
        let capacity = match self.kind {
            CacheKind::Full => (self.used + rows).max(2 * self.capacity()).next_multiple_of(STEP),
            // Bounded: what is kept, what may pile up, and the new rows. A window can be as long as a configuration says, so
            // it is grown into.
            CacheKind::Sliding { window, slack } => {
                let bound = window.saturating_add(slack + STEP + rows);
                (2 * self.capacity()).max(STEP).min(bound).max(self.used + rows)
            }
        };
        let fresh = || Tensor::zeros((capacity, self.width), DType::F32, &Device::Cpu);
        let (k, v) = (fresh()?, fresh()?);
        if let Some((old_k, old_v)) = &self.buffers
            && self.used > 0
        {
            k.slice_set(&old_k.narrow(0, 0, self.used)?, 0, 0)?;
            v.slice_set(&old_v.narrow(0, 0, self.used)?, 0, 0)?;
        }
        self.buffers = Some((k, v));
        Ok(())
    }

    fn move_to_front(&mut self, gone: usize) -> Result<()> {
        let kept = self.used - gone;
        if let Some((k, v)) = &self.buffers {
            for buffer in [k, v] {
                let tail = buffer.narrow(0, gone, kept)?.force_contiguous()?;
                buffer.slice_set(&tail, 0, 0)?;
            }
        }
        self.first += gone;
        self.used = kept;
        Ok(())
    }

    /// Goes on at row `len`, as if the rows before had never been: for a layer that would not look at them again.
    pub fn skip_to(&mut self, len: usize) {
        (self.first, self.used, self.origin) = (len, 0, len);
    }

    /// The newest rows a query looks at; `None` = all.
    pub fn window(&self) -> Option<usize> {
        match self.kind {
            CacheKind::Full => None,
            CacheKind::Sliding { window, .. } => Some(window),
        }
    }

    /// Whether the cache can be as if only `len` rows had been seen: nothing a later query would look at is gone.
    pub fn can_rewind(&self, len: usize) -> bool {
        let oldest = match self.kind {
            CacheKind::Full => 0,
            CacheKind::Sliding { window, .. } => (len + 1).saturating_sub(window),
        };
        len <= self.len() && self.first <= oldest
    }

    /// Forgets all rows from `len` on. Where `can_rewind` says no, everything is forgotten.
    pub fn rewind(&mut self, len: usize) {
        if self.can_rewind(len) {
            self.used = len - self.first;
        } else {
            (self.first, self.used, self.origin) = (0, 0, 0);
        }
    }
}

/// One cache per layer, in step.
#[derive(Debug)]
pub struct Cache {
    pub layers: Vec<LayerCache>,
}

impl Cache {
    pub fn new(layers: Vec<LayerCache>) -> Self {
        Self { layers }
    }

    /// Rows every layer has seen.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, LayerCache::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn n_bytes(&self) -> usize {
        self.layers.iter().map(LayerCache::n_bytes).sum()
    }

    pub fn can_rewind(&self, len: usize) -> bool {
        self.layers.iter().all(|layer| layer.can_rewind(len))
    }

    /// See [`LayerCache::skip_to`].
    pub fn skip_to(&mut self, len: usize) {
        self.layers.iter_mut().for_each(|layer| layer.skip_to(len));
    }

    /// The newest rows any layer looks at; `None` = all.
    pub fn window(&self) -> Option<usize> {
        self.layers.iter().map(LayerCache::window).try_fold(1, |most, w| Some(w?.max(most)))
    }

    /// All layers back to `len`, or, where one of them cannot, all to 0. Returns the new length.
    pub fn rewind(&mut self, len: usize) -> usize {
        // Also of rows that were skipped, of which nothing could be brought back.
        if len == self.len() {
            return len;
        }
        let len = if self.can_rewind(len) { len } else { 0 };
        for layer in &mut self.layers {
            layer.rewind(len);
        }
        len
    }
}

#[cfg(test)]
mod tests;
