fn main() {
    metal_emu_build::compile_runtime();
    // The kernels with one mistake each, which tests/faults.rs runs.
    metal_emu_build::Module::new("tests/faults.metal").compile();
}
