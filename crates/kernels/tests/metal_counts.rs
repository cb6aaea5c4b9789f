//! Dispatches and bytes of one decode or verify step and of a chunk of a prompt, from the launch list, at the shapes of real layers.

use foretoken_kernels::FloatType::{self, BF16, F32};
use foretoken_kernels::metal::{
    BufferId, Cache, ExpertStack, Feed, FloatArray, Gated, Heads, Layer, Matrix, Moe, RouterSpec,
    Storage, Traffic, View, decode_layer, prefill_layer, traffic,
};

/// Numbers buffers and adds up the weights in them.
#[derive(Default)]
struct File {
    buffers: u32,
    weights: usize,
}

const Q4: Storage = Storage::Affine { bits: 4, group: 64, scales: BF16 };
const Q8: Storage = Storage::Affine { bits: 8, group: 64, scales: BF16 };
const PLAIN: Storage = Storage::Dense(BF16);

impl File {
    fn view(&mut self) -> View {
        self.buffers += 1;
        View::start(self.buffers - 1)
    }

    /// `stacked`: how many of a stack of experts are read.
    fn matrix(&mut self, storage: Storage, n: usize, k: usize, stacked: usize) -> Matrix {
        let [codes, scales, biases] = [(); 3].map(|()| self.view());
        let m = Matrix { storage, n, k, codes, scales, biases };
        self.weights += stacked * m.n_bytes();
        m
    }

    fn floats(&mut self, n: usize, float: FloatType) -> FloatArray {
        self.weights += n * float.size();
        FloatArray { at: self.view(), float }
    }

    fn gated(&mut self, storage: [Storage; 3], hidden: usize, width: usize) -> Gated {
        Gated {
            gate: self.matrix(storage[0], width, hidden, 1),
            up: self.matrix(storage[1], width, hidden, 1),
            down: self.matrix(storage[2], hidden, width, 1),
            limit: None,
        }
    }
}

struct Shape {
    hidden: usize,
    heads: Heads,
    qkv: [Storage; 4],
    gate: bool,
    head_norms: bool,
    window: Option<usize>,
    feed: FeedShape,
}

enum FeedShape {
    Dense {
        storage: [Storage; 3],
        width: usize,
    },
    /// (experts, chosen, touched, width, width of the shared one).
    Moe {
        storage: Storage,
        sizes: (usize, usize, usize, usize, usize),
    },
}

/// The traffic of a step, or of a chunk of more than 8 rows, and weights + keys and values.
fn count(s: &Shape, rows: usize, position: usize) -> (Traffic, usize) {
    let mut file = File::default();
    let (hidden, Heads { q, kv, dim }) = (s.hidden, s.heads);
    let mut touched_experts = 0;
    let feed = match s.feed {
        FeedShape::Dense { storage, width } => Feed::Dense(file.gated(storage, hidden, width)),
        FeedShape::Moe { storage, sizes: (n, n_chosen, touched, width, shared) } => {
            touched_experts = touched;
            Feed::Moe(Moe {
                router: file.matrix(PLAIN, n, hidden, 1),
                spec: RouterSpec {
                    n_experts: n,
                    n_chosen,
                    softmax: false,
                    bias: Some(file.floats(n, F32)),
                    renormalise: true,
                    scale: 1.0,
                },
                stack: ExpertStack {
                    gate: file.matrix(storage, width, hidden, touched),
                    up: file.matrix(storage, width, hidden, touched),
                    down: file.matrix(storage, hidden, width, touched),
                    n_chosen,
                    limit: None,
                },
                shared: (shared > 0).then(|| file.gated([Q4; 3], hidden, shared)),
            })
        }
    };
    let head_norm = |file: &mut File| s.head_norms.then(|| file.floats(dim, BF16));
    let layer = Layer {
        heads: s.heads,
        q: file.matrix(s.qkv[0], q * dim, hidden, 1),
        k: file.matrix(s.qkv[1], kv * dim, hidden, 1),
        v: file.matrix(s.qkv[2], kv * dim, hidden, 1),
        o: file.matrix(s.qkv[0], hidden, q * dim, 1),
        gate: s.gate.then(|| file.matrix(s.qkv[3], q, hidden, 1)),
        q_norm: head_norm(&mut file),
        k_norm: head_norm(&mut file),
        bias: None,
        input_norm: file.floats(hidden, BF16),
        feed_norm: file.floats(hidden, BF16),
        plus_one: false,
        eps: 1e-5,
        cosines: file.view(),
        sines: file.view(),
        positions: 1 << 17,
        half_turn: dim / 2,
        scale: 1.0,
        window: s.window,
        origin: 0,
        cache: Cache {
            keys: file.view(),
            values: file.view(),
            base: 0,
            capacity: s.window.map_or(1 << 20, |w| w + rows.max(16)),
            ring: s.window.is_some(),
        },
        feed,
    };
    let [x, start, y] = [(); 3].map(|()| file.view());
    let launches = if rows > 8 { prefill_layer } else { decode_layer };
    let list = launches(BF16, rows, position, &layer, (x, start, y), file.buffers, touched_experts)
        .expect("launches");
    let keys = s.window.map_or(position + rows, |w| (w - 1 + rows).min(position + rows));
    let needed = file.weights + 2 * keys * kv * dim * 2;
    (traffic(&list, BufferId(file.buffers)), needed)
}

fn within(what: &str, (got, needed): (Traffic, usize), launches: usize) {
    assert!(got.launches <= launches, "{what}: {} launches", got.launches);
    let read = got.lasting + got.between;
    let share = read as f64 / needed as f64;
    assert!((1.0..1.05).contains(&share), "{what}: {read} bytes for {needed}, {share:.3}");
}

fn smollm() -> Shape {
    Shape {
        hidden: 576,
        heads: Heads { q: 9, kv: 3, dim: 64 },
        qkv: [Q4; 4],
        gate: false,
        head_norms: false,
        window: None,
        feed: FeedShape::Dense { storage: [Q4; 3], width: 1536 },
    }
}

/// Step 3.5 Flash: a full layer.
fn step(touched: usize) -> Shape {
    Shape {
        hidden: 4096,
        heads: Heads { q: 64, kv: 8, dim: 128 },
        qkv: [Q4, Q4, Q4, PLAIN],
        gate: true,
        head_norms: true,
        window: None,
        feed: FeedShape::Moe { storage: Q4, sizes: (288, 8, touched, 1280, 1280) },
    }
}

/// Hy3.
fn hy(touched: usize) -> Shape {
    Shape {
        qkv: [Q4; 4],
        gate: false,
        feed: FeedShape::Moe { storage: Q4, sizes: (192, 8, touched, 1536, 1536) },
        ..step(0)
    }
}

#[test]
fn a_dense_layer_takes_at_most_12_dispatches_and_reads_little_more_than_it_must() {
    for position in [0, 300, 4000, 60_000] {
        let got = count(&smollm(), 1, position);
        within("SmolLM2", got, 12);
        assert_eq!(got.0.launches, 9);
        let big = Shape { feed: FeedShape::Dense { storage: [Q4; 3], width: 11264 }, ..step(0) };
        within("a dense layer of Step", count(&big, 1, position), 12);
    }
    // Three storages among q, k, v and the head gate, and gate and up stored differently. (Four would be 13 launches.)
    let mixed = Shape {
        qkv: [Q4, Q8, PLAIN, PLAIN],
        feed: FeedShape::Dense { storage: [Q8, Q4, Q4], width: 11264 },
        ..step(0)
    };
    let got = count(&mixed, 1, 300);
    within("stored differently", got, 12);
    assert_eq!(got.0.launches, 12);
}

#[test]
fn a_mixture_layer_takes_at_most_16_dispatches_and_reads_little_more_than_it_must() {
    for position in [0, 300, 4000, 60_000] {
        let got = count(&step(8), 1, position);
        within("Step", got, 16);
        assert_eq!(got.0.launches, 15);
        let got = count(&hy(8), 1, position);
        within("Hy3", got, 16);
        assert_eq!(got.0.launches, 14);
        let sliding =
            Shape { window: Some(512), heads: Heads { q: 96, kv: 8, dim: 128 }, ..step(8) };
        within("a sliding layer of Step", count(&sliding, 1, position), 16);
        // A recipe that keeps v at more bits than q and k.
        let recipe = Shape { qkv: [Q4, Q4, Q8, PLAIN], ..step(8) };
        within("Step, v apart", count(&recipe, 1, position), 16);
    }
}

/// Two rows that share no expert read twice the experts and everything else once.
#[test]
fn verifying_reads_the_dense_weights_once() {
    for (rows, touched) in [(2, 16), (2, 12), (4, 31)] {
        let got = count(&step(touched), rows, 300);
        within("Step, verifying", got, 16);
        assert_eq!(got.0.launches, count(&step(8), 1, 300).0.launches);
    }
    let got = count(&smollm(), 4, 300);
    // Between the launches of so small a layer flows more than a twentieth of its weights.
    assert_eq!(got.0.launches, 9);
    assert!(got.0.lasting as f64 / (got.1 as f64) < 1.05, "{got:?}");
}

/// A chunk's rows read every matrix, every expert, key and value once together. What flows between the launches is the rows'
/// own and counted apart.
#[test]
fn a_chunk_of_a_prompt_reads_the_weights_once() {
    for rows in [128, 256, 512] {
        for position in [0, 4000] {
            let sliding =
                Shape { window: Some(512), heads: Heads { q: 96, kv: 8, dim: 128 }, ..step(288) };
            let dense =
                Shape { feed: FeedShape::Dense { storage: [Q4; 3], width: 11264 }, ..step(0) };
            for (what, shape, launches) in [
                ("SmolLM2", smollm(), 11),
                ("a dense layer of Step", dense, 12),
                ("Step", step(288), 19),
                ("a sliding layer of Step", sliding, 19),
                ("Hy3", hy(192), 18),
            ] {
                let (got, needed) = count(&shape, rows, position);
                assert_eq!(got.launches, launches, "{what}");
                // Beside them the layer's input, which is the residual too, and two tables.
                let rest = rows * (2 * shape.hidden * 2 + shape.heads.dim * 4);
                let share = (got.lasting - rest) as f64 / needed as f64;
                assert!((0.999..1.05).contains(&share), "{what}, {rows} rows: {share:.3}");
            }
        }
        // Before there was a list for prompts, every 8 rows read everything again.
        let [chunk, step] = [rows, 8].map(|n| count(&smollm(), n, 0).0.lasting / n);
        assert!(step > chunk * rows / 16, "{rows} rows: {step} bytes a token, now {chunk}");
    }
}
