//! A head from another folder through `App`, and what the tiny checkpoints of the real families say in a chat.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::*;
use foretoken_app::{App, Paths};
use foretoken_protocol::*;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn open(dir: &Path) -> App {
    let paths = Paths {
        data: dir.to_owned(),
        starter: None,
        hub_cache: dir.join("hub"),
        lm_studio: Vec::new(),
    };
    App::open(paths).unwrap()
}

/// An app that knows these fixtures as folders the person added.
fn with_models(names: &[&str]) -> (TempDir, App) {
    let dir = tempfile::tempdir().unwrap();
    let app = open(dir.path());
    for name in names {
        app.model_add_folder(AddFolder { folder: golden(name) }).unwrap();
    }
    (dir, app)
}

fn set(app: &App, id: &str, head: Option<&str>) -> Result<Vec<ModelEntry>, WireError> {
    app.model_set_head(SetModelHead { id: id.to_owned(), head: head.map(str::to_owned) })
}

fn loaded(app: &App, id: &str) -> LoadedModel {
    match load(app, id).pop() {
        Some(LoadEvent::Ready { model }) => *model,
        other => panic!("{other:?}"),
    }
}

fn refused(app: &App, id: &str) -> WireError {
    match load(app, id).pop() {
        Some(LoadEvent::Failed { error }) => error,
        other => panic!("{other:?}"),
    }
}

/// Text of a greedy reply, and how many tokens were drafted for it.
fn answer(app: &App, draft: DraftMode) -> (String, u32) {
    let events = say(app, new_chat(app), "Once upon a time", options(draft, 40), quietly);
    let thought = events.iter().filter_map(|event| match event {
        ChatEvent::Step { thought, .. } => Some(thought.as_str()),
        _ => None,
    });
    let thought: String = thought.collect();
    (thought + &text(&events), finished(&events).1.drafted.iter().sum())
}

const DEEP: DraftMode = DraftMode::Fixed { depth: 3 };

#[test]
fn a_head_from_another_folder_drafts_and_leaves_the_text_as_it_is() {
    let (bare, donor) = (golden("hy_v3-tiny-headless"), golden("hy_v3-tiny-head"));
    let (dir, app) = with_models(&["hy_v3-tiny-headless", "hy_v3-tiny"]);
    let heads = |entries: &[ModelEntry]| -> Vec<(Option<bool>, Option<String>)> {
        entries.iter().map(|e| (e.own_head, e.head.clone())).collect()
    };
    let before = app.models_list().unwrap();
    assert_eq!(heads(&before), [(Some(false), None), (Some(true), None)]);
    assert!(!loaded(&app, &bare).report.head.found);
    let (plain, none) = answer(&app, DEEP);
    assert_eq!(none, 0);

    let entries = set(&app, &bare, Some(&donor)).unwrap();
    assert_eq!(heads(&entries), [(Some(false), Some(donor.clone())), (Some(true), None)]);
    // Loading the model that is loaded takes the head up.
    let head = loaded(&app, &bare).report.head;
    assert_eq!(
        (head.found, head.sentence.as_str()),
        (true, "MTP head with one level in mtp.safetensors, from hy_v3-tiny-head.")
    );
    let (grafted, drafted) = answer(&app, DEEP);
    assert!(drafted > 0);
    assert_eq!(grafted, plain);

    // The window's settings may be from before: they do not take the head away.
    let old = Settings { theme: Theme::Dark, ..Settings::default() };
    assert_eq!(app.settings_set(old).unwrap().model_heads.get(&bare), Some(&donor));
    app.shutdown();
    drop(app);
    let app = open(dir.path());
    assert!(loaded(&app, &bare).report.head.found, "a restart keeps it");
    set(&app, &bare, None).unwrap();
    assert!(!loaded(&app, &bare).report.head.found);
    assert_eq!(answer(&app, DEEP), (plain, 0));
}

#[test]
fn a_pruned_trunk_takes_the_whole_head_of_another_model() {
    let (_dir, app) = with_models(&["hy_v3-tiny-reap"]);
    let reap = golden("hy_v3-tiny-reap");
    loaded(&app, &reap);
    let (plain, _) = answer(&app, DraftMode::Off);
    set(&app, &reap, Some(&golden("hy_v3-tiny-mlx-w2q3"))).unwrap();
    let model = loaded(&app, &reap);
    assert!(model.report.head.sentence.ends_with(", from hy_v3-tiny-mlx-w2q3."), "{model:?}");
    let experts = |kind: &str| {
        let of = model.report.quantisation.iter().filter(|q| q.kind == kind);
        of.map(|q| (q.storage.clone(), q.modules)).collect::<Vec<_>>()
    };
    assert_eq!(experts("experts"), [("bf16".to_owned(), 3 * 3 * 4)]);
    assert!(experts("head experts").iter().all(|(storage, _)| storage.contains("-bit")));
    let (text, drafted) = answer(&app, DEEP);
    assert!(drafted > 0);
    assert_eq!(text, plain);
}

#[cfg(unix)]
#[test]
fn a_repository_of_the_hub_cache_is_named_by_its_name() {
    let (dir, app) = with_models(&["hy_v3-tiny-headless"]);
    let snapshots = dir.path().join("hub/models--acme--head/snapshots");
    std::fs::create_dir_all(&snapshots).unwrap();
    std::os::unix::fs::symlink(golden("hy_v3-tiny-head"), snapshots.join("0123abc")).unwrap();
    let bare = golden("hy_v3-tiny-headless");
    let entries = set(&app, &bare, Some("acme/head")).unwrap();
    assert_eq!(entries[0].head.as_deref(), Some("acme/head"));
    let sentence = loaded(&app, &bare).report.head.sentence;
    assert!(sentence.ends_with(", from acme/head."), "{sentence}");
}

#[cfg(unix)]
#[test]
fn the_starter_takes_its_head_from_the_folder_it_is_published_in() {
    let _guard = alone();
    let dir = tempfile::tempdir().unwrap();
    let bare = dir.path().join("bare");
    std::fs::create_dir(&bare).unwrap();
    for entry in std::fs::read_dir(starter()).unwrap().map(Result::unwrap) {
        if entry.file_name() != "mtp.safetensors" {
            std::os::unix::fs::symlink(entry.path(), bare.join(entry.file_name())).unwrap();
        }
    }
    let app = open(dir.path());
    let bare = bare.to_string_lossy().into_owned();
    assert!(!loaded(&app, &bare).report.head.found);
    let head = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/starter-head");
    set(&app, &bare, Some(&head.to_string_lossy())).unwrap();
    let sentence = loaded(&app, &bare).report.head.sentence;
    assert_eq!(sentence, "MTP head with one level in mtp.safetensors, from starter-head.");
    let (plain, _) = answer(&app, DraftMode::Off);
    let (text, drafted) = answer(&app, DEEP);
    assert!(drafted > 0);
    assert_eq!(text, plain);
}

#[test]
fn what_holds_no_head_is_refused_when_it_is_chosen() {
    let (dir, app) = with_models(&["hy_v3-tiny-headless"]);
    let bare = golden("hy_v3-tiny-headless");
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let (empty, gone) =
        (empty.to_string_lossy().into_owned(), dir.path().join("gone").display().to_string());
    let damaged = dir.path().join("damaged");
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(damaged.join("config.json"), r#"{"model_type": "hy_v3"}"#).unwrap();
    std::fs::write(damaged.join("mtp.safetensors"), "no safetensors").unwrap();
    let damaged = damaged.to_string_lossy().into_owned();
    for (id, head, code, words) in [
        (&bare, gone.as_str(), ErrorCode::NotFound, "not on this machine"),
        (&bare, "acme/none", ErrorCode::NotFound, "not on this machine"),
        (&bare, &empty, ErrorCode::NotFound, "no MTP head"),
        (&bare, &bare, ErrorCode::NotFound, "no MTP head"),
        (&bare, &damaged, ErrorCode::Corrupt, "mtp.safetensors"),
        (&gone, &golden("hy_v3-tiny-head"), ErrorCode::NotFound, "gone"),
    ] {
        let error = set(&app, id, Some(head)).unwrap_err();
        assert_eq!(error.code, code, "{head}: {error:?}");
        assert!(error.message.contains(words) && error.message.ends_with('.'), "{error:?}");
        assert!(error.message.matches(". ").count() >= 1, "no next step: {error:?}");
    }
    assert!(app.info().settings.model_heads.is_empty());
    set(&app, &gone, None).unwrap();
}

/// The head by itself with another configuration, which its tensors or the trunk contradict.
fn wrong_head(dir: &Path, name: &str, key: &str, value: u64) -> String {
    let (from, to) = (PathBuf::from(golden("hy_v3-tiny-head")), dir.join(name));
    std::fs::create_dir(&to).unwrap();
    std::fs::copy(from.join("mtp.safetensors"), to.join("mtp.safetensors")).unwrap();
    let config = std::fs::read(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config[key] = value.into();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    to.to_string_lossy().into_owned()
}

#[test]
fn a_head_that_does_not_fit_fails_the_load_and_the_model_before_answers() {
    let (dir, app) = with_models(&["hy_v3-tiny-headless", "hy_v3-tiny"]);
    let (bare, whole) = (golden("hy_v3-tiny-headless"), golden("hy_v3-tiny"));
    let name = loaded(&app, &whole).name;
    let before = answer(&app, DEEP);
    assert!(before.1 > 0);
    for (name, key, value, words) in [
        ("wide", "hidden_size", 192, vec!["hidden_size", "192", "128"]),
        ("foreign", "vocab_size", 2048, vec!["vocab_size", "2048", "1536"]),
        ("lying", "head_dim", 64, vec!["self_attn", "[512, 128]", "[256, 128]"]),
    ] {
        set(&app, &bare, Some(&wrong_head(dir.path(), name, key, value))).unwrap();
        let error = refused(&app, &bare);
        assert_eq!(error.code, ErrorCode::ShapeMismatch, "{error:?}");
        for word in words {
            assert!(error.message.contains(word), "{error:?} lacks {word}");
        }
    }
    set(&app, &bare, Some(&golden("step3p5-tiny"))).unwrap();
    let error = refused(&app, &bare);
    assert!(error.message.contains("model_type is step3p5"), "{error:?}");

    let moved = wrong_head(dir.path(), "moved", "num_experts", 8);
    set(&app, &bare, Some(&moved)).unwrap();
    std::fs::remove_dir_all(&moved).unwrap();
    let error = refused(&app, &bare);
    assert_eq!(error.code, ErrorCode::NotFound);
    assert!(error.message.contains("MTP head") && error.message.contains(&moved), "{error:?}");

    assert_eq!(app.info().model.unwrap().name, name);
    assert_eq!(answer(&app, DEEP), before);
}

#[test]
fn step_begins_in_thought_and_hy3_in_the_answer() {
    let (_dir, app) = with_models(&["step3p5-tiny", "hy_v3-tiny"]);
    for (model, thinks) in [("step3p5-tiny", true), ("hy_v3-tiny", false)] {
        assert_eq!(loaded(&app, &golden(model)).thinks, thinks, "{model}");
        let id = new_chat(&app);
        let events = say(&app, id, "Once upon a time", options(DEEP, 24), quietly);
        let first = events.iter().find_map(|event| match event {
            ChatEvent::Step { text, thought, .. } if !text.is_empty() || !thought.is_empty() => {
                Some((!thought.is_empty(), !text.is_empty()))
            }
            _ => None,
        });
        assert_eq!(first, Some((thinks, !thinks)), "{model}");
        assert_eq!(chat(&app, id)[1].thought.is_some(), thinks, "{model}");
    }
}
