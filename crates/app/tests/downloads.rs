//! Downloads through `App`, with the library tests' stand-in for the hub.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::hub::*;
use common::load;
use foretoken_protocol::*;
use std::time::{Duration, Instant};

const REPO: &str = "acme/tiny";
const BYTES: usize = 600_000;

/// A repository that looks like a model: configuration and three files of noise.
fn model(mirror: &Mirror, repo: &str) {
    let config = br#"{"model_type":"qwen3","num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,"vocab_size":100,"max_position_embeddings":4096}"#;
    mirror.add(repo, "config.json", config.to_vec());
    let header = |seed: u64| {
        let n = BYTES / 2;
        let name = format!("model.layers.{}.w", seed % 2);
        let header = format!(
            r#"{{"{name}{seed}":{{"dtype":"BF16","shape":[{n}],"data_offsets":[0,{}]}}}}"#,
            2 * n
        );
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &noise(seed, 2 * n)].concat()
    };
    for i in 1..=3u64 {
        mirror.add(repo, &format!("model-0000{i}-of-00003.safetensors"), header(i));
    }
}

fn throttle(mirror: &Mirror, rate: Option<u64>) {
    mirror.with(|state| state.throttle = rate);
}

fn running(d: &ModelDownload) -> bool {
    d.state == DownloadState::Running && d.done > 50_000
}

#[test]
fn a_model_is_downloaded_watched_and_listed() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    throttle(&mirror, Some(300_000));
    let app = open(dir.path(), &mirror.endpoint);
    let events = watch(&app);
    let began = Instant::now();
    let first = start(&app, &format!("{}/{REPO}", mirror.endpoint));
    assert_eq!((first.repository.as_str(), &first.state), (REPO, &DownloadState::Queued));
    assert_eq!(until_done(&app, &first.id), REPO);
    let took = began.elapsed().as_secs_f64();
    let mut states = Vec::new();
    let mut n = 0;
    let mut last = 0;
    while let Ok(DownloadEvent::Changed { download }) =
        events.recv_timeout(Duration::from_millis(400))
    {
        n += 1;
        assert!(download.done >= last && download.done <= download.total.max(1), "{download:?}");
        last = download.done;
        if states.last() != Some(&download.state) {
            states.push(download.state);
        }
    }
    assert_eq!(states.first(), Some(&DownloadState::Queued), "{states:?}");
    assert!(states.contains(&DownloadState::Preparing) && states.contains(&DownloadState::Running));
    assert_eq!(states.last(), Some(&DownloadState::Done { model: REPO.to_owned() }));
    assert!(f64::from(n) <= 5.0 * took + 8.0, "{n} events in {took} s");
    let list = app.models_list().unwrap();
    assert_eq!((list[0].id.as_str(), list[0].repository.as_deref()), (REPO, Some(REPO)));
    assert_eq!(list[0].source, ModelSource::HubCache);

    // Once more takes no byte.
    let sent = mirror.sent();
    let again = start(&app, REPO);
    assert_eq!(again.id, first.id);
    until_done(&app, &again.id);
    assert!(mirror.sent() - sent < 2_000, "{}", mirror.sent() - sent);
    assert!(std::fs::read_dir(dir.path().join("data/downloads")).unwrap().next().is_none());
    app.shutdown();
}

#[test]
fn pausing_cancelling_and_discarding() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    throttle(&mirror, Some(150_000));
    let app = open(dir.path(), &mirror.endpoint);
    let first = start(&app, REPO);
    until(&app, &first.id, "running", running);
    app.download_pause(reference(&first)).unwrap();
    let paused = until(&app, &first.id, "paused", |d| d.state == DownloadState::Paused);
    assert_eq!((paused.speed, paused.remaining_ms), (0.0, None));
    std::thread::sleep(Duration::from_millis(500));
    let sent = mirror.sent();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(mirror.sent(), sent, "nothing moves");
    // At once again, and before the worker has ended.
    app.download_resume(reference(&first)).unwrap();
    app.download_pause(reference(&first)).unwrap();
    app.download_resume(reference(&first)).unwrap();
    until(&app, &first.id, "running", running);

    app.download_cancel(reference(&first)).unwrap();
    assert_eq!(downloads(&app), []);
    assert_eq!(app.download_resume(reference(&first)).unwrap_err().code, ErrorCode::NotFound);
    let blobs = dir.path().join("hub/models--acme--tiny/blobs");
    assert!(std::fs::read_dir(&blobs).unwrap().count() > 0, "the bytes stay");
    std::thread::sleep(Duration::from_millis(500));
    app.shutdown();
    let app = open(dir.path(), &mirror.endpoint);
    assert_eq!(downloads(&app), [], "it is not offered again");

    throttle(&mirror, None);
    mirror.fault(
        Fault::new(
            Stage::Bytes,
            "00002-of-00003.safetensors",
            Kind::Status(403, None, "text/plain", "no"),
        )
        .times(100),
    );
    let second = start(&app, REPO);
    // The others are complete, and no snapshot names them.
    until(&app, &second.id, "two files", |d| d.files_ready >= 3);
    let freed = app.download_discard(reference(&second)).unwrap();
    assert!(freed >= 2 * BYTES as u64, "{freed}");
    assert_eq!(std::fs::read_dir(&blobs).unwrap().count(), 0);
    assert_eq!(downloads(&app), []);
    app.shutdown();
}

#[test]
fn what_ran_goes_on_at_the_next_start_and_what_was_paused_waits() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    model(&mirror, "acme/other");
    throttle(&mirror, Some(150_000));
    let app = open(dir.path(), &mirror.endpoint);
    let (runs, queued) = (start(&app, REPO), start(&app, "acme/other"));
    until(&app, &runs.id, "running", running);
    let waits = until(&app, &queued.id, "queued", |_| true);
    assert_eq!(waits.state, DownloadState::Queued, "one model at a time");
    app.download_pause(reference(&queued)).unwrap();
    app.shutdown();
    drop(app);

    throttle(&mirror, None);
    let app = open(dir.path(), &mirror.endpoint);
    let there = until(&app, &runs.id, "known", |_| true);
    assert!(there.state == DownloadState::Queued && there.done > 0, "{there:?}");
    // A command that is about another model does not take it up: the window may be at it.
    model(&mirror, "acme/third");
    until_done(&app, &start(&app, "acme/third").id);
    assert_eq!(until(&app, &runs.id, "known", |_| true), there);
    let sent = mirror.sent();
    app.resume_downloads();
    assert_eq!(until_done(&app, &runs.id), REPO);
    assert!(mirror.sent() - sent < 3 * BYTES as u64, "not from the start");
    let paused = until(&app, &queued.id, "known", |_| true);
    assert_eq!(paused.state, DownloadState::Paused);
    app.shutdown();
}

#[test]
fn a_download_begun_by_another_program_is_offered() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    throttle(&mirror, Some(150_000));
    let app = open(dir.path(), &mirror.endpoint);
    let first = start(&app, REPO);
    until(&app, &first.id, "running", running);
    app.shutdown();
    std::fs::remove_dir_all(dir.path().join("data/downloads")).unwrap();
    throttle(&mirror, None);
    let app = open(dir.path(), &mirror.endpoint);
    app.resume_downloads();
    let [found] = &downloads(&app)[..] else { panic!("one") };
    assert_eq!((&found.state, found.repository.as_str()), (&DownloadState::Paused, REPO));
    assert!(found.done > 0 && found.total > 3 * BYTES as u64);
    app.download_resume(reference(found)).unwrap();
    until_done(&app, &found.id);
    app.shutdown();
}

#[test]
fn two_apps_share_the_work() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    throttle(&mirror, Some(800_000));
    let one = open(dir.path(), &mirror.endpoint);
    let other = foretoken_app::App::open_with(
        foretoken_app::Paths { data: dir.path().join("other"), ..paths(dir.path()) },
        foretoken_app::Tokens::new(None, None),
    )
    .unwrap();
    let settings = Settings { hub_endpoint: Some(mirror.endpoint.clone()), ..Settings::default() };
    other.settings_set(settings).unwrap();
    let (a, b) = (start(&one, REPO), start(&other, REPO));
    assert_eq!((until_done(&one, &a.id), until_done(&other, &b.id)), (REPO.into(), REPO.into()));
    let model_bytes = one.models_list().unwrap()[0].bytes;
    assert!(mirror.sent() < model_bytes + 10_000, "{} for {model_bytes}", mirror.sent());
    one.shutdown();
    other.shutdown();
}

#[test]
fn six_situations_have_six_sentences() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    for (repo, gated) in [("acme/gated", true), ("acme/private", false)] {
        model(&mirror, repo);
        mirror.with(|state| {
            let repo = state.repos.get_mut(repo).unwrap();
            (repo.gated, repo.private) = (gated, !gated);
        });
    }
    mirror.with(|state| state.token = Some("hf_good"));
    let app = open(dir.path(), &mirror.endpoint);
    let inspect = |text: &str| app.hub_inspect(HubName { text: text.to_owned() });
    let token = |text: Option<&str>| {
        app.token_set(SetToken { token: text.map(str::to_owned) }).unwrap();
    };
    let mut sentences = std::collections::BTreeSet::new();
    let mut refused = |answer: Result<HubModel, WireError>, code: ErrorCode| {
        let error = answer.unwrap_err();
        assert_eq!(error.code, code, "{error:?}");
        assert!(sentences.insert(error.message.clone()), "twice: {}", error.message);
    };
    refused(inspect("acme/gated"), ErrorCode::Gated);
    refused(inspect("acme/private"), ErrorCode::TokenNeeded);
    token(Some("hf_good"));
    assert_eq!(inspect("acme/private").unwrap().repository, "acme/private");
    refused(inspect("acme/wrong-name"), ErrorCode::NotFound);
    token(Some("hf_old"));
    refused(inspect(REPO), ErrorCode::TokenStale);
    token(None);
    let limited = Kind::Status(429, Some("1"), "text/plain", "slow down");
    mirror.fault(Fault::new(Stage::Api, "main", limited).times(20));
    refused(inspect(REPO), ErrorCode::RateLimited);
    mirror.with(|state| state.faults.clear());
    let offline = open(&dir.path().join("offline"), "http://127.0.0.1:9");
    refused(offline.hub_inspect(HubName { text: REPO.to_owned() }), ErrorCode::Offline);
    refused(inspect("no name"), ErrorCode::InvalidOption);
    assert_eq!(sentences.len(), 7);

    // A download says the same, in its state, and starts nothing for what is no name.
    let gated = start(&app, "acme/gated");
    assert_eq!(until_failed(&app, &gated.id).code, ErrorCode::Gated);
    let request = StartDownload { repository: "x".into(), for_model: None, head_only: false };
    assert_eq!(app.download_start(request).unwrap_err().code, ErrorCode::InvalidOption);
    // With the right token the failed one is resumed.
    token(Some("hf_good"));
    app.download_resume(reference(&gated)).unwrap();
    until_done(&app, &gated.id);
    app.shutdown();
    offline.shutdown();
}

#[test]
fn the_token_is_in_no_file_and_in_no_print() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    mirror.with(|state| state.token = Some("hf_verysecret"));
    let app = open(dir.path(), &mirror.endpoint);
    let request = SetToken { token: Some("hf_verysecret".to_owned()) };
    assert!(!format!("{request:?}").contains("verysecret"));
    assert_eq!(app.token_set(request).unwrap().place, TokenPlace::Memory);
    let id = start(&app, REPO).id;
    until_done(&app, &id);
    assert!(mirror.log().iter().any(|row| row.auth), "it was used");
    let printed = format!("{:?}{:?}", app.info(), app.library_shelf().unwrap());
    assert!(!printed.contains("verysecret"));
    app.shutdown();
    let everything = everything(dir.path());
    assert!(everything.len() > 3 * BYTES);
    let secret = b"verysecret";
    assert!(!everything.windows(secret.len()).any(|w| w == secret));
}

#[test]
fn offline_waits_and_goes_on_by_itself() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    let app = open(dir.path(), &mirror.endpoint);
    // The lines break before anything is answered, more often than a question is repeated.
    mirror
        .fault(Fault::new(Stage::Api, "main", Kind::Status(503, None, "text/plain", "")).times(7));
    let id = start(&app, REPO).id;
    let waiting = until(&app, &id, "waiting", |d| matches!(d.state, DownloadState::Waiting { .. }));
    let DownloadState::Waiting { error, retry_ms } = waiting.state else { panic!("waits") };
    assert!(error.code == ErrorCode::Hub && retry_ms.is_some_and(|ms| ms > 0), "{error:?}");
    assert_eq!(until_done(&app, &id), REPO);
    app.shutdown();
}

#[test]
fn a_limit_holds_and_bad_settings_are_refused() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    let app = open(dir.path(), &mirror.endpoint);
    let settings = |change: fn(&mut Settings)| {
        let mut settings = app.info().settings;
        change(&mut settings);
        app.settings_set(settings)
    };
    for bad in [
        settings(|s| s.download_limit = Some(0)),
        settings(|s| s.hub_endpoint = Some("nowhere".into())),
        settings(|s| s.hub_proxy = Some("::".into())),
    ] {
        assert_eq!(bad.unwrap_err().code, ErrorCode::InvalidOption);
    }
    settings(|s| s.download_limit = Some(400_000)).unwrap();
    let (began, id) = (Instant::now(), start(&app, REPO).id);
    std::thread::sleep(Duration::from_millis(1500));
    let slow = until(&app, &id, "known", |_| true);
    assert!(slow.done < 1_000_000, "{slow:?}");
    settings(|s| s.download_limit = None).unwrap();
    until_done(&app, &id);
    assert!(began.elapsed() < Duration::from_secs(20));
    app.shutdown();
}

#[test]
fn files_are_checked_and_mended() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    let app = open(dir.path(), &mirror.endpoint);
    let id = start(&app, REPO).id;
    until_done(&app, &id);
    let Some(CheckEvent::Finished { report }) = check(&app, REPO).pop() else { panic!("finished") };
    assert_eq!((report.good, report.damaged.len(), report.missing.len()), (4, 0, 0));
    // The snapshot's link leads to the blob.
    let snapshot = app.models_list().unwrap()[0].folder.clone();
    let shard = std::path::Path::new(&snapshot).join("model-00002-of-00003.safetensors");
    let blob = shard.canonicalize().unwrap();
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[300_000] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    let Some(CheckEvent::Finished { report }) = check(&app, REPO).pop() else { panic!("finished") };
    assert_eq!(report.damaged, ["model-00002-of-00003.safetensors"]);
    assert!(report.sentence.contains("Download the model again"), "{}", report.sentence);
    assert!(blob.is_file(), "a check deletes nothing");
    let sent = mirror.sent();
    until_done(&app, &start(&app, REPO).id);
    assert!(mirror.sent() - sent < BYTES as u64 + 10_000, "only the damaged file");
    let Some(CheckEvent::Finished { report }) = check(&app, REPO).pop() else { panic!("finished") };
    assert_eq!(report.good, 4);
    app.shutdown();
}

#[test]
fn deleting_frees_what_it_says_and_leaves_what_is_in_use() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    publish(&mirror, "acme/hy3", "hy_v3-tiny", &[]);
    let app = open(dir.path(), &mirror.endpoint);
    until_done(&app, &start(&app, "acme/hy3").id);
    let model = || ModelRef { id: "acme/hy3".to_owned() };
    assert!(matches!(load(&app, "acme/hy3").pop(), Some(LoadEvent::Ready { .. })));
    assert_eq!(app.model_delete(model()).unwrap_err().code, ErrorCode::Busy);
    app.model_unload().unwrap();
    let plan = app.model_delete_plan(model()).unwrap();
    let cache = dir.path().join("hub/models--acme--hy3");
    let files = everything(&cache.join("blobs")).len() as u64;
    assert!(
        plan.frees >= files && plan.frees < files + 200 && !plan.only_forgets,
        "{plan:?} {files}"
    );
    let events = watch(&app);
    assert_eq!(app.model_delete(model()).unwrap(), []);
    assert!(!cache.exists() && downloads(&app).is_empty());
    let next = || events.recv_timeout(Duration::from_secs(10)).expect("it is told");
    while !matches!(next(), DownloadEvent::Gone { .. }) {}
    assert_eq!(app.model_delete(model()).unwrap_err().code, ErrorCode::NotFound);

    // While it is fetched it stays.
    throttle(&mirror, Some(100_000));
    model_running(&app, &mirror);
    app.shutdown();
}

fn model_running(app: &foretoken_app::App, mirror: &Mirror) {
    model(mirror, REPO);
    let id = start(app, REPO).id;
    until(app, &id, "running", running);
    // Not in the list yet: there is nothing to delete but the download.
    let refused = app.model_delete(ModelRef { id: REPO.to_owned() }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound);
}

#[test]
fn everybody_at_once_leaves_a_list_that_makes_sense() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    let repos = ["acme/a", "acme/b", "acme/c"];
    repos.iter().for_each(|repo| model(&mirror, repo));
    throttle(&mirror, Some(2_000_000));
    let app = open(dir.path(), &mirror.endpoint);
    let ids: Vec<DownloadRef> = repos.iter().map(|repo| reference(&start(&app, repo))).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let (app, ids) = (app.clone(), ids.clone());
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                while began.elapsed() < Duration::from_secs(3) {
                    let id = ids[rng.usize(..ids.len())].clone();
                    match rng.u8(..6) {
                        0..3 => app.download_resume(id).unwrap(),
                        3 | 4 => app.download_pause(id).unwrap(),
                        _ => drop(start(&app, repos[rng.usize(..repos.len())])),
                    }
                    std::thread::sleep(Duration::from_millis(rng.u64(..30)));
                }
            });
        }
        scope.spawn(|| {
            while began.elapsed() < Duration::from_secs(3) {
                let working = |d: &ModelDownload| {
                    matches!(d.state, DownloadState::Preparing | DownloadState::Running)
                };
                let n = downloads(&app).iter().filter(|d| working(d)).count();
                assert!(n <= 1, "{n} models at a time");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
    });
    throttle(&mirror, None);
    assert_eq!(downloads(&app).len(), 3);
    for (id, repo) in ids.iter().zip(repos) {
        app.download_resume(id.clone()).unwrap();
        assert_eq!(until_done(&app, &id.id), repo);
        let Some(CheckEvent::Finished { report }) = check(&app, repo).pop() else { panic!("ends") };
        assert_eq!(report.good, 4, "{report:?}");
    }
    app.shutdown();
}

#[test]
fn odd_places_and_files_are_errors_and_lose_nothing() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    model(&mirror, REPO);
    mirror.add("acme/gguf", "model.gguf", noise(1, 5000));
    mirror.add("acme/bare", "config.json", b"{\"model_type\":\"qwen3\"}".to_vec());
    // The cache's place is a file, and a record is none.
    std::fs::write(dir.path().join("hub"), "no folder").unwrap();
    std::fs::create_dir_all(dir.path().join("data/downloads")).unwrap();
    std::fs::write(dir.path().join("data/downloads/1-2-3.json"), "{\"kept\":").unwrap();
    let app = open(dir.path(), &mirror.endpoint);
    assert_eq!(downloads(&app), []);
    let id = start(&app, REPO).id;
    assert_eq!(until_failed(&app, &id).code, ErrorCode::Disk);
    std::fs::remove_file(dir.path().join("hub")).unwrap();
    app.download_resume(DownloadRef { id: id.clone() }).unwrap();
    until(&app, &id, "tried again", |d| !matches!(d.state, DownloadState::Failed { .. }));
    until_done(&app, &id);

    let inspect = |text: &str| app.hub_inspect(HubName { text: text.to_owned() }).unwrap_err();
    assert!(inspect("acme/gguf").message.contains("no config.json"));
    assert_eq!(inspect("acme/bare").code, ErrorCode::Unsupported);
    for repo in ["acme/gguf", "acme/bare"] {
        assert_eq!(
            until_failed(&app, &start(&app, repo).id).code,
            ErrorCode::Unsupported,
            "{repo}"
        );
    }
    for id in ["", "../x", "acme/none", "/no/such/folder"] {
        let model = || ModelRef { id: id.to_owned() };
        assert_eq!(app.model_delete(model()).unwrap_err().code, ErrorCode::NotFound, "{id}");
        assert_eq!(app.model_find_head(model()).unwrap_err().code, ErrorCode::NotFound, "{id}");
        assert_eq!(app.model_check(model(), drop).unwrap_err().code, ErrorCode::NotFound, "{id}");
    }
    // A check can be cancelled, and there is one at a time.
    let (send, events) = std::sync::mpsc::channel();
    app.model_check(ModelRef { id: REPO.into() }, move |event| drop(send.send(event))).unwrap();
    app.model_cancel_check().unwrap();
    let end = events.iter().last().unwrap();
    assert!(matches!(end, CheckEvent::Cancelled | CheckEvent::Finished { .. }), "{end:?}");
    app.shutdown();
}
