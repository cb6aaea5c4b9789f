//! `attend.metal` against the CPU's attention.

use candle_core::{Device, Tensor};
use foretoken_kernels::metal::{self, AttendLaunch, Cache, Heads};
use foretoken_kernels::{AttendSpec, FloatType, attend, gate_heads};
use foretoken_kernels_emu::{Act, Memory, Rng, close, floats};

#[derive(Debug, Clone, Copy)]
struct Case {
    heads: Heads,
    position: usize,
    window: Option<usize>,
    origin: usize,
    /// Slots of a ring; 0 = a plain cache from the origin on.
    ring: usize,
    gate: bool,
}

/// All keys there ever were, and a cache with those that it still holds; what it does not hold is NaN.
struct World {
    memory: Memory,
    act: Act,
    case: Case,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gate: Vec<f32>,
    cache: Cache,
    q_view: metal::View,
    gate_view: metal::View,
}

fn world(act: Act, case: Case, rows: usize, seed: u64) -> World {
    let mut rng = Rng(seed);
    let mut memory = Memory::default();
    let Heads { q, kv, dim } = case.heads;
    let newest = case.position + rows;
    let [k, v] = [(); 2].map(|()| act.round(&floats(&mut rng, newest * kv * dim)));
    let xq: Vec<f32> = floats(&mut rng, rows * q * dim).iter().map(|v| 3.0 * v).collect();
    let xq = act.round(&xq);
    let gate = act.round(&floats(&mut rng, rows * q));
    let capacity = if case.ring > 0 { case.ring } else { newest - case.origin + 3 };
    let base = if case.ring > 0 { 0 } else { case.origin };
    let mut kept = |all: &[f32]| {
        let mut slots = vec![f32::NAN; capacity * kv * dim];
        for p in newest.saturating_sub(capacity).max(case.origin)..newest {
            let slot = if case.ring > 0 { p % capacity } else { p - base };
            slots[slot * kv * dim..][..kv * dim].copy_from_slice(&all[p * kv * dim..][..kv * dim]);
        }
        memory.put(&act.bytes(&slots))
    };
    let cache = Cache { keys: kept(&k), values: kept(&v), base, capacity, ring: case.ring > 0 };
    let (q_view, gate_view) = (memory.put(&act.bytes(&xq)), memory.put(&act.bytes(&gate)));
    World { memory, act, case, q: xq, k, v, gate, cache, q_view, gate_view }
}

impl World {
    fn launch_data(&mut self, first: usize, rows: usize) -> AttendLaunch {
        let Heads { q, dim, .. } = self.case.heads;
        let size = self.act.0.size();
        let position = self.case.position + first;
        let parts = metal::n_parts(position, rows, self.case.origin, self.case.window);
        AttendLaunch {
            heads: self.case.heads,
            q: self.q_view.plus(first * q * dim * size),
            cache: self.cache,
            start: self.memory.put(&[position as u32]),
            origin: self.case.origin,
            window: self.case.window,
            scale: 0.3,
            gate: self.case.gate.then_some(self.gate_view.plus(first * q * size)),
            part_sum: self.memory.room(rows * q * parts * dim * 4),
            part_top: self.memory.room(rows * q * parts * 8),
            y: self.memory.room(rows * q * dim * size),
        }
    }

    /// Rows `first` .. `first + rows`: the output's bytes, and the bytes of keys and of values that were read.
    fn gpu(&mut self, first: usize, rows: usize) -> (Vec<u8>, u64, u64, usize) {
        let (spec, position) = (self.launch_data(first, rows), self.case.position + first);
        let [one, two] = metal::attend(self.act.0, rows, position, &spec).expect("launches");
        let report =
            self.memory.run(&one).unwrap_or_else(|f| panic!("{} {:?}: {f}", one.kernel, self.case));
        self.memory.run(&two).unwrap_or_else(|f| panic!("{}: {f}", two.kernel));
        let declared = match &one.args[1].1 {
            metal::Arg::Read { bytes, .. } => *bytes,
            other => panic!("{other:?}"),
        };
        (self.memory.get(spec.y), report.read_bytes[1], report.read_bytes[2], declared)
    }

    /// The same by the kernel of prefill: the output's bytes, and the bytes of keys that were read.
    fn prefill(&mut self, first: usize, rows: usize) -> (Vec<u8>, u64) {
        let (spec, position) = (self.launch_data(first, rows), self.case.position + first);
        let launch = metal::attend_rows(self.act.0, rows, position, &spec).expect("a launch");
        let run = self.memory.run_in_order(&launch, rows.is_multiple_of(2));
        let report = run.unwrap_or_else(|f| panic!("{} {:?}: {f}", launch.kernel, self.case));
        assert_eq!(report.read_bytes[1], report.read_bytes[2], "values are read as keys are");
        (self.memory.get(spec.y), report.read_bytes[1])
    }

    fn cpu(&self, rows: usize) -> Vec<f32> {
        let Heads { q, kv, dim } = self.case.heads;
        let tensor = |v: &[f32], width: usize| {
            Tensor::from_vec(v.to_vec(), (v.len() / width, width), &Device::Cpu).expect("it fits")
        };
        let spec = AttendSpec {
            n_heads: q,
            n_kv_heads: kv,
            head_dim: dim,
            scale: 0.3,
            query_position: self.case.position,
            key_position: 0,
            origin: self.case.origin,
            window: self.case.window,
        };
        let out = attend(
            &tensor(&self.q, q * dim),
            &tensor(&self.k, kv * dim),
            &tensor(&self.v, kv * dim),
            spec,
        )
        .and_then(|out| {
            if self.case.gate { gate_heads(&out, &tensor(&self.gate, q)) } else { Ok(out) }
        });
        let out =
            out.and_then(|out| out.flatten_all()?.to_vec1::<f32>()).expect("the CPU computes");
        assert_eq!(out.len(), rows * q * dim);
        out
    }
}

fn cases() -> Vec<Case> {
    let heads = |q, kv, dim| Heads { q, kv, dim };
    let plain =
        |heads, position| Case { heads, position, window: None, origin: 0, ring: 0, gate: false };
    vec![
        plain(heads(4, 2, 16), 0),
        plain(heads(9, 3, 64), 33),
        plain(heads(8, 1, 128), 31),
        Case { gate: true, ..plain(heads(6, 2, 96), 40) },
        plain(heads(2, 1, 80), 254),
        plain(heads(2, 2, 256), 20),
        // Three parts, the row's end on either side of a part's.
        plain(heads(2, 1, 64), 510),
        // A window whose edge is inside a tile, and one that begins in an earlier part.
        Case { window: Some(16), ..plain(heads(4, 2, 64), 40) },
        Case { window: Some(300), gate: true, ..plain(heads(4, 1, 32), 520) },
        // The window is longer than what there is.
        Case { window: Some(64), ..plain(heads(2, 1, 32), 5) },
        // A ring with room for the window and the rows of a cycle.
        Case { window: Some(16), ring: 24, ..plain(heads(4, 2, 64), 100) },
        Case { window: Some(1), ring: 8, ..plain(heads(2, 1, 32), 257) },
        // A sequence that begins in the middle.
        Case { origin: 35, ..plain(heads(4, 2, 32), 40) },
        Case { origin: 300, window: Some(16), ..plain(heads(4, 2, 32), 305) },
    ]
}

#[test]
fn attention_agrees_and_reads_each_key_once() {
    for (i, case) in cases().into_iter().enumerate() {
        for rows in [1, 2 + i % 3, 8] {
            let act = Act::ALL[(i + rows) % 3];
            let mut world = world(act, case, rows, i as u64);
            let (y, keys, values, declared) = world.gpu(0, rows);
            close(&format!("{case:?}, {rows} rows"), act, &act.values(&y), &world.cpu(rows), 2e-5);
            assert_eq!((keys, values), (declared as u64, declared as u64), "{case:?}, {rows} rows");
        }
    }
}

/// With a ring as long as a prompt's chunk needs.
fn prefill_cases(rows: usize) -> impl Iterator<Item = (usize, Case)> {
    let wider = move |case: Case| match case.window {
        Some(window) if case.ring > 0 => Case { ring: window + rows, ..case },
        _ => case,
    };
    cases().into_iter().map(wider).enumerate()
}

#[test]
fn prefill_agrees_and_its_rows_read_a_key_once_for_as_many_as_share_a_threadgroup() {
    for rows in [1, 7, 9, 65] {
        for (i, case) in prefill_cases(rows) {
            let act = Act::ALL[(i + rows) % 3];
            let mut world = world(act, case, rows, i as u64);
            let (y, keys) = world.prefill(0, rows);
            close(&format!("{case:?}, {rows} rows"), act, &act.values(&y), &world.cpu(rows), 2e-5);
            let Heads { q, kv, dim } = case.heads;
            let at_once = 64 / (q / kv);
            let seen = |first: usize| {
                let end = case.position + (first + at_once).min(rows);
                let oldest =
                    case.window.map_or(0, |w| (case.position + first + 1).saturating_sub(w));
                end - oldest.max(case.origin)
            };
            let seen: usize = (0..rows).step_by(at_once).map(seen).sum();
            assert_eq!(keys as usize, seen * kv * dim * act.0.size(), "{case:?}, {rows} rows");
        }
    }
}

/// However a prompt is cut into chunks.
#[test]
fn a_prefill_row_has_the_same_bits_alone_and_among_others() {
    for (i, case) in prefill_cases(40) {
        let act = Act::ALL[i % 3];
        let mut world = world(act, case, 40, 99);
        let size = case.heads.q * case.heads.dim * act.0.size();
        let (all, _) = world.prefill(0, 40);
        for (first, rows) in [(0, 1), (39, 1), (17, 1), (3, 9), (8, 32)] {
            let (some, _) = world.prefill(first, rows);
            assert!(some == all[first * size..(first + rows) * size], "{case:?}: {first}+{rows}");
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    for (i, case) in cases().into_iter().enumerate() {
        let act = Act::ALL[i % 3];
        let mut world = world(act, case, 8, 99);
        let size = case.heads.q * case.heads.dim * act.0.size();
        // Ending with the last row, so that a ring still holds what each row sees.
        for (first, rows) in [(0, 8), (5, 3), (0, 1), (3, 4)] {
            let (all, ..) = world.gpu(first, rows);
            for row in first..first + rows {
                let (alone, ..) = world.gpu(row, 1);
                let from = (row - first) * size;
                assert!(alone == all[from..from + size], "{case:?}: row {row} of {first}+{rows}");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_in_its_row() {
    let heads = Heads { q: 2, kv: 1, dim: 32 };
    let case = Case { heads, position: 40, window: None, origin: 0, ring: 0, gate: false };
    let act = Act(FloatType::F32);
    let mut world = world(act, case, 2, 7);
    let mut q = world.q.clone();
    q[70] = f32::NAN;
    world.q_view = world.memory.put(&q);
    let (y, ..) = world.gpu(0, 2);
    let y = act.values(&y);
    assert!(y[..64].iter().all(|v| v.is_finite()), "row 0 is not touched");
    assert!(y[64..96].iter().all(|v| v.is_nan()), "head 0 of row 1 shows it");
    assert!(y[96..].iter().all(|v| v.is_finite()), "head 1 of row 1 is not touched");
}

#[test]
fn a_launch_for_a_later_position_gives_the_same_bits() {
    let heads = Heads { q: 4, kv: 2, dim: 32 };
    let case = Case { heads, position: 250, window: None, origin: 0, ring: 0, gate: false };
    let act = Act(FloatType::F32);
    let mut world = world(act, case, 1, 7);
    world.cache.capacity = 2000;
    let (now, ..) = world.gpu(0, 1);
    let size = 4 * 32 * 4;
    let spec = AttendLaunch {
        heads,
        q: world.q_view,
        cache: Cache { capacity: 251, ..world.cache },
        start: world.memory.put(&[250u32]),
        origin: 0,
        window: None,
        scale: 0.3,
        gate: None,
        part_sum: world.memory.room(3 * size),
        part_top: world.memory.room(3 * 4 * 8),
        y: world.memory.room(size),
    };
    assert!(metal::attend(act.0, 1, 600, &spec).is_err(), "those keys are not in the cache");
    // As many parts as position 600 has, over a cache declared only as large as it is.
    let [mut one, mut two] = metal::attend(act.0, 1, 250, &spec).expect("launches");
    for (launch, shape) in [(&mut one, 6), (&mut two, 3)] {
        for (index, arg) in &mut launch.args {
            if let (true, metal::Arg::Data(bytes)) = (*index == shape, arg) {
                bytes[32..36].copy_from_slice(&3u32.to_le_bytes());
            }
        }
    }
    one.threadgroups[1] = 3;
    world.memory.run(&one).expect("runs");
    world.memory.run(&two).expect("runs");
    assert!(world.memory.get::<u8>(spec.y) == now);
}
