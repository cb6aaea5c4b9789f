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
    // Speed and exactness are measured with it as well.
    let exact = ["exact", &bare, "--prompts", "1", "--max-tokens", "12", "--json"];
    assert!(place.run(&exact).result()["accept_rate_depth_1"].is_null());
    let grafted = place.run(&[&exact[..], &["--head", &donor]].concat()).result();
    assert!(grafted["accept_rate_depth_1"].is_number(), "{grafted}");
    assert_eq!(grafted["different"], serde_json::json!([]));
    let bench = ["bench", &bare, "--prompts", "1", "--max-tokens", "4", "--repetitions", "1"];
    let rest = ["--deepest", "1", "--json", "--head", &donor];
    let report = place.run(&[&bench[..], &rest[..]].concat()).result();
    assert_eq!(report["decode"].as_array().unwrap().len(), 6, "plain and depth 1 of three classes");
    let other = golden("llama-tiny");
    let wrong = place.run(&["inspect", &other, "--head", &donor, "--json"]);
    assert_ne!(wrong.code, 0, "a head of another family on llama");
}

/// A model by the name the library has for it comes with the head that was chosen for it in the window.
#[test]
fn the_head_of_the_library_is_used_unless_another_is_named() {
    let place = Place::new();
    let (bare, donor) = (golden("hy_v3-tiny-headless"), golden("hy_v3-tiny-head"));
    let data = place.path("data/foretoken");
    std::fs::create_dir_all(&data).unwrap();
    let settings = |head: &str| {
        let text = serde_json::json!({"modelFolders": [bare], "modelHeads": {&bare: head}});
        std::fs::write(data.join("settings.json"), text.to_string()).unwrap();
    };
    settings(&donor);
    let listed = place.run(&["list", "--json"]).lines();
    assert!(listed.iter().any(|m| m["head"] == donor.as_str() && m["ownHead"] == false));
    let sentence = |more: &[&str]| {
        let run = place.run(&[&["inspect", &bare, "--json"], more].concat());
        (run.result()["head"]["sentence"].as_str().unwrap().to_owned(), run.stderr)
    };
    let (said, note) = sentence(&[]);
    assert!(said.ends_with(", from hy_v3-tiny-head."), "{said}");
    assert!(note.contains("--head overrides"), "{note}");
    let (said, note) = sentence(&["--head", &golden("hy_v3-tiny")]);
    assert!(said.ends_with(", from hy_v3-tiny."), "{said}");
    assert_eq!(note, "");
    let chat = ["chat", &bare, "--prompt", "Once", "--draft", "2", "--max-tokens", "12", "--json"];
    assert!(drafted(&place.run(&chat).result()) > 0);

    settings("acme/gone");
    let words = ["acme/gone", "not on this machine"];
    place.run(&chat).refused("a head that is gone", "not_found", &words);
    let none = ["inspect", &bare, "--head", &bare];
    place.run(&none).refused("no head in it", "not_found", &["no MTP head"]);
    let foreign = ["inspect", &bare, "--head", &golden("step3p5-tiny")];
    place.run(&foreign).refused("another family", "shape_mismatch", &["model_type"]);
}
