//! The self-tests that a Mac runs before a kernel's first use, here.

use foretoken_kernels::FloatType;
use foretoken_kernels::metal::{Constant, Launch, Matrix, Storage, View, embed, trial};
use foretoken_kernels_emu::{Act, Memory};

/// What of the trial does not hold.
fn run(launch: &Launch, act: FloatType) {
    let trial = trial(launch, act).expect("launches").expect("a trial");
    // With the flags that make another kernel of it.
    let the_same = |l: &Launch| {
        l.kernel == launch.kernel
            && [HAS_SECOND, HAS_TILES]
                .iter()
                .all(|flag| l.constants[*flag] == launch.constants[*flag])
    };
    assert!(trial.launches.iter().any(the_same), "the trial of {} does not run it", launch.kernel);
    let mut memory = Memory::default();
    for (id, data) in trial.memory() {
        memory.set(id, &data);
    }
    for launch in &trial.launches {
        memory.run(launch).unwrap_or_else(|fault| panic!("{}: {fault}", launch.kernel));
    }
    let output: Vec<u8> = memory.get(trial.output.0);
    trial.judge(&output).unwrap_or_else(|wrong| panic!("{}: {wrong:?}", launch.kernel));
    let mut spoiled = output;
    spoiled.iter_mut().for_each(|byte| *byte ^= 0x40);
    assert!(trial.judge(&spoiled).is_err(), "{}: a wrong result passes", launch.kernel);
}

/// A launch of this name; what a trial needs to know of it is its name and constants.
fn named(kernel: &str, storage: Storage) -> Launch {
    let at = View::start(0);
    let m = Matrix { storage, n: 4, k: 128, codes: at, scales: at, biases: at };
    let launch = embed(FloatType::F32, 1, &m, at, at).expect("a launch");
    Launch { kernel: kernel.to_owned(), ..launch }
}

/// Function constants by their number in `common.metal`.
const HAS_SECOND: usize = 3;
const HAS_TILES: usize = 19;

fn flagged(mut launch: Launch, flag: usize) -> Launch {
    launch.constants[flag] = Constant::Bool(true);
    launch
}

#[test]
fn every_kernel_has_a_trial_that_it_passes() {
    let mut storages: Vec<(usize, Storage)> = [2, 3, 4, 5, 6, 8]
        .map(|bits| (bits, Storage::Affine { bits, group: 64, scales: FloatType::BF16 }))
        .to_vec();
    storages.push((16, Storage::Dense(FloatType::BF16)));
    storages.push((32, Storage::Dense(FloatType::F32)));
    for Act(act) in Act::ALL {
        let name = act.name();
        for (bits, storage) in &storages {
            for op in ["embed", "matmul"] {
                run(&named(&format!("{op}_b{bits}_{name}"), *storage), act);
            }
            run(&flagged(named(&format!("matmul_b{bits}_{name}"), *storage), HAS_TILES), act);
            for rows in [1, 2, 5] {
                for op in ["linear", "gate_up"] {
                    run(&named(&format!("{op}_b{bits}_r{rows}_{name}"), *storage), act);
                }
            }
            for rows in [1, 4] {
                for op in ["experts_gate_up", "experts_down"] {
                    run(&named(&format!("{op}_b{bits}_r{rows}_{name}"), *storage), act);
                }
            }
        }
        let any = Storage::Dense(FloatType::F32);
        for (e, q) in [(1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (8, 1)] {
            run(&named(&format!("attend_e{e}_q{q}_{name}"), any), act);
        }
        for e in [1, 2, 3, 4, 6, 8] {
            run(&named(&format!("attend_rows_e{e}_{name}"), any), act);
        }
        for op in ["rms_norm", "swiglu", "heads", "attend_merge", "experts_sum"] {
            run(&named(&format!("{op}_{name}"), any), act);
        }
        run(&flagged(named(&format!("rms_norm_{name}"), any), HAS_SECOND), act);
    }
    for op in ["router", "router_rows", "router_tiles", "top"] {
        run(&named(op, Storage::Dense(FloatType::F32)), FloatType::F32);
    }
    let unknown = named("no_such_kernel_f32", Storage::Dense(FloatType::F32));
    assert!(trial(&unknown, FloatType::F32).expect("launches").is_none());
}
