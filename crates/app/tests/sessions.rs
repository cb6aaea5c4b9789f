//! From one reply to the next through `App`: what is reused, what an end, a failure or another model leaves behind.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::*;
use foretoken_app::App;
use foretoken_protocol::*;
use std::path::Path;
use std::sync::mpsc::channel;

#[test]
fn the_second_turn_reads_only_what_is_new() {
    let (_guard, _dir, app) = ready();
    for draft in [DraftMode::Off, DraftMode::Fixed { depth: 3 }] {
        let id = new_chat(&app);
        let first = say(&app, id, STORY, options(draft, 40), quietly);
        let second = say(&app, id, "And then?", options(draft, 8), quietly);
        let (first, second) = (finished(&first).1, finished(&second).1);
        let known = first.prompt_tokens + first.generated_tokens;
        assert!(
            second.reused_tokens + 4 >= known,
            "{draft:?}: {} of {known}",
            second.reused_tokens
        );
        assert!(second.reused_tokens < second.prompt_tokens);
    }
    // Another conversation takes over, then the first one is read again; the text is that of a fresh start.
    let twice: Vec<String> = (0..2)
        .map(|_| text(&say(&app, new_chat(&app), STORY, options(DraftMode::Auto, 30), quietly)))
        .collect();
    assert_eq!(twice[0], twice[1]);
}

/// The starter with a short context: links to its files and another number in its configuration.
#[cfg(unix)]
fn short_starter(dir: &Path, context: usize) -> String {
    let folder = dir.join("short");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(starter()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "config.json" {
            std::os::unix::fs::symlink(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    let config = std::fs::read(starter().join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["max_position_embeddings"] = context.into();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    folder.to_string_lossy().into_owned()
}

#[cfg(unix)]
#[test]
fn the_context_is_a_wall_and_no_cliff() {
    let (_guard, dir, app) = ready();
    let short = short_starter(dir.path(), 64);
    assert!(matches!(load(&app, &short).last(), Some(LoadEvent::Ready { .. })));
    for draft in [DraftMode::Off, DraftMode::Fixed { depth: 8 }] {
        let id = new_chat(&app);
        let mut open_end = options(draft, 1);
        open_end.max_tokens = None;
        let events = say(&app, id, STORY, open_end, quietly);
        assert_order(&events);
        let (reason, stats) = finished(&events);
        assert_eq!(reason, FinishReason::ContextFull);
        assert_eq!(stats.prompt_tokens + stats.generated_tokens, 64);
        let before = chat(&app, id);
        assert_eq!(before[1].finish, Some(FinishReason::ContextFull));

        let events = say(&app, id, "And then?", options(draft, 8), quietly);
        assert_order(&events);
        assert_eq!(failed(&events).code, ErrorCode::ContextFull);
        let after = chat(&app, id);
        assert_eq!(after[..2], before[..], "what was there stays");
        assert_eq!((after[2].text.as_str(), after.len()), ("And then?", 4));
        assert_eq!((after[3].text.as_str(), after[3].finish), ("", Some(FinishReason::Failed)));
        let events = say(&app, new_chat(&app), "Hello", options(draft, 4), quietly);
        assert_eq!(finished(&events).1.generated_tokens, 4);
    }
}

#[test]
fn a_prompt_longer_than_the_model_holds_fails_and_the_chat_goes_on() {
    let (_guard, _dir, app) = ready();
    let id = new_chat(&app);
    say(&app, id, "Hello", options(DraftMode::Auto, 4), quietly);
    let before = chat(&app, id);
    let events = say(&app, id, &"word ".repeat(9_000), options(DraftMode::Auto, 4), quietly);
    assert_order(&events);
    assert_eq!(failed(&events).code, ErrorCode::ContextFull);
    let after = chat(&app, id);
    assert_eq!(after[..2], before[..]);
    assert_eq!(after[3].finish, Some(FinishReason::Failed));
    let events = say(&app, new_chat(&app), "Hello", options(DraftMode::Auto, 4), quietly);
    assert_eq!(text(&events), before[1].text);
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_the_old_one_in_place() {
    let (_guard, dir, app) = ready();
    let model = app.info().model.unwrap();
    let bad = dir.path().join("bad");
    std::fs::create_dir(&bad).unwrap();
    std::fs::write(bad.join("config.json"), r#"{"model_type": "bert"}"#).unwrap();
    std::fs::copy(starter().join("draft_vocab.safetensors"), bad.join("model.safetensors"))
        .unwrap();
    for (id, code) in [
        (bad.to_string_lossy().into_owned(), ErrorCode::Unsupported),
        (dir.path().join("nowhere/at/all").to_string_lossy().into_owned(), ErrorCode::NotFound),
        ("acme/nothing".to_owned(), ErrorCode::NotFound),
        (String::new(), ErrorCode::NotFound),
    ] {
        let events = load(&app, &id);
        let Some(LoadEvent::Failed { error }) = events.last() else { panic!("{id:?}: {events:?}") };
        assert_eq!(error.code, code, "{id:?}");
        assert_eq!(app.info().model.as_ref(), Some(&model));
    }
    assert_eq!(app.info().settings.last_model.as_deref(), Some("starter"));
    let events = say(&app, new_chat(&app), "Hello", options(DraftMode::Auto, 4), quietly);
    assert_eq!(finished(&events).1.generated_tokens, 4);
}

#[test]
fn without_a_model_nothing_is_sent() {
    let (_guard, _dir, app) = ready();
    let id = new_chat(&app);
    app.model_unload().unwrap();
    let refused = app.chat_send(message(id, "Hello", options(DraftMode::Auto, 4)), |_| ());
    assert_eq!(refused.unwrap_err().code, ErrorCode::NoModel);
    assert_eq!(chat(&app, id), []);
    assert_eq!(app.info().model, None);
    assert!(matches!(load(&app, "starter").last(), Some(LoadEvent::Ready { .. })));
    let events = say(&app, id, "Hello", options(DraftMode::Auto, 4), quietly);
    assert_eq!(finished(&events).1.generated_tokens, 4);
}

#[test]
fn a_new_model_stops_the_reply_of_the_old_one() {
    let (_guard, _dir, app) = ready();
    let id = new_chat(&app);
    let held = hold(&app, id, options(DraftMode::Auto, 400));
    let (send, loaded) = channel();
    app.model_load(LoadModel { id: "starter".into(), anyway: false }, move |event| {
        drop(send.send(event))
    })
    .unwrap();
    assert_eq!(finished(&held.finish()).0, FinishReason::Stopped);
    assert!(matches!(loaded.iter().last(), Some(LoadEvent::Ready { .. })));
}

#[test]
fn a_cancelled_load_keeps_the_model() {
    let (_guard, _dir, app) = ready();
    let (send, events) = channel();
    let cancel = app.clone();
    app.model_load(LoadModel { id: "starter".into(), anyway: false }, move |event| {
        if matches!(event, LoadEvent::Progress { .. }) {
            cancel.model_cancel_load().unwrap();
        }
        drop(send.send(event));
    })
    .unwrap();
    assert_eq!(events.iter().last(), Some(LoadEvent::Cancelled));
    let events = say(&app, new_chat(&app), "Hello", options(DraftMode::Auto, 4), quietly);
    assert_eq!(finished(&events).1.generated_tokens, 4);
}

#[test]
fn shutdown_during_a_reply_saves_it_and_may_come_twice() {
    let (_guard, dir, app) = ready();
    let id = new_chat(&app);
    let held = hold(&app, id, options(DraftMode::Auto, 400));
    let ending = app.clone();
    let ended = std::thread::spawn(move || ending.shutdown());
    let events = held.finish();
    ended.join().unwrap();
    app.shutdown();
    assert_eq!(finished(&events).0, FinishReason::Stopped);
    let refused = app.chat_send(message(id, "Hello", options(DraftMode::Auto, 4)), |_| ());
    assert!(refused.is_err());
    app.shutdown();
    drop(app);

    let stored = chat(&open(dir.path()), id);
    assert_eq!(stored[1].text, text(&events));
    assert!(!stored[1].text.is_empty());
    assert_eq!(stored[1].finish, Some(FinishReason::Stopped));
    assert_eq!(stored.len(), 2, "what was refused is not stored");
}

#[test]
fn deleting_the_chat_of_a_running_reply_ends_only_that_reply() {
    let (_guard, _dir, app) = ready();
    let expected = text(&say(&app, new_chat(&app), STORY, options(DraftMode::Auto, 30), quietly));
    let id = new_chat(&app);
    let held = hold(&app, id, options(DraftMode::Auto, 400));
    app.chat_delete(ChatRef { chat_id: id }).unwrap();
    let events = held.finish();
    assert_order(&events);
    assert_eq!(failed(&events).code, ErrorCode::NotFound);
    assert!(lives(&events).last().unwrap().tokens < 400, "it was stopped");
    assert_eq!(app.chat_open(ChatRef { chat_id: id }).unwrap_err().code, ErrorCode::NotFound);
    let other = new_chat(&app);
    let events = say(&app, other, STORY, options(DraftMode::Auto, 30), quietly);
    assert_order(&events);
    assert_eq!(text(&events), expected);
    assert_eq!(chat(&app, other)[1].text, expected);
}

#[test]
fn a_system_prompt_and_earlier_failures_shape_the_next_prompt() {
    let (_guard, _dir, app) = ready();
    let tokens =
        |app: &App, id, options| finished(&say(app, id, "Hello", options, quietly)).1.prompt_tokens;
    let plain = tokens(&app, new_chat(&app), options(DraftMode::Auto, 2));
    let with = |prompt: &str| GenerationOptions {
        system_prompt: Some(prompt.to_owned()),
        ..options(DraftMode::Auto, 2)
    };
    assert_eq!(tokens(&app, new_chat(&app), with("  \n ")), plain, "blank is none");
    assert_ne!(tokens(&app, new_chat(&app), with("Answer in rhymes, always, and briefly.")), plain);
}
