//! The plain case, what is shared with other tools, and stopping.

mod support;

use foretoken_library::download::{Event, FileState, Outcome, delete, discard, pending};
use foretoken_library::{Download, HubError, Library, RepoRef};
use sha1::Digest;
use std::time::Duration;
use support::*;

#[test]
fn a_model_lands_in_the_cache_as_other_tools_lay_it_out() {
    let scene = Scene::new();
    let ran = scene.run();
    let Ok(Outcome::Complete { folder }) = ran.result else { panic!("{:?}", ran.result) };
    scene.assert_complete();
    assert!(folder.join("config.json").is_file());
    let library = Library { hub_cache: scene.cache.path().to_owned(), ..Library::default() };
    assert_eq!(library.resolve(REPO), Ok(folder));
    let Some(Event::Progress(last)) = ran.events.last() else { panic!("a last progress") };
    assert_eq!((last.done, last.files_ready), (last.total, last.files));
    assert_eq!(last.total, scene.list().bytes());
    assert!(pending(scene.cache.path()).is_empty());
}

#[test]
fn what_is_there_is_not_fetched_again() {
    let scene = Scene::new();
    scene.run().result.expect("complete");
    let sent = scene.mirror.sent();
    assert_eq!(sent, scene.list().bytes());
    scene.run().result.expect("complete");
    assert_eq!(scene.mirror.sent(), sent);
    // A push that changes one file costs that file.
    scene.mirror.add(REPO, "config.json", b"{\"model_type\":\"step3p5\"}".to_vec());
    scene.run().result.expect("complete");
    assert_eq!(scene.mirror.sent(), sent + 24);
    scene.assert_complete();
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_its_file_server() {
    let scene = Scene::new();
    scene.mirror.with(|state| {
        state.token = Some("hf_good");
        state.repos.get_mut(REPO).unwrap().gated = true;
    });
    let hub = hub(&scene.mirror.endpoint, Some("hf_good"));
    run(&hub, scene.cache.path(), list(&hub), options()).result.expect("complete");
    let log = scene.mirror.log();
    assert!(log.iter().any(|row| row.on_hub) && log.iter().any(|row| !row.on_hub));
    for row in log {
        assert_eq!(row.auth, row.on_hub, "{row:?}");
    }
    for folder in ["", "blobs", ".."] {
        for name in names(&scene.blobs().join("..").join(folder)) {
            let path = scene.blobs().join("..").join(folder).join(name);
            let text = std::fs::read(path).unwrap_or_default();
            assert!(!text.windows(7).any(|w| w == b"hf_good"), "the token is in no file");
        }
    }
}

#[test]
fn pausing_keeps_the_bytes_and_the_next_start_goes_on_without_asking() {
    let scene = Scene::new();
    scene.mirror.with(|state| state.throttle = Some(400_000));
    let download = Download::start(&scene.hub, scene.cache.path(), scene.list(), options(), |_| {});
    std::thread::sleep(Duration::from_millis(700));
    download.pause();
    assert_eq!(download.wait().expect("no error"), Outcome::Stopped);
    let kept = scene.incomplete_bytes();
    assert!(kept > 100_000, "{kept}");
    assert!(!scene.cache.path().join("models--acme--tiny/snapshots").exists(), "no half model");

    let waiting = pending(scene.cache.path());
    assert_eq!(waiting.len(), 1);
    assert!(waiting[0].done >= kept && waiting[0].total() == scene.list().bytes());
    scene.mirror.with(|state| state.throttle = None);
    let before = scene.mirror.log().len();
    let listing = waiting[0].listing.clone();
    let ran = run(&scene.hub, scene.cache.path(), listing, options());
    ran.result.expect("complete");
    let first = ran.events.iter().find_map(|event| match event {
        Event::Progress(progress) => Some(progress.done),
        _ => None,
    });
    assert!(first >= Some(waiting[0].done), "what was here counts as fetched now: {first:?}");
    scene.assert_complete();
    assert_eq!(scene.mirror.sent_since(before), scene.list().bytes() - waiting[0].done);
}

#[test]
fn cancelling_keeps_the_bytes_but_is_not_offered_again_and_discarding_frees_them() {
    let scene = Scene::new();
    scene.mirror.with(|state| state.throttle = Some(400_000));
    let download = Download::start(&scene.hub, scene.cache.path(), scene.list(), options(), |_| {});
    std::thread::sleep(Duration::from_millis(500));
    let repo = REPO.parse().unwrap();
    let busy = discard(scene.cache.path(), &repo);
    assert!(busy.is_err(), "not while it is fetched: {busy:?}");
    download.cancel();
    assert_eq!(download.wait().expect("no error"), Outcome::Stopped);
    assert!(pending(scene.cache.path()).is_empty());
    let kept = scene.incomplete_bytes();
    assert!(kept > 0);
    assert_eq!(discard(scene.cache.path(), &repo).expect("frees"), kept);
    assert_eq!(scene.incomplete_bytes(), 0);

    scene.mirror.with(|state| state.throttle = None);
    scene.run().result.expect("complete");
    let freed = delete(scene.cache.path(), &repo).expect("frees");
    assert!(freed >= scene.list().bytes() && freed < scene.list().bytes() + 200, "{freed}");
    assert!(!scene.cache.path().join("models--acme--tiny").exists());
}

#[test]
fn two_downloads_of_a_repository_share_the_work() {
    let scene = Scene::new();
    scene.mirror.with(|state| state.throttle = Some(2_000_000));
    let start = || Download::start(&scene.hub, scene.cache.path(), scene.list(), options(), |_| {});
    let (one, other) = (start(), start());
    one.wait().expect("complete");
    other.wait().expect("complete");
    scene.assert_complete();
    assert_eq!(scene.mirror.sent(), scene.list().bytes(), "no byte is fetched twice");
}

#[test]
fn a_bandwidth_limit_holds_over_all_files_and_can_be_lifted() {
    let scene = Scene::new();
    let limited = foretoken_library::download::Options { bandwidth: Some(500_000), ..options() };
    let began = std::time::Instant::now();
    let download = Download::start(&scene.hub, scene.cache.path(), scene.list(), limited, |_| {});
    std::thread::sleep(Duration::from_secs(1));
    let done = pending(scene.cache.path())[0].done;
    assert!(done < 1_300_000, "{done} in a second");
    download.set_bandwidth(None);
    download.wait().expect("complete");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    scene.assert_complete();
}

#[test]
fn ten_thousand_files_are_listed_and_the_wanted_ones_fetched() {
    let scene = Scene::new();
    for i in 0..10_000 {
        let file = support::mirror::Served {
            size: 9,
            sha256: "0".repeat(64),
            git: format!("{i:040x}"),
            content: support::mirror::Content::Claimed,
        };
        let path = format!("shots/{i}.png");
        scene.mirror.with(|s| s.repos.get_mut(REPO).unwrap().files.insert(path, file));
    }
    let mut listing = scene.list();
    assert_eq!(listing.files.len(), 10_005);
    let pages = scene.mirror.log().iter().filter(|row| row.path.contains("/tree/")).count();
    assert_eq!(pages, 11);
    listing.files = listing.model_files();
    assert_eq!(listing.files.len(), 5);
    run(&scene.hub, scene.cache.path(), listing, options()).result.expect("complete");
}

/// `FORETOKEN_FILES=10000` for the long run.
#[test]
fn a_repository_of_very_many_files_is_fetched() {
    let n = std::env::var("FORETOKEN_FILES").ok().and_then(|n| n.parse().ok()).unwrap_or(1000u32);
    let scene = Scene::new();
    scene.mirror.with(|state| {
        let files = &mut state.repos.get_mut(REPO).unwrap().files;
        for i in 0..n {
            let bytes = i.to_le_bytes().to_vec();
            let git = sha1::Sha1::digest([b"blob 4\0", &bytes[..]].concat());
            let file = support::mirror::Served {
                size: 4,
                sha256: String::new(),
                git: support::mirror::hex(&git),
                content: support::mirror::Content::Bytes(bytes.into()),
            };
            files.insert(format!("parts/{}/{i}.json", i % 100), file);
        }
    });
    let began = std::time::Instant::now();
    scene.run().result.expect("complete");
    eprintln!("{n} files in {:.1} s", began.elapsed().as_secs_f64());
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
    scene.assert_complete();
    let sent = scene.mirror.sent();
    scene.run().result.expect("complete");
    assert_eq!(scene.mirror.sent(), sent);
}

#[test]
fn a_listing_that_leads_out_of_its_folder_is_refused() {
    for name in ["../../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "./evil", "C:evil"] {
        let scene = Scene::new();
        scene.mirror.add(REPO, name, noise(1, 10));
        let refused = scene.hub.list(&RepoRef::main(REPO.parse().unwrap()));
        assert!(matches!(refused, Err(HubError::UnsafePath { .. })), "{name}: {refused:?}");
    }
}

#[test]
fn a_state_is_told_for_every_file() {
    let scene = Scene::new();
    let ran = scene.run();
    for file in scene.list().files {
        let told: Vec<_> = ran
            .events
            .iter()
            .filter_map(|event| match event {
                Event::File { path, state } if *path == file.path => Some(state.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(told, [FileState::Fetching { from: 0 }, FileState::Ready], "{}", file.path);
    }
}

#[test]
fn a_check_finds_what_differs_and_a_download_mends_it() {
    use foretoken_library::download::{FileCheck, check, note_damaged};
    use std::sync::atomic::AtomicBool;
    let scene = Scene::new();
    scene.run().result.expect("complete");
    let listing = scene.list();
    let folder = scene.blobs().join("../snapshots").join(&listing.commit);
    let stop = AtomicBool::new(false);
    let look = || {
        let mut last = 0;
        let found = check(&folder, &listing, &stop, |read| last = read).expect("readable").unwrap();
        assert_eq!(last, listing.bytes());
        found.into_iter().map(|(file, found)| (file.path.clone(), file, found)).collect::<Vec<_>>()
    };
    assert!(look().iter().all(|(.., found)| *found == FileCheck::Good));
    // A bit that tipped over on the disk, and a link that is gone.
    std::fs::write(folder.join("._config.json"), "another system's").unwrap();
    let blob = scene.blobs().join(listing.file(SHARD).unwrap().id.hex());
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[1234] ^= 4;
    std::fs::write(&blob, bytes).unwrap();
    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let found = look();
    let not_good: Vec<_> = found.iter().filter(|(.., f)| *f != FileCheck::Good).collect();
    let told: Vec<_> = not_good.iter().map(|(path, _, f)| (path.as_str(), f.clone())).collect();
    assert_eq!(told, [(SHARD, FileCheck::Differs), ("tokenizer.json", FileCheck::Missing)]);

    let checked: Vec<_> = found.into_iter().map(|(_, file, found)| (file, found)).collect();
    note_damaged(scene.cache.path(), &listing, &checked).expect("noted");
    assert!(blob.is_file(), "a check deletes nothing");
    let before = scene.mirror.sent();
    scene.run().result.expect("complete");
    assert_eq!(
        scene.mirror.sent() - before,
        SHARD_BYTES as u64,
        "only the damaged file is fetched"
    );
    scene.assert_complete();
    // Of a file that another tool mended meanwhile, no byte is fetched.
    note_damaged(scene.cache.path(), &listing, &checked).expect("noted");
    let before = scene.mirror.sent();
    scene.run().result.expect("complete");
    assert_eq!(scene.mirror.sent(), before);
    scene.assert_complete();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(check(&folder, &listing, &stop, |_| {}).expect("readable"), None);
}
