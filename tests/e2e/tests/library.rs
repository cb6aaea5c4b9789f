//! Models from a hub, through the window: found, fetched, interrupted, given their head, refused, deleted.

mod hub;

use foretoken_e2e::{Home, Window, golden, play, play_and_kill, until};
use hub::mirror::{Fault, Kind, Logged, Mirror, Stage};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SEARCH: &str = "#model-search";
/// The button beside the search field, and the first one of a model's page.
const LOOK: &str = ".search .button";
const DOWNLOAD: &str = ".lead .button.primary";
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";

/// A repository with the files of a fixture, without what its tests compare with.
fn publish(mirror: &Mirror, repo: &str, fixture: &str) {
    for (name, bytes) in files_of(fixture) {
        mirror.add(repo, &name, bytes);
    }
}

fn files_of(fixture: &str) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for file in fs::read_dir(golden(fixture)).expect("a fixture").flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        if !name.starts_with("golden") && name != "README.md" && !name.starts_with("acceptance") {
            files.push((name, fs::read(file.path()).expect("readable")));
        }
    }
    files
}

/// The hub is the mirror; replies are short and always drafted.
fn asks(home: &Home, mirror: &Mirror) {
    let options = json!({
        "draft": { "kind": "fixed", "depth": 2 }, "rule": "residual", "maxTokens": 48,
        "sampling": { "temperature": 0.0 },
    });
    let settings = json!({ "hubEndpoint": mirror.endpoint, "options": options });
    fs::create_dir_all(home.path("data/foretoken")).expect("writable");
    fs::write(home.path("data/foretoken/settings.json"), settings.to_string()).expect("writable");
}

async fn models(window: &Window) {
    window.usable("composer").await;
    window.click(".foot .row").await;
    window.usable(SEARCH).await;
}

/// Types a name into the field, and looks at what the hub says of it.
async fn look_at(window: &Window, name: &str) {
    window.fill(SEARCH, name).await;
    window.contains(LOOK, &format!("Look at {name}")).await;
    window.press(SEARCH, ENTER).await;
    window.contains("#models-title", name).await;
}

fn card(name: &str) -> String {
    format!("[aria-label='{name}']")
}

fn button(name: &str, n: usize) -> String {
    format!("[aria-label='{name}'] .side .button:nth-of-type({n})")
}

/// The model that is loaded answers, and what it drafted is counted.
async fn drafts(window: &Window) {
    window.click("new-chat").await;
    assert!(window.usable("draft-switch").await.is_enabled().await.expect("a switch"));
    window.send("Once upon a time").await;
    window.wait_for_text().await;
    window.finished().await;
    window.contains("drafting-line", "Drafting on, depth 2").await;
    let accepted = window.number("live-accept").await;
    assert!(accepted.ends_with('%'), "accepted: {accepted}");
}

fn wants_pictures() -> bool {
    std::env::var_os("FORETOKEN_SHOTS").is_some()
}

/// Pictures in both themes and two sizes, for whoever wants to look.
async fn survey(window: &Window, name: &str) {
    if !wants_pictures() {
        return;
    }
    for theme in ["dark", "light"] {
        let script = "document.documentElement.dataset.theme = arguments[0]";
        window.client.execute(script, vec![json!(theme)]).await.expect("the page runs scripts");
        for (width, height) in [(640, 480), (1280, 800)] {
            window.resize(width, height).await;
            window.shot(&format!("{name}-{theme}-{width}")).await;
        }
    }
}

/// The percent a line about a download shows.
fn percent(line: &str) -> Option<u64> {
    let before = line.split('%').next().filter(|before| before.len() < line.len())?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Rows about the bytes of one file, its headers left out.
fn fetches(mirror: &Mirror, file: &str) -> Vec<Logged> {
    let ours = |row: &Logged| row.path.ends_with(file) && row.sent > 0;
    mirror.log().into_iter().filter(ours).collect()
}

fn first_byte(row: &Logged) -> u64 {
    let range =
        row.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split('-').next());
    range.map_or(0, |first| first.parse().expect("a number"))
}

/// Bytes before the data of a safetensors file, and its tensors with their sizes.
fn header(file: &[u8]) -> (u64, Vec<(String, u64)>) {
    let n = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    let tensors: Value = serde_json::from_slice(&file[8..8 + n as usize]).expect("JSON");
    let size = |place: &Value| {
        let at = |i: usize| place["data_offsets"][i].as_u64().expect("a number");
        at(1) - at(0)
    };
    let tensors = tensors.as_object().expect("tensors by name").iter();
    let named = tensors.filter(|(name, _)| *name != "__metadata__");
    (8 + n, named.map(|(name, place)| (name.clone(), size(place))).collect())
}

/// What was asked for is told when a test fails.
struct Told(Arc<Mirror>);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for row in self.0.log() {
                eprintln!("{} {} {:?}: {} bytes", row.status, row.path, row.range, row.sent);
            }
        }
    }
}

const STEP: &str = "acme/step-tiny";
const SHARD: &str = "/model.safetensors";
/// What was sent and had not reached the file when the app was killed.
const ON_ITS_WAY: u64 = 300_000;

#[tokio::test]
async fn a_download_survives_a_lost_line_and_a_killed_app() {
    let (mirror, home) = (Arc::new(Mirror::new()), Home::empty());
    let _told = Told(mirror.clone());
    publish(&mirror, STEP, "step3p5-tiny");
    asks(&home, &mirror);
    let shard = fs::read(golden("step3p5-tiny/model.safetensors")).expect("a fixture");
    let size = shard.len() as u64;
    let data = header(&shard).0;

    let hub = mirror.clone();
    play_and_kill(&home, "download-killed", move |window| async move {
        models(&window).await;
        look_at(&window, STEP).await;
        window.contains("[aria-labelledby='page-facts']", "step3p5").await;
        window.contains("[aria-labelledby='page-facts']", "In its own files").await;
        assert_eq!(window.attribute("fit", "data-fits").await.as_deref(), Some("true"));
        window.contains(DOWNLOAD, "Download (").await;

        // Looking for its head reads its header in two pieces, and then comes the file.
        let drop = Fault::new(Stage::Bytes, SHARD, Kind::Drop(size * 37 / 100));
        hub.fault(Fault { skip: 2, ..drop });
        // It stays broken for a moment.
        hub.fault(Fault::new(Stage::Bytes, SHARD, Kind::Drop(0)).times(2));
        hub.with(|state| state.throttle = Some(1_000_000));
        window.click(DOWNLOAD).await;
        window.contains(".download .why", "what was downloaded is kept").await;
        window.contains("download-line", "It goes on by itself").await;
        let sent: Vec<u64> = fetches(&hub, SHARD).iter().map(|row| row.sent).collect();
        assert!(sent.contains(&(size * 37 / 100)), "{sent:?}");
        // Slow enough to be killed on the way.
        hub.with(|state| state.throttle = Some(400_000));
        until("it goes on by itself", || async {
            let running = window.attribute("download", "data-state").await? == "running";
            let last = fetches(&hub, SHARD).pop()?;
            (running && first_byte(&last) >= data && last.sent > size / 10).then_some(())
        })
        .await;
        window.contains("mark", "Downloading").await;
    })
    .await;
    let before = mirror.log().len();
    let partial = home.path("hub/hub/models--acme--step-tiny/blobs");
    let kept: u64 = fs::read_dir(&partial)
        .expect("it was begun")
        .flatten()
        .filter(|file| file.file_name().to_string_lossy().ends_with(".incomplete"))
        .map(|file| file.metadata().expect("there").len())
        .sum();
    assert!(kept > size * 37 / 100 && kept < size, "{kept} of {size} were there");

    let hub = mirror.clone();
    // A picture takes its time.
    let rate = if wants_pictures() { 200_000 } else { 700_000 };
    hub.with(|state| state.throttle = Some(rate));
    play(&home, "download-resumed", move |window| async move {
        window.click("download-status").await;
        let line = until("the download is shown", || async {
            window.text("download-line").await.filter(|line| percent(line).is_some())
        })
        .await;
        assert!(percent(&line) >= Some(kept * 100 / size - 1), "{line} after {kept} of {size}");
        window.shot("models").await;
        window.contains(&card(STEP), "Ready").await;
        hub.with(|state| state.throttle = None);

        // Every hash beside the hub's, once more.
        window.click(&format!("{} [data-testid='file-tools'] .button", card(STEP))).await;
        let report = window.number("check-result").await;
        assert!(!report.contains("damaged") && !report.contains("missing"), "{report}");
        assert_eq!(
            window.attribute("check-result", "class").await.map(|c| c.contains("bad")),
            Some(false)
        );
        window.click(&button(STEP, 1)).await;
        window.contains(&card(STEP), "Loaded").await;
        window.contains(&card(STEP), "3 levels").await;
        drafts(&window).await;
    })
    .await;

    let after: Vec<Logged> = mirror.log()[before..].to_vec();
    let resumed =
        |row: &&Logged| row.path.ends_with(SHARD) && row.sent > 0 && first_byte(row) >= data;
    let first = after.iter().find(resumed).expect("the rest was asked for");
    assert_eq!(first_byte(first), kept, "it goes on where the file ends");
    let whole = |row: &Logged| row.range.is_none() || first_byte(row) >= data;
    let sent: u64 =
        fetches(&mirror, SHARD).iter().filter(|row| whole(row)).map(|row| row.sent).sum();
    assert!(sent >= size && sent - size < ON_ITS_WAY, "{sent} bytes were sent of {size}");
    assert_eq!(fetches(&mirror, "/tokenizer.json").len(), 1, "a complete file is fetched once");
    let snapshots = home.path("hub/hub/models--acme--step-tiny/snapshots");
    let snapshot = fs::read_dir(snapshots).expect("it is complete").flatten().next().expect("one");
    for (name, bytes) in files_of("step3p5-tiny") {
        assert!(fs::read(snapshot.path().join(&name)).ok() == Some(bytes), "{name}");
    }
}

const ORIGINAL: &str = "maker/original";
const REPACK: &str = "acme/repack-4bit";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A repack as another tool has left it in the hub's cache, with a card that names what it was made from.
fn in_cache(home: &Home, repo: &str, fixture: &str, base: &str) {
    let folder = home.path("hub/hub").join(format!("models--{}", repo.replace('/', "--")));
    let snapshot = folder.join("snapshots").join(COMMIT);
    for part in [&folder.join("blobs"), &folder.join("refs"), &snapshot] {
        fs::create_dir_all(part).expect("writable");
    }
    fs::write(folder.join("refs/main"), COMMIT).expect("writable");
    let card = format!("---\nbase_model: {base}\n---\nText.\n").into_bytes();
    for (name, bytes) in files_of(fixture).into_iter().chain([("README.md".to_owned(), card)]) {
        fs::write(folder.join("blobs").join(&name), bytes).expect("writable");
        let blob = Path::new("../../blobs").join(&name);
        std::os::unix::fs::symlink(blob, snapshot.join(name)).expect("writable");
    }
}

#[tokio::test]
async fn a_trunk_without_a_head_gets_it_and_nothing_else() {
    let (mirror, home) = (Arc::new(Mirror::new()), Home::empty());
    let _told = Told(mirror.clone());
    publish(&mirror, ORIGINAL, "hy_v3-tiny");
    in_cache(&home, REPACK, "hy_v3-tiny-headless", ORIGINAL);
    asks(&home, &mirror);
    let (cache, heads) =
        (home.path("hub/hub/models--acme--repack-4bit"), home.path("data/foretoken/heads"));

    let hub = mirror.clone();
    play(&home, "head", move |window| async move {
        let here = card(REPACK);
        models(&window).await;
        window.contains(&here, "Needs a head").await;
        window.contains(&here, "No MTP head in this model").await;
        look_at(&window, ORIGINAL).await;
        window.contains(DOWNLOAD, "Download (").await;
        survey(&window, "model-page").await;
        window.click("[aria-label='Back to all models']").await;
        window.fill(SEARCH, "").await;
        window.click(".get .button").await;
        window.contains(".get .button", "Get the MTP head (").await;
        window.contains(".get", &format!("From {ORIGINAL}")).await;
        survey(&window, "models-head-offered").await;
        let before = hub.sent();
        hub.with(|state| state.throttle = Some(1_000_000));
        window.click(".get .button").await;
        if wants_pictures() {
            hub.with(|state| state.throttle = Some(20_000));
            survey(&window, "models-head-on-its-way").await;
            hub.with(|state| state.throttle = None);
        }
        window.contains("head-field", &format!("MTP head from {ORIGINAL}")).await;
        window.contains(&here, "Ready").await;
        hub.with(|state| state.throttle = None);
        assert!(hub.sent() > before);

        window.click(&button(REPACK, 1)).await;
        window.contains(&here, "Loaded").await;
        window.contains(&here, &format!("from {ORIGINAL}.")).await;
        drafts(&window).await;

        // Deleting asks first, says what it frees, and is not for what is in use.
        window.click(".foot .row").await;
        let delete = format!("{here} [data-delete]");
        assert!(!window.find(&delete).await.is_enabled().await.expect("a button"));
        window.click(&button(REPACK, 1)).await;
        window.click(&delete).await;
        window.contains(".ask", "This frees ").await;
        window.contains(".ask .button", "Keep").await;
        survey(&window, "models-delete").await;
        window.press(".ask .button", ESCAPE).await;
        assert!(cache.join("refs/main").is_file());
        window.click(&delete).await;
        window.click(".ask .button").await;
        until("it is off the list", || async { window.look(&here).await.is_none().then_some(()) })
            .await;
        assert!(!cache.join("blobs").exists() && !cache.join("snapshots").exists());
        let left: usize = files_below(&heads).iter().map(|(_, bytes)| bytes.len()).sum();
        assert_eq!(left, 0, "its head goes with it");
        window.contains("notice", "are freed").await;
    })
    .await;

    let (mut tensors, mut head, mut headers) = (0, 0, 0);
    for (name, bytes) in files_of("hy_v3-tiny") {
        if !name.ends_with(".safetensors") {
            continue;
        }
        let (data, all) = header(&bytes);
        let ours = all.iter().filter(|(name, _)| name.starts_with("model.layers.4."));
        tensors += ours.map(|(_, size)| size).sum::<u64>();
        for row in fetches(&mirror, &name) {
            *if first_byte(&row) < data { &mut headers } else { &mut head } += row.sent;
        }
    }
    eprintln!("a head of {tensors} bytes: {head} bytes of tensors were sent, {headers} of headers");
    assert!(tensors > 0 && head.abs_diff(tensors) * 100 <= tensors * 2);
}

const SECRET: &str = "hf_verysecretindeed";

#[tokio::test]
async fn what_the_hub_refuses_has_a_sentence_and_a_button() {
    let (mirror, home) = (Arc::new(Mirror::new()), Home::empty());
    let _told = Told(mirror.clone());
    for repo in ["acme/gated", "acme/private"] {
        publish(&mirror, repo, "qwen3-tiny");
    }
    mirror.with(|state| {
        state.token = Some(SECRET);
        state.repos.get_mut("acme/gated").expect("there").gated = true;
        state.repos.get_mut("acme/private").expect("there").private = true;
    });
    asks(&home, &mirror);

    let hub = mirror.clone();
    play(&home, "refused", move |window| async move {
        models(&window).await;
        let back = "[aria-label='Back to all models']";
        let refused = |sentence: &'static str, deeds: &'static str| {
            let window = window.clone();
            async move {
                window.contains("hub-problem", sentence).await;
                assert_eq!(
                    window.text("hub-problem'] [class~='buttons").await.as_deref(),
                    Some(deeds)
                );
            }
        };
        look_at(&window, "acme/gated").await;
        refused("accept its terms first", "Open the model's pageSet a token…Try again").await;
        survey(&window, "model-gated").await;
        window.click(back).await;

        // The token is asked for where it is needed, and used from then on.
        look_at(&window, "acme/private").await;
        refused("private or does not exist", "Set a token…Try again").await;
        window.click("[data-testid='hub-problem'] .buttons .button").await;
        window.fill(".token .field", SECRET).await;
        window.click(".token [type='submit']").await;
        window.contains("token-place", "One is kept").await;
        window.click(".foot .row").await;
        window.click("[data-testid='hub-problem'] .buttons .button:last-child").await;
        window.contains(DOWNLOAD, "Download (").await;
        window.click(back).await;

        look_at(&window, "acme/wrong").await;
        refused("There is no model acme/wrong on the hub.", "Try again").await;
        window.click(back).await;
        window
            .change_settings(|settings| settings["hubEndpoint"] = json!("http://127.0.0.1:9"))
            .await;
        look_at(&window, "acme/gated").await;
        refused("cannot be reached. Check the network", "Try again").await;
        window.change_settings(|settings| settings["hubEndpoint"] = json!(hub.endpoint)).await;
        window.click("[data-testid='hub-problem'] .buttons .button").await;
        window.contains(DOWNLOAD, "Download (").await;
        window.click(DOWNLOAD).await;
        window.contains("notice", "gated is downloaded and verified.").await;
    })
    .await;

    assert!(mirror.log().iter().any(|row| row.auth), "the token was used");
    let files = files_below(&home.path(""));
    assert!(files.len() > 5 && home.path("log").is_file(), "there is something to look through");
    for (path, bytes) in files {
        let found = bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
        assert!(!found, "the token is in {}", path.display());
    }
}

fn files_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).expect("readable").flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = fs::read(&path) {
                files.push((path, bytes));
            }
        }
    }
    files
}
