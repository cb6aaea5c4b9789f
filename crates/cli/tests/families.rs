//! The families of the mission through the real binary: chat with their own heads, a head from another folder.

#![allow(clippy::unwrap_used)] // a test that cannot read its data fails

mod common;

use common::{Place, root};

fn golden(name: &str) -> String {
    root().join("tests/golden").join(name).to_string_lossy().into_owned()
}

fn drafted(result: &serde_json::Value) -> u64 {
    result["drafted"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum()
}

#[test]
fn step_and_hy3_chat_with_their_own_heads() {
    let place = Place::new();
    for model in ["step3p5-tiny", "step3p5-tiny-mlx-4bit", "hy_v3-tiny", "hy_v3-tiny-mlx-w2q3"] {
        let folder = golden(model);
        let reply = |draft: &str| {
            let args = ["chat", &folder, "--prompt", "Once upon a time", "--draft", draft];
            let rest = ["--temperature", "0", "--max-tokens", "40", "--json"];
            place.run(&[&args[..], &rest[..]].concat()).result()
        };
        let (plain, deep) = (reply("off"), reply("3"));
        assert_eq!(plain["token_ids"], deep["token_ids"], "{model}");
        assert_eq!(drafted(&plain), 0, "{model}");
        assert!(drafted(&deep) > 0, "{model}: {deep}");
    }
}

#[test]
fn a_lost_head_comes_back_from_another_folder() {
    let place = Place::new();
    let (bare, donor) = (golden("hy_v3-tiny-headless"), golden("hy_v3-tiny-head"));
    let head = |more: &[&str]| {
        let args = [&["inspect", &bare, "--json"], more].concat();
        place.run(&args).result()["head"].clone()
    };
    let lost = head(&[]);
    assert_eq!(lost["found"], false);
    assert!(lost["sentence"].as_str().unwrap().contains("promises"), "{lost}");
    assert_eq!(head(&["--head", &donor])["found"], true);
    let other = golden("llama-tiny");
    let wrong = place.run(&["inspect", &other, "--head", &donor, "--json"]);
    assert_ne!(wrong.code, 0, "a head of another family on llama");
}
