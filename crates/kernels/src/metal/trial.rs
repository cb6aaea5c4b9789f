//! A kernel's self-test: launches over small random data with what must come out, from formulas in f64. The GPU runs a
//! kernel's trial before its first use; the emulator runs the very same ones on Linux.

use super::attend::{AttendLaunch, attend, attend_rows, n_parts};
use super::experts::{ExpertStack, experts_down, experts_gate_up, experts_sum};
use super::heads::{HeadsLaunch, heads};
use super::launch::{
    Arg, BufferId, Cache, Constant, FloatArray, Heads, Launch, LaunchError, Matrix, Storage, View,
    constant,
};
use super::linear::{Finish, gate_up, linear};
use super::router::{Tiles, router_rows};
use super::{PairInput, RouterSpec, RouterViews, embed, matmul, matmul_tiles, rms_norm, router};
use super::{PairedNorm, norm_pair, swiglu, top};
use crate::{Affine, Bytes, Dense, FloatType, Weight};
use std::collections::BTreeMap;

/// Launches, the buffers that must be there before (others start as zeros), and the result.
#[derive(Debug, Clone)]
pub struct Trial {
    pub launches: Vec<Launch>,
    pub buffers: BTreeMap<BufferId, Vec<u8>>,
    /// Where `want` is to be found, and in what type.
    pub output: (View, FloatType),
    pub want: Vec<f32>,
    /// Of the largest value.
    pub tolerance: f32,
}

impl Trial {
    /// Every buffer's contents, with room for what the launches write.
    pub fn memory(&self) -> BTreeMap<BufferId, Vec<u8>> {
        let mut memory = self.buffers.clone();
        for (_, arg) in self.launches.iter().flat_map(|launch| &launch.args) {
            if let Arg::Write { at, bytes } = arg {
                let buffer = memory.entry(at.buffer).or_default();
                let size = buffer.len().max(at.offset + bytes);
                buffer.resize(size, 0);
            }
        }
        memory
    }

    /// Whether the output buffer holds what it must: if not, the first value that differs (place, got, want).
    pub fn judge(&self, buffer: &[u8]) -> Result<(), (usize, f32, f32)> {
        let (view, float) = self.output;
        let largest = self.want.iter().fold(0f32, |a, v| a.max(v.abs()));
        for (i, want) in self.want.iter().enumerate() {
            let at = view.offset / float.size() + i;
            let got = if (at + 1) * float.size() <= buffer.len() {
                float.get(buffer, at)
            } else {
                f32::NAN
            };
            // In this form NaN fails.
            let fits = (got - want).abs() <= self.tolerance * largest + 1e-6;
            if !fits {
                return Err((i, got, *want));
            }
        }
        Ok(())
    }
}

/// Fills buffers, numbered as they come.
struct Bench {
    act: FloatType,
    seed: u64,
    buffers: BTreeMap<BufferId, Vec<u8>>,
    next: u32,
}

fn encode(float: FloatType, values: &[f32]) -> Vec<u8> {
    let one = |v: &f32| match float {
        FloatType::F32 => v.to_le_bytes().to_vec(),
        FloatType::F16 => half::f16::from_f32(*v).to_le_bytes().to_vec(),
        FloatType::BF16 => half::bf16::from_f32(*v).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

impl Bench {
    fn room(&mut self) -> View {
        self.next += 1;
        View::start(self.next - 1)
    }

    fn put(&mut self, data: Vec<u8>) -> View {
        let view = self.room();
        self.buffers.insert(view.buffer, data);
        view
    }

    fn words(&mut self, words: &[u32]) -> View {
        self.put(words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }

    fn bits(&mut self) -> u32 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 33) as u32
    }

    /// Values in -1..1 as `float` holds them, and where they lie.
    fn floats(&mut self, float: FloatType, n: usize) -> (View, Vec<f64>) {
        self.floats_within(1.0, float, n)
    }

    fn floats_within(&mut self, size: f32, float: FloatType, n: usize) -> (View, Vec<f64>) {
        let values: Vec<f32> = (0..n)
            .map(|_| size * ((self.bits() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0))
            .collect();
        let raw = encode(float, &values);
        let values = (0..n).map(|i| f64::from(float.get(&raw, i))).collect();
        (self.put(raw), values)
    }

    /// A matrix and its rows.
    fn matrix(&mut self, storage: Storage, n: usize, k: usize) -> (Matrix, Vec<Vec<f64>>) {
        let (weight, [codes, scales, biases]) = match storage {
            Storage::Affine { bits, group, scales: float } => {
                let raw: Vec<u8> = (0..n * k * bits / 8).map(|_| self.bits() as u8).collect();
                let codes = self.put(raw.clone());
                // So small that products of products stay in the range of f16.
                let step = 0.5 / (1 << bits) as f32;
                let (scales, _) = self.floats_within(step, float, n * k / group);
                let (biases, _) = self.floats_within(0.25, float, n * k / group);
                let part = |v: View| Bytes::from_vec(self.buffers[&v.buffer].clone());
                let (s, b) = (part(scales), part(biases));
                let weight = Affine::new(Bytes::from_vec(raw), s, b, float, (bits, group), (n, k));
                (
                    Weight::Affine(weight.expect("the sizes are made to fit")),
                    [codes, scales, biases],
                )
            }
            Storage::Dense(float) => {
                let (codes, _) = self.floats_within(0.25, float, n * k);
                let data = Bytes::from_vec(self.buffers[&codes.buffer].clone());
                let weight = Dense::new(data, float, (n, k)).expect("the sizes are made to fit");
                (Weight::Dense(weight), [codes; 3])
            }
        };
        let mut row = vec![0f32; k];
        let rows = (0..n)
            .map(|i| {
                weight.row(i, &mut row);
                row.iter().map(|v| f64::from(*v)).collect()
            })
            .collect();
        (Matrix { storage, n, k, codes, scales, biases }, rows)
    }

    fn trial(self, launches: Vec<Launch>, output: (View, FloatType), want: Vec<f64>) -> Trial {
        let want = want.into_iter().map(|v| v as f32).collect();
        let tolerance = match self.act {
            FloatType::F32 => 1e-4,
            FloatType::F16 => 4e-3,
            FloatType::BF16 => 3e-2,
        };
        Trial { launches, buffers: self.buffers, output, want, tolerance }
    }
}

/// x [rows, k] W^T.
fn product(x: &[f64], w: &[Vec<f64>]) -> Vec<f64> {
    let k = w[0].len();
    let dot = |x: &[f64], w: &Vec<f64>| x.iter().zip(w).map(|(a, b)| a * b).sum();
    x.chunks(k).flat_map(|x| w.iter().map(move |w| dot(x, w))).collect()
}

fn gated(g: &[f64], u: &[f64]) -> Vec<f64> {
    g.iter().zip(u).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn normed(x: &[f64], w: &[f64]) -> Vec<f64> {
    let d = w.len();
    x.chunks(d)
        .flat_map(|x| {
            let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / d as f64 + 1e-5).sqrt();
            x.iter().zip(w).map(move |(x, w)| x * scale * w)
        })
        .collect()
}

/// The trial of the kernel that `launch` names, in that storage. `None`: there is no such kernel.
pub fn trial(launch: &Launch, act: FloatType) -> Result<Option<Trial>, LaunchError> {
    let numbers = |mark: char| -> Option<usize> {
        launch.kernel.split('_').find_map(|part| part.strip_prefix(mark)?.parse().ok())
    };
    let float = match launch.constants[constant::FLOAT_TYPE as usize] {
        Constant::Int(1) => FloatType::F16,
        Constant::Int(2) => FloatType::BF16,
        _ => FloatType::F32,
    };
    let group = match launch.constants[constant::GROUP_SIZE as usize] {
        Constant::Int(group) => group as usize,
        Constant::Bool(_) => 32,
    };
    let bits = numbers('b').unwrap_or(32);
    let storage = match bits {
        16 | 32 => Storage::Dense(float),
        _ => Storage::Affine { bits, group, scales: float },
    };
    let rows = numbers('r').unwrap_or(3);
    let k = if bits >= 16 { 299 } else { 256 + group };
    let bench = Bench { act, seed: 7, buffers: BTreeMap::new(), next: 0 };
    let is = |name: &str| launch.kernel.starts_with(name);
    let has = |flag: u32| launch.constants[flag as usize] == Constant::Bool(true);
    Ok(Some(if is("experts") || (is("matmul") && has(constant::HAS_TILES)) {
        of_experts(bench, storage, if is("experts") { rows.min(4) } else { 33 })?
    } else if is("linear") || is("matmul") || is("gate_up") || is("embed") {
        of_products(bench, &launch.kernel, storage, rows, k)?
    } else if is("attend") || is("heads") {
        let channels = numbers('e').unwrap_or(2);
        if is("attend_rows") {
            of_attention(bench, channels, 19, true)?
        } else {
            of_attention(bench, channels, numbers('q').unwrap_or(1).min(8), false)?
        }
    } else {
        match launch.kernel.split('_').next() {
            Some("rms") if has(constant::HAS_SECOND) => of_pairs(bench),
            Some("rms" | "swiglu" | "router" | "top") => of_rows(bench, &launch.kernel)?,
            _ => return Ok(None),
        }
    }))
}

fn of_products(
    mut b: Bench,
    kernel: &str,
    storage: Storage,
    rows: usize,
    k: usize,
) -> Result<Trial, LaunchError> {
    let (act, n) = (b.act, 13);
    let (m, w) = b.matrix(storage, n, k);
    let (other, v) = b.matrix(storage, n, k);
    let rows = if kernel.starts_with("matmul") { 33 } else { rows };
    let (x, xs) = b.floats(act, rows * k);
    let (residual, rs) = b.floats(act, rows * n);
    let y = b.room();
    let (launch, want) = if kernel.starts_with("linear") {
        let finish = Finish::Add(residual);
        (linear(act, rows, x, &[(m, y)], finish, false)?, add(&product(&xs, &w), &rs))
    } else if kernel.starts_with("matmul") {
        let finish = Finish::Add(residual);
        (matmul(act, rows, x, &m, finish, (y, false))?, add(&product(&xs, &w), &rs))
    } else if kernel.starts_with("gate_up") {
        let launch = gate_up(act, rows, x, (&m, &other), None, y)?;
        (launch, gated(&product(&xs, &w), &product(&xs, &v)))
    } else {
        let ids = b.words(&[12, 0, 5]);
        let want = [12, 0, 5].iter().flat_map(|id| w[*id].clone()).collect();
        (embed(act, 3, &m, ids, y)?, want)
    };
    Ok(b.trial(vec![launch], (y, act), want))
}

fn of_rows(mut b: Bench, kernel: &str) -> Result<Trial, LaunchError> {
    let (act, rows, d) = (b.act, 3, 300);
    let y = b.room();
    if kernel.starts_with("rms_norm") {
        let (x, xs) = b.floats(act, rows * d);
        let (w, ws) = b.floats(FloatType::F32, d);
        let weight = FloatArray { at: w, float: FloatType::F32 };
        let launch = rms_norm(act, (rows, d), x, (weight, false, 1e-5), y, None);
        return Ok(b.trial(vec![launch], (y, act), normed(&xs, &ws)));
    }
    if kernel.starts_with("swiglu") {
        let (g, gs) = b.floats(act, d);
        let (u, us) = b.floats(act, d);
        let launch = swiglu(act, d, (g, u), None, y);
        return Ok(b.trial(vec![launch], (y, act), gated(&gs, &us)));
    }
    let (logits, ls) = b.floats(FloatType::F32, rows * d);
    let mut want = Vec::new();
    let launches = if kernel.starts_with("top") {
        for row in ls.chunks(d) {
            let mut sorted = row.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            want.extend_from_slice(&sorted[..5]);
        }
        let ids = b.room();
        vec![top((rows, d), 5, logits, (ids, y))?]
    } else {
        let spec = RouterSpec {
            n_experts: d,
            n_chosen: 6,
            softmax: false,
            bias: None,
            renormalise: true,
            scale: 2.0,
        };
        for row in ls.chunks(d) {
            let mut order: Vec<usize> = (0..d).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
            order.truncate(6);
            order.sort_unstable();
            let scores: Vec<f64> = order.iter().map(|e| 1.0 / (1.0 + (-row[*e]).exp())).collect();
            let sum: f64 = scores.iter().sum();
            want.extend(scores.iter().map(|s| s / sum * 2.0));
        }
        let [chosen, order, runs] = [(); 3].map(|()| b.room());
        if kernel == "router" {
            vec![router(rows, &spec, logits, &RouterViews { chosen, weights: y, order, runs })?]
        } else {
            let tiles = Tiles { order, tiles: runs, n: 6 * rows, n_chosen: 6, touched: 0 };
            router_rows(rows, &spec, logits, (chosen, y), &tiles)?.to_vec()
        }
    };
    Ok(b.trial(launches, (y, FloatType::F32), want))
}

/// Two norms side by side.
fn of_pairs(mut b: Bench) -> Trial {
    let (act, rows, d) = (b.act, 3, 300);
    let mut side = |eps: f32| {
        let ((x, xs), (at, ws)) = (b.floats(act, rows * d), b.floats(FloatType::F32, d));
        (PairedNorm { x, weight: FloatArray { at, float: FloatType::F32 }, eps }, normed(&xs, &ws))
    };
    let ((left, l), (right, r)) = (side(1e-5), side(1e-5));
    let y = b.room();
    let launch = norm_pair(act, (rows, d), &left, &right, y);
    let want = l.chunks(d).zip(r.chunks(d)).flat_map(|(l, r)| [l, r].concat()).collect();
    b.trial(vec![launch], (y, act), want)
}

/// Gate and up, down, and the weighted sum, for rows that all share expert 2 and have another one; more than 4 of them in the
/// tiles of prefill.
fn of_experts(mut b: Bench, storage: Storage, rows: usize) -> Result<Trial, LaunchError> {
    let (act, n_experts, hidden, width) = (b.act, 7, 128, 128);
    let mut stack = |n: usize, k: usize| {
        let (m, w) = b.matrix(storage, n_experts * n, k);
        (Matrix { n, ..m }, w)
    };
    let ((gate, gs), (up, us), (down, ds)) =
        (stack(width, hidden), stack(width, hidden), stack(hidden, width));
    let (x, xs) = b.floats(act, rows * hidden);
    let (rest, rs) = b.floats(act, rows * hidden);
    let (weights, ws) = b.floats(FloatType::F32, 2 * rows);
    let pairs = 2 * rows as u32;
    let expert = |pair: &u32| if pair.is_multiple_of(2) { 2 } else { 3 + pair / 2 % 4 };
    let mut order: Vec<u32> = (0..pairs).collect();
    order.sort_by_key(expert);
    let (mut runs, mut place) = (Vec::new(), 0);
    for run in order.chunk_by(|a, b| expert(a) == expert(b)).flat_map(|run| run.chunks(32)) {
        runs.extend([expert(&run[0]), place, run.len() as u32]);
        place += run.len() as u32;
    }
    runs.resize(3 * pairs as usize, 0);
    let (order, runs) = (b.words(&order), b.words(&runs));
    let [chosen, gates, wide, each, y] = [(); 5].map(|()| b.room());
    let touched = 1 + rows.min(4);
    let mut launches = if rows > 4 {
        let (n, finish) = (pairs as usize, Finish::Gate(gates, None));
        let tiles = Tiles { order, tiles: runs, n, n_chosen: 2, touched };
        let (shared, own) = ((x, PairInput::Row), (wide, PairInput::Own));
        vec![
            matmul_tiles(act, rows, shared, &gate, &tiles, Finish::Keep, (gates, false))?,
            matmul_tiles(act, rows, shared, &up, &tiles, finish, (wide, false))?,
            matmul_tiles(act, rows, own, &down, &tiles, Finish::Keep, (each, true))?,
        ]
    } else {
        let to = RouterViews { chosen, weights, order, runs };
        let stack = ExpertStack { gate, up, down, n_chosen: 2, limit: None };
        vec![
            experts_gate_up(act, rows, &stack, x, &to, wide, touched)?,
            experts_down(act, rows, &stack, wide, &to, each, touched)?,
        ]
    };
    launches.push(experts_sum(act, (rows, hidden), 2, each, weights, rest, y));
    let mut want = rs;
    for (row, (x, y)) in xs.chunks(hidden).zip(want.chunks_mut(hidden)).enumerate() {
        for (choice, e) in [2, 3 + row % 4].into_iter().enumerate() {
            let part = |w: &[Vec<f64>], n: usize| w[e * n..(e + 1) * n].to_vec();
            let wide = gated(&product(x, &part(&gs, width)), &product(x, &part(&us, width)));
            for (y, v) in y.iter_mut().zip(product(&wide, &part(&ds, hidden))) {
                *y += ws[2 * row + choice] * v;
            }
        }
    }
    Ok(b.trial(launches, (y, act), want))
}

/// Heads into the cache, then attention: over two parts and their merging for as many rows as a simdgroup has (row, head)
/// pairs, or `in_one` launch for more rows than a threadgroup takes.
fn of_attention(
    mut b: Bench,
    channels: usize,
    rows: usize,
    in_one: bool,
) -> Result<Trial, LaunchError> {
    let (act, position, dim) = (b.act, 253, 32 * channels);
    let heads_of = Heads { q: 8, kv: 1, dim };
    let (q, qs) = b.floats(act, rows * 8 * dim);
    let (k, ks) = b.floats(act, rows * dim);
    let (v, vs) = b.floats(act, rows * dim);
    let newest = position + rows;
    let (keys, mut all_keys) = b.floats(act, newest * dim);
    let (values, mut all_values) = b.floats(act, newest * dim);
    let half = dim / 4;
    let turn = |f: fn(f32) -> f32| -> Vec<f32> {
        (0..newest).flat_map(|p| (0..half).map(move |j| f((p * (j + 1)) as f32 * 0.01))).collect()
    };
    let (cos, sin) = (turn(f32::cos), turn(f32::sin));
    let spec = HeadsLaunch {
        heads: heads_of,
        q,
        k,
        v,
        cosines: b.put(encode(FloatType::F32, &cos)),
        sines: b.put(encode(FloatType::F32, &sin)),
        half_turn: half,
        start: b.words(&[position as u32]),
        q_norm: None,
        k_norm: None,
        bias: None,
        plus_one: false,
        eps: 1e-5,
        cache: Cache { keys, values, base: 0, capacity: newest, ring: false },
        q_out: b.room(),
    };
    let parts = AttendLaunch {
        heads: heads_of,
        q: spec.q_out,
        cache: spec.cache,
        start: spec.start,
        origin: 0,
        window: None,
        scale: 0.2,
        gate: None,
        part_sum: b.room(),
        part_top: b.room(),
        y: b.room(),
    };
    debug_assert!(n_parts(position, rows, 0, None) <= 2);
    let mut launches = vec![heads(act, rows, &spec)?];
    if in_one {
        launches.push(attend_rows(act, rows, position, &parts)?);
    } else {
        launches.extend(attend(act, rows, position, &parts)?);
    }

    let turned = |x: &[f64], row: usize| {
        let mut x = x.to_vec();
        for j in 0..half {
            let at = (position + row) * half + j;
            let (c, s) = (f64::from(cos[at]), f64::from(sin[at]));
            (x[j], x[j + half]) = (x[j] * c - x[j + half] * s, x[j + half] * c + x[j] * s);
        }
        x
    };
    for row in 0..rows {
        let at = row * dim..(row + 1) * dim;
        let to = (position + row) * dim..(position + row + 1) * dim;
        all_keys[to.clone()].copy_from_slice(&turned(&ks[at.clone()], row));
        all_values[to].copy_from_slice(&vs[at]);
    }
    let mut want = Vec::new();
    for (i, q) in qs.chunks(dim).enumerate() {
        let row = i / 8;
        let q = turned(q, row);
        let weights: Vec<f64> = all_keys[..(position + row + 1) * dim]
            .chunks(dim)
            .map(|k| (k.iter().zip(&q).map(|(a, b)| a * b).sum::<f64>() * 0.2).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        want.extend((0..dim).map(|c| {
            weights.iter().enumerate().map(|(t, w)| w * all_values[t * dim + c]).sum::<f64>()
                / total
        }));
    }
    Ok(b.trial(launches, (parts.y, act), want))
}
