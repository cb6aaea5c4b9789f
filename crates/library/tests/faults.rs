//! The fault table: what each fault becomes, and that nothing fetched before it is lost.

mod support;

use foretoken_library::download::{Event, FileState, Outcome};
use foretoken_library::hub::Retry;
use foretoken_library::{DownloadError, Hub, HubError, RepoRef};
use std::time::{Duration, Instant};
use support::*;

fn repo() -> foretoken_library::RepoId {
    REPO.parse().expect("a name")
}

fn ask(hub: &Hub) -> HubError {
    hub.list(&RepoRef::main(repo())).expect_err("refused")
}

fn hub_error(ran: Ran) -> HubError {
    match ran.result {
        Err(DownloadError::Hub(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn waits(ran: &Ran) -> Vec<HubError> {
    let error = |event: &Event| match event {
        Event::File { state: FileState::Waiting { error, .. }, .. } => Some(error.clone()),
        _ => None,
    };
    ran.events.iter().filter_map(error).collect()
}

/// With `kind` once in the middle of a shard: it ends well, and at most `extra` bytes came twice.
fn cures_itself(kind: Kind, extra: u64) -> Vec<HubError> {
    let scene = Scene::new();
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, kind));
    let ran = scene.run();
    assert!(matches!(ran.result, Ok(Outcome::Complete { .. })), "{:?}", ran.result);
    scene.assert_complete();
    let twice = scene.mirror.sent() - scene.list().bytes();
    assert!(twice <= extra, "{twice} bytes came twice");
    waits(&ran)
}

const A_THIRD: u64 = SHARD_BYTES as u64 / 3;

#[test]
fn a_broken_line_is_taken_up_at_the_byte() {
    let waits = cures_itself(Kind::Drop(A_THIRD), 0);
    assert!(matches!(waits[..], [HubError::Dropped { .. }]), "{waits:?}");
}

#[test]
fn a_silent_line_is_taken_up_at_the_byte() {
    let waits = cures_itself(Kind::Stall(A_THIRD, Duration::from_millis(900)), 0);
    assert!(matches!(waits[..], [HubError::Stalled { .. }]), "{waits:?}");
}

#[test]
fn a_short_range_is_followed_by_the_rest() {
    cures_itself(Kind::NoLength, 0);
    let scene = Scene::new();
    // The first answer breaks off, the next one is a range and stops early, as announced.
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, Kind::Drop(A_THIRD)));
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, Kind::Short(1000)));
    assert!(scene.run().result.is_ok());
    scene.assert_complete();
    assert_eq!(scene.mirror.sent(), scene.list().bytes());
}

#[test]
fn a_cut_answer_that_claims_to_be_whole_is_not_believed() {
    let waits = cures_itself(Kind::Short(1000), 1000);
    assert!(matches!(waits[..], [HubError::WrongRange { .. }]), "{waits:?}");
}

#[test]
fn a_refused_signed_address_is_asked_for_again() {
    let waits = cures_itself(Kind::Status(403, None, "text/plain", "Request has expired"), 0);
    assert!(matches!(waits[..], [HubError::AddressRefused { status: 403 }]), "{waits:?}");
}

#[test]
fn a_servers_failure_and_416_are_tried_again() {
    let waits = cures_itself(Kind::Status(500, None, "text/plain", "oops"), 0);
    assert!(matches!(waits[..], [HubError::Server { status: 500 }]), "{waits:?}");
    let waits = cures_itself(Kind::Status(416, None, "text/plain", ""), 0);
    assert!(matches!(waits[..], [HubError::WrongRange { .. }]), "{waits:?}");
}

#[test]
fn what_the_server_calls_our_fault_is_not_tried_again() {
    let scene = Scene::new();
    let refused = Kind::Status(451, None, "text/plain", "not here");
    scene.mirror.fault(Fault::new(Stage::Resolve, SHARD, refused).times(9));
    let ran = scene.run();
    assert!(waits(&ran).is_empty(), "nobody tries again what the law forbids");
    assert_eq!(hub_error(ran), HubError::Server { status: 451 });
}

#[test]
fn retry_after_is_honoured() {
    let scene = Scene::new();
    let limited = Kind::Status(429, Some("1"), "text/plain", "slow down");
    scene.mirror.fault(Fault::new(Stage::Resolve, SHARD, limited.clone()));
    let began = Instant::now();
    let ran = scene.run();
    assert!(ran.result.is_ok());
    let told = [HubError::RateLimited { wait: Some(Duration::from_secs(1)) }];
    assert_eq!(waits(&ran), told);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    // The listing waits as well, and a wait that nobody would sit through is an error with the time in it.
    let began = Instant::now();
    scene.mirror.fault(Fault::new(Stage::Api, "/main", limited));
    scene.list();
    assert!(began.elapsed() >= Duration::from_secs(1));
    let hours = Kind::Status(429, Some("86400"), "text/plain", "");
    scene.mirror.fault(Fault::new(Stage::Api, "/main", hours));
    let told = HubError::RateLimited { wait: Some(Duration::from_secs(86400)) };
    assert_eq!(ask(&scene.hub), told);
}

#[test]
fn wrong_bytes_are_fetched_again_once_and_never_get_a_name() {
    let waits = cures_itself(Kind::WrongByte(300_000), SHARD_BYTES as u64);
    assert!(waits.is_empty());
    let scene = Scene::new();
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, Kind::WrongByte(300_000)).times(9));
    let ran = scene.run();
    let Err(DownloadError::WrongBytes { file, want, got }) = ran.result else {
        panic!("{:?}", ran.result)
    };
    assert_eq!(file, SHARD);
    assert_ne!(want, got);
    assert!(!scene.blobs().join(want).exists() && !scene.blobs().join(got).exists());
    scene.mirror.with(|state| state.faults.clear());
    scene.run().result.expect("the source is sound again");
    scene.assert_complete();
}

#[test]
fn a_file_that_changes_in_the_middle_is_noticed_and_the_bytes_are_kept() {
    let scene = Scene::new();
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, Kind::Drop(A_THIRD)));
    scene.mirror.fault(Fault { skip: 1, ..Fault::new(Stage::Resolve, SHARD, Kind::OtherTag) });
    assert_eq!(hub_error(scene.run()), HubError::Changed { file: SHARD.to_owned() });
    assert!(scene.incomplete_bytes() >= A_THIRD);
    scene.run().result.expect("it was changed back");
    scene.assert_complete();
    let log = scene.mirror.log();
    let last = log.iter().rfind(|row| row.path.ends_with(SHARD)).unwrap();
    assert_eq!(last.range, Some(format!("bytes={A_THIRD}-{}", SHARD_BYTES - 1)));
}

#[test]
fn a_range_that_was_not_asked_for_is_refused() {
    let scene = Scene::new();
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, Kind::Drop(A_THIRD)));
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, Kind::OtherRange));
    let ran = scene.run();
    assert!(matches!(waits(&ran)[..], [HubError::Dropped { .. }, HubError::WrongRange { .. }]));
    scene.assert_complete();
}

#[test]
fn a_server_without_ranges_never_gets_to_append_a_file_to_itself() {
    let scene = Scene::new();
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, Kind::Drop(A_THIRD)));
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, Kind::NoRange).times(99));
    assert_eq!(hub_error(scene.run()), HubError::WrongRange { file: SHARD.to_owned() });
    assert!(scene.incomplete_bytes() >= A_THIRD, "kept");
    scene.mirror.with(|state| state.faults.clear());
    scene.run().result.expect("ranges are back");
    scene.assert_complete();
}

#[test]
fn pages_and_refusals_never_land_as_weights() {
    const PAGE: &str = "<!doctype html><title>Sign in to the network</title>";
    for kind in [
        Kind::Status(403, None, "text/html", PAGE),
        Kind::Status(403, None, "text/plain", "expired"),
        Kind::Status(200, None, "text/html", PAGE),
        Kind::Status(200, None, "application/octet-stream", PAGE),
        Kind::Status(206, None, "application/octet-stream", PAGE),
    ] {
        let scene = Scene::new();
        scene.mirror.fault(Fault::new(Stage::Bytes, "", kind.clone()).times(999));
        let error = hub_error(scene.run());
        assert!(
            matches!(
                error,
                HubError::AddressRefused { .. }
                    | HubError::NotTheHub { .. }
                    | HubError::WrongRange { .. }
            ),
            "{kind:?}: {error:?}"
        );
        assert_eq!(scene.incomplete_bytes(), 0, "{kind:?}");
        scene.mirror.with(|state| state.faults.clear());
        scene.run().result.expect("the network is open");
        scene.assert_complete();
    }
    let scene = Scene::new();
    scene.mirror.fault(
        Fault::new(Stage::Api, "/main", Kind::Status(200, None, "text/html", PAGE)).times(99),
    );
    assert!(matches!(ask(&scene.hub), HubError::NotTheHub { .. }));
}

#[test]
fn redirects_are_followed_to_safe_places_only() {
    let scene = Scene::new();
    // A renamed repository answers with a path on the hub itself.
    let commit = scene.list().commit;
    let renamed = Kind::Redirect(format!("/{REPO}/resolve/{commit}/config.json"));
    scene.mirror.fault(Fault::new(Stage::Resolve, "config.json", renamed));
    scene.run().result.expect("followed");
    scene.assert_complete();
    for (to, circles) in [
        (format!("/{REPO}/resolve/{commit}/tokenizer.json"), true),
        ("file:///etc/passwd".to_owned(), false),
        ("http://".to_owned(), false),
    ] {
        let scene = Scene::new();
        let fault = Fault::new(Stage::Resolve, "tokenizer.json", Kind::Redirect(to));
        scene.mirror.fault(fault.times(99));
        let HubError::NotTheHub { why, .. } = hub_error(scene.run()) else { panic!("refused") };
        assert_eq!(why.contains("circles"), circles);
    }
}

#[test]
fn who_may_read_what_has_a_variant_each() {
    let scene = Scene::new();
    scene.mirror.with(|state| state.token = Some("hf_good"));
    let endpoint = &scene.mirror.endpoint;
    let with = |token| hub(endpoint, Some(token));
    let unknown = RepoRef::main("acme/none".parse().unwrap());
    let none = || "acme/none".parse().unwrap();

    assert_eq!(scene.hub.list(&unknown).unwrap_err(), HubError::Private { repo: none() });
    assert_eq!(
        with("hf_good").list(&unknown).unwrap_err(),
        HubError::NoRepository { repo: none() }
    );
    assert_eq!(ask(&with("hf_old")), HubError::StaleToken);
    let revision = RepoRef::new(repo(), "v9").unwrap();
    let missing = HubError::NoRevision { repo: repo(), revision: "v9".to_owned() };
    assert_eq!(scene.hub.list(&revision).unwrap_err(), missing);

    let mut listing = scene.list();
    listing.files[0].path = "gone.json".to_owned();
    let ran = run(&scene.hub, scene.cache.path(), listing, options());
    assert_eq!(hub_error(ran), HubError::NoFile { repo: repo(), file: "gone.json".to_owned() });

    scene.mirror.with(|state| state.repos.get_mut(REPO).unwrap().gated = true);
    assert_eq!(hub_error(scene.run()), HubError::Gated { repo: repo() });
    let no = Kind::Status(403, None, "text/plain", "no");
    scene.mirror.fault(Fault::new(Stage::Resolve, "", no).times(5));
    assert_eq!(hub_error(scene.run()), HubError::Forbidden { repo: repo() });
    scene.mirror.with(|state| state.faults.clear());
    scene.mirror.with(|state| state.repos.get_mut(REPO).unwrap().private = true);
    assert_eq!(ask(&scene.hub), HubError::Private { repo: repo() });
    let hub = with("hf_good");
    run(&hub, scene.cache.path(), list(&hub), options()).result.expect("the token opens it");
    scene.assert_complete();
}

#[test]
fn offline_is_told_and_a_download_outlasts_it() {
    // Nobody listens on a port that was just given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = hub(&format!("http://127.0.0.1:{port}"), None);
    let HubError::Offline { host, .. } = ask(&nobody) else { panic!("offline") };
    assert_eq!(host, format!("127.0.0.1:{port}"));

    // The line is down for longer than the patience with a server's own faults would last.
    let scene = Scene::new();
    scene.mirror.fault(Fault::new(Stage::Bytes, SHARD, Kind::Drop(1000)).times(40));
    let patient = foretoken_library::download::Options {
        retry: Retry { line: u32::MAX, ..impatient() },
        ..options()
    };
    let ran = run(&scene.hub, scene.cache.path(), scene.list(), patient);
    assert!(ran.result.is_ok());
    assert!(waits(&ran).len() >= 40);
    scene.assert_complete();
    assert_eq!(scene.mirror.sent(), scene.list().bytes());
}

#[test]
fn a_hub_that_takes_the_call_and_says_nothing_is_told() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("127.0.0.1:{}", silent.local_addr().unwrap().port());
    let error = ask(&hub(&format!("http://{host}"), None));
    assert_eq!(error, HubError::Stalled { host, after: Duration::from_millis(400) });
}

#[test]
fn a_proxy_is_used_when_it_is_named() {
    let scene = Scene::new();
    let options = foretoken_library::hub::HubOptions {
        endpoint: "http://hub.invalid".to_owned(),
        proxy: Some(scene.mirror.endpoint.clone()),
        ..Default::default()
    };
    let listing = list(&Hub::new(&options).unwrap());
    assert_eq!(listing, scene.list());
}

#[test]
fn a_full_disk_is_told_ahead_with_both_numbers() {
    let scene = Scene::new();
    let claimed = support::mirror::Served {
        size: 1 << 60,
        sha256: "1".repeat(64),
        git: "1".repeat(40),
        content: support::mirror::Content::Claimed,
    };
    scene.mirror.put(REPO, "model-huge.safetensors", claimed);
    let ran = scene.run();
    let Err(DownloadError::NotEnoughDisk { need, free, .. }) = ran.result else {
        panic!("{:?}", ran.result)
    };
    assert!(need > 1 << 60 && free < 1 << 60 && free > 0);
    assert_eq!(scene.mirror.sent(), 0, "no byte was fetched");
}

#[test]
fn a_disk_that_fills_up_in_the_middle_keeps_what_it_has() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let scene = Scene::new();
    let shard = scene.list().file(SHARD).unwrap().id.hex().to_owned();
    std::fs::create_dir_all(scene.blobs()).unwrap();
    // Every write to this device fails as on a full disk.
    let full = scene.blobs().join(format!("{shard}.incomplete"));
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let ran = scene.run();
    assert!(
        matches!(&ran.result, Err(DownloadError::DiskFull { path }) if *path == full),
        "{:?}",
        ran.result
    );
    std::fs::remove_file(&full).unwrap();
    let before = scene.mirror.log().len();
    let have = foretoken_library::download::pending(scene.cache.path())[0].done;
    assert!(have > 0);
    scene.run().result.expect("there is room again");
    scene.assert_complete();
    assert_eq!(scene.mirror.sent_since(before), scene.list().bytes() - have);
}

#[test]
fn a_folder_that_cannot_be_written_to_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    let closed = scene.cache.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).unwrap();
    // For root no mode is a bar; the kernel's own tree is.
    let writable = std::fs::write(closed.join("x"), "").is_ok();
    let cache = if writable { std::path::Path::new("/sys/kernel") } else { &closed };
    let ran = run(&scene.hub, cache, scene.list(), options());
    assert!(matches!(ran.result, Err(DownloadError::ReadOnly { .. })), "{:?}", ran.result);
}
