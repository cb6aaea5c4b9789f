//! Keys and values of a layer in the runner's buffers. Rows are moved by the host, between two runs and seldom.

use super::device::Device;
use crate::Result;
use crate::cache::Slots;
use foretoken_kernels::metal::{Runner, View};
use std::sync::Arc;

pub(super) struct GpuSlots {
    device: Arc<Device>,
    /// Bytes of a row of keys, and again of values.
    row: usize,
    capacity: usize,
    places: Option<[View; 2]>,
}

impl GpuSlots {
    /// `width` = kv_heads * head_dim.
    pub fn new(device: &Arc<Device>, width: usize) -> Self {
        let row = width * device.act.size();
        Self { device: device.clone(), row, capacity: 0, places: None }
    }

    fn runner(&self) -> &dyn Runner {
        &*self.device.runner
    }

    fn copy(&self, from: View, to: View, rows: usize) -> Result<()> {
        let data = self.runner().read(from, rows * self.row)?;
        Ok(self.runner().write(to, &data)?)
    }

    fn free(&self, places: Option<[View; 2]>) {
        places.into_iter().flatten().for_each(|view| self.runner().free(view.buffer));
    }
}

impl std::fmt::Debug for GpuSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GpuSlots({} rows of {} bytes)", self.capacity, self.row)
    }
}

impl Slots for GpuSlots {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn n_bytes(&self) -> usize {
        2 * self.capacity * self.row
    }

    fn resize(&mut self, capacity: usize, used: usize) -> Result<()> {
        let bytes = capacity * self.row;
        let fresh = [self.runner().room(bytes)?, self.runner().room(bytes)?];
        if used > 0 {
            for (from, to) in self.places.iter().flatten().zip(fresh) {
                self.copy(*from, to, used)?;
            }
        }
        let old = self.places.replace(fresh);
        self.free(old);
        self.capacity = capacity;
        Ok(())
    }

    fn move_to_front(&mut self, gone: usize, kept: usize) -> Result<()> {
        for place in self.places.iter().flatten() {
            self.copy(place.plus(gone * self.row), *place, kept)?;
        }
        Ok(())
    }

    fn places(&self) -> Option<[View; 2]> {
        self.places
    }
}

impl Drop for GpuSlots {
    fn drop(&mut self) {
        let places = self.places.take();
        self.free(places);
    }
}
