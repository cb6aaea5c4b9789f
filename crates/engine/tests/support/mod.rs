//! Shared by the engine's tests: where data lies, golden tensors, and the runner every family passes.
#![allow(dead_code)] // each test file uses its part

use candle_core::Tensor;
use foretoken_engine::decode::{Rule, SamplerSettings, Sequence};
use foretoken_engine::models::{LoadOptions, Model, load};
use foretoken_engine::weights::Shard;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn golden(name: &str) -> PathBuf {
    root().join("tests/golden").join(name)
}

/// The built starter; absent = `./dev starter` was not run, which is a failure and not a skip.
pub fn starter() -> PathBuf {
    let dir = std::env::var_os("FORETOKEN_STARTER")
        .map_or_else(|| root().join(".starter"), PathBuf::from);
    assert!(
        dir.join("config.json").is_file(),
        "no starter model in {}: run ./dev starter",
        dir.display()
    );
    dir
}

pub fn json(file: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(file).expect("the file is there")).expect("valid JSON")
}

pub fn open(folder: &Path) -> Arc<Model> {
    Arc::new(load(folder, LoadOptions::default()).expect("loads"))
}

/// The starter with its head as it was trained, in bf16, and drafts over the whole vocabulary: what its expected values
/// were made with. The app's copy has the head in 8 bits.
pub fn starter_as_trained() -> Arc<Model> {
    let head = root().join("assets/starter-head");
    let options =
        LoadOptions { head: Some(&head), reduced_draft_vocab: false, ..Default::default() };
    Arc::new(load(&starter(), options).expect("loads"))
}

pub struct Golden(Shard);

impl Golden {
    pub fn open(name: &str) -> Self {
        Self(Shard::open(&golden(name).join("golden.safetensors")).expect("golden values"))
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.0.floats(name).unwrap_or_else(|| panic!("no {name}")).0
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.0.integers(name).unwrap_or_else(|| panic!("no {name}"))
    }

    pub fn shard(&self) -> &Shard {
        &self.0
    }
}

pub fn flat(t: &Tensor) -> Vec<f32> {
    t.flatten_all().and_then(|t| t.to_vec1()).expect("f32")
}

pub fn bits(t: &Tensor) -> Vec<u32> {
    flat(t).into_iter().map(f32::to_bits).collect()
}

/// Largest absolute difference; the lengths must agree.
pub fn distance(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

pub fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// What a run drafted and had accepted, cycle by cycle, after one plain cycle.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cycles {
    pub tokens: Vec<u32>,
    pub accepted: Vec<usize>,
    pub drafted: Vec<usize>,
}

/// Greedy continuation of `n` tokens, or up to and including `stop`.
pub fn greedy(
    model: &Arc<Model>,
    prompt: &[u32],
    depth: usize,
    n: usize,
    stop: Option<u32>,
) -> Cycles {
    let mut sequence = Sequence::new(model.clone());
    sequence.set_prompt(prompt).expect("fits");
    while sequence.needs_prefill() {
        sequence.prefill(64).expect("reads");
    }
    let mut out = Cycles::default();
    while out.tokens.len() < n {
        let depth = if out.tokens.is_empty() { 0 } else { depth };
        let step = sequence
            .step(depth, &SamplerSettings::default(), Rule::Residual, &mut ())
            .expect("steps");
        if depth > 0 {
            out.accepted.push(step.accepted);
            out.drafted.push(step.drafted);
        }
        for token in step.tokens {
            if out.tokens.len() < n {
                out.tokens.push(token);
                if Some(token) == stop {
                    return out;
                }
            }
        }
    }
    out
}

/// The runner every family passes (`reference/style.md` 2.7): one text through all the ways a cache can be filled, bit for bit.
pub fn run_family(model: &Arc<Model>, text: &[u32]) {
    let trunk = &model.trunk;
    let whole = trunk.forward(text, &mut trunk.new_cache()).expect("one pass");
    assert_eq!(whole.dims(), [text.len(), trunk.shape().hidden]);
    let logits = trunk.logits(&trunk.norm(&whole).expect("norm")).expect("logits");
    assert_eq!(logits.dims(), [text.len(), trunk.shape().vocab]);
    assert!(flat(&logits).iter().all(|v| v.is_finite()));

    let pieces = |sizes: &[usize]| -> Vec<u32> {
        let mut cache = trunk.new_cache();
        let mut out = Vec::new();
        let mut at = 0;
        for size in sizes.iter().cycle() {
            if at == text.len() {
                break;
            }
            let end = (at + size).min(text.len());
            out.extend(bits(&trunk.forward(&text[at..end], &mut cache).expect("a piece")));
            at = end;
            assert_eq!(cache.len(), at);
        }
        out
    };
    assert_eq!(pieces(&[1]), bits(&whole), "one token at a time differs from one pass");
    assert_eq!(pieces(&[7, 1, 3]), bits(&whole), "chunks differ from one pass");
    for rows in 2..=9 {
        assert_eq!(pieces(&[rows]), bits(&whole), "passes of {rows} rows differ from single steps");
    }

    // Wrong drafts, taken back, leave no trace.
    let mut cache = trunk.new_cache();
    let half = text.len() / 2;
    trunk.forward(&text[..half], &mut cache).expect("the first half");
    for wrong in 1..=8u32 {
        let guesses: Vec<u32> =
            (0..wrong).map(|i| (text[half] + 1 + i) % trunk.shape().vocab as u32).collect();
        trunk.forward(&guesses, &mut cache).expect("guesses");
        assert_eq!(cache.rewind(half), half);
    }
    let rest = trunk.forward(&text[half..], &mut cache).expect("the second half");
    let width = trunk.shape().hidden;
    assert_eq!(bits(&rest), bits(&whole)[half * width..], "rewound differs from never drafted");

    // The same for the text the cycle commits.
    let plain = greedy(model, &text[..half], 0, 24, None);
    for depth in 1..=8 {
        assert_eq!(
            greedy(model, &text[..half], depth, 24, None).tokens,
            plain.tokens,
            "depth {depth}"
        );
    }
}

/// Largest absolute difference over the largest value.
pub fn relative(got: &[f32], want: &[f32]) -> f32 {
    distance(got, want) / want.iter().fold(0.0, |top, v| v.abs().max(top))
}

/// L2 norm of the difference over that of the wanted.
pub fn relative_l2(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let sum = |v: &mut dyn Iterator<Item = f32>| v.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let off = sum(&mut got.iter().zip(want).map(|(a, b)| a - b));
    (off / sum(&mut want.iter().copied())).sqrt() as f32
}

/// The best token of each row.
pub fn best(logits: &[f32], vocab: usize) -> Vec<u32> {
    let row = |row: &[f32]| (0..vocab).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("a row");
    logits.chunks(vocab).map(|r| row(r) as u32).collect()
}
