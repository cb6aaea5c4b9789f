//! What a person does with the window, from the first start to a broken disk.

use foretoken_e2e::{Home, Window, copy, golden, play, until};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// The starter model answers with well over a thousand tokens: enough for everything that is done meanwhile.
const LONG: &str =
    "Write a very long and detailed story about a lighthouse keeper, a storm and a ship.";
const CODE: &str =
    "Write a Python function that checks whether a string is a palindrome, and explain it.";

const ESCAPE: &str = "\u{e00c}";
const ENTER: &str = "\u{e007}";
const DELETE: &str = "\u{e017}";
const F2: &str = "\u{e032}";

/// Waits until the app has stored it.
async fn stored(window: &Window, what: &str, value: serde_json::Value) {
    until(&format!("{what} is {value} in the settings"), || async {
        let settings = window.settings().await;
        let found = settings.pointer(what)?;
        let same = match (found.as_f64(), value.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() < 1e-6,
            _ => *found == value,
        };
        same.then_some(())
    })
    .await
}

/// Fills a field of the sampling form, which is opened and closed for it.
async fn set_sampling(window: &Window, field: &str, value: &str) {
    window.click("sampling-button").await;
    window.fill(field, value).await;
    window.press(field, ESCAPE).await;
}

/// The sentence about drafting, once it begins like this.
async fn drafting_says(window: &Window, starts: &[&str]) -> String {
    until(&format!("the panel says {starts:?}"), || async {
        let line = window.text("drafting-line").await?;
        starts.iter().any(|start| line.starts_with(start)).then_some(line)
    })
    .await
}

#[tokio::test]
async fn a_chat_is_answered_measured_stopped_and_kept() {
    let home = Home::empty();
    let (teller, told) = std::sync::mpsc::channel();

    play(&home, "first-start", |window| async move {
        window.usable("composer").await;
        let usable = window.opened.elapsed();
        window.send(LONG).await;
        let sent = Instant::now();
        window.wait_for_text().await;
        eprintln!(
            "ms: window open {} after the start; then composer usable {}, first text {} ({} after sending)",
            (window.opened - window.began).as_millis(),
            usable.as_millis(),
            window.opened.elapsed().as_millis(),
            sent.elapsed().as_millis(),
        );

        // Drafting: the numbers are there and move.
        drafting_says(&window, &["Drafting on", "Drafting paused"]).await;
        let accepted = window.number("live-accept").await;
        window.number("live-tokens-per-cycle").await;
        window.changed("live-accept", &accepted).await;

        // The switch works in the middle of the reply: nothing more is drafted, and then again.
        window.click("draft-switch").await;
        let off = drafting_says(&window, &["Drafting off."]).await;
        assert_eq!(switch(&window).await.as_deref(), Some("false"));
        let (rate, now) = (accept_rate(&window).await, window.number("live-now").await);
        let plain = window.changed("live-now", &now).await;
        assert_eq!(accept_rate(&window).await, rate, "something was drafted");
        window.fill("depth-select", "2").await;
        let on = drafting_says(&window, &["Drafting on, depth 2"]).await;
        assert_eq!(switch(&window).await.as_deref(), Some("true"));
        until("something is drafted", || async {
            (accept_rate(&window).await != rate).then_some(())
        })
        .await;
        let drafted = window.changed("live-now", &plain).await;
        eprintln!("{plain} tok/s: {off} {drafted} tok/s: {on}");
        for says in ["Drafting off.", "Drafting on, depth 2"] {
            window.click("draft-switch").await;
            drafting_says(&window, &[says]).await;
        }
        let (now, whole) = (speed(&window, "live-now").await, speed(&window, "live-reply").await);
        assert!(now > whole / 5.0 && now < whole * 5.0, "{now} now, {whole} over the reply");
        assert!(window.streaming().await, "all of that happened while the reply ran");

        window.click("stop").await;
        let stopped = window.finished().await;
        set_sampling(&window, "temperature-input", "0.3").await;
        stored(&window, "/options/sampling/temperature", json!(0.3)).await;
        assert_eq!(window.reply().await.as_ref(), Some(&stopped), "text came after the stop");
        set_sampling(&window, "temperature-input", "").await;
        stored(&window, "/options/sampling/temperature", json!(null)).await;
        teller.send(stopped).ok();
    })
    .await;

    let stopped = told.recv().expect("the first window left its text");
    play(&home, "second-start", |window| async move {
        window.click("chat-item").await;
        window.contains("message'][data-role='user", "lighthouse").await;
        until("the stopped reply is as it was", || async {
            (window.reply().await? == stopped).then_some(())
        })
        .await;

        window.fill("depth-select", "auto").await;
        stored(&window, "/options/draft/kind", json!("auto")).await;
        window.click("new-chat").await;
        window.send(CODE).await;
        window.wait_for_text().await;
        window.finished().await;
        window.shot("window-light").await;
        window.click(".foot .row:last-child").await;
        window.click("[name='theme'][value='dark']").await;
        until("the page is dark", || async { (window.lightness().await? < 100).then_some(()) })
            .await;
        stored(&window, "/theme", json!("dark")).await;
        window.click("chat-item").await;
        window.client.refresh().await.expect("the page loads again");
        until("the page is dark again", || async {
            (window.lightness().await? < 100).then_some(())
        })
        .await;
        window.click("chat-item").await;
        window.wait_for_text().await;
        begin_again(&window).await;
        until("a good part of the reply is written again", || async {
            (window.reply().await?.len() > 200).then_some(())
        })
        .await;
        window.shot("window-dark").await;
        window.finished().await;
    })
    .await;
}

/// Answers again, and waits until the new reply stands where the old one was.
async fn begin_again(window: &Window) {
    let newest = "message'][data-role='assistant";
    window.mark(newest).await;
    window.click("[aria-label='Answer again']").await;
    until("another reply takes the place of the old one", || async {
        let there = window.reply().await.is_some();
        (there && window.attribute(newest, "data-marked").await.is_none()).then_some(())
    })
    .await;
}

async fn switch(window: &Window) -> Option<String> {
    window.attribute("draft-switch", "aria-checked").await
}

/// Of the first draft, to four places.
async fn accept_rate(window: &Window) -> Option<String> {
    window.attribute("live-depth-1", "data-rate").await
}

async fn speed(window: &Window, id: &str) -> f64 {
    window.number(id).await.parse().expect("a number")
}

#[tokio::test]
async fn what_is_set_is_used() {
    let home = Home::empty();
    model(&home.path("chosen"), UNKNOWN, &shard(64));

    play(&home, "settings", |window| async move {
        // The smallest window holds everything it needs.
        window.resize(640, 480).await;
        set_sampling(&window, "maxTokens-input", "60").await;
        stored(&window, "/options/maxTokens", json!(60)).await;
        window.send(CODE).await;
        window.wait_for_text().await;
        for part in ["composer", "stop", "live-strip", "draft-switch", "model-name"] {
            assert!(window.inside(part).await, "{part} is not inside the smallest window");
        }
        window.shot("window-small").await;
        window.finished().await;
        window.resize(1280, 800).await;
        window.wait_for_text().await;
        let drafted = window.finished().await;
        window.contains(".foot .ending", "longest reply").await;
        let fill = window.text("[aria-label^='Context:']").await.expect("the context is shown");
        assert!(fill.ends_with('%') && fill != "0%", "context fill: {fill}");

        // The same text without drafting.
        let again = || async {
            begin_again(&window).await;
            window.finished().await
        };
        window.click("draft-switch").await;
        stored(&window, "/options/draft/kind", json!("off")).await;
        assert_eq!(again().await, drafted);

        // A seed repeats a sampled text, another seed gives another one.
        set_sampling(&window, "temperature-input", "1,5").await;
        set_sampling(&window, "seed-input", "7").await;
        stored(&window, "/options/sampling/seed", json!(7)).await;
        let seven = again().await;
        assert_ne!(seven, drafted);
        assert_eq!(again().await, seven);
        set_sampling(&window, "seed-input", "8").await;
        stored(&window, "/options/sampling/seed", json!(8)).await;
        assert_ne!(again().await, seven);

        // What cannot be is said beside the field and not stored.
        window.click("sampling-button").await;
        window.fill("temperature-input", "hot").await;
        window.contains(".note.problem", "Temperature is a number").await;
        window.press("temperature-input", ESCAPE).await;
        stored(&window, "/options/sampling/temperature", json!(1.5)).await;

        // The system prompt is read: the prompt gets longer than before.
        let prompt = prompt_tokens(&window).await;
        let rules = "You answer every question with a short poem, and you never write any code at all, \
            whatever you are asked and whoever asks you, because you are a poet who lives by the sea.";
        window.click("sampling-button").await;
        window.fill("system-prompt-input", rules).await;
        window.press("temperature-input", ESCAPE).await;
        stored(&window, "/options/systemPrompt", json!(rules)).await;
        again().await;
        let longer = prompt_tokens(&window).await;
        assert!(longer > prompt, "{longer} prompt tokens with the instructions, {prompt} before");
        window.click("sampling-button").await;
        window.click("sampling-reset").await;
        stored(&window, "/options/sampling/seed", json!(null)).await;
        stored(&window, "/options/systemPrompt", json!(null)).await;
        window.press("temperature-input", ESCAPE).await;

        // A chat gets a name, is found by a word in it, and goes.
        window.press("chat-item", F2).await;
        window.fill("[aria-label='Name of the chat']", "About palindromes").await;
        window.press("[aria-label='Name of the chat']", ENTER).await;
        window.contains("chat-item", "About palindromes").await;
        window.fill("#chat-search", "whether").await;
        window.contains(".hit", "About palindromes").await;
        window.fill("#chat-search", "zebra crossing").await;
        window.contains(".none", "Nothing found").await;
        window.fill("#chat-search", "").await;

        // A model that cannot be loaded leaves the one before in its place.
        let name = window.number("model-name").await;
        window.click(".foot .row").await;
        window.click("[aria-labelledby='models-title'] header .button").await;
        window.click("[aria-label='chosen'] .button").await;
        window.contains("error-banner", "nonsuch").await;
        window.click("chat-item").await;
        assert_eq!(window.changed("model-name", "No model").await, name);
        set_sampling(&window, "maxTokens-input", "20").await;
        stored(&window, "/options/maxTokens", json!(20)).await;
        again().await;

        window.press("chat-item", DELETE).await;
        window.click(".ask .danger").await;
        until("the chat is gone", || async {
            window.look("chat-item").await.is_none().then_some(())
        })
        .await;
        let chats = window.call("chats_list", json!({})).await.expect("chats_list answers");
        assert_eq!(chats, json!([]));
    })
    .await;
}

/// Of the newest reply, as stored.
async fn prompt_tokens(window: &Window) -> u64 {
    let chats = window.call("chats_list", json!({})).await.expect("chats_list answers");
    let open = json!({ "req": { "chatId": chats[0]["id"] } });
    let chat = window.call("chat_open", open).await.expect("chat_open answers");
    chat["messages"]
        .as_array()
        .and_then(|messages| messages.last())
        .and_then(|message| message["stats"]["prompt_tokens"].as_u64())
        .expect("a reply with numbers")
}

/// A repack that lost its head gets one from another folder, and drafting becomes available.
#[tokio::test]
async fn a_head_from_another_folder_makes_drafting_available() {
    let home = Home::empty();
    let bare = home.path("headless");
    copy(&golden("hy_v3-tiny-headless"), &bare);
    copy(&golden("hy_v3-tiny-head"), &home.path("chosen"));
    let options = json!({
        "draft": { "kind": "fixed", "depth": 2 }, "rule": "residual", "maxTokens": 48,
        "sampling": { "temperature": 0.0 },
    });
    let settings = json!({ "modelFolders": [bare], "lastModel": bare, "options": options });
    fs::create_dir_all(home.path("data/foretoken")).expect("writable");
    fs::write(home.path("data/foretoken/settings.json"), settings.to_string()).expect("writable");

    play(&home, "graft", |window| async move {
        window.contains("model-name", "headless").await;
        window.contains("drafting-line", "Choose a head for it under Models.").await;
        assert!(!window.find("draft-switch").await.is_enabled().await.expect("a switch"));

        window.click("add-head").await;
        const FIELD: &str = "[aria-label='MTP head of headless']";
        until("the button has the focus", || async {
            let text = window.client.active_element().await.ok()?.text().await.ok()?;
            text.contains("MTP head from another folder").then_some(())
        })
        .await;
        window.shot("models-without-head").await;
        window.click(&format!("{FIELD} button")).await;
        window.contains(FIELD, "MTP head from chosen").await;
        window.contains("[aria-label='headless']", "in mtp.safetensors, from chosen.").await;
        window.shot("models-with-head").await;

        window.click("new-chat").await;
        assert!(window.usable("draft-switch").await.is_enabled().await.expect("a switch"));
        window.send("Once upon a time").await;
        window.wait_for_text().await;
        window.finished().await;
        window.contains("drafting-line", "Drafting on, depth 2").await;
        let accepted = window.number("live-accept").await;
        assert!(accepted.ends_with('%'), "accepted: {accepted}");
    })
    .await;
    // It is there at the next start, too.
    play(&home, "graft-kept", |window| async move {
        window.contains("model-name", "headless").await;
        assert!(window.usable("draft-switch").await.is_enabled().await.expect("a switch"));
    })
    .await;
}

#[tokio::test]
async fn a_broken_model_or_history_is_a_sentence_and_the_chats_stay() {
    let home = Home::empty();
    let broken = ["gone", "truncated", "unknown"].map(|name| home.path("models").join(name));
    model(&broken[1], include_str!("../../../assets/starter-head/config.json"), &shard(32));
    model(&broken[2], UNKNOWN, &shard(64));

    let first = broken[0].clone();
    play(&home, "before-broken", |window| async move {
        window.send("Say hello.").await;
        window.wait_for_text().await;
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
        window.wait_for_text().await;
    })
    .await;
}

async fn load_at_next_start(window: &Window, model: Option<&Path>) {
    window.change_settings(|settings| settings["lastModel"] = json!(model)).await;
}

const UNKNOWN: &str = r#"{"model_type": "nonsuch", "hidden_size": 8}"#;

fn model(folder: &Path, config: &str, shard: &[u8]) {
    fs::create_dir_all(folder).expect("writable");
    fs::write(folder.join("config.json"), config).expect("writable");
    fs::write(folder.join("model.safetensors"), shard).expect("writable");
}

/// One tensor of 64 bytes, of which so many are there.
fn shard(bytes: usize) -> Vec<u8> {
    let header = br#"{"model.norm.weight":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + bytes, 0);
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
