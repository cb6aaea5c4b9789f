//! Keys and values of the rows a model has seen, with the one operation speculation needs: `rewind(len)`.
//!
//! A [`Cache`] is one [`LayerCache`] per layer. The trunk and each level of a head own caches of their own.
//! Does not: know weights, drafting or positions other than row numbers.

use crate::Result;
use candle_core::{DType, Device, Tensor};
use foretoken_kernels::metal::View;

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
    /// [rows, width], in the type they were appended in.
    pub keys: Tensor,
    pub values: Tensor,
    /// Absolute position of row 0.
    pub first_position: usize,
    /// Rows before this one never were.
    pub origin: usize,
}

/// Where keys and values lie when they are no tensors: somebody else writes and reads the rows.
pub trait Slots: std::fmt::Debug + Send + Sync {
    fn capacity(&self) -> usize;
    fn n_bytes(&self) -> usize;
    /// As many rows; the first `used` are kept.
    fn resize(&mut self, capacity: usize, used: usize) -> Result<()>;
    /// Rows `gone..gone + kept` become rows `0..kept`.
    fn move_to_front(&mut self, gone: usize, kept: usize) -> Result<()>;
    /// Of keys and of values, once there is room.
    fn places(&self) -> Option<[View; 2]>;
}

/// The slots of a layer and which rows they hold: slot 0 is row `first`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotRows {
    pub keys: View,
    pub values: View,
    pub capacity: usize,
    pub first: usize,
    pub origin: usize,
}

#[derive(Debug)]
enum Store {
    Tensors(Option<(Tensor, Tensor)>),
    Slots(Box<dyn Slots>),
}

/// Keys and values of one layer: rows `first..first + used` in order, in a buffer that grows by doubling.
#[derive(Debug)]
pub struct LayerCache {
    kind: CacheKind,
    width: usize,
    store: Store,
    first: usize,
    used: usize,
    origin: usize,
}

/// Smallest buffer, and what a sliding layer lets pile up before it moves its rows to the front.
const STEP: usize = 256;

impl LayerCache {
    /// `width` = kv_heads * head_dim.
    pub fn new(kind: CacheKind, width: usize) -> Self {
        Self { kind, width, store: Store::Tensors(None), first: 0, used: 0, origin: 0 }
    }

    /// An empty cache of the same kind whose rows lie in `slots`.
    pub fn in_slots(&self, slots: Box<dyn Slots>) -> Self {
        let (kind, width) = (self.kind, self.width);
        Self { kind, width, store: Store::Slots(slots), first: 0, used: 0, origin: 0 }
    }

    /// Adds rows that whoever reads and writes the slots will put there.
    pub fn extend(&mut self, rows: usize) -> Result<SlotRows> {
        self.make_room_for(rows, DType::F32)?;
        let capacity = self.capacity();
        let places = match &self.store {
            Store::Slots(slots) => slots.places(),
            Store::Tensors(_) => None,
        };
        let none = || candle_core::Error::Msg("this cache holds tensors".to_owned());
        let [keys, values] = places.ok_or_else(none)?;
        self.used += rows;
        Ok(SlotRows { keys, values, capacity, first: self.first, origin: self.origin })
    }

    /// Rows seen so far, kept or not.
    pub fn len(&self) -> usize {
        self.first + self.used
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn capacity(&self) -> usize {
        match &self.store {
            Store::Tensors(buffers) => buffers.as_ref().map_or(0, |(k, _)| k.dims()[0]),
            Store::Slots(slots) => slots.capacity(),
        }
    }

    /// Bytes held now.
    pub fn n_bytes(&self) -> usize {
        match &self.store {
            Store::Tensors(buffers) => buffers
                .as_ref()
                .map_or(0, |(k, _)| 2 * k.dtype().size_in_bytes() * self.width * self.capacity()),
            Store::Slots(slots) => slots.n_bytes(),
        }
    }

    /// Adds rows (`keys`, `values` [rows, width], f32 or f16 and always the same) and returns what they may look at: with
    /// them, everything that is kept, so that the first of several new rows still sees its whole window.
    pub fn append(&mut self, keys: &Tensor, values: &Tensor) -> Result<Seen> {
        let rows = keys.dims2()?.0;
        self.make_room_for(rows, keys.dtype())?;
        let Store::Tensors(Some((k, v))) = &self.store else {
            return Err(candle_core::Error::Msg("this cache holds no tensors".to_owned()).into());
        };
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

    fn make_room_for(&mut self, rows: usize, float: DType) -> Result<()> {
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
        let buffers = match &mut self.store {
            Store::Slots(slots) => return slots.resize(capacity, self.used),
            Store::Tensors(buffers) => buffers,
        };
        let fresh = || Tensor::zeros((capacity, self.width), float, &Device::Cpu);
        let (k, v) = (fresh()?, fresh()?);
        if let Some((old_k, old_v)) = &*buffers
            && self.used > 0
        {
            k.slice_set(&old_k.narrow(0, 0, self.used)?, 0, 0)?;
            v.slice_set(&old_v.narrow(0, 0, self.used)?, 0, 0)?;
        }
        *buffers = Some((k, v));
        Ok(())
    }

    fn move_to_front(&mut self, gone: usize) -> Result<()> {
        let kept = self.used - gone;
        match &mut self.store {
            Store::Slots(slots) => slots.move_to_front(gone, kept)?,
            Store::Tensors(buffers) => {
                for buffer in buffers.iter().flat_map(|(k, v)| [k, v]) {
                    let tail = buffer.narrow(0, gone, kept)?.force_contiguous()?;
                    buffer.slice_set(&tail, 0, 0)?;
                }
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

    /// Whether some layer keeps the newest rows only.
    pub fn slides(&self) -> bool {
        self.layers.iter().any(|layer| layer.window().is_some())
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
