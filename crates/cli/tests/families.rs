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
    place.run(&none).refused("no head in it", "missing_tensor", &["eh_proj"]);
    let foreign = ["inspect", &bare, "--head", &golden("step3p5-tiny")];
    place.run(&foreign).refused("another family", "shape_mismatch", &["model_type"]);
}

/// Converted with the widths that are offered by default, read back, chatted with.
#[test]
fn a_converted_folder_chats_and_says_what_it_is() {
    let place = Place::new();
    let target = place.path("step-4bit").to_string_lossy().into_owned();
    // What an interrupted conversion leaves is no obstacle.
    std::fs::create_dir_all(&target).unwrap();
    std::fs::write(place.path("step-4bit/model.safetensors.partial"), "half").unwrap();
    let run = place.run(&["convert", &golden("step3p5-tiny"), &target, "--bits", "4", "--json"]);
    let last = run.result();
    assert_eq!(last["head"], true);
    let storages: Vec<&String> = last["by_storage"].as_object().unwrap().keys().collect();
    assert_eq!(storages, ["4-bit g64", "8-bit g64", "bf16", "f32"]);
    let progress: Vec<u64> = run
        .lines()
        .iter()
        .filter_map(|l| Some(l["done"].as_u64()? * 100 / l["total"].as_u64()?))
        .collect();
    assert_eq!(progress.last(), Some(&100));
    assert!(progress.is_sorted() && progress.len() > 3, "{progress:?}");
    let files: Vec<_> =
        std::fs::read_dir(&target).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(!files.iter().any(|f| f.to_string_lossy().ends_with(".partial")), "{files:?}");

    let report = place.run(&["inspect", &target, "--load", "--json"]).result();
    assert_eq!(report["notes"], serde_json::json!([]));
    let conventions: Vec<_> =
        report["norms"].as_array().unwrap().iter().map(|n| n["convention"].clone()).collect();
    assert_eq!(conventions, ["one_added", "one_added"]);
    let load = &report["load"];
    assert!(load["loadMs"].as_f64().unwrap() > 0.0 && load["resident"].as_u64().unwrap() > 0);
    let original = place.run(&["inspect", &golden("step3p5-tiny"), "--json"]).result();
    assert_eq!(original["norms"][0]["convention"], "as_trained");
    assert_eq!(original["load"], serde_json::Value::Null);

    let args = ["chat", &target, "--prompt", "Once upon a time", "--temperature", "0"];
    let reply = place.run(&[&args[..], &["--max-tokens", "40", "--json"]].concat()).result();
    assert!(drafted(&reply) > 0);
}
