//! Runs launches of `foretoken_kernels::metal` in the emulator. Test-only: the app must not need clang.
//!
//! [`Memory`] holds the buffers that a launch's numbers stand for; [`Memory::run`] binds exactly what the launch says, with
//! the emulator's checks on: bounds, races, divergence, uninitialised threadgroup memory.

mod data;
mod runner;

pub use data::{Act, Rng, close, floats, matrix, quantised};
pub use runner::Emulated;

use foretoken_kernels::metal::{Arg, BufferId, Constant, Launch, View};
use metal_emu::{Buffer, Emu, Fault, Plain, Report};
use std::collections::BTreeMap;

mod modules {
    metal_emu::module!(linear_f32, msl_register_linear_f32_checked);
    metal_emu::module!(linear_f16, msl_register_linear_f16_checked);
    metal_emu::module!(linear_bf16, msl_register_linear_bf16_checked);
    metal_emu::module!(experts_f32, msl_register_experts_f32_checked);
    metal_emu::module!(experts_f16, msl_register_experts_f16_checked);
    metal_emu::module!(experts_bf16, msl_register_experts_bf16_checked);
    metal_emu::module!(attend_f32, msl_register_attend_f32_checked);
    metal_emu::module!(attend_f16, msl_register_attend_f16_checked);
    metal_emu::module!(attend_bf16, msl_register_attend_bf16_checked);
    metal_emu::module!(matmul_f32, msl_register_matmul_f32_checked);
    metal_emu::module!(matmul_f16, msl_register_matmul_f16_checked);
    metal_emu::module!(matmul_bf16, msl_register_matmul_bf16_checked);
    metal_emu::module!(embed_f32, msl_register_embed_f32_checked);
    metal_emu::module!(embed_f16, msl_register_embed_f16_checked);
    metal_emu::module!(embed_bf16, msl_register_embed_bf16_checked);
    metal_emu::module!(heads_f32, msl_register_heads_f32_checked);
    metal_emu::module!(heads_f16, msl_register_heads_f16_checked);
    metal_emu::module!(heads_bf16, msl_register_heads_bf16_checked);
    metal_emu::module!(norm_f32, msl_register_norm_f32_checked);
    metal_emu::module!(norm_f16, msl_register_norm_f16_checked);
    metal_emu::module!(norm_bf16, msl_register_norm_bf16_checked);
    metal_emu::module!(swiglu_f32, msl_register_swiglu_f32_checked);
    metal_emu::module!(swiglu_f16, msl_register_swiglu_f16_checked);
    metal_emu::module!(swiglu_bf16, msl_register_swiglu_bf16_checked);
    metal_emu::module!(router, msl_register_router_checked);
    metal_emu::module!(top, msl_register_top_checked);
}

fn emulator() -> Emu {
    Emu::new(&[
        modules::linear_f32::register,
        modules::linear_f16::register,
        modules::linear_bf16::register,
        modules::experts_f32::register,
        modules::experts_f16::register,
        modules::experts_bf16::register,
        modules::attend_f32::register,
        modules::attend_f16::register,
        modules::attend_bf16::register,
        modules::matmul_f32::register,
        modules::matmul_f16::register,
        modules::matmul_bf16::register,
        modules::embed_f32::register,
        modules::embed_f16::register,
        modules::embed_bf16::register,
        modules::heads_f32::register,
        modules::heads_f16::register,
        modules::heads_bf16::register,
        modules::norm_f32::register,
        modules::norm_f16::register,
        modules::norm_bf16::register,
        modules::swiglu_f32::register,
        modules::swiglu_f16::register,
        modules::swiglu_bf16::register,
        modules::router::register,
        modules::top::register,
    ])
}

/// Buffers by number.
#[derive(Default)]
pub struct Memory {
    buffers: BTreeMap<BufferId, Buffer>,
}

impl Memory {
    /// A new buffer with these contents.
    pub fn put<T: Plain>(&mut self, data: &[T]) -> View {
        self.insert(Buffer::from_slice(data))
    }

    /// A new buffer of zeros.
    pub fn room(&mut self, bytes: usize) -> View {
        self.insert(Buffer::bytes(bytes))
    }

    fn insert(&mut self, buffer: Buffer) -> View {
        let id = self.next();
        self.buffers.insert(BufferId(id), buffer);
        View::start(id)
    }

    /// A buffer with a number of the caller's choice.
    pub fn set(&mut self, id: BufferId, data: &[u8]) {
        self.buffers.insert(id, Buffer::from_slice(data));
    }

    /// The number that no buffer has yet.
    pub fn next(&self) -> u32 {
        self.buffers.keys().next_back().map_or(0, |id| id.0 + 1)
    }

    /// Makes the buffers that the launches write and nobody made: as large as the largest write says.
    pub fn make_scratch(&mut self, launches: &[Launch]) {
        let mut sizes = BTreeMap::new();
        for (_, arg) in launches.iter().flat_map(|launch| &launch.args) {
            if let Arg::Write { at, bytes } = arg {
                let size = sizes.entry(at.buffer).or_insert(0);
                *size = (at.offset + bytes).max(*size);
            }
        }
        for (id, size) in sizes {
            self.buffers.entry(id).or_insert_with(|| Buffer::bytes(size));
        }
    }

    pub fn get<T: Plain>(&self, view: View) -> Vec<T> {
        self.buffers[&view.buffer].to_vec()
    }

    pub fn run(&self, launch: &Launch) -> Result<Report, Fault> {
        self.run_in_order(launch, false)
    }

    /// `backward`: lanes and simdgroups from last to first, which shakes out what depends on their order.
    pub fn run_in_order(&self, launch: &Launch, backward: bool) -> Result<Report, Fault> {
        let emulator = emulator();
        let mut run = emulator.launch(&launch.kernel);
        for (id, constant) in launch.constants.iter().enumerate() {
            run = match constant {
                Constant::Bool(on) => run.constant_bool(id as u32, *on),
                Constant::Int(n) => run.constant(id as u32, *n),
            };
        }
        for (index, arg) in &launch.args {
            run = match arg {
                Arg::Data(bytes) => run.set_bytes(*index, bytes),
                Arg::Read { at, bytes } => {
                    let buffer = self.buffer(*at, *bytes)?;
                    run.buffer_at(*index, buffer, at.offset)
                }
                Arg::Write { at, bytes } => {
                    let buffer = self.buffer(*at, *bytes)?;
                    run.out_at(*index, buffer, at.offset)
                }
            };
        }
        if backward {
            run = run.backward();
        }
        run.run(launch.threadgroups, launch.threads)
    }

    fn buffer(&self, at: View, bytes: usize) -> Result<&Buffer, Fault> {
        let buffer = self
            .buffers
            .get(&at.buffer)
            .ok_or_else(|| Fault(format!("{:?} does not exist", at.buffer)))?;
        if at.offset + bytes > buffer.len() {
            return Err(Fault(format!("{at:?} and {bytes} bytes end after {}", buffer.len())));
        }
        Ok(buffer)
    }
}
