//! `linear.metal`, `matmul.metal` and `embed.metal` against the CPU's products.

use candle_core::{Device, Tensor};
use foretoken_kernels::metal::{self, Finish, Launch, Matrix, Storage, View};
use foretoken_kernels::{FloatType, Weight};
use foretoken_kernels_emu::{Act, Memory, Rng, close, floats, matrix};
use metal_emu::Report;

const SCALES: [FloatType; 3] = [FloatType::BF16, FloatType::F16, FloatType::F32];

/// Every storage there is, the scales' type in turn.
fn storages() -> Vec<Storage> {
    let mut all: Vec<Storage> = [2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits| {
            [32, 64, 128].into_iter().enumerate().map(move |(i, group)| Storage::Affine {
                bits,
                group,
                scales: SCALES[(bits + i) % 3],
            })
        })
        .collect();
    all.extend(SCALES.map(Storage::Dense));
    all
}

/// An inner dimension that is awkward: not whole in the 256 values a simdgroup takes, for plain floats not even in 8.
fn awkward_k(storage: Storage) -> usize {
    match storage {
        Storage::Affine { group, .. } => 256 + group.max(32),
        Storage::Dense(_) => 299,
    }
}

fn cpu(x: &[f32], weight: &Weight) -> Vec<f32> {
    let (_, k) = weight.dims();
    let x = Tensor::from_vec(x.to_vec(), (x.len() / k, k), &Device::Cpu).expect("the shape fits");
    let y = foretoken_kernels::linear(&x, weight).expect("the CPU computes");
    y.flatten_all().and_then(|y| y.to_vec1()).expect("f32")
}

fn run(memory: &Memory, launch: &Launch) -> Report {
    memory.run(launch).unwrap_or_else(|fault| panic!("{}: {fault}", launch.kernel))
}

#[test]
fn products_of_every_format_and_row_count_agree_and_read_each_weight_once() {
    let mut rng = Rng(1);
    for (i, storage) in storages().into_iter().enumerate() {
        let k = awkward_k(storage);
        let mut memory = Memory::default();
        let (weight, m) = matrix(&mut rng, &mut memory, storage, (13, k));
        for rows in 1..=8 {
            let act = Act::ALL[(i + rows) % 3];
            let x = act.round(&floats(&mut rng, rows * k));
            let residual = act.round(&floats(&mut rng, rows * 13));
            let (xv, rv) = (memory.put(&act.bytes(&x)), memory.put(&act.bytes(&residual)));
            let y = memory.room(rows * 13 * act.0.size());
            let launch = metal::linear(act.0, rows, xv, &[(m, y)], Finish::Add(rv), false)
                .expect("a launch");
            let report = run(&memory, &launch);
            let want: Vec<f32> =
                cpu(&x, &weight).iter().zip(&residual).map(|(a, b)| a + b).collect();
            close(&launch.kernel, act, &act.values(&memory.get(y)), &want, 1e-4);
            // The emulator's own count of codes, or of plain floats, which are bound three times and read through the first.
            // (The lanes of a group ask for its scale at once, which is one fetch; the emulator counts each lane.)
            let per_row = k * storage.bits() / 8;
            assert_eq!(report.read_bytes[0] as usize, 13 * per_row, "{}: weights", launch.kernel);
            if let Storage::Affine { group, scales, .. } = storage {
                let scale_bytes = (13 * (k / group) * scales.size() * (group / 8)) as u64;
                assert_eq!(report.read_bytes[1], scale_bytes, "{}: scales", launch.kernel);
                assert_eq!(report.read_bytes[2], scale_bytes, "{}: biases", launch.kernel);
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    let mut rng = Rng(2);
    for (i, storage) in storages().into_iter().enumerate() {
        let act = Act::ALL[i % 3];
        let (n, k) = (12, awkward_k(storage));
        let mut memory = Memory::default();
        let (_, m) = matrix(&mut rng, &mut memory, storage, (n, k));
        let x = memory.put(&act.bytes(&floats(&mut rng, 8 * k)));
        let bits = |memory: &mut Memory, first: usize, rows: usize| -> Vec<u8> {
            let y = memory.room(rows * n * 4);
            let from = x.plus(first * k * act.0.size());
            let launch =
                metal::linear(act.0, rows, from, &[(m, y)], Finish::Keep, true).expect("a launch");
            run(memory, &launch);
            memory.get(y)
        };
        let alone: Vec<u8> = (0..8).flat_map(|row| bits(&mut memory, row, 1)).collect();
        for rows in 2..=8 {
            assert!(
                bits(&mut memory, 0, rows) == alone[..rows * n * 4],
                "{storage:?}, {rows} rows"
            );
        }
    }
}

#[test]
fn up_to_four_matrices_share_a_launch() {
    let storage = Storage::Affine { bits: 4, group: 64, scales: FloatType::BF16 };
    let (rows, k) = (3, 192);
    let mut rng = Rng(3);
    for act in Act::ALL {
        for n_parts in 1..=4 {
            let mut memory = Memory::default();
            let x = floats(&mut rng, rows * k);
            let x = act.round(&x);
            let xv = memory.put(&act.bytes(&x));
            let sizes = [20, 8, 9, 3];
            let parts: Vec<(Weight, Matrix, View)> = sizes[..n_parts]
                .iter()
                .map(|n| {
                    let (weight, m) = matrix(&mut rng, &mut memory, storage, (*n, k));
                    (weight, m, memory.room(rows * n * act.0.size()))
                })
                .collect();
            let list: Vec<(Matrix, View)> = parts.iter().map(|(_, m, y)| (*m, *y)).collect();
            let launch =
                metal::linear(act.0, rows, xv, &list, Finish::Keep, false).expect("a launch");
            run(&memory, &launch);
            for (weight, _, y) in &parts {
                close(&launch.kernel, act, &act.values(&memory.get(*y)), &cpu(&x, weight), 1e-4);
            }
        }
    }
}

#[test]
fn gate_up_is_the_activation_of_two_products() {
    let mut rng = Rng(4);
    for (i, storage) in storages().into_iter().enumerate() {
        let (n, k) = (7, awkward_k(storage));
        let mut memory = Memory::default();
        let (gate, gm) = matrix(&mut rng, &mut memory, storage, (n, k));
        let (up, um) = matrix(&mut rng, &mut memory, storage, (n, k));
        for rows in [1, 1 + (i + 1) % 8, 8] {
            let act = Act::ALL[(i + rows) % 3];
            let limit = (rows == 8).then_some(0.7f32);
            let x = act.round(&floats(&mut rng, rows * k));
            let xv = memory.put(&act.bytes(&x));
            let y = memory.room(rows * n * act.0.size());
            let launch = metal::gate_up(act.0, rows, xv, (&gm, &um), limit, y).expect("a launch");
            let report = run(&memory, &launch);
            let pair = |g: Vec<f32>, u: Vec<f32>| {
                let t = |v| Tensor::from_vec(v, rows * n, &Device::Cpu).expect("it fits");
                let y = match limit {
                    Some(limit) => foretoken_kernels::swiglu_limited(&t(g), &t(u), limit),
                    None => foretoken_kernels::swiglu(&t(g), &t(u)),
                };
                y.and_then(|y| y.to_vec1::<f32>()).expect("f32")
            };
            let want = pair(cpu(&x, &gate), cpu(&x, &up));
            close(&launch.kernel, act, &act.values(&memory.get(y)), &want, 5e-4);
            let codes = n * k * storage.bits() / 8;
            assert_eq!(report.read_bytes[0] as usize, codes, "{}", launch.kernel);
            assert_eq!(report.read_bytes[3] as usize, codes, "{}", launch.kernel);
        }
    }
}

#[test]
fn matmul_agrees_at_every_edge_and_rows_stand_alone() {
    let mut rng = Rng(5);
    for (i, storage) in storages().into_iter().enumerate() {
        let act = Act::ALL[i % 3];
        let (n, k) = ([33, 40, 64][i % 3], awkward_k(storage));
        let rows = [65, 9, 7, 1, 32][i % 5];
        let mut memory = Memory::default();
        let (weight, m) = matrix(&mut rng, &mut memory, storage, (n, k));
        let x = act.round(&floats(&mut rng, rows * k));
        let other = act.round(&floats(&mut rng, rows * n));
        let (xv, rv) = (memory.put(&act.bytes(&x)), memory.put(&act.bytes(&other)));
        let row = n * act.0.size();
        // With each of the finishes, from row `first` on.
        let mut product = |kind: usize, first: usize, rows: usize| -> Vec<u8> {
            let (from, beside) = (xv.plus(first * k * act.0.size()), rv.plus(first * row));
            let finish = [Finish::Keep, Finish::Add(beside), Finish::Gate(beside, Some(0.3))][kind];
            let y = memory.room(rows * n * 4);
            let launch =
                metal::matmul(act.0, rows, from, &m, finish, (y, kind == 0)).expect("a launch");
            let read = run(&memory, &launch).read_bytes[0] as usize;
            let once = n * k * storage.bits() / 8;
            assert_eq!(read, rows.div_ceil(32) * once, "{storage:?}: once for 32 rows");
            memory.get(y)
        };
        let plain = cpu(&x, &weight);
        let what = format!("{storage:?}, {rows} rows");
        let float = Act(FloatType::F32);
        close(&what, float, &float.values(&product(0, 0, rows)), &plain, 2e-4);
        let size = act.0.size();
        let sum: Vec<f32> = plain.iter().zip(&other).map(|(a, b)| a + b).collect();
        let together = product(1, 0, rows);
        close(&what, act, &act.values(&together[..rows * n * size]), &sum, 2e-4);
        let t = |v: &[f32]| Tensor::from_vec(v.to_vec(), v.len(), &Device::Cpu).expect("it fits");
        let gated = foretoken_kernels::swiglu_limited(&t(&other), &t(&plain), 0.3)
            .and_then(|y| y.to_vec1::<f32>())
            .expect("the CPU computes");
        close(&what, act, &act.values(&product(2, 0, rows)[..rows * n * size]), &gated, 2e-4);
        let last = rows - 1;
        let alone = product(1, last, 1);
        assert!(alone[..row] == together[last * row..rows * row], "{what}: the last row alone");
    }
}

#[test]
fn embedding_rows_are_those_of_the_table() {
    let mut rng = Rng(6);
    for (i, storage) in storages().into_iter().enumerate() {
        let act = Act::ALL[i % 3];
        let (n, k) = (9, awkward_k(storage));
        let mut memory = Memory::default();
        let (weight, m) = matrix(&mut rng, &mut memory, storage, (n, k));
        let ids = [8u32, 0, 3, 3, 9];
        let idv = memory.put(&ids);
        let y = memory.room(ids.len() * k * act.0.size());
        let launch = metal::embed(act.0, ids.len(), &m, idv, y).expect("a launch");
        run(&memory, &launch);
        let got = act.values(&memory.get(y));
        let mut want = vec![0f32; k];
        for (id, got) in ids.iter().zip(got.chunks(k)) {
            if *id < 9 {
                weight.row(*id as usize, &mut want);
                close(&launch.kernel, act, got, &want, 1e-6);
            } else {
                assert!(got.iter().all(|v| v.is_nan()), "an id outside the table must show");
            }
        }
    }
}

#[test]
fn what_no_kernel_reads_is_refused() {
    let storage = Storage::Affine { bits: 7, group: 64, scales: FloatType::BF16 };
    let at = View::start(0);
    let m = Matrix { storage, n: 8, k: 64, codes: at, scales: at, biases: at };
    assert!(metal::linear(FloatType::F32, 1, at, &[(m, at)], Finish::Keep, false).is_err());
    let m = Matrix { storage: Storage::Dense(FloatType::F32), ..m };
    assert!(metal::linear(FloatType::F32, 9, at, &[(m, at)], Finish::Keep, false).is_err());
    assert!(metal::linear(FloatType::F32, 8, at, &[(m, at)], Finish::Keep, false).is_ok());
    let crooked = Matrix { codes: at.plus(2), ..m };
    assert!(metal::linear(FloatType::F32, 1, at, &[(crooked, at)], Finish::Keep, false).is_err());
}
