//! `router.metal` and `experts.metal` against plain formulas and the CPU's experts.

use candle_core::{Device, Tensor};
use foretoken_kernels::metal::{
    self, ExpertStack, Finish, FloatArray, Launch, PairInput, RouterSpec, RouterViews, Storage,
    Tiles, View,
};
use foretoken_kernels::{Activations, Experts, FloatType, Weight, expert_mlp};
use foretoken_kernels_emu::{Act, Memory, Rng, close, floats, matrix};
use metal_emu::Report;

fn run(memory: &Memory, launch: &Launch) -> Report {
    memory.run(launch).unwrap_or_else(|fault| panic!("{}: {fault}", launch.kernel))
}

fn router_views(memory: &mut Memory, pairs: usize) -> RouterViews {
    RouterViews {
        chosen: memory.room(pairs * 4),
        weights: memory.room(pairs * 4),
        order: memory.room(pairs * 4),
        runs: memory.room(pairs * 12),
    }
}

/// The rule of `router.metal`, word for word.
fn choose(logits: &[f32], bias: Option<&[f32]>, spec: &RouterSpec) -> (Vec<u32>, Vec<f32>) {
    let mut scores: Vec<f32> = logits.to_vec();
    if spec.softmax {
        let top = scores.iter().copied().fold(f32::MIN, f32::max);
        scores.iter_mut().for_each(|v| *v = (*v - top).exp());
        let sum: f32 = scores.iter().sum();
        scores.iter_mut().for_each(|v| *v /= sum);
    } else {
        scores.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp()));
    }
    let wanted: Vec<f32> =
        scores.iter().enumerate().map(|(e, s)| s + bias.map_or(0.0, |b| b[e])).collect();
    if wanted.iter().any(|v| !v.is_finite()) {
        return ((0..spec.n_chosen as u32).collect(), vec![f32::NAN; spec.n_chosen]);
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| wanted[*b as usize].total_cmp(&wanted[*a as usize]));
    order.truncate(spec.n_chosen);
    order.sort_unstable();
    let sum: f32 = order.iter().map(|e| scores[*e as usize]).sum();
    let divisor = if spec.renormalise { sum + 1e-20 } else { 1.0 };
    let weights = order.iter().map(|e| scores[*e as usize] / divisor * spec.scale).collect();
    (order, weights)
}

#[test]
fn the_router_chooses_weighs_and_sorts() {
    let mut rng = Rng(1);
    for (i, (n_experts, n_chosen)) in
        [(4, 1), (8, 8), (33, 3), (64, 6), (288, 8), (512, 16)].into_iter().enumerate()
    {
        for rows in 1..=8 {
            let float = [FloatType::F32, FloatType::BF16][rows % 2];
            let bias = (i % 2 == 0).then(|| Act(float).round(&floats(&mut rng, n_experts)));
            let mut memory = Memory::default();
            let spec = RouterSpec {
                n_experts,
                n_chosen,
                softmax: (i + rows) % 3 == 0,
                bias: bias
                    .as_ref()
                    .map(|b| FloatArray { at: memory.put(&Act(float).bytes(b)), float }),
                renormalise: rows % 2 == 0,
                scale: 1.5,
            };
            let mut logits: Vec<f32> = floats(&mut rng, rows * n_experts);
            // Ties, and in one case a row that is not finite.
            for _ in 0..n_experts {
                let at = rng.below(rows * n_experts);
                logits[at] = 0.75;
            }
            if rows == 5 {
                logits[3 * n_experts + 1] = f32::NAN;
            }
            let at = memory.put(&logits);
            let to = router_views(&mut memory, rows * n_chosen);
            run(&memory, &metal::router(rows, &spec, at, &to).expect("a launch"));
            let (mut chosen, mut weights) = (Vec::new(), Vec::new());
            for logits in logits.chunks(n_experts) {
                let (c, w) = choose(logits, bias.as_deref(), &spec);
                chosen.extend(c);
                weights.extend(w);
            }
            assert_eq!(memory.get::<u32>(to.chosen), chosen, "{spec:?}, {rows} rows");
            let f32s = Act(FloatType::F32);
            close("weights", f32s, &memory.get::<f32>(to.weights), &weights, 1e-6);
            let mut order: Vec<u32> = (0..chosen.len() as u32).collect();
            order.sort_by_key(|p| (chosen[*p as usize], *p));
            assert_eq!(memory.get::<u32>(to.order), order);
            let mut runs = Vec::new();
            let mut first = 0;
            for run in order.chunk_by(|a, b| chosen[*a as usize] == chosen[*b as usize]) {
                runs.extend([chosen[run[0] as usize], first, run.len() as u32]);
                first += run.len() as u32;
            }
            runs.resize(3 * chosen.len(), 0);
            assert_eq!(memory.get::<u32>(to.runs), runs);
        }
    }
}

/// (expert, first place, count) of up to 32 pairs each, and the pairs by expert.
fn tiles_of(chosen: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..chosen.len() as u32).collect();
    order.sort_by_key(|p| (chosen[*p as usize], *p));
    let (mut tiles, mut first) = (Vec::new(), 0);
    for run in order.chunk_by(|a, b| chosen[*a as usize] == chosen[*b as usize]) {
        for tile in run.chunks(32) {
            tiles.extend([chosen[run[0] as usize], first, tile.len() as u32]);
            first += tile.len() as u32;
        }
    }
    (tiles, order)
}

#[test]
fn a_prompts_rows_are_chosen_as_a_steps_and_sorted_into_tiles() {
    let mut rng = Rng(3);
    for (i, (n_experts, n_chosen)) in
        [(4, 1), (8, 8), (64, 6), (288, 8), (512, 16)].into_iter().enumerate()
    {
        for rows in [1, 7, 9, 65, 256] {
            let mut memory = Memory::default();
            let spec = RouterSpec {
                n_experts,
                n_chosen,
                softmax: i % 2 == 0,
                bias: None,
                renormalise: true,
                scale: 1.5,
            };
            let mut logits: Vec<f32> = floats(&mut rng, rows * n_experts);
            // Everybody goes to the last expert, so that its run takes more than one tile; nobody to the first, if that can be.
            for row in logits.chunks_mut(n_experts) {
                row[n_experts - 1] = 9.0;
                row[0] = -9.0;
            }
            let at = memory.put(&logits);
            let pairs = rows * n_chosen;
            let n = pairs.min(pairs / 32 + n_experts);
            let [order, chosen, weights] = [(); 3].map(|()| memory.room(pairs * 4));
            // What was there before must not count as a tile.
            let tiles = memory.put(&vec![7u32; 3 * n]);
            let to = Tiles { order, tiles, n, n_chosen, touched: 0 };
            for launch in
                metal::router_rows(rows, &spec, at, (chosen, weights), &to).expect("launches")
            {
                run(&memory, &launch);
            }
            let (mut ids, mut want) = (Vec::new(), Vec::new());
            for logits in logits.chunks(n_experts) {
                let (c, w) = choose(logits, None, &spec);
                ids.extend(c);
                want.extend(w);
            }
            let what = format!("{n_chosen} of {n_experts}, {rows} rows");
            assert_eq!(memory.get::<u32>(chosen), ids, "{what}");
            close(&what, Act(FloatType::F32), &memory.get::<f32>(weights), &want, 1e-6);
            let (mut sorted, places) = tiles_of(&ids);
            assert!(sorted.len() <= 3 * n, "{what}: there is room");
            sorted.resize(3 * n, 0);
            assert_eq!(
                (memory.get::<u32>(tiles), memory.get::<u32>(order)),
                (sorted, places),
                "{what}"
            );
            // The same bits as in a step.
            let few = rows.min(8);
            let step = router_views(&mut memory, few * n_chosen);
            run(&memory, &metal::router(few, &spec, at, &step).expect("a launch"));
            let alone = memory.get::<u32>(step.weights);
            assert_eq!(memory.get::<u32>(weights)[..alone.len()], alone, "{what}");
        }
    }
    let at = View::start(0);
    let spec = RouterSpec {
        n_experts: 8,
        n_chosen: 2,
        softmax: false,
        bias: None,
        renormalise: false,
        scale: 1.0,
    };
    let small = Tiles { order: at, tiles: at, n: 9, n_chosen: 2, touched: 0 };
    assert!(metal::router_rows(20, &spec, at, (at, at), &small).is_ok());
    assert!(metal::router_rows(32, &spec, at, (at, at), &small).is_err(), "8 of 10 tiles");
    assert!(metal::router_rows(0, &spec, at, (at, at), &small).is_err());
}

struct Layer {
    cpu: Experts,
    stack: ExpertStack,
}

fn layer(
    rng: &mut Rng,
    memory: &mut Memory,
    storage: Storage,
    (n_experts, hidden, width): (usize, usize, usize),
    n_chosen: usize,
    limit: Option<f32>,
) -> Layer {
    let mut one = |n: usize, k: usize| {
        let (all, m) = matrix(rng, memory, storage, (n_experts * n, k));
        let each: Vec<Weight> =
            (0..n_experts).map(|e| all.part(e * n, n).expect("an expert")).collect();
        (each, metal::Matrix { n, ..m })
    };
    let ((gate, gm), (up, um), (down, dm)) =
        (one(width, hidden), one(width, hidden), one(hidden, width));
    Layer {
        cpu: Experts {
            gate,
            up,
            down,
            limit: limit.unwrap_or(f32::INFINITY),
            activations: Activations::Exact,
        },
        stack: ExpertStack { gate: gm, up: um, down: dm, n_chosen, limit },
    }
}

/// The three launches for rows whose experts are given: the output's bytes and what was read of the codes.
fn routed(
    memory: &mut Memory,
    act: Act,
    stack: &ExpertStack,
    x: &[f32],
    chosen: &[u32],
    weights: &[f32],
    rest: &[f32],
) -> (Vec<u8>, [u64; 3]) {
    let (hidden, width) = (stack.down.n, stack.gate.n);
    let (rows, pairs) = (x.len() / hidden, chosen.len());
    let mut order: Vec<u32> = (0..pairs as u32).collect();
    order.sort_by_key(|p| (chosen[*p as usize], *p));
    let mut runs = Vec::new();
    let mut first = 0;
    for run in order.chunk_by(|a, b| chosen[*a as usize] == chosen[*b as usize]) {
        runs.extend([chosen[run[0] as usize], first, run.len() as u32]);
        first += run.len() as u32;
    }
    let touched = runs.len() / 3;
    runs.resize(3 * pairs, 0);
    let to = RouterViews {
        chosen: memory.put(chosen),
        weights: memory.put(weights),
        order: memory.put(&order),
        runs: memory.put(&runs),
    };
    let xv = memory.put(&act.bytes(x));
    let rest = memory.put(&act.bytes(rest));
    let wide = memory.room(pairs * width * act.0.size());
    let each = memory.room(pairs * hidden * 4);
    let y = memory.room(rows * hidden * act.0.size());
    let a = metal::experts_gate_up(act.0, rows, stack, xv, &to, wide, touched).expect("a launch");
    let b = metal::experts_down(act.0, rows, stack, wide, &to, each, touched).expect("a launch");
    let c = metal::experts_sum(act.0, (rows, hidden), stack.n_chosen, each, to.weights, rest, y);
    let (a, b) = (run(memory, &a), run(memory, &b));
    run(memory, &c);
    (memory.get(y), [a.read_bytes[0], a.read_bytes[3], b.read_bytes[0]])
}

#[test]
fn rows_that_share_an_expert_read_it_once_and_keep_their_bits() {
    let mut rng = Rng(2);
    let scales = [FloatType::BF16, FloatType::F16, FloatType::F32];
    let mut storages: Vec<Storage> = [2, 3, 4, 5, 6, 8]
        .into_iter()
        .enumerate()
        .map(|(i, bits)| Storage::Affine { bits, group: [32, 64][i % 2], scales: scales[i % 3] })
        .collect();
    storages.extend(scales.map(Storage::Dense));
    for (i, storage) in storages.into_iter().enumerate() {
        // Expert 6 of 7 is never chosen.
        let (n_experts, hidden, width, n_chosen) = (7, 64, 64 * (1 + i % 2), 2);
        let mut memory = Memory::default();
        let limit = (i % 2 == 0).then_some(0.4);
        let Layer { cpu, stack } =
            layer(&mut rng, &mut memory, storage, (n_experts, hidden, width), n_chosen, limit);
        for rows in 1..=8 {
            let act = Act::ALL[(i + rows) % 3];
            let x = act.round(&floats(&mut rng, rows * hidden));
            let rest = act.round(&floats(&mut rng, rows * hidden));
            let chosen: Vec<u32> = (0..rows)
                .flat_map(|_| {
                    let a = rng.below(5) as u32;
                    [a, a + 1 + rng.below(5 - a as usize) as u32]
                })
                .collect();
            let weights: Vec<f32> = floats(&mut rng, 2 * rows);
            let (y, codes) = routed(&mut memory, act, &stack, &x, &chosen, &weights, &rest);
            let xt = Tensor::from_vec(x.clone(), (rows, hidden), &Device::Cpu).expect("it fits");
            let want = expert_mlp(&xt, &cpu, &chosen, &weights)
                .and_then(|y| y.flatten_all()?.to_vec1::<f32>())
                .expect("the CPU computes");
            let want: Vec<f32> = want.iter().zip(&rest).map(|(a, b)| a + b).collect();
            // The activation is rounded in between, and the products of it cancel out in part.
            let largest = want.iter().fold(0f32, |a, v| a.max(v.abs()));
            let tolerance = 1e-4 + (act.epsilon() + 2e-6) * largest;
            close(&format!("{storage:?}, {rows} rows"), act, &act.values(&y), &want, tolerance);

            let mut distinct = chosen.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let expert = (distinct.len() * hidden * width * storage.bits() / 8) as u64;
            assert_eq!(codes, [expert; 3], "{storage:?}, {rows} rows: codes");

            let size = hidden * act.0.size();
            for row in 0..rows {
                let part = |v: &[f32], n: usize| v[row * n..(row + 1) * n].to_vec();
                let (alone, _) = routed(
                    &mut memory,
                    act,
                    &stack,
                    &part(&x, hidden),
                    &chosen[2 * row..2 * row + 2],
                    &part(&weights, 2),
                    &part(&rest, hidden),
                );
                assert!(
                    alone == y[row * size..(row + 1) * size],
                    "{storage:?}: row {row} of {rows}"
                );
            }
        }
    }
}

/// Experts of a prompt: y, and the bytes of codes of gate, up and down that were read.
fn routed_tiles(
    memory: &mut Memory,
    act: Act,
    stack: &ExpertStack,
    x: &[f32],
    chosen: &[u32],
    weights: &[f32],
    rest: &[f32],
) -> (Vec<u8>, [u64; 3]) {
    let (hidden, width) = (stack.down.n, stack.gate.n);
    let (rows, pairs, size) = (x.len() / hidden, chosen.len(), act.0.size());
    let (mut tiles, order) = tiles_of(chosen);
    // One that is not used.
    tiles.extend([0; 3]);
    let n = tiles.len() / 3;
    let (order, tiles) = (memory.put(&order), memory.put(&tiles));
    let tiles = Tiles { order, tiles, n, n_chosen: stack.n_chosen, touched: 6 };
    let xv = memory.put(&act.bytes(x));
    let [gate, wide] = [(); 2].map(|()| memory.room(pairs * width * size));
    let (each, y) = (memory.room(pairs * hidden * 4), memory.room(rows * hidden * size));
    let (weights, rest) = (memory.put(weights), memory.put(&act.bytes(rest)));
    let (input, own) = ((xv, PairInput::Row), (wide, PairInput::Own));
    let finish = Finish::Gate(gate, stack.limit);
    let list = [
        metal::matmul_tiles(act.0, rows, input, &stack.gate, &tiles, Finish::Keep, (gate, false)),
        metal::matmul_tiles(act.0, rows, input, &stack.up, &tiles, finish, (wide, false)),
        metal::matmul_tiles(act.0, rows, own, &stack.down, &tiles, Finish::Keep, (each, true)),
    ];
    let read = list.map(|launch| run(memory, &launch.expect("a launch")).read_bytes[0]);
    let sum = (rows, hidden);
    run(memory, &metal::experts_sum(act.0, sum, stack.n_chosen, each, weights, rest, y));
    (memory.get(y), read)
}

#[test]
fn a_prompts_rows_read_an_expert_once_for_32_of_them_and_keep_their_bits() {
    let mut rng = Rng(4);
    let mut storages = vec![Storage::Dense(FloatType::BF16)];
    storages.extend([2, 3, 4, 5, 6, 8].map(|bits| Storage::Affine {
        bits,
        group: 32,
        scales: FloatType::F16,
    }));
    for (i, storage) in storages.into_iter().enumerate() {
        // Expert 6 of 7 is never chosen.
        let (hidden, width) = (64, 32 * (1 + i % 2));
        let rows = [9, 65, 1, 7][i % 4];
        let (act, limit) = (Act::ALL[i % 3], (i % 2 == 0).then_some(0.4));
        let mut memory = Memory::default();
        let Layer { cpu, stack } =
            layer(&mut rng, &mut memory, storage, (7, hidden, width), 2, limit);
        let x = act.round(&floats(&mut rng, rows * hidden));
        let rest = act.round(&floats(&mut rng, rows * hidden));
        // Expert 0 takes all rows.
        let chosen: Vec<u32> = (0..rows).flat_map(|_| [0, 1 + rng.below(5) as u32]).collect();
        let weights: Vec<f32> = floats(&mut rng, 2 * rows);
        let (y, codes) = routed_tiles(&mut memory, act, &stack, &x, &chosen, &weights, &rest);
        let xt = Tensor::from_vec(x.clone(), (rows, hidden), &Device::Cpu).expect("it fits");
        let want = expert_mlp(&xt, &cpu, &chosen, &weights)
            .and_then(|y| y.flatten_all()?.to_vec1::<f32>())
            .expect("the CPU computes");
        let want: Vec<f32> = want.iter().zip(&rest).map(|(a, b)| a + b).collect();
        let largest = want.iter().fold(0f32, |a, v| a.max(v.abs()));
        let tolerance = 1e-4 + (act.epsilon() + 2e-6) * largest;
        close(&format!("{storage:?}, {rows} rows"), act, &act.values(&y), &want, tolerance);
        let expert = (tiles_of(&chosen).0.len() / 3 * hidden * width * storage.bits() / 8) as u64;
        assert_eq!(codes, [expert; 3], "{storage:?}, {rows} rows: codes");
        let row = rows - 1;
        let (alone, _) = routed_tiles(
            &mut memory,
            act,
            &stack,
            &x[row * hidden..],
            &chosen[2 * row..],
            &weights[2 * row..],
            &rest[row * hidden..],
        );
        assert!(alone == y[row * hidden * act.0.size()..], "{storage:?}: the last of {rows} rows");
    }
}
