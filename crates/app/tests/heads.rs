//! Heads that are fetched alone and put on trunks that lost theirs, and whether what is planned is what is loaded.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::hub::*;
use common::{golden, load};
use foretoken_app::App;
use foretoken_app::checkpoints::inspect_folder;
use foretoken_protocol::*;
use std::path::Path;

const ORIGINAL: &str = "maker/original";
const REPACK: &str = "acme/repack-4bit";

fn card(mirror: &Mirror, repo: &str, base: &str) {
    let text = format!("---\nlicense: other\nbase_model:\n- {base}\n---\n# {repo}\nText.\n");
    mirror.add(repo, "README.md", text.into_bytes());
}

/// An original with its head in its shards, and a repack that lost it.
fn hy3(mirror: &Mirror) {
    publish(mirror, ORIGINAL, "hy_v3-tiny", &[]);
    publish(mirror, REPACK, "hy_v3-tiny-headless", &[]);
    card(mirror, REPACK, ORIGINAL);
}

fn loaded(app: &App, id: &str) -> LoadedModel {
    match load(app, id).pop() {
        Some(LoadEvent::Ready { model }) => *model,
        other => panic!("{other:?}"),
    }
}

fn head_of(app: &App, id: &str) -> Option<String> {
    app.models_list().unwrap().into_iter().find(|m| m.id == id).unwrap().head
}

fn head_download(app: &App) -> ModelDownload {
    downloads(app).into_iter().find(|d| d.head_only).expect("a head is fetched")
}

fn storages(report: &InspectReport, kind: &str) -> Vec<String> {
    report.quantisation.iter().filter(|q| q.kind == kind).map(|q| q.storage.clone()).collect()
}

#[test]
fn a_repack_that_lost_its_head_gets_it_with_its_download() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    hy3(&mirror);
    let app = open(dir.path(), &mirror.endpoint);
    let seen = app.hub_inspect(HubName { text: REPACK.to_owned() }).unwrap();
    let HubHead::Elsewhere { repository, bytes } = &seen.head else { panic!("{seen:?}") };
    assert_eq!((repository.as_str(), seen.problem, seen.have), (ORIGINAL, None, None));
    assert!(seen.fit.fits && seen.fit.head > 0 && seen.fit.head < *bytes);
    let id = start(&app, REPACK).id;
    assert_eq!(until_done(&app, &id), REPACK);
    let head = head_download(&app);
    assert_eq!((head.repository.as_str(), head.for_model.as_deref()), (ORIGINAL, Some(REPACK)));
    assert_eq!(until_done(&app, &head.id), REPACK);

    // Only the head's bytes came out of the original.
    let original =
        mirror.log().into_iter().filter(|row| row.path.contains("maker/original/resolve"));
    let sent: u64 = original.map(|row| row.sent).sum();
    assert!(sent < 2 * bytes, "{sent} for a head of {bytes}");
    let model = loaded(&app, REPACK);
    assert!(model.report.head.found, "{:?}", model.report.head);
    assert!(model.report.head.sentence.ends_with(", from maker/original."), "{model:?}");
    assert!(
        storages(&model.report, "head attention").iter().all(|s| s.contains("8-bit")),
        "{model:?}"
    );
    assert!(
        storages(&model.report, "head eh_proj").iter().all(|s| s.contains("bf16")),
        "{model:?}"
    );
    let planned = app.model_fit(FitRequest { id: REPACK.to_owned(), context: None }).unwrap();
    let near = |a: u64, b: u64| a.abs_diff(b) * 100 <= b * 5;
    assert!(near(planned.head, model.report.memory.head), "{planned:?} {:?}", model.report.memory);
    assert!(near(seen.fit.head, planned.head), "{} {}", seen.fit.head, planned.head);

    // The head of what is loaded stays; deleting the model takes its head with it.
    assert_eq!(app.model_delete(ModelRef { id: REPACK.into() }).unwrap_err().code, ErrorCode::Busy);
    app.model_unload().unwrap();
    let folder = head_of(&app, REPACK).unwrap();
    assert!(Path::new(&folder).starts_with(dir.path().join("data/heads")));
    assert_eq!(app.models_list().unwrap()[0].head_name.as_deref(), Some(ORIGINAL));
    app.model_delete(ModelRef { id: REPACK.into() }).unwrap();
    assert!(!Path::new(&folder).exists() && app.info().settings.model_heads.is_empty());
    app.shutdown();
}

#[test]
fn a_folder_on_this_disk_gets_its_head_and_is_not_written_to() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    publish(&mirror, ORIGINAL, "step3p5-tiny", &[]);
    // A repack of a repack: the first card leads to the second.
    let head = ["model-mtp.safetensors", "model.safetensors.index.json"];
    publish(&mirror, "acme/between", "step3p5-tiny-mlx-4bit", &head);
    card(&mirror, "acme/between", ORIGINAL);
    let folder = dir.path().join("drive/step");
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(golden("step3p5-tiny-mlx-4bit")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("golden") && !head.contains(&&*name) && name != "README.md" {
            std::fs::copy(entry.path(), folder.join(&name)).unwrap();
        }
    }
    std::fs::write(folder.join("README.md"), "---\nbase_model: acme/between\n---\n").unwrap();
    std::fs::write(folder.join("._model.safetensors"), "AppleDouble").unwrap();
    let before = everything(&folder);
    let id = folder.to_string_lossy().into_owned();
    let app = open(dir.path(), &mirror.endpoint);
    app.model_add_folder(AddFolder { folder: id.clone() }).unwrap();
    assert!(!loaded(&app, &id).report.head.found);

    let found = app.model_find_head(ModelRef { id: id.clone() }).unwrap();
    let HubHead::Elsewhere { repository, .. } = found else { panic!("{found:?}") };
    assert_eq!(repository, ORIGINAL);
    let head = start_head(&app, &repository, &id);
    assert_eq!(until_done(&app, &head.id), id);
    let model = loaded(&app, &id);
    assert_eq!(
        (model.report.head.found, model.report.head.levels),
        (true, 3),
        "{:?}",
        model.report.head
    );
    assert_eq!(everything(&folder), before);
    assert!(!dir.path().join("hub").exists(), "nothing of the trunk was fetched");

    // Off the list, and not deleted.
    app.model_unload().unwrap();
    let plan = app.model_delete_plan(ModelRef { id: id.clone() }).unwrap();
    assert!(plan.only_forgets);
    assert_eq!(app.model_delete(ModelRef { id }).unwrap(), []);
    assert_eq!(everything(&folder), before);
    app.shutdown();
}

#[test]
fn a_head_that_is_quantised_in_its_original_stays_as_it_is() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    publish(&mirror, ORIGINAL, "hy_v3-tiny-mlx-w2q3", &[]);
    publish(&mirror, REPACK, "hy_v3-tiny-headless", &[]);
    card(&mirror, REPACK, ORIGINAL);
    let app = open(dir.path(), &mirror.endpoint);
    until_done(&app, &start(&app, REPACK).id);
    until_done(&app, &head_download(&app).id);
    let report = loaded(&app, REPACK).report;
    let original =
        inspect_folder(Path::new(&golden("hy_v3-tiny-mlx-w2q3")), None, None, false).unwrap();
    assert!(report.head.found);
    for kind in ["head attention", "head experts", "head eh_proj"] {
        assert_eq!(storages(&report, kind), storages(&original, kind), "{kind}");
    }
    app.shutdown();
}

#[test]
fn a_head_survives_the_end_of_the_program_and_a_pause() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    hy3(&mirror);
    let app = open(dir.path(), &mirror.endpoint);
    until_done(&app, &start(&app, REPACK).id);
    until_done(&app, &head_download(&app).id);
    app.model_delete(ModelRef { id: REPACK.into() }).unwrap();
    app.shutdown();
    let app = open(dir.path(), &mirror.endpoint);
    app.model_add_folder(AddFolder { folder: golden("hy_v3-tiny-headless") }).unwrap();
    let id = golden("hy_v3-tiny-headless");
    mirror.with(|state| state.throttle = Some(100_000));
    let head = start_head(&app, ORIGINAL, &id);
    until(&app, &head.id, "begun", |d| d.done > 20_000 && d.done < d.total);
    app.shutdown();
    drop(app);

    let app = open(dir.path(), &mirror.endpoint);
    let [known] = &downloads(&app)[..] else { panic!("one") };
    assert!(known.head_only && known.done > 20_000 && known.total > known.done, "{known:?}");
    assert_eq!(known.state, DownloadState::Queued);
    app.resume_downloads();
    until(&app, &head.id, "running", |d| d.state == DownloadState::Running);
    app.download_pause(reference(&head)).unwrap();
    app.shutdown();
    drop(app);

    mirror.with(|state| state.throttle = None);
    let app = open(dir.path(), &mirror.endpoint);
    app.resume_downloads();
    let paused = until(&app, &head.id, "known", |_| true);
    assert_eq!(paused.state, DownloadState::Paused);
    assert_eq!(head_of(&app, &id), None);
    app.download_resume(reference(&head)).unwrap();
    assert_eq!(until_done(&app, &head.id), id);
    assert!(loaded(&app, &id).report.head.found);
    app.shutdown();
}

#[test]
fn where_no_head_is_known_a_sentence_says_what_to_do() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    publish(&mirror, REPACK, "hy_v3-tiny-headless", &[]);
    let app = open(dir.path(), &mirror.endpoint);
    let head = |text: &str| app.hub_inspect(HubName { text: text.to_owned() }).unwrap().head;
    let HubHead::Missing { sentence } = head(REPACK) else { panic!("missing") };
    assert!(sentence.contains("choose that"), "{sentence}");
    // Another width is no head for it; the sentence names where was looked.
    publish(&mirror, "maker/other", "step3p5-tiny", &[]);
    card(&mirror, REPACK, "maker/other");
    let HubHead::Missing { sentence } = head(REPACK) else { panic!("missing") };
    assert!(sentence.contains("maker/other"), "{sentence}");
    // A repository that is not to be seen is told as such.
    card(&mirror, REPACK, "maker/gone");
    let HubHead::Missing { sentence } = head(REPACK) else { panic!("missing") };
    assert!(sentence.contains("maker/gone is private or does not exist"), "{sentence}");
    let head = start_head(&app, REPACK, &{
        app.model_add_folder(AddFolder { folder: golden("hy_v3-tiny-headless") }).unwrap();
        golden("hy_v3-tiny-headless")
    });
    assert_eq!(until_failed(&app, &head.id).code, ErrorCode::TokenNeeded);
    // Whoever names what is not here hears so at once.
    let request = StartDownload {
        repository: REPACK.into(),
        for_model: Some("acme/not-here".into()),
        head_only: true,
    };
    assert_eq!(app.download_start(request.clone()).unwrap_err().code, ErrorCode::NotFound);
    let request = StartDownload { head_only: false, ..request };
    assert_eq!(app.download_start(request).unwrap_err().code, ErrorCode::InvalidOption);
    app.shutdown();
}

#[test]
fn the_plan_agrees_with_what_the_engine_counts() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    let app = open(dir.path(), &mirror.endpoint);
    for fixture in [
        "hy_v3-tiny",
        "hy_v3-tiny-headless",
        "hy_v3-tiny-mlx-w2q3",
        "hy_v3-tiny-reap",
        "step3p5-tiny",
        "step3p5-tiny-mlx-4bit",
        "llama-tiny",
        "qwen3-tiny",
    ] {
        let folder = golden(fixture);
        app.model_add_folder(AddFolder { folder: folder.clone() }).unwrap();
        let report = inspect_folder(Path::new(&folder), None, Some(200), false).unwrap();
        let local = app.model_fit(FitRequest { id: folder.clone(), context: Some(200) }).unwrap();
        publish(&mirror, &format!("acme/{fixture}"), fixture, &[]);
        let remote = app.hub_inspect(HubName { text: format!("acme/{fixture}") }).unwrap();
        let remote_fit = app
            .model_fit(FitRequest { id: format!("acme/{fixture}"), context: Some(200) })
            .unwrap();
        let m = report.memory;
        let near = |a: u64, b: u64| a.abs_diff(b) * 100 <= b * 4;
        for (from, fit) in [("disk", &local), ("hub", &remote_fit)] {
            assert!(
                near(fit.weights, m.weights),
                "{fixture} {from}: {} {}",
                fit.weights,
                m.weights
            );
            assert!(near(fit.head, m.head), "{fixture} {from}: {} {}", fit.head, m.head);
            assert_eq!(
                (fit.kv, fit.needed > fit.weights),
                (m.kv_at_context, true),
                "{fixture} {from}"
            );
        }
        // Full layers alone: the engine counts by the token, the plan by the configuration.
        if !fixture.starts_with("step") {
            assert_eq!(local.kv, m.kv_per_token * 200, "{fixture}");
        }
        assert!(near(local.needed, m.needed), "{fixture}: {} {}", local.needed, m.needed);
        assert_eq!(remote.layers, Some(report.layers), "{fixture}");
    }
    let zero = FitRequest { id: golden("qwen3-tiny"), context: Some(0) };
    assert_eq!(app.model_fit(zero).unwrap_err().code, ErrorCode::InvalidOption);
    let unknown = FitRequest { id: "acme/unknown".into(), context: None };
    assert_eq!(app.model_fit(unknown).unwrap_err().code, ErrorCode::NotFound);
    app.shutdown();
}

#[test]
fn what_does_not_fit_is_refused_with_numbers_unless_anyway() {
    let (_mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    let folder = dir.path().join("large");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(golden("qwen3-tiny")).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    // Keys and values of a context nobody has the memory for.
    let file = folder.join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    config["num_hidden_layers"] = 9000.into();
    config["num_key_value_heads"] = 4000.into();
    std::fs::write(&file, config.to_string()).unwrap();
    let app = open(dir.path(), "http://127.0.0.1:9");
    let id = folder.to_string_lossy().into_owned();
    app.model_add_folder(AddFolder { folder: id.clone() }).unwrap();
    let fit = app.model_fit(FitRequest { id: id.clone(), context: None }).unwrap();
    assert!(!fit.fits && fit.sentence.ends_with("or try anyway."), "{fit:?}");
    let Some(LoadEvent::Failed { error }) = load(&app, &id).pop() else { panic!("refused") };
    assert_eq!(error.code, ErrorCode::OutOfMemory);
    assert!(error.message.matches(" GB").count() == 2, "{}", error.message);
    // Anyway, it is the engine that says what is wrong with it.
    let (send, events) = std::sync::mpsc::channel();
    let request = LoadModel { id, anyway: true };
    app.model_load(request, move |event| drop(send.send(event))).unwrap();
    let Some(LoadEvent::Failed { error }) = events.iter().last() else { panic!("refused") };
    assert_ne!(error.code, ErrorCode::OutOfMemory);
    app.shutdown();
}

#[test]
fn missing_volumes_stay_listed_and_lm_studio_is_found() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    let app = open(dir.path(), &mirror.endpoint);
    let drive = dir.path().join("drive");
    std::fs::create_dir(&drive).unwrap();
    std::fs::write(drive.join("config.json"), "{}").unwrap();
    let id = drive.to_string_lossy().into_owned();
    app.model_add_folder(AddFolder { folder: id.clone() }).unwrap();
    std::fs::rename(&drive, dir.path().join("away")).unwrap();
    let lm = dir.path().join("lm/acme/hy3");
    std::fs::create_dir_all(&lm).unwrap();
    for entry in std::fs::read_dir(golden("hy_v3-tiny")).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), lm.join(entry.file_name())).unwrap();
    }
    let list = app.models_list().unwrap();
    let [away, studio] = &list[..] else { panic!("{list:?}") };
    assert!(away.missing && away.problem.as_ref().is_some_and(|p| p.contains("Connect the drive")));
    assert_eq!((studio.source, studio.name.as_str()), (ModelSource::LmStudio, "acme/hy3"));
    assert_eq!((studio.own_head, studio.repository.as_deref()), (Some(true), Some("acme/hy3")));
    loaded(&app, &studio.id);
    let refused = app.model_delete(ModelRef { id: studio.id.clone() }).unwrap_err();
    assert!(refused.message.contains("LM Studio"), "{refused:?}");
    // It comes back, and it can be taken off the list while it is away.
    std::fs::rename(dir.path().join("away"), &drive).unwrap();
    assert!(!app.models_list().unwrap()[0].missing);
    std::fs::rename(&drive, dir.path().join("away")).unwrap();
    let left = app.model_delete(ModelRef { id }).unwrap();
    assert_eq!(left.len(), 1);
    assert!(dir.path().join("away/config.json").is_file());
    app.shutdown();
}

#[test]
fn what_another_tool_has_begun_is_no_model_yet() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    publish(&mirror, ORIGINAL, "hy_v3-tiny", &[]);
    let app = open(dir.path(), &mirror.endpoint);
    until_done(&app, &start(&app, ORIGINAL).id);
    let look = || app.hub_inspect(HubName { text: ORIGINAL.to_owned() }).unwrap();
    let whole = look();
    assert_eq!((whole.have.as_deref(), whole.have_bytes), (Some(ORIGINAL), whole.bytes));
    let HubHead::Here { bytes } = whole.head else { panic!("{whole:?}") };
    assert_eq!(whole.fit.head, bytes);
    let shard =
        Path::new(&app.models_list().unwrap()[0].folder).join("model-00003-of-00003.safetensors");
    let blob = shard.canonicalize().unwrap();
    std::fs::rename(&blob, blob.with_extension("incomplete")).unwrap();
    std::fs::remove_file(&shard).unwrap();
    let half = look();
    assert!(half.have.is_none() && half.have_bytes == half.bytes, "{half:?}");
    let entry = app.models_list().unwrap().remove(0);
    assert!(entry.problem.is_some_and(|p| p.contains("00003-of-00003")));
    until_done(&app, &start(&app, ORIGINAL).id);
    assert_eq!(look().have.as_deref(), Some(ORIGINAL));
    app.shutdown();
}

#[test]
fn a_newer_head_takes_the_place_of_the_old_one() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    hy3(&mirror);
    let id = golden("hy_v3-tiny-headless");
    let app = open(dir.path(), &mirror.endpoint);
    app.model_add_folder(AddFolder { folder: id.clone() }).unwrap();
    // The trunk is named; its head is looked for, and a discard finds what was fetched of it.
    mirror.with(|state| state.throttle = Some(100_000));
    let head = start_head(&app, REPACK, &id);
    until(&app, &head.id, "begun", |d| d.done > 20_000);
    assert!(app.download_discard(reference(&head)).unwrap() > 10_000);
    assert_eq!((downloads(&app), head_of(&app, &id)), (Vec::new(), None));
    mirror.with(|state| state.throttle = None);
    let head = start_head(&app, REPACK, &id);
    until_done(&app, &head.id);
    let first = head_of(&app, &id).unwrap();
    card(&mirror, ORIGINAL, "maker/news");
    app.download_resume(reference(&head)).unwrap();
    until(&app, &head.id, "queued", |d| !matches!(d.state, DownloadState::Queued));
    until_done(&app, &head.id);
    let second = head_of(&app, &id).unwrap();
    assert!(first != second && !Path::new(&first).exists() && Path::new(&second).is_dir());
    assert!(loaded(&app, &id).report.head.found);
    // Taken off, it stays while it is loaded and goes when nobody has it.
    let set = |head: Option<&str>| {
        let request = SetModelHead { id: id.clone(), head: head.map(str::to_owned) };
        app.model_set_head(request).unwrap();
        Path::new(&second).is_dir()
    };
    assert!(set(None) && set(Some(&second)));
    app.model_unload().unwrap();
    assert!(set(Some(&second)) && !set(None));
    app.shutdown();
}

/// A file of one tensor with this shape, all zeros.
fn one_tensor(name: &str, shape: &[usize]) -> Vec<u8> {
    let n = 2 * shape.iter().product::<usize>();
    let header =
        serde_json::json!({name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, n]}});
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; n]].concat()
}

#[test]
fn a_head_that_does_not_fit_is_not_put_on() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    publish(&mirror, REPACK, "hy_v3-tiny-headless", &[]);
    card(&mirror, REPACK, ORIGINAL);
    let config = std::fs::read(Path::new(&golden("hy_v3-tiny")).join("config.json")).unwrap();
    mirror.add(ORIGINAL, "config.json", config);
    // Its fusion and nothing else.
    let file = one_tensor("model.layers.4.eh_proj.weight", &[128, 256]);
    mirror.add(ORIGINAL, "model.safetensors", file);
    let app = open(dir.path(), &mirror.endpoint);
    // The head is there first, and then the other way round.
    mirror.with(|state| state.throttle = Some(400_000));
    assert_eq!(until_done(&app, &start(&app, REPACK).id), REPACK);
    mirror.with(|state| state.throttle = None);
    let head = head_download(&app);
    assert_eq!(until_failed(&app, &head.id).code, ErrorCode::MissingTensor);
    assert_eq!(head_of(&app, REPACK), None);
    assert!(!loaded(&app, REPACK).report.head.found, "the model is as it was");
    app.download_resume(reference(&head)).unwrap();
    let moved = |d: &ModelDownload| d.state != head.state;
    until(&app, &head.id, "tried", moved);
    assert_eq!(until_failed(&app, &head.id).code, ErrorCode::MissingTensor);
    app.shutdown();
}

#[test]
fn a_donor_in_use_and_a_model_being_fetched_again_stay() {
    let (mirror, dir) = (Mirror::new(), tempfile::tempdir().unwrap());
    publish(&mirror, ORIGINAL, "hy_v3-tiny", &[]);
    let app = open(dir.path(), &mirror.endpoint);
    until_done(&app, &start(&app, ORIGINAL).id);
    let id = golden("hy_v3-tiny-headless");
    app.model_add_folder(AddFolder { folder: id.clone() }).unwrap();
    let donor = SetModelHead { id: id.clone(), head: Some(ORIGINAL.to_owned()) };
    app.model_set_head(donor).unwrap();
    assert!(loaded(&app, &id).report.head.found);
    let refused = || app.model_delete(ModelRef { id: ORIGINAL.into() }).unwrap_err();
    assert_eq!(refused().code, ErrorCode::Busy);
    app.model_unload().unwrap();
    // A newer commit is on its way.
    mirror.add(ORIGINAL, "extra.safetensors", noise(7, 400_000));
    mirror.with(|state| state.throttle = Some(100_000));
    let again = start(&app, ORIGINAL);
    until(&app, &again.id, "running", |d| d.state == DownloadState::Running);
    assert_eq!(refused().code, ErrorCode::Busy);
    app.download_discard(reference(&again)).unwrap();
    // What was there before is still whole; the stand-in only keeps the newest commit.
    assert!(loaded(&app, ORIGINAL).report.head.found);
    let Some(CheckEvent::Failed { error }) = check(&app, ORIGINAL).pop() else { panic!("fails") };
    assert!(error.message.contains("does not keep this version"), "{error:?}");
    app.model_unload().unwrap();
    assert!(app.model_delete(ModelRef { id: ORIGINAL.into() }).is_ok());
    app.shutdown();
}
