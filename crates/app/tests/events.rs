//! Single replies of the starter model through `App`: the events in their order, and what the chats hold afterwards.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::*;
use foretoken_protocol::*;
use std::sync::mpsc::channel;

#[test]
fn a_reply_arrives_in_order_and_is_stored_as_it_was_shown() {
    let (_guard, dir, app) = ready();
    let id = new_chat(&app);
    let events = say(&app, id, STORY, options(DraftMode::Fixed { depth: 2 }, 60), quietly);
    assert_order(&events);
    let Some(ChatEvent::Accepted { user: Some(user), reply, title }) = events.first() else {
        panic!("{:?}", events.first())
    };
    assert_eq!((user.text.as_str(), user.role), (STORY, Role::User));
    assert_eq!((reply.role, reply.text.as_str(), reply.finish), (Role::Assistant, "", None));
    assert_eq!(title, STORY);

    let prefill: Vec<(u32, u32, u32)> = events
        .iter()
        .filter_map(|event| match event {
            ChatEvent::Prefill { done, total, reused } => Some((*done, *total, *reused)),
            _ => None,
        })
        .collect();
    let (reason, stats) = finished(&events);
    assert_eq!(reason, FinishReason::Length);
    assert!(prefill.iter().all(|p| p.1 == stats.prompt_tokens && p.2 == 0), "{prefill:?}");
    assert!(prefill.is_sorted() && prefill.last().unwrap().0 == stats.prompt_tokens);
    assert_eq!(stats.generated_tokens, 60);
    assert_eq!(stats.rule, "residual");
    let (drafted, accepted) =
        (stats.drafted.iter().sum::<u32>(), stats.accepted.iter().sum::<u32>());
    assert_eq!(stats.cycles + accepted, stats.generated_tokens, "each cycle adds one of its own");
    assert_eq!(stats.accept_rate, Some(f64::from(accepted) / f64::from(drafted)));
    let lives = lives(&events);
    assert!(lives.iter().map(|live| live.tokens).is_sorted());
    assert_eq!(lives.last().unwrap().context_used, stats.prompt_tokens + 60);

    let stored = chat(&app, id);
    assert_eq!(stored.len(), 2);
    assert_eq!((&stored[0], stored[1].id), (user, reply.id));
    assert!(!stored[1].text.is_empty());
    assert_eq!(stored[1].text, text(&events));
    assert_eq!(stored[1].finish, Some(reason));
    assert_eq!(rounded(stored[1].stats.as_ref().unwrap()), rounded(stats));
    app.shutdown();
    drop(app);
    assert_eq!(chat(&open(dir.path()), id), stored, "a restart changes nothing");
}

#[test]
fn greedy_text_does_not_depend_on_drafting() {
    let (_guard, _dir, app) = ready();
    let of = |draft| {
        let events = say(&app, new_chat(&app), STORY, options(draft, 80), quietly);
        (text(&events), finished(&events).1.drafted.iter().sum::<u32>())
    };
    let (plain, none) = of(DraftMode::Off);
    assert_eq!(none, 0);
    let (fixed, some) = of(DraftMode::Fixed { depth: 3 });
    assert!(some > 0);
    assert!(plain.len() > 80);
    assert_eq!(fixed, plain);
    assert_eq!(of(DraftMode::Auto).0, plain);
}

#[test]
fn a_second_reply_is_refused_while_one_runs_and_stop_keeps_its_text() {
    let (_guard, _dir, app) = ready();
    let (id, other) = (new_chat(&app), new_chat(&app));
    let held = hold(&app, id, options(DraftMode::Auto, 400));
    for chat_id in [id, other] {
        let busy = app
            .chat_send(message(chat_id, "me too", options(DraftMode::Auto, 4)), |_| {
                panic!("a refused reply streams nothing")
            })
            .unwrap_err();
        assert_eq!(busy.code, ErrorCode::Busy);
    }
    let running = chat(&app, id);
    let retry = RetryMessage {
        chat_id: id,
        message_id: running[1].id,
        options: options(DraftMode::Auto, 4),
    };
    assert_eq!(app.chat_retry(retry, |_| ()).unwrap_err().code, ErrorCode::Busy);
    assert_eq!(chat(&app, id), running, "nothing was stored");
    assert_eq!(chat(&app, other), []);

    // Another chat's stop is not this one's.
    app.chat_stop(ChatRef { chat_id: other }).unwrap();
    app.chat_stop(ChatRef { chat_id: id }).unwrap();
    let events = held.finish();
    assert_order(&events);
    let (reason, stats) = finished(&events);
    assert_eq!(reason, FinishReason::Stopped);
    assert!(stats.generated_tokens < 400);
    let stored = chat(&app, id);
    assert_eq!(stored[1].text, text(&events));
    assert_eq!(stored[1].finish, Some(FinishReason::Stopped));
    // The stream has ended, so the app is free.
    let events = say(&app, other, "Hello", options(DraftMode::Auto, 4), quietly);
    assert_eq!(finished(&events).1.generated_tokens, 4);
}

#[test]
fn the_end_of_a_reply_may_send_the_next_message() {
    let (_guard, _dir, app) = ready();
    let id = new_chat(&app);
    let (send, second) = channel();
    let again = app.clone();
    let events = say(&app, id, STORY, options(DraftMode::Auto, 4), move |event| {
        if matches!(event, ChatEvent::Finished { .. }) {
            let send = send.clone();
            let next = message(id, "And then?", options(DraftMode::Auto, 4));
            again.chat_send(next, move |event| drop(send.send(event))).unwrap();
        }
    });
    assert_order(&events);
    assert_order(&second.iter().collect::<Vec<_>>());
    assert_eq!(chat(&app, id).len(), 4);
}

#[test]
fn the_switch_acts_within_a_running_reply() {
    let (_guard, _dir, app) = ready();
    let id = new_chat(&app);
    let on = options(DraftMode::Fixed { depth: 2 }, 240);
    let off = GenerationOptions { draft: DraftMode::Off, ..on.clone() };
    let (switch, back) = (app.clone(), on.clone());
    let mut steps = 0;
    let events = say(&app, id, STORY, on, move |event| {
        if matches!(event, ChatEvent::Step { .. }) {
            steps += 1;
            match steps {
                4 => switch.options_set(off.clone()).unwrap(),
                8 => switch.options_set(back.clone()).unwrap(),
                _ => {}
            }
        }
    });
    assert_order(&events);
    let states: Vec<DraftingState> =
        lives(&events).iter().map(|live| live.drafting.state).collect();
    assert!(states.len() > 8, "{states:?}");
    let wrong = states.iter().enumerate().find(|(at, state)| {
        **state != if (4..8).contains(at) { DraftingState::Off } else { DraftingState::On }
    });
    assert_eq!(wrong, None, "{states:?}");
    let drafted =
        |at: usize| lives(&events)[at].by_depth.iter().map(|count| count.drafted).sum::<u32>();
    assert_eq!(drafted(3), drafted(7), "nothing is drafted while the switch is off");
    assert!(drafted(states.len() - 1) > drafted(7));
    assert_eq!(finished(&events).0, FinishReason::Length);
    assert_eq!(app.info().settings.options.draft, DraftMode::Fixed { depth: 2 });
    let plain = say(&app, new_chat(&app), STORY, options(DraftMode::Off, 240), quietly);
    assert_eq!(text(&events), text(&plain));
}

#[test]
fn a_switch_before_the_queued_reply_begins_is_not_lost() {
    let (_guard, _dir, app) = ready();
    let id = new_chat(&app);
    // The engine's thread is kept busy by a load until the options are set.
    let (go, gate) = channel::<()>();
    let (send, loaded) = channel();
    app.model_load(LoadModel { id: "starter".to_owned(), anyway: false }, move |event| {
        if matches!(event, LoadEvent::Ready { .. }) {
            gate.recv().unwrap();
        }
        drop(send.send(event));
    })
    .unwrap();
    let (send, events) = channel();
    let request = message(id, STORY, options(DraftMode::Fixed { depth: 2 }, 24));
    app.chat_send(request, move |event| drop(send.send(event))).unwrap();
    app.options_set(options(DraftMode::Off, 24)).unwrap();
    go.send(()).unwrap();
    assert!(matches!(loaded.iter().last(), Some(LoadEvent::Ready { .. })));
    let events: Vec<ChatEvent> = events.iter().collect();
    assert!(finished(&events).1.drafted.is_empty());
}

#[test]
fn a_retry_replaces_the_reply_and_what_came_after() {
    let (_guard, _dir, app) = ready();
    let id = new_chat(&app);
    say(&app, id, STORY, options(DraftMode::Auto, 24), quietly);
    say(&app, id, "Shorter, please.", options(DraftMode::Auto, 8), quietly);
    let before = chat(&app, id);
    assert_eq!(before.len(), 4);
    let retry =
        |message_id| RetryMessage { chat_id: id, message_id, options: options(DraftMode::Off, 24) };
    for wrong in [before[0].id, before[2].id, 9_999] {
        let refused = app.chat_retry(retry(wrong), |_| ()).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotFound, "only a reply can be written again");
    }
    assert_eq!(chat(&app, id), before);
    let (send, events) = channel();
    app.chat_retry(retry(before[1].id), move |event| drop(send.send(event))).unwrap();
    let events: Vec<ChatEvent> = events.iter().collect();
    assert_order(&events);
    assert!(matches!(events[0], ChatEvent::Accepted { user: None, .. }));
    let after = chat(&app, id);
    assert_eq!(after.len(), 2);
    assert_eq!(after[0], before[0]);
    assert_ne!(after[1].id, before[1].id);
    assert_eq!(after[1].text, before[1].text, "greedy: the same prompt, the same text");
}

#[test]
fn what_is_out_of_range_is_refused_before_anything_is_stored() {
    let (_guard, _dir, app) = ready();
    let id = new_chat(&app);
    let wrong = |change: fn(&mut GenerationOptions)| {
        let mut options = options(DraftMode::Auto, 8);
        change(&mut options);
        options
    };
    for bad in [
        wrong(|o| o.draft = DraftMode::Fixed { depth: 0 }),
        wrong(|o| o.draft = DraftMode::Fixed { depth: 9 }),
        wrong(|o| o.max_tokens = Some(0)),
        wrong(|o| o.sampling.temperature = Some(-0.1)),
        wrong(|o| o.sampling.temperature = Some(f32::NAN)),
        wrong(|o| o.sampling.temperature = Some(f32::INFINITY)),
        wrong(|o| o.sampling.top_p = Some(0.0)),
        wrong(|o| o.sampling.top_p = Some(1.1)),
        wrong(|o| o.sampling.min_p = Some(1.0)),
        wrong(|o| o.sampling.repetition_penalty = Some(0.0)),
        wrong(|o| o.sampling.presence_penalty = Some(f32::NAN)),
    ] {
        let refused = app.chat_send(message(id, "Hello", bad.clone()), |_| ()).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidOption, "{bad:?}");
        assert_eq!(app.options_set(bad.clone()).unwrap_err().code, ErrorCode::InvalidOption);
        let retry = RetryMessage { chat_id: id, message_id: 1, options: bad };
        assert_eq!(app.chat_retry(retry, |_| ()).unwrap_err().code, ErrorCode::InvalidOption);
    }
    let blank = app.chat_send(message(id, " \n", options(DraftMode::Auto, 8)), |_| ());
    assert_eq!(blank.unwrap_err().code, ErrorCode::InvalidOption);
    let nowhere = app.chat_send(message(77, "Hello", options(DraftMode::Auto, 8)), |_| ());
    assert_eq!(nowhere.unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(chat(&app, id), []);
    assert_eq!(
        app.info().settings,
        Settings { last_model: Some("starter".into()), ..Settings::default() }
    );
}
