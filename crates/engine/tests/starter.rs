//! The starter against its expected values (`assets/starter-head/expected.json`: f32, made by another implementation).

mod support;

use foretoken_engine::decode::Sequence;
use foretoken_engine::models::{Activations, HeadStatus, LoadOptions, load};
use std::sync::Arc;
use support::{flat, greedy, ids, json, open, root, run_family, starter, starter_as_trained};

fn expected() -> serde_json::Value {
    json(&root().join("assets/starter-head/expected.json"))
}

#[test]
fn greedy_text_and_accept_sequences() {
    let model = starter_as_trained();
    assert!(matches!(model.head_status, HeadStatus::Found { .. }));
    let expected = expected();
    let eos = expected["eos_token_id"].as_u64().map(|id| id as u32);
    for case in expected["prompts"].as_array().expect("prompts") {
        let (prompt, want) = (ids(&case["prompt_ids"]), ids(&case["greedy_ids"]));
        assert_eq!(
            greedy(&model, &prompt, 0, want.len(), eos).tokens,
            want,
            "prompt {}",
            case["id"]
        );
        for (key, k) in [("k1", 1), ("k2", 2), ("k3", 3)] {
            let run = greedy(&model, &prompt, k, want.len(), eos);
            assert_eq!(run.tokens, want, "prompt {} at depth {k}", case["id"]);
            let accepted: Vec<usize> =
                ids(&case[key]["accepted"]).into_iter().map(|n| n as usize).collect();
            // The last cycle of the file is cut at the end of the text.
            let n = accepted.len() - 1;
            assert_eq!(
                run.accepted.len(),
                accepted.len(),
                "prompt {} at depth {k}: cycles",
                case["id"]
            );
            assert_eq!(run.accepted[..n], accepted[..n], "prompt {} at depth {k}", case["id"]);
            assert!(run.accepted[n] >= accepted[n]);
        }
    }
}

/// The first draft of each cycle, teacher-forced: the head over the whole text gives at a cycle's start what the cycle drafted.
#[test]
fn first_drafts_are_the_heads_own() {
    let model = starter_as_trained();
    let head = model.head.as_ref().expect("a head");
    for case in expected()["prompts"].as_array().expect("prompts") {
        let (mut text, greedy_ids) = (ids(&case["prompt_ids"]), ids(&case["greedy_ids"]));
        let prompt = text.len();
        text.extend(&greedy_ids);
        let hidden = model.trunk.forward(&text, &mut model.trunk.new_cache()).expect("one pass");
        let carried = &Sequence::teacher_forced(&model, &text, &hidden).expect("the head")[0];
        let logits = flat(&head.logits(0, carried).expect("logits"));
        let vocab = model.trunk.shape().vocab;
        let mut newest = prompt;
        for (accepted, draft) in
            ids(&case["k1"]["accepted"]).iter().zip(ids(&case["k1"]["first_drafts"]))
        {
            // Row newest - 1 reads the newest token and predicts the one after.
            let row = &logits[(newest - 1) * vocab..newest * vocab];
            let best = (0..vocab).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("not empty");
            assert_eq!(best as u32, draft, "prompt {} at {newest}", case["id"]);
            newest += 1 + *accepted as usize;
        }
    }
}

#[test]
fn six_prompts_are_equal_at_every_depth() {
    let model = open(&starter());
    let expected = expected();
    let mut accepted = 0;
    for case in expected["prompts"].as_array().expect("prompts").iter().take(6) {
        let prompt = ids(&case["prompt_ids"]);
        let plain = greedy(&model, &prompt, 0, 48, None);
        for depth in 1..=8 {
            let run = greedy(&model, &prompt, depth, 48, None);
            assert_eq!(run.tokens, plain.tokens, "prompt {} at depth {depth}", case["id"]);
            accepted += run.accepted.iter().sum::<usize>();
        }
    }
    assert!(
        accepted > 300,
        "drafts were hardly ever accepted, so the comparison shows little: {accepted}"
    );
}

#[test]
fn the_family_runner_holds_on_quantised_weights() {
    let text = ids(&expected()["prompts"][0]["prompt_ids"]);
    run_family(&open(&starter()), &text);
}

/// What the app runs: not the numbers of another implementation, but the same text at every depth, and as good a head.
#[test]
fn quantised_activations_give_one_text_at_every_depth() {
    let options = LoadOptions { activations: Activations::Int8, ..Default::default() };
    let model = Arc::new(load(&starter(), options).expect("loads"));
    for case in expected()["prompts"].as_array().expect("prompts") {
        let prompt = ids(&case["prompt_ids"]);
        let plain = greedy(&model, &prompt, 0, 32, None);
        for depth in [1, 2, 3, 5, 8] {
            let run = greedy(&model, &prompt, depth, 32, None);
            assert_eq!(run.tokens, plain.tokens, "prompt {} at depth {depth}", case["id"]);
        }
    }
}
