//! The operations again, for Apple GPUs: one `.metal` file an operation and a Rust file of the same name that describes its
//! launches as plain data ([`Launch`]: kernel, function constants, grid, threadgroup, arguments). No platform here: the
//! encoder on a Mac and the emulator in `crates/kernels-emu` consume the same launches. `README.md` says what is proven.
//!
//! Activations and the cache have one type for a whole session, the library is built for it: bf16 where the GPU computes
//! with it (M3 and later), f16 before, f32 in tests. Sums are f32. A row's bits do not depend on how many rows share a launch,
//! but a prompt's rows (`prefill_layer`) are added up in another order than a step's (`decode_layer`).

mod attend;
mod embed;
mod experts;
#[cfg(target_os = "macos")]
mod gpu;
mod heads;
mod launch;
mod layer;
mod linear;
mod matmul;
mod norm;
mod place;
mod router;
mod runner;
#[cfg(target_os = "macos")]
mod session;
mod swiglu;
mod top;
mod trial;

pub use attend::{AttendLaunch, attend, attend_rows, n_parts};
pub use embed::embed;
pub use experts::{ExpertStack, experts_down, experts_gate_up, experts_sum};
#[cfg(target_os = "macos")]
pub use gpu::{Gpu, GpuBuffer};
pub use heads::{HeadsLaunch, heads};
pub use launch::{
    Arg, BufferId, Cache, Constant, FloatArray, Heads, Launch, LaunchError, Matrix, N_CONSTANTS,
    Storage, View,
};
pub use layer::{Feed, Gated, Layer, Moe, Traffic, decode_layer, prefill_layer, traffic};
pub use linear::{Finish, gate_up, linear};
pub use matmul::{PairInput, matmul, matmul_tiles};
pub use norm::{PairedNorm, norm_pair, rms_norm};
pub use place::Shelf;
pub use router::{RouterSpec, RouterViews, Tiles, router, router_rows};
pub use runner::{GpuError, Runner, SCRATCH, scratch_sizes, this_gpu};
pub use swiglu::swiglu;
pub use top::top;
pub use trial::{Trial, trial};

use crate::FloatType;

/// Every file, `common` first: together they are one library.
pub const SOURCES: [(&str, &str); 11] = [
    ("common", include_str!("metal/common.metal")),
    ("attend", include_str!("metal/attend.metal")),
    ("embed", include_str!("metal/embed.metal")),
    ("experts", include_str!("metal/experts.metal")),
    ("heads", include_str!("metal/heads.metal")),
    ("linear", include_str!("metal/linear.metal")),
    ("matmul", include_str!("metal/matmul.metal")),
    ("norm", include_str!("metal/norm.metal")),
    ("router", include_str!("metal/router.metal")),
    ("swiglu", include_str!("metal/swiglu.metal")),
    ("top", include_str!("metal/top.metal")),
];

/// The text of the library for activations of type `act`. A library made from text has no folder to include from, so
/// the includes of the common part are left out.
pub fn source(act: FloatType) -> String {
    let name = act.name();
    let metal_type = match act {
        FloatType::F32 => "float",
        FloatType::F16 => "half",
        FloatType::BF16 => "bfloat",
    };
    let mut text = format!("#define ACT {metal_type}\n#define ACT_NAME \"{name}\"\n");
    for (_, part) in SOURCES {
        for line in part.lines().filter(|line| *line != "#include \"common.metal\"") {
            text += line;
            text.push('\n');
        }
    }
    text
}
