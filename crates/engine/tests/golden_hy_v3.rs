//! `hy_v3` against values of a reference implementation (`tests/golden/hy_v3-tiny*/README.md`).

mod support;

use foretoken_engine::decode::Sequence;
use foretoken_engine::models::Model;
use std::sync::Arc;
use support::{Golden, flat, golden, open, relative};

/// The README's tolerance in f32: largest difference over largest value.
const TOLERANCE: f32 = 1e-4;

fn close(what: &str, got: &[f32], want: &[f32]) {
    let off = relative(got, want);
    assert!(off < TOLERANCE, "{what} is off by {off}");
}

/// Logits, both hidden states and the head's, for the three sequences.
fn trunk_and_head(model: &Arc<Model>, name: &str, with_head: bool) {
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
        if with_head {
            let head = model.head.as_ref().expect("a head");
            let carried = Sequence::teacher_forced(model, &input, &hidden).expect("the head");
            assert_eq!(carried.len(), 1);
            let logits = flat(&head.logits(0, &carried[0]).expect("logits"));
            close(&format!("{name} s{s} mtp_hidden"), &flat(&carried[0]), &at("mtp_hidden"));
            close(&format!("{name} s{s} mtp_logits"), &logits, &at("mtp_logits"));
        }
    }
}

#[test]
fn original_layout() {
    trunk_and_head(&open(&golden("hy_v3-tiny")), "hy_v3-tiny", true);
}
