//! The emulator as a [`Runner`], so that the engine's passes run on Linux as they would on a Mac.

use crate::Memory;
use foretoken_kernels::metal::{BufferId, GpuError, Launch, Runner, SCRATCH, View, scratch_sizes};
use foretoken_kernels::{Bytes, FloatType};
use metal_emu::Buffer;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub struct Emulated {
    act: FloatType,
    memory: Mutex<Memory>,
    budget: Option<u64>,
    /// Lists run so far.
    runs: AtomicUsize,
}

impl Emulated {
    pub fn new(act: FloatType) -> Self {
        Self { act, memory: Mutex::default(), budget: None, runs: AtomicUsize::new(0) }
    }

    /// One that says it works well with so many bytes only.
    pub fn with_budget(act: FloatType, bytes: u64) -> Self {
        Self { budget: Some(bytes), ..Self::new(act) }
    }

    pub fn n_runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }

    pub fn n_buffers(&self) -> usize {
        self.memory().buffers.len()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, buffer: Buffer) -> View {
        let mut memory = self.memory();
        let newest = memory.buffers.range(..SCRATCH).next_back();
        let id = BufferId(newest.map_or(0, |(id, _)| id.0 + 1));
        memory.buffers.insert(id, buffer);
        View { buffer: id, offset: 0 }
    }
}

impl Runner for Emulated {
    fn name(&self) -> String {
        "emulator".to_owned()
    }

    fn activations(&self) -> FloatType {
        self.act
    }

    fn budget(&self) -> Option<u64> {
        self.budget
    }

    fn put(&self, data: &[u8]) -> Result<View, GpuError> {
        Ok(self.insert(Buffer::from_slice(data)))
    }

    fn room(&self, bytes: usize) -> Result<View, GpuError> {
        Ok(self.insert(Buffer::bytes(bytes)))
    }

    /// The emulator watches memory of its own only, so this is a copy of the file; what it shows is the offsets.
    fn wrap(&self, bytes: &Bytes) -> Result<Option<View>, GpuError> {
        Ok(Some(self.put(bytes.owner_slice())?))
    }

    fn free(&self, id: BufferId) {
        self.memory().buffers.remove(&id);
    }

    fn write(&self, at: View, data: &[u8]) -> Result<(), GpuError> {
        let mut memory = self.memory();
        let buffer = memory.buffers.get_mut(&at.buffer).ok_or(GpuError::Buffer(at))?;
        let mut all: Vec<u8> = buffer.to_vec();
        let place = all.get_mut(at.offset..at.offset + data.len()).ok_or(GpuError::Buffer(at))?;
        place.copy_from_slice(data);
        *buffer = Buffer::from_slice(&all);
        Ok(())
    }

    fn read(&self, at: View, bytes: usize) -> Result<Vec<u8>, GpuError> {
        let memory = self.memory();
        let all: Vec<u8> = memory.buffers.get(&at.buffer).ok_or(GpuError::Buffer(at))?.to_vec();
        Ok(all.get(at.offset..at.offset + bytes).ok_or(GpuError::Buffer(at))?.to_vec())
    }

    /// `tests/trials.rs` has tried them all.
    fn prepare(&self, _: &[Launch]) -> Result<(), GpuError> {
        Ok(())
    }

    fn run(&self, list: &[Launch]) -> Result<(), GpuError> {
        let mut memory = self.memory();
        self.runs.fetch_add(1, Ordering::Relaxed);
        for (id, size) in scratch_sizes(list) {
            if memory.buffers.get(&id).is_none_or(|buffer| buffer.len() < size) {
                memory.buffers.insert(id, Buffer::bytes(size));
            }
        }
        for launch in list {
            let failed = |fault| GpuError::Failed(format!("{}: {fault}", launch.kernel));
            memory.run(launch).map_err(failed)?;
        }
        Ok(())
    }
}
