//! `llama` and `qwen3` against values of the reference implementations (`tests/golden/*/README.md`).

mod support;

use support::{Golden, distance, flat, golden, greedy, open, run_family};

/// The READMEs' tolerance in f32.
const TOLERANCE: f32 = 1e-4;
const PROMPT: usize = 20;

fn check(name: &str) {
    let (model, want) = (open(&golden(name)), Golden::open(name));
    let input = want.ids("input_ids");
    let trunk = &model.trunk;
    let hidden = trunk.forward(&input, &mut trunk.new_cache()).expect("one pass");
    let normed = trunk.norm(&hidden).expect("norm");
    assert!(distance(&flat(&hidden), &want.floats("hidden_pre_norm")) < TOLERANCE);
    assert!(distance(&flat(&normed), &want.floats("hidden_post_norm")) < TOLERANCE);
    let off = distance(&flat(&trunk.logits(&normed).expect("logits")), &want.floats("logits"));
    assert!(off < TOLERANCE, "{name}: logits are off by {off}");

    let greedy_ids = want.ids("greedy_ids");
    assert_eq!(greedy(&model, &input[..PROMPT], 0, greedy_ids.len(), None).tokens, greedy_ids);

    // A block verified behind the prompt.
    let mut cache = trunk.new_cache();
    trunk.forward(&input[..PROMPT], &mut cache).expect("the prompt");
    let block = trunk.forward(&want.ids("verify.ids"), &mut cache).expect("the block");
    let normed = trunk.norm(&block).expect("norm");
    assert!(distance(&flat(&normed), &want.floats("verify.hidden_post_norm")) < TOLERANCE);
    assert!(
        distance(&flat(&trunk.logits(&normed).expect("logits")), &want.floats("verify.logits"))
            < TOLERANCE
    );
}

#[test]
fn llama_tiny() {
    check("llama-tiny");
}

#[test]
fn qwen3_tiny() {
    check("qwen3-tiny");
}

#[test]
fn every_way_to_fill_a_cache_gives_the_same_bits() {
    for name in ["llama-tiny", "qwen3-tiny"] {
        run_family(&open(&golden(name)), &Golden::open(name).ids("input_ids"));
    }
}

#[test]
fn without_a_head_the_cycle_is_plain_and_says_why() {
    let model = open(&golden("llama-tiny"));
    assert!(model.head.is_none());
    let run = greedy(&model, &Golden::open("llama-tiny").ids("input_ids"), 4, 8, None);
    assert!(run.drafted.iter().all(|n| *n == 0));
}
