//! Runs launches on the Mac's GPU. Type-checked only: nothing here has run on a Mac yet.
//!
//! One command buffer and one serial encoder for a list, so that a launch sees what those before it wrote. The status of
//! the command buffer is looked at every time, and a kernel is tried against its formula before its first use.

use super::trial::trial;
use super::{Arg, BufferId, Constant, GpuError, Launch, View, source};
use crate::FloatType;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineState,
    MTLCreateSystemDefaultDevice, MTLDataType, MTLDevice, MTLFunctionConstantValues, MTLGPUFamily,
    MTLLanguageVersion, MTLLibrary, MTLResourceOptions, MTLSize,
};
use std::any::Any;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;
/// A kernel and its function constants.
type Variant = (String, Vec<(bool, i32)>);

pub struct Gpu {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    library: Retained<ProtocolObject<dyn MTLLibrary>>,
    act: FloatType,
    pipelines: Mutex<HashMap<Variant, Pipeline>>,
    /// What passed its trial.
    tried: Mutex<HashSet<Variant>>,
}

/// Memory that CPU and GPU share.
#[derive(Clone)]
pub struct GpuBuffer {
    raw: Retained<ProtocolObject<dyn MTLBuffer>>,
    /// Of a wrapped map: it must outlive the buffer.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: Metal's resources may be used from any thread; what must not happen at once, the CPU's access and the GPU's, is
// kept apart by `Gpu::run`, which waits.
unsafe impl Send for GpuBuffer {}
unsafe impl Sync for GpuBuffer {}

impl GpuBuffer {
    pub fn len(&self) -> usize {
        self.raw.length()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of `bytes` from `offset` on; `None` when they are not there. Only between two runs.
    pub fn read(&self, offset: usize, bytes: usize) -> Option<Vec<u8>> {
        if offset.checked_add(bytes)? > self.len() {
            return None;
        }
        // SAFETY: inside the buffer by the line above, and the GPU is idle.
        let data = unsafe {
            std::slice::from_raw_parts(self.raw.contents().cast::<u8>().as_ptr().add(offset), bytes)
        };
        Some(data.to_vec())
    }

    /// A copy of the contents. Only between two calls of [`Gpu::run`], which waits for the GPU.
    pub fn to_vec(&self) -> Vec<u8> {
        // SAFETY: shared storage of `len` bytes, and the GPU is idle.
        unsafe { std::slice::from_raw_parts(self.raw.contents().cast::<u8>().as_ptr(), self.len()) }
            .to_vec()
    }

    /// Overwrites `data.len()` bytes from `offset` on; `None` when they do not fit or the buffer is a file.
    pub fn write(&self, offset: usize, data: &[u8]) -> Option<()> {
        if self.owner.is_some() || offset.checked_add(data.len())? > self.len() {
            return None;
        }
        // SAFETY: inside the buffer by the line above, and the GPU is idle between two runs.
        unsafe {
            let to = self.raw.contents().cast::<u8>().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
        }
        Some(())
    }
}

impl Gpu {
    /// Compiles the library for the activations that suit the device.
    pub fn new() -> Result<Self, GpuError> {
        let device = MTLCreateSystemDefaultDevice().ok_or(GpuError::NoDevice)?;
        // Apple 9 is M3: the first that computes with bfloat instead of converting.
        let act = if device.supportsFamily(MTLGPUFamily::Apple9) {
            FloatType::BF16
        } else {
            FloatType::F16
        };
        let options = MTLCompileOptions::new();
        options.setLanguageVersion(MTLLanguageVersion::Version3_1);
        // Sums must not be rewritten: see `common.metal`. The newer name exists from macOS 15 on only.
        #[expect(deprecated, reason = "its successor is not there on macOS 14")]
        options.setFastMathEnabled(false);
        let text = NSString::from_str(&source(act));
        let library = device
            .newLibraryWithSource_options_error(&text, Some(&options))
            .map_err(|error| GpuError::Compile(error.localizedDescription().to_string()))?;
        let queue = device.newCommandQueue().ok_or(GpuError::Refused("command queue"))?;
        Ok(Self {
            device,
            queue,
            library,
            act,
            pipelines: Mutex::default(),
            tried: Mutex::default(),
        })
    }

    /// The type of activations and of the cache on this device.
    pub fn activations(&self) -> FloatType {
        self.act
    }

    /// For people, e.g. "Apple M3 Max".
    pub fn name(&self) -> String {
        self.device.name().to_string()
    }

    /// Bytes of buffers the GPU works well with.
    pub fn budget(&self) -> u64 {
        self.device.recommendedMaxWorkingSetSize()
    }

    /// A buffer of zeros.
    pub fn room(&self, bytes: usize) -> Result<GpuBuffer, GpuError> {
        let options = MTLResourceOptions::StorageModeShared;
        // Metal refuses a length of 0, and gives zeros.
        let raw = self.device.newBufferWithLength_options(bytes.max(4), options);
        Ok(GpuBuffer { raw: raw.ok_or(GpuError::Refused("memory"))?, owner: None })
    }

    /// A buffer with these contents.
    pub fn buffer(&self, data: &[u8]) -> Result<GpuBuffer, GpuError> {
        let buffer = self.room(data.len())?;
        buffer.write(0, data).ok_or(GpuError::Refused("memory"))?;
        Ok(buffer)
    }

    /// Mapped bytes as a buffer, without a copy.
    ///
    /// # Safety
    /// `base` and `len` are multiples of the page size, `owner` keeps the mapping alive, and nothing writes to it. The kernels
    /// must only read from the buffer.
    pub unsafe fn wrap(
        &self,
        base: NonNull<c_void>,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<GpuBuffer, GpuError> {
        let options = MTLResourceOptions::StorageModeShared;
        // SAFETY: the caller's contract.
        let raw = unsafe {
            self.device
                .newBufferWithBytesNoCopy_length_options_deallocator(base, len, options, None)
        };
        Ok(GpuBuffer { raw: raw.ok_or(GpuError::Refused("view of a file"))?, owner: Some(owner) })
    }

    /// Compiles and tries the kernels of the list that were never used before.
    pub fn prepare(&self, list: &[Launch]) -> Result<(), GpuError> {
        list.iter().try_for_each(|launch| self.try_once(launch))
    }

    /// Runs the list and waits. Kernels that were never used before are tried first.
    pub fn run(
        &self,
        list: &[Launch],
        buffers: &BTreeMap<BufferId, GpuBuffer>,
    ) -> Result<(), GpuError> {
        self.prepare(list)?;
        self.submit(list, buffers)
    }

    fn try_once(&self, launch: &Launch) -> Result<(), GpuError> {
        let variant = variant(launch);
        if lock(&self.tried).contains(&variant) {
            return Ok(());
        }
        let Some(trial) = trial(launch, self.act)? else {
            let reason = "it has no trial".to_owned();
            return Err(GpuError::Kernel { kernel: launch.kernel.clone(), reason });
        };
        let mut buffers = BTreeMap::new();
        for (id, data) in trial.memory() {
            buffers.insert(id, self.buffer(&data)?);
        }
        self.submit(&trial.launches, &buffers)?;
        let (view, _) = trial.output;
        let output = buffers.get(&view.buffer).map(GpuBuffer::to_vec).unwrap_or_default();
        trial.judge(&output).map_err(|(at, got, want)| GpuError::Wrong {
            kernel: launch.kernel.clone(),
            at,
            got,
            want,
        })?;
        lock(&self.tried).insert(variant);
        Ok(())
    }

    fn submit(
        &self,
        list: &[Launch],
        buffers: &BTreeMap<BufferId, GpuBuffer>,
    ) -> Result<(), GpuError> {
        // Everything that can be refused is refused before anything is encoded.
        let mut ready = Vec::with_capacity(list.len());
        for launch in list {
            ready.push((launch, self.pipeline(launch)?, bound(launch, buffers)?));
        }
        autoreleasepool(|_| {
            let commands = self.queue.commandBuffer().ok_or(GpuError::Refused("command buffer"))?;
            let encoder = commands.computeCommandEncoder().ok_or(GpuError::Refused("encoder"))?;
            for (launch, pipeline, buffers) in &ready {
                encoder.setComputePipelineState(pipeline);
                for (index, buffer, at) in buffers {
                    // SAFETY: `bound` checked that the range lies in the buffer; the map outlives the wait below.
                    unsafe {
                        encoder.setBuffer_offset_atIndex(
                            Some(&buffer.raw),
                            at.offset,
                            *index as usize,
                        );
                    }
                }
                for (index, arg) in &launch.args {
                    if let Arg::Data(data) = arg {
                        let bytes = NonNull::from(data.as_slice()).cast::<c_void>();
                        // SAFETY: Metal copies the bytes in the call.
                        unsafe {
                            encoder.setBytes_length_atIndex(bytes, data.len(), *index as usize);
                        }
                    }
                }
                encoder.dispatchThreadgroups_threadsPerThreadgroup(
                    size(launch.threadgroups),
                    size(launch.threads),
                );
            }
            encoder.endEncoding();
            commands.commit();
            commands.waitUntilCompleted();
            if commands.status() == MTLCommandBufferStatus::Completed {
                return Ok(());
            }
            let reason = commands.error().map(|error| error.localizedDescription().to_string());
            Err(GpuError::Failed(reason.unwrap_or_else(|| "it gives no reason".to_owned())))
        })
    }

    fn pipeline(&self, launch: &Launch) -> Result<Pipeline, GpuError> {
        let variant = variant(launch);
        if let Some(pipeline) = lock(&self.pipelines).get(&variant) {
            return Ok(pipeline.clone());
        }
        let fail = |reason: String| GpuError::Kernel { kernel: launch.kernel.clone(), reason };
        let constants = MTLFunctionConstantValues::new();
        for (id, constant) in launch.constants.iter().enumerate() {
            let (value, kind) = match constant {
                Constant::Bool(on) => (NonNull::from(on).cast::<c_void>(), MTLDataType::Bool),
                Constant::Int(n) => (NonNull::from(n).cast::<c_void>(), MTLDataType::Int),
            };
            // SAFETY: the value has the type that is named, and is copied in the call.
            unsafe { constants.setConstantValue_type_atIndex(value, kind, id) };
        }
        let function = self
            .library
            .newFunctionWithName_constantValues_error(
                &NSString::from_str(&launch.kernel),
                &constants,
            )
            .map_err(|error| fail(error.localizedDescription().to_string()))?;
        let pipeline = self
            .device
            .newComputePipelineStateWithFunction_error(&function)
            .map_err(|error| fail(error.localizedDescription().to_string()))?;
        let (most, width) =
            (pipeline.maxTotalThreadsPerThreadgroup(), pipeline.threadExecutionWidth());
        if launch.threads.iter().product::<usize>() > most || width != 32 {
            return Err(fail(format!("at most {most} threads of {width} lanes fit")));
        }
        lock(&self.pipelines).insert(variant, pipeline.clone());
        Ok(pipeline)
    }
}

fn variant(launch: &Launch) -> Variant {
    let plain = |constant: &Constant| match constant {
        Constant::Bool(on) => (*on, 0),
        Constant::Int(n) => (false, *n),
    };
    (launch.kernel.clone(), launch.constants.iter().map(plain).collect())
}

/// A poisoned lock holds a map that is whole all the same.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn size([width, height, depth]: [usize; 3]) -> MTLSize {
    MTLSize { width, height, depth }
}

/// The buffers a launch binds, each checked against what the launch says it touches.
fn bound<'a>(
    launch: &Launch,
    buffers: &'a BTreeMap<BufferId, GpuBuffer>,
) -> Result<Vec<(u32, &'a GpuBuffer, View)>, GpuError> {
    let mut bound = Vec::new();
    for (index, arg) in &launch.args {
        let (Arg::Read { at, bytes } | Arg::Write { at, bytes }) = arg else { continue };
        let (kernel, index) = (launch.kernel.clone(), *index);
        let Some(buffer) = buffers.get(&at.buffer) else {
            return Err(GpuError::Unbound { kernel, index });
        };
        let (end, len) = (at.offset.saturating_add(*bytes), buffer.len());
        if end > len {
            return Err(GpuError::Bounds { kernel, index, end, len });
        }
        if buffer.owner.is_some() && matches!(arg, Arg::Write { .. }) {
            return Err(GpuError::ReadOnly { kernel, index });
        }
        bound.push((index, buffer, *at));
    }
    Ok(bound)
}

/// `scripts/check-macos.sh` turns this on to see that it would find a wrong type here.
#[cfg(foretoken_type_error)]
const _: u32 = "foretoken_type_error_is_found";
