//! Checkpoints with one thing wrong, made from the fixtures: each gives the right error or the right load.
//!
//! The tables: [`hostile::files`] (what lies in the folder), [`hostile::tensors`], [`hostile::settings`] (`config.json`),
//! [`hostile::heads`], [`hostile::harmless`] (what is wrong and must load all the same), [`hostile::not_finite`].

mod support;

mod hostile {
    pub mod files;
    pub mod harmless;
    pub mod heads;
    pub mod maker;
    pub mod not_finite;
    pub mod settings;
    pub mod tensors;
}

use foretoken_engine::models::{HeadStatus, LoadOptions, Model, load};
use foretoken_engine::{EngineError, Result};
use hostile::maker::Folder;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use support::{Golden, best, flat, golden, greedy, ids, json, relative};

const STEP: &str = "step3p5-tiny";
const STEP_MLX: &str = "step3p5-tiny-mlx-4bit";
const HY: &str = "hy_v3-tiny";
const HY_MLX: &str = "hy_v3-tiny-mlx-w2q3";
/// `HY` without its head, and the head by itself.
const HY_BARE: &str = "hy_v3-tiny-headless";
const HY_HEAD: &str = "hy_v3-tiny-head";
const LLAMA: &str = "llama-tiny";
/// Where weights lie that are in one file.
const SHARD: &str = "model.safetensors";

type Damage = fn(&Folder);

/// One broken checkpoint.
struct Row {
    name: &'static str,
    fixture: &'static str,
    damage: Damage,
    /// A folder whose head is put on the trunk, and what is wrong with that one.
    donor: Option<(&'static str, Damage)>,
    expect: Expect,
}

enum Expect {
    /// The error, as a pattern and in words.
    Refused(&'static str, fn(&EngineError) -> bool),
    /// `UnsupportedConfig` with this key, and this in its value.
    Setting(&'static str, &'static str),
    Loads(Loads),
}

struct Loads {
    head: Head,
    /// What every tensor that is left over starts with; each of them occurs.
    leftovers: &'static [&'static str],
    text: Text,
}

enum Head {
    /// How many levels, and the file they are found in.
    Levels(usize, &'static str),
    /// Words of the sentence that says why.
    Absent(&'static [&'static str]),
}

#[derive(PartialEq)]
enum Text {
    /// Logits and greedy text are the fixture's.
    Golden,
    /// Another model, but one that runs.
    Other,
}

const fn row(name: &'static str, fixture: &'static str, damage: Damage, expect: Expect) -> Row {
    Row { name, fixture, damage, donor: None, expect }
}

/// `refused!(Variant { field, .. } if field == "...")`
macro_rules! refused {
    ($($pattern:tt)+) => {
        $crate::Expect::Refused(stringify!($($pattern)+), |e| {
            #[allow(unused_imports)] // not every pattern names a variant of its own
            use foretoken_engine::EngineError::*;
            matches!(e, $($pattern)+)
        })
    };
}
use refused;

/// Every row is made, loaded and looked at; all that are wrong are listed together.
fn check(rows: &[Row]) {
    let before = peak();
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let fault = catch_unwind(AssertUnwindSafe(|| fault(row)));
            let why = fault.unwrap_or_else(|_| Some("it panics".to_owned()))?;
            Some(format!("\n  {} ({}): {why}", row.name, row.fixture))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} rows:{}", wrong.len(), rows.len(), wrong.concat());
    // A number in a file is no reason to ask for memory: the lies in the tables would need terabytes.
    if let (Some(before), Some(after)) = (before, peak()) {
        assert!(after - before < 1 << 20, "{} MB were asked for", (after - before) >> 10);
    }
}

/// Most address space this process has had, in KB, where the system tells.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmPeak:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn load_row(row: &Row) -> Result<Model> {
    let folder = Folder::of(row.fixture);
    (row.damage)(&folder);
    let donor = row.donor.map(|(fixture, damage)| {
        let donor = Folder::of(fixture);
        damage(&donor);
        donor
    });
    let head = donor.as_ref().map(Folder::path);
    load(folder.path(), LoadOptions { head, ..Default::default() })
}

/// What is not as the row expects it.
fn fault(row: &Row) -> Option<String> {
    match (&row.expect, load_row(row)) {
        (Expect::Refused(pattern, fits), Err(e)) => {
            let said = e.to_string();
            let one_sentence = !said.contains('\n') && !said.ends_with('.');
            (!fits(&e) || !one_sentence).then(|| format!("{e:?} instead of {pattern}"))
        }
        (Expect::Refused(pattern, _), Ok(model)) => {
            Some(format!("loads, {:?}, instead of {pattern}", model.head_status))
        }
        (Expect::Setting(key, value), Err(e)) => {
            let fits = matches!(&e, EngineError::UnsupportedConfig { key: k, value: v }
                if k == key && v.contains(value));
            (!fits).then(|| format!("{e:?} instead of {key} = {value}"))
        }
        (Expect::Setting(key, _), Ok(_)) => Some(format!("loads in spite of its {key}")),
        (Expect::Loads(_), Err(e)) => Some(format!("is refused: {e:?}")),
        (Expect::Loads(wanted), Ok(model)) => fault_of(row.fixture, wanted, &Arc::new(model)),
    }
}

fn fault_of(fixture: &str, wanted: &Loads, model: &Arc<Model>) -> Option<String> {
    let levels = model.head.as_ref().map_or(0, |head| head.levels());
    let right = match (&wanted.head, &model.head_status) {
        (Head::Levels(n, file), HeadStatus::Found { place }) => levels == *n && place == file,
        (Head::Absent(words), HeadStatus::Absent { why }) => {
            levels == 0 && words.iter().all(|word| why.contains(word)) && why.ends_with('.')
        }
        _ => false,
    };
    if !right {
        return Some(format!("the head: {levels} levels, {:?}", model.head_status));
    }
    let left = |prefix: &&str| model.leftovers.iter().any(|name| name.starts_with(*prefix));
    let known = |name: &String| wanted.leftovers.iter().any(|prefix| name.starts_with(prefix));
    if !wanted.leftovers.iter().all(left) || !model.leftovers.iter().all(known) {
        return Some(format!("left over: {:?}", model.leftovers));
    }
    let values = Golden::open(if fixture == HY_BARE { HY } else { fixture });
    let names = match fixture {
        LLAMA => ["input_ids", "logits"],
        STEP | STEP_MLX => ["s0.ids", "s0.logits"],
        _ => ["s0.input_ids", "s0.logits"],
    };
    let logits = logits(model, &values.ids(names[0]));
    if wanted.text == Text::Other {
        return logits.iter().any(|v| !v.is_finite()).then(|| "not finite".to_owned());
    }
    let (want, vocab) = (values.floats(names[1]), model.trunk.shape().vocab);
    let off = relative(&logits, &want);
    if off > 1e-4 || best(&logits, vocab) != best(&want, vocab) {
        return Some(format!("the logits are off by {off}"));
    }
    let (prompt, text) = greedy_text(fixture, &values);
    [0, 2].into_iter().find_map(|depth| {
        let run = greedy(model, &prompt, depth, text.len(), None);
        let accepted: usize = run.accepted.iter().sum();
        if run.tokens != text {
            Some(format!("another text at depth {depth}"))
        } else if depth > 0 && levels > 0 && accepted < text.len() / 3 {
            Some(format!("only {accepted} drafts accepted"))
        } else {
            None
        }
    })
}

/// A prompt and the text that follows it.
fn greedy_text(fixture: &str, values: &Golden) -> (Vec<u32>, Vec<u32>) {
    if fixture == LLAMA {
        let text = values.ids("greedy_ids");
        let input = values.ids("input_ids");
        return (input[..input.len() - text.len()].to_vec(), text);
    }
    let case = json(&golden(fixture).join("golden.json"))["sequences"][0].clone();
    let prompt = if fixture.starts_with("hy") { "prompt_ids" } else { "ids" };
    (ids(&case[prompt]), ids(&case["greedy"]))
}

/// [rows * vocab]
fn logits(model: &Model, input: &[u32]) -> Vec<f32> {
    let trunk = &model.trunk;
    let hidden = trunk.forward(input, &mut trunk.new_cache()).expect("one pass");
    flat(&trunk.logits(&trunk.norm(&hidden).expect("norm")).expect("logits"))
}

#[test]
fn folders() {
    check(hostile::files::ROWS);
}

#[test]
fn tensors() {
    check(hostile::tensors::ROWS);
}

#[test]
fn settings() {
    check(hostile::settings::ROWS);
}

#[test]
fn heads() {
    check(hostile::heads::ROWS);
}

#[test]
fn what_is_wrong_and_harmless_loads() {
    check(hostile::harmless::ROWS);
}

/// Bytes of a configuration or a header changed at random: whatever comes of it, it is not a panic, nor endless memory.
#[test]
fn random_bytes_are_an_error_or_a_model() {
    let mut rng = fastrand::Rng::with_seed(6);
    let before = peak();
    for (fixture, file) in [(STEP, "config.json"), (HY, "config.json"), (LLAMA, SHARD)] {
        let folder = Folder::of(fixture);
        let whole = folder.read(file);
        // Of a shard, the header's text and a little of what follows.
        let end = whole.len().min(4096);
        for round in 0..200 {
            let mut raw = whole.clone();
            let flips: Vec<(usize, u8)> =
                (0..rng.usize(1..4)).map(|_| (rng.usize(0..end), rng.u8(32..127))).collect();
            flips.iter().for_each(|(at, byte)| raw[*at] = *byte);
            folder.write(file, raw);
            let run = || match load(folder.path(), LoadOptions::default()) {
                Ok(model) => {
                    let trunk = &model.trunk;
                    trunk.forward(&[1, 2, 3], &mut trunk.new_cache()).map(|_| ())
                }
                Err(e) => Err(e),
            };
            let outcome = catch_unwind(run);
            assert!(outcome.is_ok(), "{fixture} {file}, round {round}: {flips:?}");
        }
    }
    if let (Some(before), Some(after)) = (before, peak()) {
        assert!(after - before < 1 << 20, "{} MB were asked for", (after - before) >> 10);
    }
}
