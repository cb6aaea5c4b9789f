//! `step3p5` against values of a reference implementation (`tests/golden/step3p5-tiny*/README.md`).

mod support;

use foretoken_engine::EngineError;
use foretoken_engine::decode::{Rule, SamplerSettings, Sequence};
use foretoken_engine::models::{HeadFeed, HeadStatus, LoadOptions, Model, Wiring, load};
use serde_json::json;
use std::sync::Arc;
use support::{Golden, best, flat, golden, greedy, ids, json, open, relative_l2, run_family};

/// The README's tolerance in f32, on the relative L2 error of a block.
const TOLERANCE: f32 = 1e-4;
const LAYOUTS: [&str; 2] = ["step3p5-tiny", "step3p5-tiny-mlx-4bit"];
const LEVELS: usize = 3;

fn close(what: &str, got: &[f32], want: &[f32]) {
    let off = relative_l2(got, want);
    assert!(off < TOLERANCE, "{what} is off by {off}");
}

fn logits_close(what: &str, got: &[f32], want: &[f32], vocab: usize) {
    close(what, got, want);
    assert_eq!(best(got, vocab), best(want, vocab), "{what}: argmax");
}

#[test]
fn logits_and_hidden_states_of_trunk_and_levels() {
    for name in LAYOUTS {
        let (model, want) = (open(&golden(name)), Golden::open(name));
        assert_eq!(model.leftovers, [""; 0], "{name}");
        let (trunk, head) = (&model.trunk, model.head.as_ref().expect("a head"));
        assert_eq!((head.levels(), head.feed()), (LEVELS, HeadFeed::PreNorm));
        let vocab = trunk.shape().vocab;
        for s in 0..3 {
            let at = |what: &str| want.floats(&format!("s{s}.{what}"));
            let input = want.ids(&format!("s{s}.ids"));
            let hidden = trunk.forward(&input, &mut trunk.new_cache()).expect("one pass");
            let normed = trunk.norm(&hidden).expect("norm");
            let logits = flat(&trunk.logits(&normed).expect("logits"));
            close(&format!("{name} s{s} hidden_pre"), &flat(&hidden), &at("hidden_pre"));
            close(&format!("{name} s{s} hidden_post"), &flat(&normed), &at("hidden_post"));
            logits_close(&format!("{name} s{s} logits"), &logits, &at("logits"), vocab);
            let carried = Sequence::teacher_forced(&model, &input, &hidden).expect("the head");
            assert_eq!(carried.len(), LEVELS);
            for (d, hidden) in carried.iter().enumerate() {
                let what = format!("{name} s{s} mtp{d}");
                close(&what, &flat(hidden), &at(&format!("mtp{d}.hidden")));
                let logits = flat(&head.logits(d, hidden).expect("logits"));
                logits_close(&what, &logits, &at(&format!("mtp{d}.logits")), vocab);
            }
        }
    }
}

/// Greedy text, and what every cycle drafted and had accepted. One sequence is longer than six windows.
#[test]
fn greedy_text_and_accept_sequences() {
    for name in LAYOUTS {
        let model = open(&golden(name));
        let golden_json = json(&golden(name).join("golden.json"));
        for case in golden_json["sequences"].as_array().expect("sequences") {
            let (prompt, text) = (ids(&case["ids"]), ids(&case["greedy"]));
            for k in 0..=4 {
                let run = greedy(&model, &prompt, k, text.len(), None);
                assert_eq!(run.tokens, text, "{name} {} at depth {k}", case["name"]);
                let Some(rounds) = case["spec"][k.to_string()]["rounds"].as_array() else {
                    continue;
                };
                let accepted: Vec<usize> = rounds
                    .iter()
                    .map(|round| round["accepted"].as_u64().expect("a number") as usize)
                    .collect();
                assert_eq!(run.accepted, accepted, "{name} {} at depth {k}", case["name"]);
                assert!(run.drafted.iter().all(|n| *n == k));
            }
        }
    }
}

/// Each level agrees with the text as often as recorded, and the first one live as often as teacher-forced.
#[test]
fn live_rate_is_near_the_teacher_forced_ceiling() {
    let name = LAYOUTS[0];
    let model = open(&golden(name));
    let head = model.head.as_ref().expect("a head");
    let vocab = model.trunk.shape().vocab;
    let (mut live, mut ceiling) = ((0, 0), (0, 0));
    for case in json(&golden(name).join("golden.json"))["sequences"].as_array().expect("sequences")
    {
        let (prompt, text) = (ids(&case["ids"]), ids(&case["greedy"]));
        let whole = [prompt.as_slice(), &text].concat();
        let hidden = model.trunk.forward(&whole, &mut model.trunk.new_cache()).expect("one pass");
        let carried = Sequence::teacher_forced(&model, &whole, &hidden).expect("the head");
        for (d, carried) in carried.iter().enumerate() {
            let guesses = best(&flat(&head.logits(d, carried).expect("logits")), vocab);
            // Row t predicts token t + 2 + d; the first generated token has no drafts.
            let rows = prompt.len() - 1..whole.len() - 2 - d;
            let hits = rows.clone().filter(|t| guesses[*t] == whole[t + 2 + d]).count();
            let share = hits as f64 / rows.len() as f64;
            let want = case["teacher_forced_ceiling"][d].as_f64().expect("a share");
            assert!((share - want).abs() < 0.02, "{} level {d}: {share} and {want}", case["name"]);
            if d == 0 {
                ceiling = (ceiling.0 + hits, ceiling.1 + rows.len());
            }
        }
        let run = greedy(&model, &prompt, 1, text.len(), None);
        live = (live.0 + run.accepted.iter().sum::<usize>(), live.1 + run.accepted.len());
    }
    let rate = |(hits, of): (usize, usize)| hits as f64 / of as f64;
    assert!((rate(live) - rate(ceiling)).abs() < 0.02, "{live:?} live, {ceiling:?} teacher-forced");
}

#[test]
fn every_way_to_fill_a_cache_gives_the_same_bits() {
    for name in LAYOUTS {
        // 211 tokens, more than six windows.
        run_family(&open(&golden(name)), &Golden::open(name).ids("s2.ids"));
    }
}

/// Long enough that the sliding caches have let rows go (window 32, slack, and what may pile up: some 300 rows).
#[test]
fn long_text_is_equal_at_every_depth_and_when_the_depth_changes() {
    for name in LAYOUTS {
        let model = open(&golden(name));
        let prompt = Golden::open(name).ids("s2.ids");
        let n = model.trunk.shape().context - prompt.len() - 8;
        let plain = greedy(&model, &prompt, 0, n, None);
        assert_eq!(plain.tokens.len(), n);
        for depth in 1..=8 {
            let run = greedy(&model, &prompt, depth, n, None);
            assert_eq!(run.tokens, plain.tokens, "{name} at depth {depth}");
        }
        let mut sequence = Sequence::new(model.clone());
        sequence.set_prompt(&prompt).expect("fits");
        while sequence.needs_prefill() {
            sequence.prefill(40).expect("reads");
        }
        // Levels that wait while the depth is small are fed many rows at once later.
        let mut depths = [3usize, 1, 1, 1, 2, 0, 0, 8, 1, 3].into_iter().cycle();
        while sequence.tokens().len() < prompt.len() + n {
            let depth = depths.next().expect("a cycle");
            sequence
                .step(depth, &SamplerSettings::default(), Rule::Residual, &mut ())
                .expect("steps");
        }
        assert_eq!(sequence.tokens()[prompt.len()..prompt.len() + n], plain.tokens, "{name}");
    }
}

/// A second turn on kept caches: what is not read again is as if it had been.
#[test]
fn a_second_turn_goes_on_from_the_windows() {
    let model = open(&golden(LAYOUTS[0]));
    let golden = Golden::open(LAYOUTS[0]);
    let first = golden.ids("s2.ids");
    let mut sequence = Sequence::new(model.clone());
    let step = |sequence: &mut Sequence, n: usize| -> (Vec<u32>, Vec<usize>) {
        while sequence.needs_prefill() {
            sequence.prefill(64).expect("reads");
        }
        let (mut tokens, mut accepted) = (Vec::new(), Vec::new());
        while tokens.len() < n {
            let depth = if tokens.is_empty() { 0 } else { 3 };
            let step = sequence.step(depth, &SamplerSettings::default(), Rule::Residual, &mut ());
            let step = step.expect("steps");
            accepted.push(step.accepted);
            tokens.extend(step.tokens);
        }
        (tokens, accepted)
    };
    sequence.set_prompt(&first).expect("fits");
    step(&mut sequence, 60);
    let second = [sequence.tokens(), &golden.ids("s0.ids")].concat();
    let kept = sequence.set_prompt(&second).expect("fits");
    assert!(kept + 8 > first.len() + 60, "only {kept} rows were kept");
    let mut fresh = Sequence::new(model.clone());
    fresh.set_prompt(&second).expect("fits");
    assert_eq!(step(&mut sequence, 60), step(&mut fresh, 60));
}

/// Every setting does what the README's table of bugs says its loss does: relative error of the logits of trunk and level 0.
#[test]
fn a_wrong_setting_shows_as_recorded() {
    let folder = golden(LAYOUTS[0]);
    let want = Golden::open(LAYOUTS[0]);
    let input = want.ids("s2.ids");
    for (what, edit, trunk_off, level_off) in [
        ("norms without +1", json!({"zero_centered": false}), 1.17, 1.07),
        ("no clamp", json!({"swiglu_limits": null, "swiglu_limits_shared": null}), 0.41, 0.25),
        ("no llama3 scaling", json!({"rope_scaling": null}), 0.035, 0.025),
        ("scaling on all layers", json!({"yarn_only_types": null}), 0.19, 0.21),
        ("rotary 1.0 everywhere", json!({"partial_rotary_factors": null}), 0.064, 0.048),
        ("theta 1e4 everywhere", json!({"rope_theta": 1e4}), 0.058, 0.043),
        ("no window", json!({"sliding_window": 100_000}), 0.26, 0.26),
        ("window 31", json!({"sliding_window": 31}), 0.048, 0.037),
        ("window 33", json!({"sliding_window": 33}), 0.038, 0.031),
        ("router scale 1", json!({"moe_router_scaling_factor": 1.0}), 0.20, 0.15),
        ("no top-k normalisation", json!({"norm_expert_weight": false}), 0.10, 0.066),
        ("router bias ignored", json!({"use_moe_router_bias": false}), 0.095, 0.058),
        ("no head gate", json!({"use_head_wise_attn_gate": false}), 0.35, 0.36),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut config = json(&folder.join("config.json"));
        let settings = config.as_object_mut().expect("settings");
        settings.extend(edit.as_object().expect("an edit").clone());
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("writes");
        let weights = "model.safetensors";
        std::fs::copy(folder.join(weights), dir.path().join(weights)).expect("copies");
        let model = load(dir.path(), LoadOptions::default()).expect("loads");
        let trunk = &model.trunk;
        let hidden = trunk.forward(&input, &mut trunk.new_cache()).expect("one pass");
        let logits = trunk.logits(&trunk.norm(&hidden).expect("norm")).expect("logits");
        let carried = Sequence::teacher_forced(&model, &input, &hidden).expect("the head");
        let level = model.head.as_ref().expect("a head").logits(0, &carried[0]).expect("logits");
        for (part, got, name, recorded) in [
            ("trunk", logits, "s2.logits", trunk_off),
            ("level 0", level, "s2.mtp0.logits", level_off),
        ] {
            let off = relative_l2(&flat(&got), &want.floats(name));
            // The table has two digits.
            assert!(
                (off / recorded - 1.0f32).abs() < 0.051,
                "{what}: {part} is off by {off}, recorded {recorded}"
            );
        }
    }
}

/// (accepted, drafted) over the golden sequences at depth 3.
fn rate(wiring: Wiring) -> (usize, usize) {
    let folder = golden(LAYOUTS[0]);
    let options = LoadOptions { wiring, ..Default::default() };
    let model = Arc::new(load(&folder, options).expect("loads"));
    let mut out = (0, 0);
    for case in json(&folder.join("golden.json"))["sequences"].as_array().expect("sequences") {
        let (prompt, text) = (ids(&case["ids"]), ids(&case["greedy"]));
        let run = greedy(&model, &prompt, 3, text.len(), None);
        assert_eq!(run.tokens, text, "{wiring:?} changed the text");
        out.0 += run.accepted.iter().sum::<usize>();
        out.1 += run.drafted.iter().sum::<usize>();
    }
    out
}

/// Largest share of the right rate a wrong wiring reaches, from the README's table for depth 3 with room.
#[test]
fn wrong_wirings_lose_drafts_and_keep_the_text() {
    let right = rate(Wiring::AsTrained);
    let share = |(accepted, drafted): (usize, usize)| accepted as f64 / drafted as f64;
    for (wiring, at_most) in [
        (Wiring::TrunkLmHead, 0.05),
        (Wiring::FlippedConcat, 0.10),
        (Wiring::FirstLevelOnly, 0.75),
        (Wiring::NormsWithoutOne, 0.60),
    ] {
        let wrong = rate(wiring);
        assert!(share(wrong) < at_most * share(right), "{wiring:?}: {wrong:?} against {right:?}");
    }
}

/// This miniature hardly needs the trunk's state, so the other hidden shows in the logits and not in the rate (README).
#[test]
fn the_other_hidden_state_shows_in_the_logits() {
    let name = LAYOUTS[0];
    let options = LoadOptions { wiring: Wiring::OtherHidden, ..Default::default() };
    let model: Model = load(&golden(name), options).expect("loads");
    let want = Golden::open(name);
    let input = want.ids("s2.ids");
    let hidden = model.trunk.forward(&input, &mut model.trunk.new_cache()).expect("one pass");
    let carried = Sequence::teacher_forced(&model, &input, &hidden).expect("the head");
    let logits = model.head.as_ref().expect("a head").logits(0, &carried[0]).expect("logits");
    let off = relative_l2(&flat(&logits), &want.floats("s2.mtp0.logits"));
    assert!((0.2..0.4).contains(&off), "the README says 0.28: {off}");
}

#[test]
fn says_where_the_head_lies() {
    for (name, file) in [(LAYOUTS[0], "model.safetensors"), (LAYOUTS[1], "model-mtp.safetensors")] {
        let place = file.to_owned();
        assert_eq!(open(&golden(name)).head_status, HeadStatus::Found { place });
    }
}

/// The fixture under other published names, with norms stored either way.
mod republished {
    use super::*;
    use safetensors::tensor::{TensorView, serialize};
    use safetensors::{Dtype, SafeTensors};
    use std::path::Path;

    type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

    fn tensors(file: &Path) -> Vec<Stored> {
        let raw = std::fs::read(file).expect("weights");
        let all = SafeTensors::deserialize(&raw).expect("safetensors");
        let own = |(name, t): (String, TensorView<'_>)| {
            (name, t.dtype(), t.shape().to_vec(), t.data().to_vec())
        };
        all.tensors().into_iter().map(own).collect()
    }

    fn write(file: &Path, tensors: &[Stored]) {
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (name.clone(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
        });
        std::fs::write(file, serialize(views, None).expect("serialises")).expect("writes");
    }

    fn is_head(name: &str) -> bool {
        (5..8).any(|i| name.contains(&format!("layers.{i}.")))
    }

    /// Renames, and adds the one to norms, kept exact by widening to f32.
    fn converted((name, dtype, shape, data): Stored, table: &[(&str, &str)]) -> Stored {
        let new = table.iter().fold(name.clone(), |name, (a, b)| name.replace(a, b));
        if !name.contains("norm") {
            return (new, dtype, shape, data);
        }
        let plus_one = data.chunks(2).flat_map(|b| {
            (f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16) + 1.0).to_le_bytes()
        });
        (new, Dtype::F32, shape, plus_one.collect())
    }

    const MLX: &[(&str, &str)] = &[
        (".moe.gate.", ".mlp.gate.gate."),
        (".moe.router_bias", ".mlp.gate.router_bias"),
        (".moe.", ".mlp.switch_mlp."),
        (".share_expert.", ".mlp.share_expert."),
        ("model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    ];
    const MTPLX: &[(&str, &str)] = &[
        (".transformer.shared_head.norm.", ".shared_head_norm."),
        (".transformer.shared_head.output.", ".shared_head_head."),
        (".input_layernorm.", ".mtp_block.input_layernorm."),
        (".post_attention_layernorm.", ".mtp_block.post_attention_layernorm."),
        (".self_attn.", ".mtp_block.self_attn."),
        (".mlp.", ".mtp_block.mlp."),
        ("model.layers.5.", "mtp.layers.0."),
        ("model.layers.6.", "mtp.layers.1."),
        ("model.layers.7.", "mtp.layers.2."),
    ];

    fn check(trunk: &[Stored], head: &[Stored], what: &str) {
        let dir = tempfile::tempdir().expect("a folder");
        let from = golden(LAYOUTS[0]);
        std::fs::copy(from.join("config.json"), dir.path().join("config.json")).expect("copies");
        // The last shard has no name that tells how its norm is stored.
        let (last, first): (Vec<Stored>, Vec<Stored>) =
            trunk.iter().cloned().partition(|t| t.0.ends_with("model.norm.weight"));
        write(&dir.path().join("model-00001-of-00002.safetensors"), &first);
        write(&dir.path().join("model-00002-of-00002.safetensors"), &last);
        write(&dir.path().join("mtp.safetensors"), head);
        let model = Arc::new(load(dir.path(), LoadOptions::default()).expect(what));
        assert_eq!(model.leftovers, [""; 0], "{what}");
        let (same, input) = (open(&from), Golden::open(LAYOUTS[0]).ids("s0.ids"));
        let both = [&model, &same].map(|model| {
            let hidden = model.trunk.forward(&input, &mut model.trunk.new_cache()).expect("passes");
            let normed = model.trunk.norm(&hidden).expect("norm");
            let carried = Sequence::teacher_forced(model, &input, &hidden).expect("the head");
            let head = model.head.as_ref().expect("a head");
            let levels = carried.iter().enumerate().map(|(d, hidden)| head.logits(d, hidden));
            let mut out = flat(&model.trunk.logits(&normed).expect("logits"));
            out.extend(levels.flat_map(|logits| flat(&logits.expect("logits"))));
            out
        });
        assert_eq!(both[0], both[1], "{what}");
    }

    #[test]
    fn names_and_norms_of_other_converters_give_the_same_model() {
        let all = tensors(&golden(LAYOUTS[0]).join("model.safetensors"));
        let (head, trunk): (Vec<Stored>, Vec<Stored>) =
            all.into_iter().partition(|t| is_head(&t.0));
        let mlx: Vec<Stored> = trunk.iter().cloned().map(|t| converted(t, MLX)).collect();
        let mtplx: Vec<Stored> = head.iter().cloned().map(|t| converted(t, MTPLX)).collect();
        check(&trunk, &head, "original trunk and head");
        check(&mlx, &mtplx, "MLX trunk, MTPLX head");
        check(&mlx, &head, "MLX trunk, original head beside it");
        check(&trunk, &mtplx, "original trunk, MTPLX head");
        // Experts one by one.
        let mut single = Vec::new();
        for (name, dtype, shape, data) in trunk.iter().cloned() {
            match name.split_once(".moe.").filter(|(_, part)| part.contains("_proj.")) {
                Some((layer, part)) => {
                    for (e, data) in data.chunks(data.len() / shape[0]).enumerate() {
                        let name = format!("{layer}.moe.experts.{e}.{part}");
                        single.push((name, dtype, shape[1..].to_vec(), data.to_vec()));
                    }
                }
                None => single.push((name, dtype, shape, data)),
            }
        }
        check(&single, &head, "experts one by one");
    }

    #[test]
    fn two_of_three_levels_are_an_incomplete_head() {
        let all = tensors(&golden(LAYOUTS[0]).join("model.safetensors"));
        let dir = tempfile::tempdir().expect("a folder");
        let config = golden(LAYOUTS[0]).join("config.json");
        std::fs::copy(config, dir.path().join("config.json")).expect("copies");
        let kept: Vec<Stored> =
            all.iter().filter(|t| !t.0.contains("layers.6.")).cloned().collect();
        write(&dir.path().join("model.safetensors"), &kept);
        match load(dir.path(), LoadOptions::default()) {
            Err(EngineError::HeadIncomplete { missing }) => {
                assert!(missing.iter().all(|name| name.starts_with("model.layers.6.")));
                assert_eq!(missing.len(), 5);
            }
            other => panic!("{:?}", other.map(|model| model.head_status)),
        }
        let kept: Vec<Stored> = all.iter().filter(|t| !is_head(&t.0)).cloned().collect();
        write(&dir.path().join("model.safetensors"), &kept);
        let model = load(dir.path(), LoadOptions::default()).expect("a trunk by itself");
        assert!(model.head.is_none());
        assert!(matches!(model.head_status, HeadStatus::Absent { .. }));
        // And a trunk tensor missing is never passed over.
        let lost = |t: &&Stored| !t.0.ends_with("layers.3.moe.router_bias");
        let kept: Vec<Stored> = all.iter().filter(lost).cloned().collect();
        write(&dir.path().join("model.safetensors"), &kept);
        assert!(matches!(
            load(dir.path(), LoadOptions::default()),
            Err(EngineError::MissingTensor { name, .. }) if name == "model.layers.3.moe.router_bias"
        ));
    }
}
