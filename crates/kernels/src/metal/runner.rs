//! Who runs launches: a Mac's GPU, or the emulator in tests. Whoever makes the launches knows no more than this trait.

use super::{Arg, BufferId, Launch, LaunchError, View};
use crate::{Bytes, FloatType};
use std::collections::BTreeMap;

/// Buffers numbered from here on live within a list: [`Runner::run`] makes them as large as the largest write says. All
/// others are the runner's to number.
pub const SCRATCH: BufferId = BufferId(1 << 24);

/// Why the GPU is not used, or gave up.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("this machine has no GPU that Metal can use")]
    NoDevice,
    #[error("the Metal sources do not compile: {0}")]
    Compile(String),
    #[error("{kernel} cannot be used: {reason}")]
    Kernel { kernel: String, reason: String },
    #[error("Metal gives no {0}")]
    Refused(&'static str),
    #[error("{kernel}: argument {index} reaches to byte {end} of a buffer of {len}")]
    Bounds { kernel: String, index: u32, end: usize, len: usize },
    #[error("{kernel}: argument {index} has no buffer")]
    Unbound { kernel: String, index: u32 },
    #[error("{kernel}: argument {index} would be written, and it is a file")]
    ReadOnly { kernel: String, index: u32 },
    #[error("buffer {0:?} cannot be read or written there")]
    Buffer(View),
    #[error("at least {0} bytes have to be copied, for which there is no room")]
    Copies(u64),
    #[error("the GPU gave up: {0}")]
    Failed(String),
    #[error("{kernel} computes {got} instead of {want} on this GPU (value {at})")]
    Wrong { kernel: String, at: usize, got: f32, want: f32 },
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

/// Buffers by number, and lists of launches over them. Reads and writes fall between two runs: `run` waits for its end.
pub trait Runner: Send + Sync {
    /// For people.
    fn name(&self) -> String;

    /// The type of activations and of the cache.
    fn activations(&self) -> FloatType;

    /// Bytes of buffers the device works well with; `None` = whatever there is.
    fn budget(&self) -> Option<u64>;

    /// A new buffer with these contents.
    fn put(&self, data: &[u8]) -> Result<View, GpuError>;

    /// A new buffer of zeros.
    fn room(&self, bytes: usize) -> Result<View, GpuError>;

    /// All the memory `bytes` is a part of, as a read-only buffer without a copy; `None` where that cannot be.
    fn wrap(&self, bytes: &Bytes) -> Result<Option<View>, GpuError>;

    /// Nobody will use this buffer again.
    fn free(&self, id: BufferId);

    fn write(&self, at: View, data: &[u8]) -> Result<(), GpuError>;

    fn read(&self, at: View, bytes: usize) -> Result<Vec<u8>, GpuError>;

    /// Finds out whether every kernel of the list can be used, without running the list.
    fn prepare(&self, list: &[Launch]) -> Result<(), GpuError>;

    /// Runs the list in order, each launch seeing what those before it wrote.
    fn run(&self, list: &[Launch]) -> Result<(), GpuError>;
}

/// How large the scratch buffers of a list must be.
pub fn scratch_sizes(list: &[Launch]) -> BTreeMap<BufferId, usize> {
    let mut sizes = BTreeMap::new();
    for (_, arg) in list.iter().flat_map(|launch| &launch.args) {
        if let Arg::Write { at, bytes } = arg
            && at.buffer >= SCRATCH
        {
            let size = sizes.entry(at.buffer).or_insert(0);
            *size = (at.offset + bytes).max(*size);
        }
    }
    sizes
}

/// This machine's GPU.
pub fn this_gpu() -> Result<std::sync::Arc<dyn Runner>, GpuError> {
    #[cfg(target_os = "macos")]
    {
        Ok(std::sync::Arc::new(super::session::Session::new()?))
    }
    #[cfg(not(target_os = "macos"))]
    Err(GpuError::NoDevice)
}
