//! The emulator must catch mistakes, or its passing tests mean little.
use metal_emu::{Buffer, Emu, Fault, Mode};

metal_emu::module!(faults, msl_register_faults_fast, msl_register_faults_checked);

fn run(
    kernel: &str,
    bytes: usize,
    threads: usize,
    tgs: usize,
    mode: Mode,
    out: bool,
) -> Result<Vec<f32>, Fault> {
    let emu = Emu::new(&[faults::register]);
    let a = Buffer::from_slice(&(0..bytes / 4).map(|i| i as f32).collect::<Vec<_>>());
    let l = emu.launch(kernel).mode(mode);
    let l = if out { l.out(0, &a) } else { l.buffer(0, &a) };
    l.run([tgs, 1, 1], [threads, 1, 1]).map(|_| a.to_vec())
}
fn fails(kernel: &str, bytes: usize, threads: usize, tgs: usize, mode: Mode, words: &str) {
    let e = run(kernel, bytes, threads, tgs, mode, true).expect_err(kernel);
    assert!(e.0.contains(words), "{kernel}: {e}");
}

#[test]
fn mistakes_are_named() {
    let c = Mode::Checked;
    // the reader runs before the writer here, so the symptom is a read of nothing
    fails("missing_barrier", 1024, 256, 1, c, "uninitialised");
    fails("missing_second_barrier", 1024, 256, 1, c, "data race");
    fails("out_of_bounds", 256, 64, 1, c, "outside buffer 0");
    fails("out_of_bounds", 256, 64, 1, Mode::Fast(1), "outside buffer 0");
    fails("tg_out_of_bounds", 128, 32, 1, c, "outside a threadgroup array");
    fails("diverged_sum", 128, 32, 1, c, "simdgroup");
    fails("diverged_sum", 128, 32, 1, Mode::Fast(1), "simdgroup");
    fails("diverged_barrier", 256, 64, 1, c, "threadgroup_barrier");
    fails("uninitialised", 256, 64, 1, c, "uninitialised");
    fails("grid_race", 4, 1, 4, c, "data race");
    fails("exited", 128, 32, 1, c, "return");
    let e = run("writes_input", 128, 32, 1, c, false).unwrap_err();
    assert!(e.0.contains("read-only"), "{e}");
}

#[test]
fn correct_ones_pass() {
    for mode in [Mode::Checked, Mode::Fast(1)] {
        let r = run("good_reverse", 400, 100, 1, mode, true).unwrap();
        assert_eq!(r, (0..100).rev().map(|x| x as f32).collect::<Vec<_>>());
        run("simd_barrier_ok", 256, 64, 1, mode, true).unwrap();
        let r = run("atomic_ok", 4, 64, 8, mode, true).unwrap();
        assert_eq!(r[0].to_bits(), 512);
    }
    // uninitialised threadgroup memory shows up as NaN even without the checks
    let r = run("uninitialised", 256, 64, 1, Mode::Fast(1), true).unwrap();
    assert!(r[40].is_nan());
}

#[test]
fn simdgroup_matrix_product() {
    let emu = Emu::new(&[faults::register]);
    let a: Vec<u16> =
        (0..64).map(|i| half::f16::from_f32((i % 7) as f32 - 3.0).to_bits()).collect();
    let b: Vec<u16> =
        (0..64).map(|i| half::f16::from_f32((i % 5) as f32 * 0.5).to_bits()).collect();
    let (ab, bb, cb) = (Buffer::from_slice(&a), Buffer::from_slice(&b), Buffer::zeroed::<f32>(64));
    emu.launch("matmul8")
        .buffer(0, &ab)
        .buffer(1, &bb)
        .out(2, &cb)
        .run([1, 1, 1], [32, 1, 1])
        .unwrap();
    let c = cb.to_vec::<f32>();
    let f = |bits| half::f16::from_bits(bits).to_f32();
    for i in 0..8 {
        for j in 0..8 {
            let w: f32 = (0..8).map(|x| f(a[i * 8 + x]) * f(b[x * 8 + j])).sum();
            assert_eq!(c[i * 8 + j], w);
        }
    }
}
