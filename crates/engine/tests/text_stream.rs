//! Text that grows token by token equals text decoded at once.

#![allow(clippy::unwrap_used)] // a test that cannot read its data fails

use foretoken_engine::text::{
    ChatTemplate, Piece, TextError, TextStream, ThoughtState, ThoughtTags, Tokenizer, stop_set,
};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text").join(name)
}

fn streamed(tokenizer: &Tokenizer, state: ThoughtState, ids: &[u32], cuts: &[usize]) -> Piece {
    let mut stream = TextStream::new(tokenizer, state);
    let mut all = Piece::default();
    let mut rest = ids;
    for &cut in cuts.iter().chain([&usize::MAX]) {
        let (now, later) = rest.split_at(cut.min(rest.len()));
        let piece = stream.push(now);
        all.text += &piece.text;
        all.thought += &piece.thought;
        rest = later;
    }
    let last = stream.finish();
    all.text += &last.text;
    all.thought += &last.thought;
    all
}

proptest! {
    #[test]
    fn pieces_add_up_to_the_whole(ids in prop::collection::vec(0_u32..1600, 0..80), cuts in prop::collection::vec(0_usize..6, 0..20)) {
        for name in ["step3p5", "hy_v3"] {
            let tokenizer = Tokenizer::from_dir(&data(name)).unwrap();
            let all = streamed(&tokenizer, ThoughtState::default(), &ids, &cuts);
            let shown: Vec<u32> = ids.iter().copied().filter(|id| !tokenizer.is_hidden(*id)).collect();
            prop_assert_eq!(all.text, tokenizer.decode(&shown, false).unwrap());
            prop_assert_eq!(all.thought, "");
        }
    }
}

#[test]
fn think_tags_are_routed_however_they_are_spelled() {
    let tokenizer = Tokenizer::from_dir(&data("step3p5")).unwrap();
    let (open, close) = ("<think>".to_owned(), "</think>".to_owned());
    let state = |inside| ThoughtState {
        tags: Some(ThoughtTags { open: open.clone(), close: close.clone() }),
        inside,
    };
    let text = "<think>why <b> é🎉</think>so <thin";
    let whole = tokenizer.encode(text, false).unwrap();
    // One token per character spells the tags out.
    let spelled: Vec<u32> =
        text.chars().flat_map(|c| tokenizer.encode(&c.to_string(), false).unwrap()).collect();
    assert!(spelled.len() > whole.len());
    for ids in [whole, spelled] {
        let all = streamed(&tokenizer, state(false), &ids, &[1; 60]);
        assert_eq!((all.thought.as_str(), all.text.as_str()), ("why <b> é🎉", "so <thin"));
    }
    let ids = tokenizer.encode("hm</think>yes", false).unwrap();
    let all = streamed(&tokenizer, state(true), &ids, &[1; 9]);
    assert_eq!((all.thought.as_str(), all.text.as_str()), ("hm", "yes"));
}

/// A call as each family writes it, after a thought: the tags are tokens, special in Hy3 and plain in Step.
#[test]
fn a_tool_call_is_read_as_it_was_written() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let hy3 = "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n\
        <arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Köln</arg_value:opensource>\n\
        </tool_call:opensource>\n</tool_calls:opensource>";
    let step = "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n</tool_call>";
    for (name, call, end, turn) in [
        ("hy_v3-tiny", hy3, "<｜hy_eos:opensource｜>", "<｜hy_User:opensource｜>"),
        ("step3p5-tiny", step, "<|im_end|>", "<|im_start|>"),
    ] {
        let tokenizer = Tokenizer::from_dir(&golden.join(name)).unwrap();
        let template = ChatTemplate::from_dir(&golden.join(name), &tokenizer).unwrap();
        let state = ThoughtState { inside: true, ..template.thought_state("") };
        let close = &state.tags.as_ref().expect("both reason in tags").close;
        let reply = format!("hm{close}I look.{call}{end}{turn}");
        let ids = tokenizer.encode(&reply, false).unwrap();
        let tags = [call.split('>').next().unwrap(), ">"].concat();
        assert!(ids.contains(&tokenizer.token_id(&tags).expect("a token of its own")), "{name}");
        for cuts in [vec![], vec![1; 80], vec![3; 30]] {
            let all = streamed(&tokenizer, state.clone(), &ids, &cuts);
            assert_eq!(all.thought, "hm", "{name}");
            assert_eq!(all.text, format!("I look.{call}"), "{name}");
        }
    }
}

#[test]
fn damaged_tokenizers_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Tokenizer::from_dir(dir.path()), Err(TextError::TokenizerMissing { .. })));
    let good = std::fs::read(data("step3p5/tokenizer.json")).unwrap();
    for len in [0, 1, 100, 5_000, good.len() / 2, good.len() - 2] {
        std::fs::write(dir.path().join("tokenizer.json"), &good[..len]).unwrap();
        assert!(
            matches!(Tokenizer::from_dir(dir.path()), Err(TextError::TokenizerCorrupt { .. })),
            "{len} bytes"
        );
    }
}

#[test]
fn stops_are_the_union_of_all_files() {
    for (name, want) in [("step3p5", vec![1, 2, 4]), ("hy_v3", vec![1505])] {
        let tokenizer = Tokenizer::from_dir(&data(name)).unwrap();
        assert_eq!(
            stop_set(&data(name), &tokenizer).unwrap().into_iter().collect::<Vec<_>>(),
            want,
            "{name}"
        );
    }
}
