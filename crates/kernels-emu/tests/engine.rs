//! The engine's passes as launch lists in the emulator, in f32, against the golden values of the tiny fixtures.

use candle_core::Tensor;
use foretoken_engine::decode::{Rule, SamplerSettings, Sequence};
use foretoken_engine::gpu::{Refusal, move_to};
use foretoken_engine::models::{LoadOptions, Model, load};
use foretoken_engine::weights::Shard;
use foretoken_kernels::FloatType;
use foretoken_kernels_emu::Emulated;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The fixtures' READMEs: of the largest value.
const TOLERANCE: f32 = 1e-4;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn on_cpu(name: &str) -> Model {
    load(&golden(name), LoadOptions::default()).expect("loads")
}

fn emulated(name: &str) -> (Arc<Model>, Arc<Emulated>) {
    let (mut model, emulator) = (on_cpu(name), Arc::new(Emulated::new(FloatType::F32)));
    move_to(&mut model, emulator.clone()).expect("the kernels take it");
    (Arc::new(model), emulator)
}

fn values(name: &str) -> Shard {
    Shard::open(&golden(name).join("golden.safetensors")).expect("golden values")
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.flatten_all().and_then(|t| t.to_vec1()).expect("f32")
}

fn bits(t: &Tensor) -> Vec<u32> {
    flat(t).into_iter().map(f32::to_bits).collect()
}

fn close(what: &str, got: &Tensor, want: &[f32]) {
    let got = flat(got);
    assert!(want.len() >= got.len(), "{what}: {} values instead of {}", got.len(), want.len());
    let want = &want[..got.len()];
    let largest = want.iter().fold(0f32, |top, v| top.max(v.abs()));
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= TOLERANCE * largest.max(1.0), "{what} is off by {off} of {largest}");
}

/// The trunk over the first `rows` tokens, in one pass and in pieces, and the head teacher-forced.
fn check(name: &str, prefix: &str, [ids, pre, post]: [&str; 3], head: &str, rows: usize) {
    let (model, _) = emulated(name);
    let shard = values(name);
    let want = |what: &str| {
        let key = format!("{prefix}{what}");
        shard.floats(&key).unwrap_or_else(|| panic!("no {key}")).0
    };
    let all = shard.integers(&format!("{prefix}{ids}")).expect("ids");
    let input = &all[..rows.min(all.len())];
    let trunk = &model.trunk;
    let pass = trunk.pass(input, &mut trunk.new_cache()).expect("a pass");
    close(&format!("{name} hidden"), &pass.hidden, &want(pre));
    close(&format!("{name} normed"), &pass.normed, &want(post));
    close(&format!("{name} logits"), &pass.logits, &want("logits"));

    // The same by the kernels of prefill, which add in another order.
    let prefilled = trunk.forward(input, &mut trunk.new_cache()).expect("a prompt");
    close(&format!("{name} prefilled"), &prefilled, &want(pre));
    assert!(!trunk.rounds_alike());

    // Either way piece by piece, with wrong drafts taken back in between: the same bits.
    for whole in [&pass.hidden, &prefilled] {
        let prefill = std::ptr::eq(whole, &prefilled);
        let (mut cache, mut hidden, mut at) = (trunk.new_cache(), Vec::new(), 0);
        for size in [1, 3, 8, 2, 1].into_iter().cycle() {
            if at == input.len() {
                break;
            }
            let end = (at + size).min(input.len());
            let wrong = vec![input[at] ^ 1; size];
            trunk.pass(&wrong, &mut cache).expect("guesses");
            assert_eq!(cache.rewind(at), at);
            let rows = &input[at..end];
            let piece = if prefill {
                trunk.forward(rows, &mut cache)
            } else {
                trunk.pass(rows, &mut cache).map(|pass| pass.hidden)
            };
            hidden.extend(bits(&piece.expect("a piece")));
            at = end;
        }
        assert_eq!(hidden, bits(whole), "{name}: rewound differs from never drafted");
    }
    let normed = trunk.norm(&pass.hidden).expect("norm");
    assert_eq!(bits(&normed), bits(&pass.normed), "{name}: norm alone");
    let logits = trunk.logits(&normed).expect("logits");
    assert_eq!(bits(&logits), bits(&pass.logits), "{name}: logits alone");

    let Some(mtp) = &model.head else { return };
    let carried = Sequence::teacher_forced(&model, input, &pass.hidden).expect("the head");
    for (level, hidden) in carried.iter().enumerate() {
        let logits = mtp.logits(level, hidden).expect("logits");
        let key = head.replace("{}", &level.to_string());
        close(&format!("{name} level {level}"), &logits, &want(&format!("{key}logits")));
    }
}

/// `n` greedy tokens at a depth, and how many drafts stood.
fn greedy(model: &Arc<Model>, prompt: &[u32], depth: usize, n: usize) -> (Vec<u32>, Vec<usize>) {
    let mut sequence = Sequence::new(model.clone());
    sequence.set_prompt(prompt).expect("fits");
    while sequence.needs_prefill() {
        sequence.prefill(16).expect("reads");
    }
    let (mut tokens, mut accepted) = (Vec::new(), Vec::new());
    while tokens.len() < n {
        let settings = SamplerSettings::default();
        let step = sequence.step(depth, &settings, Rule::Residual, &mut ()).expect("steps");
        tokens.extend(step.tokens);
        accepted.push(step.accepted);
    }
    tokens.truncate(n);
    (tokens, accepted)
}

/// The text of the CPU at every depth, and the same drafts accepted.
fn check_text(name: &str, ids: &str, prompt: usize, n: usize) {
    let (cpu, (gpu, emulator)) = (Arc::new(on_cpu(name)), emulated(name));
    let all = values(name).integers(ids).expect("ids");
    let prompt = &all[..prompt];
    let plain = greedy(&cpu, prompt, 0, n).0;
    for depth in 0..=3 {
        let run = greedy(&gpu, prompt, depth, n);
        assert_eq!(run.0, plain, "{name} at depth {depth}");
        assert_eq!(run, greedy(&cpu, prompt, depth, n), "{name} at depth {depth}");
    }
    let mut sequence = Sequence::new(gpu.clone());
    sequence.set_prompt(&prompt[..1]).expect("fits");
    let before = emulator.n_runs();
    sequence.step(0, &SamplerSettings::default(), Rule::Residual, &mut ()).expect("steps");
    assert_eq!(emulator.n_runs() - before, 1, "{name}: a verify step is one list");
    if let Some(head) = &gpu.head {
        let before = emulator.n_runs();
        sequence.step(0, &SamplerSettings::default(), Rule::Residual, &mut ()).expect("steps");
        let step = sequence.step(3, &SamplerSettings::default(), Rule::Residual, &mut ());
        let drafted = step.expect("steps").drafted;
        assert_eq!(drafted, 3, "{name}, {} levels", head.levels());
        assert_eq!(emulator.n_runs() - before, 2 + drafted, "{name}: a drafted token is one list");
    }
    let held = emulator.n_buffers();
    drop(sequence);
    assert!(emulator.n_buffers() < held, "{name}: the caches' buffers are given back");
}

/// What a second turn finds in the caches, and so its text, must not depend on the drafts of the first: its rows are read by
/// other kernels than those that wrote them.
#[test]
fn the_next_turn_is_the_same_after_drafts() {
    let name = "step3p5-tiny-mlx-4bit";
    let (model, _) = emulated(name);
    let prompt = &values(name).integers("s0.ids").expect("ids")[..8];
    let settings = SamplerSettings::default();
    let cycle = |sequence: &mut Sequence, depth: usize| {
        sequence.step(depth, &settings, Rule::Residual, &mut ()).expect("steps").accepted
    };
    let begin = |chunk: usize| {
        let mut sequence = Sequence::new(model.clone());
        sequence.set_prompt(prompt).expect("fits");
        while sequence.needs_prefill() {
            sequence.prefill(chunk).expect("reads");
        }
        sequence
    };
    // The text ends inside a cycle whose drafts stood, and the next turn begins as the drafts beyond the end did.
    let mut drafted = begin(3);
    let accepted = (0..40).map(|_| cycle(&mut drafted, 3)).find(|accepted| *accepted > 0);
    let end = drafted.tokens().len() - accepted.expect("drafts that stand");
    let next = [drafted.tokens(), &[7, 8, 9]].concat();
    let mut plain = begin(16);
    while plain.tokens().len() < end {
        cycle(&mut plain, 0);
    }
    let [without, with] = [(plain, 0), (drafted, 3)].map(|(mut sequence, depth)| {
        sequence.end_at(end);
        let reused = sequence.set_prompt(&next).expect("fits");
        while sequence.needs_prefill() {
            sequence.prefill(5 + depth).expect("reads");
        }
        while sequence.tokens().len() < next.len() + 6 {
            cycle(&mut sequence, depth);
        }
        (reused, sequence.tokens()[..next.len() + 6].to_vec())
    });
    assert!(without.0 + 4 >= end, "the reply's rows are kept: {} of {end}", without.0);
    assert_eq!(with, without);
}

/// How far a sliding layer can go back depends on the passes there were, so only what is certain counts.
#[test]
fn a_sliding_cache_is_not_asked_for_more_than_it_always_has() {
    for (name, ids, long_way) in
        [("step3p5-tiny-mlx-4bit", "s0.ids", 0), ("llama-tiny", "input_ids", 12)]
    {
        let (model, _) = emulated(name);
        let all = values(name).integers(ids).expect("ids");
        let levels = model.head.as_ref().map_or(0, |head| head.levels());
        let mut sequence = Sequence::new(model);
        sequence.set_prompt(&all[..24]).expect("fits");
        while sequence.needs_prefill() {
            sequence.prefill(64).expect("reads");
        }
        let near = sequence.set_prompt(&[&all[..20], &[1, 2]].concat()).expect("fits");
        assert_eq!(near, 20 - levels, "{name}");
        while sequence.needs_prefill() {
            sequence.prefill(64).expect("reads");
        }
        let far = sequence.set_prompt(&[&all[..12], &[1, 2]].concat()).expect("fits");
        assert_eq!(far, long_way, "{name}");
    }
}

/// `forward` cuts a long prompt into chunks; no row shows where.
#[test]
fn a_prompt_longer_than_a_chunk() {
    let (cpu, (gpu, _)) = (on_cpu("llama-tiny"), emulated("llama-tiny"));
    let text: Vec<u32> =
        (0..gpu.trunk.prompt_rows() as u32 + 9).map(|i| (i * 7919) % 300).collect();
    let whole = gpu.trunk.forward(&text, &mut gpu.trunk.new_cache()).expect("a prompt");
    let want = cpu.trunk.forward(&text, &mut cpu.trunk.new_cache()).expect("a prompt");
    close("a long prompt", &whole, &flat(&want));
    let (mut cache, mut pieces) = (gpu.trunk.new_cache(), Vec::new());
    for piece in text.chunks(101) {
        pieces.extend(bits(&gpu.trunk.forward(piece, &mut cache).expect("a piece")));
    }
    assert_eq!(pieces, bits(&whole));
}

#[test]
fn llama_and_qwen3() {
    for name in ["llama-tiny", "qwen3-tiny"] {
        check(name, "", ["input_ids", "hidden_pre_norm", "hidden_post_norm"], "", 32);
    }
    check_text("llama-tiny", "input_ids", 12, 6);
}

#[test]
fn hy_v3_with_its_head() {
    let name = "hy_v3-tiny-mlx-w2q3";
    check(name, "s0.", ["input_ids", "hidden_pre", "hidden_post"], "mtp_", 20);
    check_text(name, "s0.input_ids", 8, 6);
}

#[test]
fn step3p5_with_its_three_levels() {
    let name = "step3p5-tiny-mlx-4bit";
    check(name, "s0.", ["ids", "hidden_pre", "hidden_post"], "mtp{}.", 24);
    check_text(name, "s0.ids", 8, 6);
}

/// Long enough that the window is left behind, and that sliding caches move their rows to the front.
#[test]
fn a_window_slides() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = golden("qwen3-tiny");
    let copy = |name: &str| std::fs::copy(from.join(name), folder.path().join(name));
    copy("model.safetensors").expect("copied");
    let config = std::fs::read(from.join("config.json")).expect("there");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    config["use_sliding_window"] = true.into();
    config["sliding_window"] = 16.into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");

    let cpu = load(folder.path(), LoadOptions::default()).expect("loads");
    let mut gpu = load(folder.path(), LoadOptions::default()).expect("loads");
    move_to(&mut gpu, Arc::new(Emulated::new(FloatType::F32))).expect("the kernels take it");
    let (mut caches, vocab) = ((cpu.trunk.new_cache(), gpu.trunk.new_cache()), 300);
    let text: Vec<u32> = (0..340u32).map(|i| (i * 7919 + i * i) % vocab).collect();
    for piece in text.chunks(20) {
        let want = cpu.trunk.forward(piece, &mut caches.0).expect("a piece");
        let got = gpu.trunk.forward(piece, &mut caches.1).expect("a piece");
        close(&format!("up to row {}", caches.0.len()), &got, &flat(&want));
        // Back and forth at the end, where the cache allows it.
        let (len, last) = (caches.0.len(), piece.len() - 3);
        for (model, cache) in [(&cpu, &mut caches.0), (&gpu, &mut caches.1)] {
            assert_eq!(cache.rewind(len - 3), len - 3);
            model.trunk.forward(&piece[last..], cache).expect("again");
        }
        assert_eq!(caches.0.can_rewind(len / 2), caches.1.can_rewind(len / 2));
        assert_eq!((caches.1.len(), caches.0.n_bytes()), (len, caches.1.n_bytes()));
    }
    // From here on without what was before.
    for (model, cache) in [(&cpu, &mut caches.0), (&gpu, &mut caches.1)] {
        cache.skip_to(400);
        model.trunk.forward(&text[..5], cache).expect("a new beginning");
    }
    let want = cpu.trunk.forward(&text[5..25], &mut caches.0).expect("a piece");
    let got = gpu.trunk.forward(&text[5..25], &mut caches.1).expect("a piece");
    close("after a skip", &got, &flat(&want));
}

/// In the types a Mac computes with: drafting leaves the text as it is, bit for bit, and the numbers stay near.
#[test]
fn half_precision_is_as_exact_about_drafts() {
    for (name, ids, act) in [
        ("hy_v3-tiny-mlx-w2q3", "s0.input_ids", FloatType::BF16),
        ("step3p5-tiny-mlx-4bit", "s0.ids", FloatType::F16),
    ] {
        let mut model = on_cpu(name);
        let prompt = &values(name).integers(ids).expect("ids")[..8];
        let trunk = &model.trunk;
        let want = trunk.pass(prompt, &mut trunk.new_cache()).expect("a pass").logits;
        move_to(&mut model, Arc::new(Emulated::new(act))).expect("the kernels take it");
        let (model, want) = (Arc::new(model), flat(&want));
        let trunk = &model.trunk;
        let got = trunk.pass(prompt, &mut trunk.new_cache()).expect("a pass").logits;
        let off = flat(&got).iter().zip(&want).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
        let off = (off / want.iter().map(|v| v * v).sum::<f32>()).sqrt();
        assert!(off < 0.1, "{name} in {}: logits are off by {off}", act.name());
        let plain = greedy(&model, prompt, 0, 5).0;
        assert_eq!(greedy(&model, prompt, 3, 5).0, plain, "{name} in {}", act.name());
    }
}

#[test]
fn weights_are_read_where_they_lie() {
    let (mut model, emulator) = (on_cpu("llama-tiny"), Arc::new(Emulated::new(FloatType::F32)));
    let moved = move_to(&mut model, emulator).expect("the kernels take it");
    // Two norms a layer and the last one, in f32.
    assert_eq!(moved.copied, (3 * 2 + 1) * 64 * 4);
    assert!(moved.weights > 10 * moved.copied);
    // Files whose header ends at an odd place are copied, tensor by tensor.
    for (name, odd) in [("step3p5-tiny", false), ("step3p5-tiny-mlx-4bit", true)] {
        let (mut model, emulator) = (on_cpu(name), Emulated::new(FloatType::F32));
        let moved = move_to(&mut model, Arc::new(emulator)).expect("the kernels take it");
        assert_eq!(2 * moved.copied > moved.weights, odd, "{name}: {moved:?}");
    }
}

/// A head that drafts from a part of the vocabulary, whose rows are a copy.
#[test]
fn the_starter_drafts() {
    let given = std::env::var_os("FORETOKEN_STARTER").map(PathBuf::from);
    let folder =
        given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.starter"));
    let cpu = Arc::new(load(&folder, LoadOptions::default()).expect("run ./dev starter"));
    let mut gpu = load(&folder, LoadOptions::default()).expect("loads");
    let emulator = Arc::new(Emulated::new(FloatType::F32));
    let moved = move_to(&mut gpu, emulator).expect("the kernels take it");
    assert!(moved.weights > 20 * moved.copied, "{moved:?}");
    // Nothing to prefill: in the emulator that would take longer than all the rest.
    let prompt = [504];
    assert_eq!(greedy(&Arc::new(gpu), &prompt, 1, 2), greedy(&cpu, &prompt, 1, 2));
}

#[test]
fn what_does_not_fit_stays_on_the_cpu() {
    let mut model = on_cpu("llama-tiny");
    let small = Arc::new(Emulated::with_budget(FloatType::F32, 1000));
    let refusal = move_to(&mut model, small).expect_err("too large");
    assert!(matches!(refusal, Refusal::TooLarge { budget: 1000, .. }), "{refusal}");
    let pass = model.trunk.pass(&[1, 2], &mut model.trunk.new_cache()).expect("as before");
    assert_eq!(pass.logits.dims(), [2, 320]);
}

/// A tensor that is not aligned in its file is there twice: in the file's buffer, and as a copy.
#[test]
fn copies_count_in_the_budget() {
    let name = "step3p5-tiny-mlx-4bit";
    let (mut model, runner) = (on_cpu(name), Arc::new(Emulated::new(FloatType::F32)));
    let modules = model.trunk_modules.iter().chain(&model.head_modules);
    let weights = modules.map(|module| module.bytes).sum::<u64>();
    let context = model.trunk.shape().context.min(4096) as u64;
    let need = weights + context * model.kv.bytes();
    let copied = move_to(&mut model, runner).expect("the kernels take it").copied;
    let with = |budget| {
        move_to(&mut on_cpu(name), Arc::new(Emulated::with_budget(FloatType::F32, budget)))
    };
    assert_eq!(with(need + copied).expect("it just fits").copied, copied);
    let refusal = with(need + copied - 1).expect_err("one byte too few");
    assert!(
        matches!(refusal, Refusal::TooLarge { need: n, .. } if n == need + copied),
        "{refusal}"
    );
    let refusal = with(need).expect_err("no room for copies");
    assert!(matches!(refusal, Refusal::TooLarge { need: n, .. } if n > need), "{refusal}");
    assert!(matches!(with(need - 1), Err(Refusal::TooLarge { need: n, .. }) if n == need));
}

/// Biases of q, k and v, as qwen2 has them.
#[test]
fn biases_of_attention() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = golden("llama-tiny");
    let file = std::fs::read(from.join("model.safetensors")).expect("there");
    std::fs::write(folder.path().join("model.safetensors"), with_biases(&file)).expect("written");
    let config = std::fs::read(from.join("config.json")).expect("there");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    config["attention_bias"] = true.into();
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");

    let cpu = load(folder.path(), LoadOptions::default()).expect("loads");
    let mut gpu = load(folder.path(), LoadOptions::default()).expect("loads");
    move_to(&mut gpu, Arc::new(Emulated::new(FloatType::F32))).expect("the kernels take it");
    let text: Vec<u32> = (3..14).collect();
    let want = cpu.trunk.pass(&text, &mut cpu.trunk.new_cache()).expect("a pass");
    let plain = on_cpu("llama-tiny");
    let without = plain.trunk.forward(&text, &mut plain.trunk.new_cache()).expect("a prompt");
    let off = flat(&want.hidden).into_iter().zip(flat(&without)).map(|(a, b)| (a - b).abs());
    assert!(off.fold(0.0, f32::max) > 0.1, "the biases matter");
    let got = gpu.trunk.pass(&text, &mut gpu.trunk.new_cache()).expect("a pass");
    close("a step", &got.logits, &flat(&want.logits));
    let got = gpu.trunk.forward(&text, &mut gpu.trunk.new_cache()).expect("a prompt");
    close("a prompt", &got, &flat(&want.hidden));
}

/// The same safetensors file with a bias for each matrix of q, k and v.
fn with_biases(file: &[u8]) -> Vec<u8> {
    let n_header = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let (header, data) = file[8..].split_at(n_header);
    let mut header: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(header).expect("JSON");
    let mut data = data.to_vec();
    let matrices: Vec<(String, u64)> = header
        .iter()
        .filter(|(name, _)| ["q_proj.w", "k_proj.w", "v_proj.w"].iter().any(|m| name.contains(m)))
        .map(|(name, tensor)| {
            (name.replace("weight", "bias"), tensor["shape"][0].as_u64().expect("a size"))
        })
        .collect();
    assert!(!matrices.is_empty());
    for (name, n) in matrices {
        let begin = data.len();
        data.extend((0..n).flat_map(|i| (0.1 * (i % 7) as f32 - 0.2).to_le_bytes()));
        let tensor = serde_json::json!({
            "dtype": "F32", "shape": [n], "data_offsets": [begin, data.len()]
        });
        header.insert(name, tensor);
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}
