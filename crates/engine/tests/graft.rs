//! A head from another folder: what is refused, and in which words.

#![allow(clippy::unwrap_used)] // a test that cannot read its data fails

use foretoken_engine::EngineError;
use foretoken_engine::models::{LoadOptions, Model, has_head, load};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn graft(trunk: &str, head: &Path) -> foretoken_engine::Result<Model> {
    load(&golden(trunk), LoadOptions { head: Some(head), ..Default::default() })
}

/// The head by itself, its configuration changed.
fn head_with(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let (from, to) = (golden("hy_v3-tiny-head"), tempfile::tempdir().unwrap());
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(from.join("mtp.safetensors"), to.path().join("mtp.safetensors")).unwrap();
    to
}

#[test]
fn heads_are_seen_by_the_names_of_their_tensors() {
    for (name, has) in [
        ("hy_v3-tiny", true),
        ("hy_v3-tiny-mlx-w2q3", true),
        ("hy_v3-tiny-head", true),
        ("hy_v3-tiny-headless", false),
        ("step3p5-tiny", true),
        ("step3p5-tiny-mlx-4bit", true),
        ("llama-tiny", false),
    ] {
        assert_eq!(has_head(&golden(name)).unwrap(), has, "{name}");
    }
    assert!(matches!(has_head(&golden("nowhere")), Err(EngineError::FolderMissing { .. })));
}

#[test]
fn a_folder_without_a_head_is_no_silent_fallback() {
    for trunk in ["hy_v3-tiny", "hy_v3-tiny-headless"] {
        match graft(trunk, &golden("hy_v3-tiny-headless")) {
            Err(EngineError::HeadIncomplete { missing }) => {
                assert_eq!(missing, ["model.layers.4.eh_proj.weight"]);
            }
            other => panic!("{trunk}: {:?}", other.map(|model| model.head_status)),
        }
    }
}

#[test]
fn what_cannot_fit_is_named() {
    let named = |trunk: &str, head: &Path| match graft(trunk, head) {
        Err(EngineError::HeadMismatch { key, head, trunk }) => (key, head, trunk),
        other => panic!("{trunk}: {:?}", other.map(|model| model.head_status)),
    };
    let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let (key, head, trunk) = named("step3p5-tiny", &golden("hy_v3-tiny-head"));
    assert_eq!((key, (head, trunk)), ("model_type", text("hy_v3", "step3p5")));
    let wide = head_with(|config| config["hidden_size"] = json!(192));
    let (key, head, trunk) = named("hy_v3-tiny-headless", wide.path());
    assert_eq!((key, (head, trunk)), ("hidden_size", text("192", "128")));
    let foreign = head_with(|config| config["vocab_size"] = json!(2048));
    let (key, head, trunk) = named("hy_v3-tiny-headless", foreign.path());
    assert_eq!((key, (head, trunk)), ("vocab_size", text("2048", "1536")));

    // The configuration fits, the tensors do not.
    let lying = head_with(|config| config["head_dim"] = json!(64));
    match graft("hy_v3-tiny-headless", lying.path()) {
        Err(EngineError::ShapeMismatch { name, want, got }) => {
            assert!(name.contains("self_attn"), "{name}");
            assert_ne!(want, got);
        }
        other => panic!("{:?}", other.map(|model| model.head_status)),
    }
}
