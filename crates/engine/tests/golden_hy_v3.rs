//! `hy_v3` against values of a reference implementation (`tests/golden/hy_v3-tiny*/README.md`).

mod support;

use candle_core::Tensor;
use foretoken_engine::EngineError;
use foretoken_engine::decode::Sequence;
use foretoken_engine::models::{HeadFeed, HeadStatus, LoadOptions, Model, Wiring, load};
use std::sync::Arc;
use support::{Golden, best, flat, golden, greedy, ids, json, open, relative, run_family};

/// The README's tolerance in f32: largest difference over largest value.
const TOLERANCE: f32 = 1e-4;
/// Original layout; MLX with 2, 3 and 8 bits; a pruned trunk under a whole head.
const WITH_HEAD: [&str; 3] = ["hy_v3-tiny", "hy_v3-tiny-mlx-w2q3", "hy_v3-tiny-reap"];

fn open_with(name: &str, options: LoadOptions<'_>) -> Arc<Model> {
    Arc::new(load(&golden(name), options).expect("loads"))
}

fn sequences(name: &str) -> Vec<serde_json::Value> {
    let all = json(&golden(name).join("golden.json"));
    all["sequences"].as_array().expect("sequences").clone()
}

fn close(what: &str, got: &[f32], want: &[f32]) {
    let off = relative(got, want);
    assert!(off < TOLERANCE, "{what} is off by {off}");
}

/// Logits, both hidden states and the head's, for the three sequences of `name`.
fn check_values(model: &Arc<Model>, name: &str) {
    let want = Golden::open(name);
    for s in 0..3 {
        let at = |what: &str| want.floats(&format!("s{s}.{what}"));
        let input = want.ids(&format!("s{s}.input_ids"));
        let trunk = &model.trunk;
        let hidden = trunk.forward(&input, &mut trunk.new_cache()).expect("one pass");
        let normed = trunk.norm(&hidden).expect("norm");
        let logits = flat(&trunk.logits(&normed).expect("logits"));
        close(&format!("{name} s{s} hidden_pre"), &flat(&hidden), &at("hidden_pre"));
        close(&format!("{name} s{s} hidden_post"), &flat(&normed), &at("hidden_post"));
        close(&format!("{name} s{s} logits"), &logits, &at("logits"));
        let vocab = trunk.shape().vocab;
        assert_eq!(best(&logits, vocab), best(&at("logits"), vocab), "{name} s{s}: argmax");
        let Some(head) = &model.head else { continue };
        assert_eq!((head.levels(), head.feed()), (1, HeadFeed::PostNorm));
        let carried = Sequence::teacher_forced(model, &input, &hidden).expect("the head");
        let logits = flat(&head.logits(0, &carried[0]).expect("logits"));
        close(&format!("{name} s{s} mtp_hidden"), &flat(&carried[0]), &at("mtp_hidden"));
        close(&format!("{name} s{s} mtp_logits"), &logits, &at("mtp_logits"));
    }
}

/// Greedy text, and what every cycle drafted and had accepted.
fn check_cycles(model: &Arc<Model>, name: &str) {
    for (s, case) in sequences(name).iter().enumerate() {
        let (prompt, text) = (ids(&case["prompt_ids"]), ids(&case["greedy"]));
        for k in 0..=4 {
            let run = greedy(model, &prompt, k, text.len(), None);
            assert_eq!(run.tokens, text, "{name} s{s} at depth {k}");
            let recorded = &case["spec"][format!("k{k}_persistent")]["accepted_per_cycle"];
            if recorded.is_array() {
                let accepted: Vec<usize> = ids(recorded).into_iter().map(|n| n as usize).collect();
                assert_eq!(run.accepted, accepted, "{name} s{s} at depth {k}");
                assert!(run.drafted.iter().all(|n| *n == k));
            }
        }
    }
}

#[test]
fn logits_and_hidden_states_of_trunk_and_head() {
    for name in WITH_HEAD {
        let model = open(&golden(name));
        assert_eq!(model.leftovers, [""; 0], "{name}");
        check_values(&model, name);
    }
}

#[test]
fn greedy_text_and_accept_sequences() {
    for name in WITH_HEAD {
        check_cycles(&open(&golden(name)), name);
    }
}

#[test]
fn every_way_to_fill_a_cache_gives_the_same_bits() {
    for name in WITH_HEAD {
        run_family(&open(&golden(name)), &Golden::open(name).ids("s0.input_ids"));
    }
}

/// Experts are counted where they are stored: 4 in the trunk, 8 in the head, whatever the configuration says.
#[test]
fn a_pruned_trunk_keeps_a_whole_head() {
    let model = open(&golden("hy_v3-tiny-reap"));
    let experts = |modules: &[foretoken_engine::models::ModuleUse]| -> usize {
        modules.iter().filter(|m| m.kind == "experts").map(|m| m.modules).sum()
    };
    assert_eq!(experts(&model.trunk_modules), 3 * 3 * 4);
    assert_eq!(experts(&model.head_modules), 3 * 8);
}

#[test]
fn a_lost_head_is_said_and_can_be_put_back() {
    let bare = open(&golden("hy_v3-tiny-headless"));
    assert!(bare.head.is_none());
    let HeadStatus::Absent { why } = &bare.head_status else { panic!("{:?}", bare.head_status) };
    assert!(why.contains("promises") && why.ends_with('.'), "{why}");
    check_values(&bare, "hy_v3-tiny");
    let case = &sequences("hy_v3-tiny-headless")[0];
    let (prompt, text) = (ids(&case["prompt_ids"]), ids(&case["greedy"]));
    let run = greedy(&bare, &prompt, 3, text.len(), None);
    assert_eq!(run.tokens, text);
    assert!(run.drafted.iter().all(|n| *n == 0));

    let donor = golden("hy_v3-tiny-head");
    let options = LoadOptions { head: Some(&donor), ..Default::default() };
    let grafted = open_with("hy_v3-tiny-headless", options);
    assert_eq!(grafted.head_status, HeadStatus::Found { place: "mtp.safetensors".to_owned() });
    check_values(&grafted, "hy_v3-tiny");
    check_cycles(&grafted, "hy_v3-tiny");
    // The same head on the pruned trunk is what that checkpoint ships.
    check_values(&open_with("hy_v3-tiny-reap", options), "hy_v3-tiny-reap");
    assert!(matches!(
        load(&golden("llama-tiny"), options),
        Err(EngineError::HeadMismatch { key: "model_type", .. })
    ));
}

/// The twelve prompts of `acceptance_prompts.json`.
fn prompts() -> Vec<(Vec<u32>, serde_json::Value)> {
    let all = json(&golden("hy_v3-tiny").join("acceptance_prompts.json"));
    let all = all["prompts"].as_array().expect("prompts");
    all.iter().map(|case| (ids(&case["prompt_ids"]), case.clone())).collect()
}

fn share(accepted: &[usize], drafted: usize) -> f64 {
    accepted.iter().sum::<usize>() as f64 / drafted as f64
}

/// Accept rate of depth 1 over the twelve prompts.
fn rate(wiring: Wiring) -> f64 {
    let model = open_with("hy_v3-tiny", LoadOptions { wiring, ..Default::default() });
    let mut accepted = Vec::new();
    for (prompt, case) in prompts() {
        let text = ids(&case["greedy"]);
        let run = greedy(&model, &prompt, 1, text.len(), None);
        assert_eq!(run.tokens, text, "{wiring:?} changed the text");
        accepted.extend(run.accepted);
    }
    share(&accepted, accepted.len())
}

#[test]
fn twelve_prompts_accept_what_was_recorded() {
    let model = open(&golden("hy_v3-tiny"));
    for k in 1..=3usize {
        let (mut all, mut drafted) = (Vec::new(), 0);
        for (i, (prompt, case)) in prompts().iter().enumerate() {
            let text = ids(&case["greedy"]);
            let run = greedy(&model, prompt, k, text.len(), None);
            assert_eq!(run.tokens, text, "prompt {i} at depth {k}");
            let want: Vec<usize> =
                ids(&case[format!("k{k}_persistent")]).into_iter().map(|n| n as usize).collect();
            assert_eq!(run.accepted, want, "prompt {i} at depth {k}");
            drafted += run.drafted.iter().sum::<usize>();
            all.extend(run.accepted);
        }
        let recorded = [0.8337, 0.6879, 0.6056][k - 1];
        assert!((share(&all, drafted) - recorded).abs() < 1e-4, "depth {k} of {drafted}");
    }
}

/// How often the head, over a whole text, names the token the text goes on with.
#[test]
fn live_rate_is_near_the_teacher_forced_ceiling() {
    let model = open(&golden("hy_v3-tiny"));
    let head = model.head.as_ref().expect("a head");
    let vocab = model.trunk.shape().vocab;
    let (mut hits, mut rows) = (0, 0);
    for (prompt, case) in prompts() {
        let whole = [prompt.clone(), ids(&case["greedy"])].concat();
        let hidden = model.trunk.forward(&whole, &mut model.trunk.new_cache()).expect("one pass");
        let carried = Sequence::teacher_forced(&model, &whole, &hidden).expect("the head");
        let guesses = best(&flat(&head.logits(0, &carried[0]).expect("logits")), vocab);
        let generated = prompt.len() - 1..whole.len() - 2;
        rows += generated.len();
        hits += generated.filter(|t| guesses[*t] == whole[t + 2]).count();
    }
    let (live, ceiling) = (rate(Wiring::AsTrained), hits as f64 / rows as f64);
    assert!((ceiling - 0.849).abs() < 0.005, "the README says 84.9 %: {ceiling}");
    assert!((live - ceiling).abs() < 0.02, "live {live}, teacher-forced {ceiling}");
}

/// The head against the trunk at every position of prompt and continuation: best tokens, agreement, and how often sampling at
/// 0.9 would accept by the residual rule (sum of min(p, q)) and by matching (sum of p q).
#[test]
fn teacher_forced_agreement_is_as_recorded() {
    const TEMPERATURE: f64 = 0.9;
    let law = |row: &[f32]| -> Vec<f64> {
        let top = row.iter().copied().fold(f32::MIN, f32::max);
        let w: Vec<f64> = row.iter().map(|v| (f64::from(v - top) / TEMPERATURE).exp()).collect();
        let total: f64 = w.iter().sum();
        w.into_iter().map(|w| w / total).collect()
    };
    for name in WITH_HEAD {
        let model = open(&golden(name));
        let (trunk, head) = (&model.trunk, model.head.as_ref().expect("a head"));
        let vocab = trunk.shape().vocab;
        for (s, case) in sequences(name).iter().enumerate() {
            let text = [ids(&case["prompt_ids"]), ids(&case["greedy"])].concat();
            let hidden = trunk.forward(&text, &mut trunk.new_cache()).expect("one pass");
            let carried = Sequence::teacher_forced(&model, &text, &hidden).expect("the head");
            let q = flat(&head.logits(0, &carried[0]).expect("logits"));
            let p = flat(&trunk.logits(&trunk.norm(&hidden).expect("norm")).expect("logits"));
            let p = &p[vocab..];
            let (guesses, right) = (best(&q, vocab), best(p, vocab));
            let recorded = ids(&case["teacher_forced_mtp_argmax"]);
            assert_eq!(guesses[..recorded.len()], recorded, "{name} s{s}");
            let rows = guesses.len() as f64;
            let agree = guesses.iter().zip(&right).filter(|(a, b)| a == b).count() as f64 / rows;
            let near = |got: f64, want: &serde_json::Value, what: &str| {
                let want = want.as_f64().expect("a share");
                assert!((got - want).abs() < 1e-4, "{name} s{s} {what}: {got} and {want}");
            };
            near(agree, &case["ceiling_all_positions"], "agreement");
            let (mut residual, mut matching) = (0.0, 0.0);
            // Recorded over the rows of the golden tensors, the first half of the continuation.
            let rows = recorded.len();
            for (p, q) in p.chunks(vocab).zip(q.chunks(vocab)).take(rows) {
                for (p, q) in law(p).into_iter().zip(law(q)) {
                    residual += p.min(q) / rows as f64;
                    matching += p * q / rows as f64;
                }
            }
            near(residual, &case["teacher_forced_T0.9"]["accept_residual_mean"], "residual");
            near(matching, &case["teacher_forced_T0.9"]["accept_match_mean"], "matching");
        }
    }
}

#[test]
fn wrong_wirings_lose_drafts_and_keep_the_text() {
    let right = rate(Wiring::AsTrained);
    for (wiring, at_most) in [(Wiring::OtherHidden, 0.25), (Wiring::FlippedConcat, 0.1)] {
        let wrong = rate(wiring);
        assert!(wrong < at_most, "{wiring:?}: {wrong} against {right}");
    }
    let wrong =
        open_with("hy_v3-tiny", LoadOptions { wiring: Wiring::OtherHidden, ..Default::default() });
    for case in sequences("hy_v3-tiny") {
        let (prompt, text) = (ids(&case["prompt_ids"]), ids(&case["greedy"]));
        let recorded = &case["spec"]["k1_persistent_prenorm_hidden"]["accepted_per_cycle"];
        let recorded: Vec<usize> = ids(recorded).into_iter().map(|n| n as usize).collect();
        assert_eq!(greedy(&wrong, &prompt, 1, text.len(), None).accepted, recorded);
    }
}

/// The starved loop the thread ml-explore/mlx-lm#1485 measured: a head whose cache is emptied in every cycle sees one pair.
#[test]
fn a_starved_head_cache_costs_what_was_recorded() {
    let model = open(&golden("hy_v3-tiny"));
    let (trunk, head) = (&model.trunk, model.head.as_ref().expect("a head"));
    let vocab = trunk.shape().vocab;
    let mut all = Vec::new();
    for (i, (prompt, case)) in prompts().into_iter().enumerate() {
        let text = [prompt.clone(), ids(&case["greedy"])].concat();
        let hidden = trunk.forward(&text, &mut trunk.new_cache()).expect("one pass");
        let normed = trunk.norm(&hidden).expect("norm");
        let mut accepted = Vec::new();
        let mut newest = prompt.len();
        while newest + 1 < text.len() {
            let row: Tensor = normed.narrow(0, newest - 1, 1).expect("a row");
            let mut cache = head.new_cache(0);
            let out = head.forward(0, &text[newest..=newest], &row, &mut cache).expect("the head");
            let guess = best(&flat(&head.logits(0, &out).expect("logits")), vocab)[0];
            let right = usize::from(guess == text[newest + 1]);
            accepted.push(right);
            newest += 1 + right;
        }
        let recorded: Vec<usize> = ids(&case["k1_fresh"]).into_iter().map(|n| n as usize).collect();
        let known = accepted.len().min(recorded.len());
        assert!(recorded.len() - known <= 1, "prompt {i}");
        assert_eq!(accepted[..known], recorded[..known], "prompt {i}");
        all.extend(recorded);
    }
    let (starved, fed) = (share(&all, all.len()), rate(Wiring::AsTrained));
    assert!((starved - 0.617).abs() < 1e-3 && fed - starved > 0.2, "{starved} and {fed}");
}

/// Folders made of the fixture's files with one thing wrong.
mod damaged {
    use super::*;
    use foretoken_engine::convert::{QuantisePlan, convert_folder};
    use safetensors::SafeTensors;
    use safetensors::tensor::{TensorView, serialize};
    use std::path::Path;

    /// Copies a head's file, each tensor under the name `rename` gives it; `None` leaves it out.
    fn copy_head(to: &Path, rename: impl Fn(&str) -> Option<String>) {
        let from = golden("hy_v3-tiny-head");
        std::fs::copy(from.join("config.json"), to.join("config.json")).expect("copies");
        let raw = std::fs::read(from.join("mtp.safetensors")).expect("the head");
        let all = SafeTensors::deserialize(&raw).expect("a head");
        let kept = all.tensors().into_iter().filter_map(|(name, t)| Some((rename(&name)?, t)));
        let views: Vec<(String, TensorView<'_>)> = kept.collect();
        let raw = serialize(views, None).expect("serialises");
        std::fs::write(to.join("mtp.safetensors"), raw).expect("writes");
    }

    fn graft(head: &Path) -> foretoken_engine::Result<Model> {
        let options = LoadOptions { head: Some(head), ..Default::default() };
        load(&golden("hy_v3-tiny-headless"), options)
    }

    #[test]
    fn a_head_with_a_part_missing_is_refused_by_name() {
        for part in ["final_layernorm.weight", "mlp.experts.3.up_proj.weight", "eh_proj.weight"] {
            let dir = tempfile::tempdir().expect("a folder");
            copy_head(dir.path(), |name| (!name.ends_with(part)).then(|| name.to_owned()));
            match graft(dir.path()) {
                Err(EngineError::HeadIncomplete { missing }) => {
                    assert_eq!(missing, [format!("model.layers.4.{part}")]);
                }
                other => panic!("{part}: {:?}", other.map(|model| model.head_status)),
            }
        }
    }

    #[test]
    fn other_published_names_of_a_head_give_the_same_head() {
        for (from, to) in [
            (vec![("model.layers.4.", "mtp.")], "under mtp"),
            (
                vec![
                    ("model.layers.4.enorm", "model.mtp.enorm"),
                    ("model.layers.4.hnorm", "model.mtp.hnorm"),
                    ("model.layers.4.eh_proj", "model.mtp.eh_proj"),
                    ("model.layers.4.final_layernorm", "model.mtp.final_layernorm"),
                    ("model.layers.4.", "model.mtp.layer."),
                    ("mlp.expert_bias", "mlp.router.expert_bias"),
                ],
                "MLX",
            ),
            (
                vec![
                    ("mlp.router.gate.", "mlp.gate."),
                    ("mlp.expert_bias", "mlp.e_score_correction_bias"),
                    ("mlp.shared_mlp.", "mlp.shared_experts."),
                ],
                "transformers",
            ),
        ] {
            let dir = tempfile::tempdir().expect("a folder");
            let rename = |name: &str| {
                Some(from.iter().fold(name.to_owned(), |name, (a, b)| name.replace(a, b)))
            };
            copy_head(dir.path(), rename);
            let model = Arc::new(graft(dir.path()).unwrap_or_else(|e| panic!("{to}: {e}")));
            check_values(&model, "hy_v3-tiny");
        }
    }

    /// As transformers saves it again: experts fused, gate before up, and no head.
    #[test]
    fn a_trunk_saved_again_by_transformers_is_the_same_trunk() {
        let from = golden("hy_v3-tiny-headless");
        let raw: Vec<Vec<u8>> = (1..=2)
            .map(|i| from.join(format!("model-0000{i}-of-00002.safetensors")))
            .map(|file| std::fs::read(file).expect("a shard"))
            .collect();
        let shards: Vec<SafeTensors<'_>> =
            raw.iter().map(|raw| SafeTensors::deserialize(raw).expect("a shard")).collect();
        let find = |name: &str| shards.iter().find_map(|shard| shard.tensor(name).ok());
        let mut out: Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        for (name, t) in shards.iter().flat_map(SafeTensors::tensors) {
            if name.contains(".experts.") {
                continue;
            }
            let name = name
                .replace(".mlp.router.gate.", ".mlp.gate.")
                .replace(".mlp.expert_bias", ".mlp.e_score_correction_bias")
                .replace(".mlp.shared_mlp.", ".mlp.shared_experts.");
            out.push((name, t.dtype(), t.shape().to_vec(), t.data().to_vec()));
        }
        for layer in 1..4 {
            let at = format!("model.layers.{layer}.mlp.experts");
            let (mut both, mut down) = (Vec::new(), Vec::new());
            for e in 0..8 {
                let part = |name: &str| find(&format!("{at}.{e}.{name}_proj.weight"));
                both.extend_from_slice(part("gate").expect("gate").data());
                both.extend_from_slice(part("up").expect("up").data());
                down.extend_from_slice(part("down").expect("down").data());
            }
            let bf16 = safetensors::Dtype::BF16;
            out.push((format!("{at}.gate_up_proj"), bf16, vec![8, 128, 128], both));
            out.push((format!("{at}.down_proj"), bf16, vec![8, 128, 64], down));
        }
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::copy(from.join("config.json"), dir.path().join("config.json")).expect("copies");
        let views = out.iter().map(|(name, dtype, shape, data)| {
            (name.clone(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
        });
        let raw = serialize(views, None).expect("serialises");
        std::fs::write(dir.path().join("model.safetensors"), raw).expect("writes");
        let model = Arc::new(load(dir.path(), LoadOptions::default()).expect("loads"));
        assert!(model.head.is_none());
        assert_eq!(model.leftovers, [""; 0]);
        check_values(&model, "hy_v3-tiny");
        // Converted, both ways of storing experts come to the same files.
        let plan = QuantisePlan { bits: Some(4), head_bits: None, group: 64, keep: Vec::new() };
        let packed = |source: &Path| {
            let to = tempfile::tempdir().expect("a folder");
            convert_folder(source, to.path(), None, &plan, |_, _| {}).expect("converts");
            std::fs::read(to.path().join("model.safetensors")).expect("a shard")
        };
        assert!(packed(dir.path()) == packed(&from), "the converted trunks differ");
    }

    #[test]
    fn a_level_nobody_reads_is_left_over() {
        let dir = tempfile::tempdir().expect("a folder");
        for file in std::fs::read_dir(golden("hy_v3-tiny-headless")).expect("a folder") {
            let file = file.expect("a file").path();
            std::fs::copy(&file, dir.path().join(file.file_name().expect("a name")))
                .expect("copies");
        }
        let config = dir.path().join("config.json");
        let before = std::fs::read_to_string(&config).expect("a configuration");
        copy_head(dir.path(), |name| Some(name.replace("layers.4.", "layers.5.")));
        std::fs::write(&config, &before).expect("writes");
        let model = load(dir.path(), LoadOptions::default()).expect("loads");
        assert!(model.head.is_none());
        assert!(!model.leftovers.is_empty());
        assert!(model.leftovers.iter().all(|name| name.starts_with("model.layers.5.")));
    }
}
