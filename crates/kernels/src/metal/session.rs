//! The Mac's GPU as a [`Runner`]: numbers for its buffers, and scratch that grows. Type-checked only, like `gpu.rs`.

use super::gpu::{Gpu, GpuBuffer};
use super::{BufferId, GpuError, Launch, Runner, SCRATCH, View, scratch_sizes};
use crate::{Bytes, FloatType};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of memory on Apple silicon.
const PAGE: usize = 16 << 10;

pub(super) struct Session {
    gpu: Gpu,
    /// Locked while a list runs: nobody reads or writes a buffer then.
    buffers: Mutex<BTreeMap<BufferId, GpuBuffer>>,
}

impl Session {
    pub fn new() -> Result<Self, GpuError> {
        Ok(Self { gpu: Gpu::new()?, buffers: Mutex::default() })
    }

    fn buffers(&self) -> MutexGuard<'_, BTreeMap<BufferId, GpuBuffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, buffer: GpuBuffer) -> View {
        let mut buffers = self.buffers();
        let newest = buffers.range(..SCRATCH).next_back();
        let id = BufferId(newest.map_or(0, |(id, _)| id.0 + 1));
        buffers.insert(id, buffer);
        View { buffer: id, offset: 0 }
    }
}

impl Runner for Session {
    fn name(&self) -> String {
        self.gpu.name()
    }

    fn activations(&self) -> FloatType {
        self.gpu.activations()
    }

    fn budget(&self) -> Option<u64> {
        Some(self.gpu.budget())
    }

    fn put(&self, data: &[u8]) -> Result<View, GpuError> {
        Ok(self.insert(self.gpu.buffer(data)?))
    }

    fn room(&self, bytes: usize) -> Result<View, GpuError> {
        Ok(self.insert(self.gpu.room(bytes)?))
    }

    fn wrap(&self, bytes: &Bytes) -> Result<Option<View>, GpuError> {
        let all = bytes.owner_slice();
        let base = NonNull::from(all).cast::<std::ffi::c_void>();
        if !bytes.is_mapped() || all.is_empty() || !base.addr().get().is_multiple_of(PAGE) {
            return Ok(None);
        }
        // SAFETY: a map begins at a page, ends with a whole one and stays as it is (`Bytes::of_map`); the copy of `bytes`
        // keeps it; `bound` refuses launches that write to it.
        let buffer = unsafe {
            self.gpu.wrap(base, all.len().next_multiple_of(PAGE), Arc::new(bytes.clone()))
        };
        // A file longer than a buffer may be is copied tensor by tensor.
        Ok(buffer.ok().map(|buffer| self.insert(buffer)))
    }

    fn free(&self, id: BufferId) {
        self.buffers().remove(&id);
    }

    fn write(&self, at: View, data: &[u8]) -> Result<(), GpuError> {
        let buffers = self.buffers();
        let written = buffers.get(&at.buffer).and_then(|buffer| buffer.write(at.offset, data));
        written.ok_or(GpuError::Buffer(at))
    }

    fn read(&self, at: View, bytes: usize) -> Result<Vec<u8>, GpuError> {
        let buffers = self.buffers();
        let read = buffers.get(&at.buffer).and_then(|buffer| buffer.read(at.offset, bytes));
        read.ok_or(GpuError::Buffer(at))
    }

    fn prepare(&self, list: &[Launch]) -> Result<(), GpuError> {
        self.gpu.prepare(list)
    }

    fn run(&self, list: &[Launch]) -> Result<(), GpuError> {
        let mut buffers = self.buffers();
        for (id, size) in scratch_sizes(list) {
            if buffers.get(&id).is_none_or(|buffer| buffer.len() < size) {
                buffers.insert(id, self.gpu.room(size)?);
            }
        }
        self.gpu.run(list, &buffers)
    }
}
