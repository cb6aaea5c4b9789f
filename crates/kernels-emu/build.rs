//! Compiles the Metal sources of foretoken-kernels for the emulator, once for each type of activations.

use metal_emu_build::Module;
use std::path::PathBuf;
use std::sync::Mutex;

const BY_TYPE: [&str; 8] =
    ["linear", "experts", "attend", "matmul", "embed", "heads", "norm", "swiglu"];
const WITHOUT_TYPE: [&str; 2] = ["router", "top"];

fn main() {
    let folder = PathBuf::from("../kernels/src/metal");
    println!("cargo:rerun-if-changed={}", folder.join("common.metal").display());
    let file = |name: &str| folder.join(name).with_extension("metal");
    let mut modules = Vec::new();
    // The long ones first, so that two threads end together.
    for name in BY_TYPE {
        for (act, metal_type) in [("f32", "float"), ("f16", "half"), ("bf16", "bfloat")] {
            modules.push(
                Module::new(file(name))
                    .only_checked()
                    .named(&format!("{name}_{act}"))
                    .define("ACT", metal_type)
                    .define("ACT_NAME", &format!("\"{act}\"")),
            );
        }
    }
    modules.extend(WITHOUT_TYPE.map(|name| Module::new(file(name)).only_checked()));
    modules.reverse();
    let queue = Mutex::new(modules);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(module) = queue.lock().map_or(None, |mut q| q.pop()) {
                    module.compile();
                }
            });
        }
    });
}
