use super::*;
use crate::models::{LoadOptions, load};
use std::path::Path;

fn step_tiny() -> Arc<Model> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/step3p5-tiny");
    Arc::new(load(&folder, LoadOptions::default()).expect("loads"))
}

fn cycles(s: &mut Sequence, until: usize) -> Vec<(Vec<u32>, usize)> {
    let mut out = Vec::new();
    while s.tokens().len() < until {
        let step =
            s.step(3, &SamplerSettings::default(), Rule::Residual, &mut ()).expect("a cycle");
        out.push((step.tokens, step.accepted));
    }
    out
}

/// A long prompt is given to the head from where it can see on (window 32, three levels), and drafts as if it had seen all.
#[test]
fn a_head_is_primed_only_as_far_back_as_it_can_see() {
    let model = step_tiny();
    let mut whole = Sequence::new(model.clone());
    whole.set_prompt(&[0, 17, 99, 230, 41]).expect("a prompt");
    while whole.needs_prefill() {
        whole.prefill(128).expect("reads");
    }
    cycles(&mut whole, 300);
    let prompt = whole.tokens().to_vec();

    for chunk in [7, 128, 1000] {
        let mut skipping = Sequence::new(model.clone());
        skipping.set_prompt(&prompt).expect("a prompt");
        while skipping.needs_prefill() {
            skipping.prefill(chunk).expect("reads");
        }
        let reach = |level: usize| MAX_TAKEN_BACK + 32 + (3 - level) * 31;
        let starts = &skipping.head.as_ref().expect("a head").starts;
        assert_eq!(*starts, [0, 1, 2].map(|level| prompt.len() - reach(level)));
        let mut reference = Sequence::new(model.clone());
        reference.set_prompt(&prompt).expect("a prompt");
        reference.head.as_mut().expect("a head").starts = vec![0; 3];
        while reference.needs_prefill() {
            reference.prefill(128).expect("reads");
        }
        let (got, want) = (cycles(&mut skipping, 460), cycles(&mut reference, 460));
        assert_eq!(got, want, "chunks of {chunk}");
        assert!(
            want.iter().map(|(_, accepted)| accepted).sum::<usize>() > 40,
            "drafts are accepted"
        );
        // A turn later: the same text with another end is still reused.
        let mut next = skipping.tokens()[..skipping.tokens().len() - 6].to_vec();
        next.extend([5, 6, 7]);
        let reused = skipping.set_prompt(&next).expect("a prompt");
        assert!(reused > 400, "{reused}");
    }
}

/// What was committed beyond the end of a reply does not count for the next prompt, unless the reply went on after all.
#[test]
fn tokens_beyond_the_end_are_not_reused() {
    let mut sequence = Sequence::new(step_tiny());
    sequence.set_prompt(&[0, 17, 99, 230, 41]).expect("a prompt");
    cycles_after_prefill(&mut sequence, 40);
    let next = [sequence.tokens(), &[5, 6]].concat();
    sequence.end_at(36);
    // The trunk has all but the last token, and reads a row for each of three levels again.
    assert_eq!(sequence.set_prompt(&next).expect("a prompt"), 36 - 1 - 3);

    cycles_after_prefill(&mut sequence, 60);
    sequence.end_at(50);
    cycles_after_prefill(&mut sequence, 70);
    let next = [sequence.tokens(), &[5, 6]].concat();
    let reused = sequence.set_prompt(&next).expect("a prompt");
    assert_eq!(reused, next.len() - 2 - 1 - 3);

    sequence.end_at(1000);
    sequence.end_at(0);
    assert_eq!(sequence.set_prompt(&next).expect("a prompt"), 0);
}

fn cycles_after_prefill(sequence: &mut Sequence, until: usize) {
    while sequence.needs_prefill() {
        sequence.prefill(64).expect("reads");
    }
    cycles(sequence, until);
}
