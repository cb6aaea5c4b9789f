//! What a person does with the window, from the first start to a broken disk.

use foretoken_e2e::{Home, Window, play, until};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Long enough for everything that is done while the reply runs.
const LONG: &str =
    "Write the numbers from one to one thousand, each on its own line, without leaving any out.";

async fn wait_for_text(window: &Window) {
    until("the reply has text", || async { window.reply().await.filter(|t| !t.trim().is_empty()) })
        .await;
}

/// The reply ended, and what it says.
async fn finished(window: &Window) -> String {
    until("the reply ends", || async { (!window.streaming().await).then_some(()) }).await;
    window.reply().await.expect("the reply stays on the page")
}

async fn set_temperature(window: &Window, value: &str) {
    let shown = match window.look("temperature-input").await {
        Some(input) => input.is_displayed().await.unwrap_or(false),
        None => false,
    };
    if !shown {
        window.click("sampling-button").await;
    }
    let input = window.usable("temperature-input").await;
    // Typing into a number field depends on its caret; the page hears the same event either way.
    let script = "const [input, value] = arguments; input.value = value;
        for (const kind of ['input', 'change']) input.dispatchEvent(new Event(kind, { bubbles: true }))";
    let element = serde_json::to_value(&input).expect("an element reference");
    window
        .client
        .execute(script, vec![element, json!(value)])
        .await
        .expect("the page runs scripts");
    window
        .client
        .active_element()
        .await
        .expect("something has focus")
        .send_keys("\u{e00c}")
        .await
        .ok();
    let in_use = || async {
        let info = window.call("app_info", json!({})).await.ok()?;
        let stored = info["settings"]["options"]["sampling"]["temperature"].as_f64()?;
        ((stored - value.parse::<f64>().ok()?).abs() < 1e-6).then_some(())
    };
    until("the temperature is what new replies use", in_use).await;
}

#[tokio::test]
async fn a_chat_is_answered_measured_stopped_and_kept() {
    let home = Home::empty();
    let (teller, told) = std::sync::mpsc::channel();

    play(&home, "first-start", |window| async move {
        window.usable("composer").await;
        eprintln!("composer usable after {:?}", window.began.elapsed());
        window.send(LONG).await;
        wait_for_text(&window).await;
        eprintln!("first token after {:?}", window.began.elapsed());

        // Drafting: the numbers are there and move.
        let accepted = number(&window, "live-accept").await;
        let per_cycle = number(&window, "live-tokens-per-cycle").await;
        window.changed("live-accept", &accepted).await;

        // The switch works in the middle of the reply, both ways.
        for _ in 0..2 {
            let (now, line) =
                (number(&window, "live-now").await, number(&window, "drafting-line").await);
            let drafting = window.attribute("draft-switch", "aria-checked").await;
            window.click("draft-switch").await;
            window.changed("drafting-line", &line).await;
            assert_ne!(window.attribute("draft-switch", "aria-checked").await, drafting);
            window.changed("live-now", &now).await;
        }
        window.changed("live-tokens-per-cycle", &per_cycle).await;
        assert!(window.streaming().await, "all of that happened while the reply ran");

        window.click("stop").await;
        let stopped = finished(&window).await;
        set_temperature(&window, "0.3").await;
        assert_eq!(window.reply().await.as_ref(), Some(&stopped), "text came after the stop");
        teller.send(stopped).ok();
    })
    .await;

    let stopped = told.recv().expect("the first window left its text");
    play(&home, "second-start", |window| async move {
        window.click("chat-item").await;
        window.contains("message'][data-role='user", "one thousand").await;
        until("the stopped reply is as it was", || async {
            (window.reply().await? == stopped).then_some(())
        })
        .await;

        window.send("And now a short poem about the sea.").await;
        wait_for_text(&window).await;
        window.shot("window-light").await;
        window.stop().await;
        window.change_settings(|settings| settings["theme"] = json!("dark")).await;
        window.client.refresh().await.expect("the page loads again");
        until("the page is dark", || async { (window.lightness().await? < 100).then_some(()) })
            .await;
        window.click("chat-item").await;
        wait_for_text(&window).await;
        window.shot("window-dark").await;
    })
    .await;
}

/// What is shown there, once it holds something.
async fn number(window: &Window, id: &str) -> String {
    until(&format!("{id} shows something"), || async {
        window.text(id).await.filter(|text| text.chars().any(char::is_alphanumeric))
    })
    .await
}

#[tokio::test]
async fn a_broken_model_or_history_is_a_sentence_and_the_chats_stay() {
    let home = Home::empty();
    let broken = [
        home.path("models/gone"),
        model(
            &home,
            "truncated",
            include_str!("../../../assets/starter-head/config.json"),
            &truncated_shard(),
        ),
        model(&home, "unknown", r#"{"model_type": "nonsuch", "hidden_size": 8}"#, &[]),
    ];

    let first = broken[0].clone();
    play(&home, "before-broken", |window| async move {
        window.send("Say hello.").await;
        wait_for_text(&window).await;
        window.stop().await;
        window.usable("chat-item").await;
        load_at_next_start(&window, Some(&first)).await;
    })
    .await;
    for at in 0..broken.len() {
        let next = broken.get(at + 1).cloned();
        play(&home, &format!("broken-{at}"), |window| async move {
            let said = until("the error is said", || async {
                window.text("error-banner").await.filter(|text| !text.trim().is_empty())
            })
            .await;
            eprintln!("{said}");
            assert!(said.contains(' ') && said.contains('.'), "not a sentence: {said}");
            window.click("chat-item").await;
            window.contains("message'][data-role='user", "Say hello").await;
            load_at_next_start(&window, next.as_deref()).await;
        })
        .await;
    }

    spoil_history(&home.path("data"));
    play(&home, "broken-history", |window| async move {
        let said = until("the notice is shown", || async {
            window.text("notice").await.filter(|text| !text.trim().is_empty())
        })
        .await;
        eprintln!("{said}");
        window.send("Say hello again.").await;
        wait_for_text(&window).await;
    })
    .await;
}

async fn load_at_next_start(window: &Window, model: Option<&Path>) {
    window.change_settings(|settings| settings["lastModel"] = json!(model)).await;
}

fn model(home: &Home, name: &str, config: &str, shard: &[u8]) -> PathBuf {
    let folder = home.path("models").join(name);
    fs::create_dir_all(&folder).expect("writable");
    fs::write(folder.join("config.json"), config).expect("writable");
    fs::write(folder.join("model.safetensors"), shard).expect("writable");
    folder
}

/// A header that promises 64 bytes of one tensor, and half of them.
fn truncated_shard() -> Vec<u8> {
    let header = br#"{"model.norm.weight":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.extend_from_slice(&[0; 32]);
    file
}

/// Overwrites every chat database below `folder` and forgets its journal.
fn spoil_history(folder: &Path) {
    let mut spoiled = 0;
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("readable").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.starts_with("chats.") || name.starts_with("history.") {
                spoiled += 1;
                if name.ends_with("-wal") || name.ends_with("-shm") {
                    fs::remove_file(path).expect("removable");
                } else {
                    fs::write(path, "this is not a database. ".repeat(500)).expect("writable");
                }
            }
        }
    }
    assert!(spoiled > 0, "no chat database below the data folder");
}
