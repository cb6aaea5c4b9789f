//! The starter model's own tokenizer and template against ids recorded from its reference run.

#![allow(clippy::unwrap_used)] // a test that cannot read its data fails

use foretoken_engine::text::{ChatTemplate, RenderOptions, Tokenizer, TurnText};
use serde_json::Value;
use std::path::Path;

#[test]
fn the_starter_model_reads_and_writes_the_recorded_ids() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = here.join("../../.starter");
    assert!(dir.join("tokenizer.json").is_file(), "the starter model is not built: run ./dev test");
    let tokenizer = Tokenizer::from_dir(&dir).unwrap();
    let template = ChatTemplate::from_dir(&dir, &tokenizer).unwrap();
    let recorded = std::fs::read(here.join("tests/data/text/starter_expected.json")).unwrap();
    let recorded: Vec<Value> = serde_json::from_slice(&recorded).unwrap();
    assert_eq!(recorded.len(), 8);
    for want in recorded {
        let ids = |key: &str| -> Vec<u32> { serde_json::from_value(want[key].clone()).unwrap() };
        let content = want["prompt"].as_str().unwrap().to_owned();
        let turns = [TurnText { role: "user".into(), content, reasoning: None }];
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let rendered = template.render(&turns, &options).unwrap();
        assert_eq!(
            tokenizer.encode(&rendered, false).unwrap(),
            ids("prompt_ids"),
            "{}",
            want["prompt"]
        );
        assert_eq!(tokenizer.decode(&ids("greedy_ids"), false).unwrap(), want["greedy_text"]);
    }
}
