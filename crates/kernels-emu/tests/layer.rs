//! Whole layers: the very lists of `decode_layer` and `prefill_layer` in the emulator, against the CPU's functions in their order.

use candle_core::{Device, Result, Tensor};
use foretoken_kernels::metal::{
    Arg, Cache, ExpertStack, Feed, FloatArray, Gated, Heads, Launch, Layer, Matrix, Moe,
    RouterSpec, Storage, View, decode_layer, prefill_layer,
};
use foretoken_kernels::{
    Activations, AttendSpec, Experts, FloatType, RopeTable, Weight, attend, expert_mlp, gate_heads,
    linear, rms_norm, rope, swiglu, swiglu_limited,
};
use foretoken_kernels_emu::{Act, Memory, Rng, close, floats, matrix};
use std::collections::BTreeMap;

const HIDDEN: usize = 64;
const WIDTH: usize = 96;
const EPS: f32 = 1e-5;
const N_CHOSEN: usize = 2;
const SCALE: f32 = 0.2;
const Q4: Storage = Storage::Affine { bits: 4, group: 32, scales: FloatType::BF16 };
const Q3: Storage = Storage::Affine { bits: 3, group: 32, scales: FloatType::F16 };
const PLAIN: Storage = Storage::Dense(FloatType::F32);

#[derive(Debug, Clone, Copy)]
struct Case {
    mixture: bool,
    shared: bool,
    gate: bool,
    head_norms: bool,
    window: Option<usize>,
    /// Of up; gate is `Q4`.
    up: Storage,
    limit: Option<f32>,
}

struct Mlp {
    gate: Weight,
    up: Weight,
    down: Weight,
    limit: Option<f32>,
}

struct Cpu {
    q: Weight,
    k: Weight,
    v: Weight,
    o: Weight,
    gate: Option<Weight>,
    head_norms: Option<[Vec<f32>; 2]>,
    norms: [Vec<f32>; 2],
    mlp: Option<Mlp>,
    mixture: Option<(Weight, Vec<f32>, Experts)>,
    rope: RopeTable,
    window: Option<usize>,
}

struct World {
    memory: Memory,
    act: Act,
    layer: Layer,
    cpu: Cpu,
    heads: Heads,
    past: [Vec<f32>; 2],
}

fn shrunk(w: Vec<f32>) -> Vec<f32> {
    w.iter().map(|w| 1.0 + 0.3 * w).collect()
}

fn world(case: Case, act: Act, position: usize, rows: usize) -> World {
    let mut rng = Rng(17);
    let mut memory = Memory::default();
    let heads = Heads { q: 4, kv: 2, dim: 16 };
    let Heads { q, kv, dim } = heads;
    let mut some = |memory: &mut Memory, storage, n, k| matrix(&mut rng, memory, storage, (n, k));
    let (wq, mq) = some(&mut memory, Q4, q * dim, HIDDEN);
    let (wk, mk) = some(&mut memory, Q4, kv * dim, HIDDEN);
    let (wv, mv) = some(&mut memory, Q3, kv * dim, HIDDEN);
    let (wo, mo) = some(&mut memory, Q4, HIDDEN, q * dim);
    let gate = case.gate.then(|| some(&mut memory, PLAIN, q, HIDDEN));
    let mut mlp = |memory: &mut Memory| {
        let (gate, gm) = some(memory, Q4, WIDTH, HIDDEN);
        let (up, um) = some(memory, case.up, WIDTH, HIDDEN);
        let (down, dm) = some(memory, Q4, HIDDEN, WIDTH);
        let limit = case.limit;
        (Mlp { gate, up, down, limit }, Gated { gate: gm, up: um, down: dm, limit })
    };
    let dense = (!case.mixture || case.shared).then(|| mlp(&mut memory));
    let n_experts = 6;
    let mut stack = |memory: &mut Memory, n: usize, k: usize| {
        let (all, m) = some(memory, Q4, n_experts * n, k);
        let each: Vec<Weight> =
            (0..n_experts).map(|e| all.part(e * n, n).expect("an expert")).collect();
        (each, Matrix { n, ..m })
    };
    let experts = case.mixture.then(|| {
        let (gate, gm) = stack(&mut memory, WIDTH, HIDDEN);
        let (up, um) = stack(&mut memory, WIDTH, HIDDEN);
        let (down, dm) = stack(&mut memory, HIDDEN, WIDTH);
        let cpu = Experts {
            gate,
            up,
            down,
            limit: case.limit.unwrap_or(f32::INFINITY),
            activations: Activations::Exact,
        };
        let limit = case.limit;
        (cpu, ExpertStack { gate: gm, up: um, down: dm, n_chosen: N_CHOSEN, limit })
    });
    let router = case.mixture.then(|| some(&mut memory, PLAIN, n_experts, HIDDEN));

    let bias = floats(&mut rng, n_experts);
    let norms = [(); 2].map(|()| shrunk(floats(&mut rng, HIDDEN)));
    let head_norms = [(); 2].map(|()| shrunk(floats(&mut rng, dim)));
    let mut vector = |v: &[f32]| FloatArray { at: memory.put(v), float: FloatType::F32 };
    let [input_norm, feed_norm] = [0, 1].map(|i| vector(&norms[i]));
    let [q_norm, k_norm] = [0, 1].map(|i| case.head_norms.then(|| vector(&head_norms[i])));
    let bias_at = vector(&bias);

    let inv_freq: Vec<f64> = (0..dim / 4).map(|j| 1.0 / (1.0 + j as f64)).collect();
    let table = |f: fn(f32) -> f32| -> Vec<f32> {
        (0..512).flat_map(|p| inv_freq.iter().map(move |w| f((p as f64 * w) as f32))).collect()
    };
    let capacity = case.window.map_or(position + rows + 2, |w| w + rows.max(8));
    let past = [(); 2].map(|()| act.round(&floats(&mut rng, position * kv * dim)));
    let mut kept = |all: &[f32]| {
        let mut slots = vec![f32::NAN; capacity * kv * dim];
        for p in position.saturating_sub(capacity)..position {
            slots[p % capacity * kv * dim..][..kv * dim]
                .copy_from_slice(&all[p * kv * dim..][..kv * dim]);
        }
        memory.put(&act.bytes(&slots))
    };
    let cache = Cache {
        keys: kept(&past[0]),
        values: kept(&past[1]),
        base: 0,
        capacity,
        ring: case.window.is_some(),
    };
    let (mlp, dense) = dense.unzip();
    let (experts, stack) = experts.unzip();
    let (router, router_at) = router.unzip();
    let feed = match (stack, router_at) {
        (Some(stack), Some(router)) => Feed::Moe(Moe {
            router,
            spec: RouterSpec {
                n_experts,
                n_chosen: N_CHOSEN,
                softmax: false,
                bias: Some(bias_at),
                renormalise: true,
                scale: 1.5,
            },
            stack,
            shared: dense,
        }),
        _ => Feed::Dense(dense.expect("a dense layer")),
    };
    let (gate, gate_at) = gate.unzip();
    let layer = Layer {
        heads,
        q: mq,
        k: mk,
        v: mv,
        o: mo,
        gate: gate_at,
        q_norm,
        k_norm,
        bias: None,
        input_norm,
        feed_norm,
        plus_one: false,
        eps: EPS,
        cosines: memory.put(&table(f32::cos)),
        sines: memory.put(&table(f32::sin)),
        positions: 512,
        half_turn: dim / 4,
        scale: SCALE,
        window: case.window,
        origin: 0,
        cache,
        feed,
    };
    let cpu = Cpu {
        q: wq,
        k: wk,
        v: wv,
        o: wo,
        gate,
        head_norms: case.head_norms.then_some(head_norms),
        norms,
        mlp,
        mixture: router.zip(experts).map(|(router, experts)| (router, bias, experts)),
        rope: RopeTable::new(&inv_freq, 512),
        window: case.window,
    };
    World { memory, act, layer, cpu, heads, past }
}

impl World {
    /// Runs a step's list for these rows: y, the launches and each launch's bytes by argument.
    fn gpu(&mut self, x: &[f32], position: usize) -> (Vec<u8>, Vec<Launch>, Vec<Vec<u64>>) {
        self.run(x, position, false)
    }

    /// Or that of prefill.
    fn run(
        &mut self,
        x: &[f32],
        position: usize,
        prefill: bool,
    ) -> (Vec<u8>, Vec<Launch>, Vec<Vec<u64>>) {
        let rows = x.len() / HIDDEN;
        let xv = self.memory.put(&self.act.bytes(x));
        let start = self.memory.put(&[position as u32]);
        let y = self.memory.room(rows * HIDDEN * self.act.0.size());
        let next = self.memory.next();
        let launches = if prefill { prefill_layer } else { decode_layer };
        let list = launches(self.act.0, rows, position, &self.layer, (xv, start, y), next, 0)
            .expect("launches");
        self.memory.make_scratch(&list);
        let read = list
            .iter()
            .map(|launch| {
                let report = self.memory.run(launch);
                report.unwrap_or_else(|fault| panic!("{}: {fault}", launch.kernel)).read_bytes
            })
            .collect();
        (self.memory.get(y), list, read)
    }

    /// y, and how many experts were touched.
    fn cpu(&self, x: &[f32], position: usize) -> Result<(Vec<f32>, usize)> {
        let Heads { q, kv, dim } = self.heads;
        let c = &self.cpu;
        let rows = x.len() / HIDDEN;
        let x = Tensor::from_vec(x.to_vec(), (rows, HIDDEN), &Device::Cpu)?;
        let normed = rms_norm(&x, &c.norms[0], EPS)?;
        let turn = |w: &Weight, n: usize, norm: Option<&Vec<f32>>| -> Result<Tensor> {
            let x = linear(&normed, w)?.reshape((rows, n, dim))?;
            let x = match norm {
                Some(norm) => rms_norm(&x, norm, EPS)?,
                None => x,
            };
            rope(&x, &c.rope, position)?.reshape((rows, n * dim))
        };
        let norms = c.head_norms.as_ref();
        let queries = turn(&c.q, q, norms.map(|n| &n[0]))?;
        let keys = turn(&c.k, kv, norms.map(|n| &n[1]))?;
        let values = linear(&normed, &c.v)?;
        let whole = |past: &[f32], new: &Tensor| {
            let past = Tensor::from_vec(past.to_vec(), (position, kv * dim), &Device::Cpu)?;
            Tensor::cat(&[&past, new], 0)
        };
        let spec = AttendSpec {
            n_heads: q,
            n_kv_heads: kv,
            head_dim: dim,
            scale: SCALE,
            query_position: position,
            key_position: 0,
            origin: 0,
            window: c.window,
        };
        let mut seen =
            attend(&queries, &whole(&self.past[0], &keys)?, &whole(&self.past[1], &values)?, spec)?;
        if let Some(gate) = &c.gate {
            seen = gate_heads(&seen, &linear(&normed, gate)?)?;
        }
        let x = (x + linear(&seen, &c.o)?)?;
        let normed = rms_norm(&x, &c.norms[1], EPS)?;
        let mut y = x;
        if let Some(mlp) = &c.mlp {
            let (g, u) = (linear(&normed, &mlp.gate)?, linear(&normed, &mlp.up)?);
            let wide = match mlp.limit {
                Some(limit) => swiglu_limited(&g, &u, limit)?,
                None => swiglu(&g, &u)?,
            };
            y = (y + linear(&wide, &mlp.down)?)?;
        }
        let mut touched = 0;
        if let Some((router, bias, experts)) = &c.mixture {
            let (mut chosen, mut weights) = (Vec::new(), Vec::new());
            for logits in linear(&normed, router)?.to_vec2::<f32>()? {
                let scores: Vec<f32> = logits.iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect();
                let mut order: Vec<u32> = (0..scores.len() as u32).collect();
                let wanted = |e: u32| scores[e as usize] + bias[e as usize];
                order.sort_by(|a, b| wanted(*b).total_cmp(&wanted(*a)));
                order.truncate(N_CHOSEN);
                order.sort_unstable();
                let sum: f32 = order.iter().map(|e| scores[*e as usize]).sum();
                weights.extend(order.iter().map(|e| scores[*e as usize] / sum * 1.5));
                chosen.extend(order);
            }
            y = (y + expert_mlp(&normed, experts, &chosen, &weights)?)?;
            chosen.sort_unstable();
            chosen.dedup();
            touched = chosen.len();
        }
        Ok((y.flatten_all()?.to_vec1()?, touched))
    }

    fn codes(&self) -> Vec<(Matrix, bool)> {
        let l = &self.layer;
        let mut all = vec![(l.q, false), (l.k, false), (l.v, false), (l.o, false)];
        all.extend(l.gate.map(|m| (m, false)));
        let dense = match &l.feed {
            Feed::Dense(mlp) => Some(*mlp),
            Feed::Moe(moe) => {
                all.push((moe.router, false));
                all.extend([moe.stack.gate, moe.stack.up, moe.stack.down].map(|m| (m, true)));
                moe.shared
            }
        };
        all.extend(dense.iter().flat_map(|mlp| [mlp.gate, mlp.up, mlp.down]).map(|m| (m, false)));
        all
    }
}

fn cases() -> Vec<Case> {
    let plain = Case {
        mixture: false,
        shared: false,
        gate: false,
        head_norms: false,
        window: None,
        up: Q4,
        limit: None,
    };
    vec![
        plain,
        Case { gate: true, head_norms: true, up: Q3, limit: Some(0.5), ..plain },
        Case { mixture: true, head_norms: true, window: Some(12), ..plain },
        Case { mixture: true, shared: true, gate: true, limit: Some(0.7), ..plain },
    ]
}

#[test]
fn a_layer_agrees_with_the_cpu_and_reads_what_the_list_declares() {
    for case in cases() {
        for (rows, position) in [(1, 0), (1, 300), (3, 254), (8, 30)] {
            let act = Act(FloatType::F32);
            let mut world = world(case, act, position, rows);
            let x = floats(&mut Rng(rows as u64), rows * HIDDEN);
            let (want, touched) = world.cpu(&x, position).expect("the CPU computes");
            let (y, list, read) = world.gpu(&x, position);
            let largest = want.iter().fold(1f32, |a, v| a.max(v.abs()));
            close(&format!("{case:?} {rows}"), act, &act.values(&y), &want, 1e-4 * largest);

            // Of every buffer: what the emulator saw, against weights once and keys and values once.
            let mut seen: BTreeMap<_, u64> = BTreeMap::new();
            for (launch, read) in list.iter().zip(&read) {
                for (index, arg) in &launch.args {
                    if let Arg::Read { at, .. } = arg {
                        *seen.entry(at.buffer).or_default() += read[*index as usize];
                    }
                }
            }
            for (m, stacked) in world.codes() {
                let times = if stacked { touched } else { 1 };
                let bytes = times * m.n * m.k * m.storage.bits() / 8;
                assert_eq!(seen[&m.codes.buffer], bytes as u64, "{case:?} {rows} rows: {m:?}");
            }
            let keys = case.window.map_or(position + rows, |w| (position + rows).min(w - 1 + rows));
            let Heads { kv, dim, .. } = world.heads;
            for side in [world.layer.cache.keys, world.layer.cache.values] {
                assert_eq!(
                    seen[&side.buffer],
                    (keys * kv * dim * 4) as u64,
                    "{case:?} {rows} rows"
                );
            }
            let bound = if case.mixture { 16 } else { 12 };
            assert!(list.len() <= bound, "{case:?}: {} launches", list.len());
        }
    }
}

#[test]
fn what_would_read_past_an_end_is_refused() {
    let act = Act(FloatType::F32);
    let world = world(cases()[0], act, 9, 1);
    let at = View::start(0);
    let plan = |rows, position| {
        decode_layer(act.0, rows, position, &world.layer, (at, at, at), 100, 0).is_ok()
    };
    // The cache was made for positions up to 9 and three more.
    assert!(plan(1, 9) && plan(3, 9) && !plan(4, 9) && !plan(1, 12));
    assert!(!plan(1, 512), "past the table");
    assert!(!plan(0, 3) && !plan(9, 0), "rows");
}

/// What greedy decoding rests on: verifying rows together gives the bits of decoding them one by one, cache included.
#[test]
fn rows_together_give_the_bits_of_rows_one_by_one() {
    for case in cases() {
        for act in Act::ALL {
            for (rows, position) in [(3, 254), (8, 9)] {
                let x = act.round(&floats(&mut Rng(5), rows * HIDDEN));
                let mut together = world(case, act, position, rows);
                let (all, ..) = together.gpu(&x, position);
                let mut alone = world(case, act, position, rows);
                let size = HIDDEN * act.0.size();
                for row in 0..rows {
                    let (y, ..) = alone.gpu(&x[row * HIDDEN..(row + 1) * HIDDEN], position + row);
                    assert!(y == all[row * size..(row + 1) * size], "{case:?} {act:?}: row {row}");
                }
                let cache = |w: &World, v: View| -> Vec<u8> { w.memory.get(v) };
                let keys = alone.layer.cache.keys;
                assert!(cache(&together, keys) == cache(&alone, keys), "{case:?}: the keys");
            }
        }
    }
}

#[test]
fn a_prefill_layer_agrees_with_the_cpu_and_rows_keep_their_bits_in_any_chunk() {
    for (i, case) in cases().into_iter().enumerate() {
        for (rows, position) in [(1, 0), (7, 300), (9, 30), (65, 0)] {
            let act = Act(FloatType::F32);
            let mut together = world(case, act, position, rows);
            let x = floats(&mut Rng(rows as u64), rows * HIDDEN);
            let (want, _) = together.cpu(&x, position).expect("the CPU computes");
            let (y, list, _) = together.run(&x, position, true);
            let largest = want.iter().fold(1f32, |a, v| a.max(v.abs()));
            close(&format!("{case:?} {rows}"), act, &act.values(&y), &want, 1e-4 * largest);
            let bound = if case.mixture { 21 } else { 12 };
            assert!(list.len() <= bound, "{case:?}: {} launches", list.len());

            // The same rows as two chunks.
            let cut = rows * (i + 1) / 6;
            let mut apart = world(case, act, position, rows);
            let (first, second) = x.split_at(cut * HIDDEN);
            let mut pieces = Vec::new();
            for (x, position) in [(first, position), (second, position + cut)] {
                if !x.is_empty() {
                    pieces.extend(apart.run(x, position, true).0);
                }
            }
            assert!(pieces == y, "{case:?}: {rows} rows, cut at {cut}");
            let keys = together.layer.cache.keys;
            let cache = |w: &World| -> Vec<u8> { w.memory.get(keys) };
            assert!(cache(&together) == cache(&apart), "{case:?}: the keys");
        }
    }
}
