//! A head alone, fetched out of repositories shaped like the released ones.

mod support;

use foretoken_library::download::{Options, Outcome};
use foretoken_library::hub::HeadPlace;
use foretoken_library::{HeadPlan, RepoRef};
use serde_json::json;
use std::time::Duration;
use support::original::*;
use support::*;

#[test]
fn only_the_heads_bytes_are_fetched_within_two_percent() {
    let mirror = Mirror::new();
    let head = original(&mirror);
    let hub = hub(&mirror.endpoint, None);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let folder = dir.path().join("head");
    let ended = plan(&hub).fetch(&hub, &folder, options(), |_| {}).wait().expect("no error");
    assert_eq!(ended, Outcome::Complete { folder: folder.clone() });
    assert_is(&folder, &head);

    let tensors: usize = head.iter().map(|(.., bytes)| bytes.len()).sum();
    let sent = mirror.sent();
    eprintln!("{sent} bytes fetched for {tensors} bytes of tensors");
    assert!(sent as f64 <= 1.02 * tensors as f64, "{sent} for {tensors}");
    let all: u64 =
        hub.list(&RepoRef::main(ORIGINAL.parse().expect("a name"))).expect("listed").bytes();
    assert!(all > 4 * sent);
    assert!(!mirror.log().iter().any(|row| row.path.contains("00002-of")), "no head, no request");

    let before = mirror.log().len();
    let plan = plan(&hub);
    let asked = mirror.log().len();
    plan.fetch(&hub, &folder, options(), |_| {}).wait().expect("it is there");
    assert!(asked > before && mirror.log().len() == asked, "nothing is fetched twice");
}

#[test]
fn where_a_head_is_is_told_before_anything_is_fetched() {
    let mirror = Mirror::new();
    let head = original(&mirror);
    let hub = hub(&mirror.endpoint, None);
    let look =
        |repo: &str| hub.inspect(&RepoRef::main(repo.parse().expect("a name"))).expect("inspected");
    let model = look(ORIGINAL);
    assert_eq!(model.model_type.as_deref(), Some("hy_v3"));
    let tensors: usize = head.iter().map(|(.., bytes)| bytes.len()).sum();
    assert_eq!(model.head_bytes(), tensors as u64);
    let shards =
        |i: &[u32]| i.iter().map(|i| format!("model-0000{i}-of-00003.safetensors")).collect();
    assert_eq!(model.head_place, Some(HeadPlace::Shards(shards(&[1, 3]))));

    // A repack that lost its head, and one that has it in a file of its own.
    let config = br#"{"model_type":"step3p5","num_hidden_layers":4,"num_nextn_predict_layers":3,"quantization":{"bits":4}}"#;
    let trunk = safetensors(&[tensor(1, "model.layers.0.w", "BF16", 5000)]);
    for repo in ["repack/headless", "repack/own"] {
        mirror.add(repo, "config.json", config.to_vec());
        mirror.add(repo, "model.safetensors", trunk.clone());
    }
    let own = safetensors(&[tensor(2, "mtp.layers.0.eh_proj.weight", "BF16", 5000)]);
    mirror.add("repack/own", "model-mtp.safetensors", own);
    let headless = look("repack/headless");
    assert_eq!((headless.head.len(), &headless.head_place, headless.bits()), (0, &None, Some(4)));
    assert!(HeadPlan::new(&headless).is_none());
    let file = "model-mtp.safetensors".to_owned();
    assert_eq!(look("repack/own").head_place, Some(HeadPlace::OwnFiles(vec![file])));

    // A copy beside the shards adds nothing.
    mirror.add(ORIGINAL, "mtp.safetensors", safetensors(&head));
    assert_eq!(look(ORIGINAL).head_bytes(), tensors as u64);
}

#[test]
fn a_head_survives_drops_stops_and_changes() {
    let mirror = Mirror::new();
    let head = original(&mirror);
    let hub = hub(&mirror.endpoint, None);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let start = |options: Options| plan(&hub).fetch(&hub, dir.path(), options, |_| {});

    mirror.with(|state| state.throttle = Some(2_000_000));
    let download = start(options());
    std::thread::sleep(Duration::from_millis(600));
    download.pause();
    assert_eq!(download.wait().expect("no error"), Outcome::Stopped);
    assert!(!dir.path().join("mtp.safetensors").exists());
    mirror.with(|state| state.throttle = None);
    let shard = "model-00001-of-00003.safetensors";
    mirror.fault(Fault { skip: 2, ..Fault::new(Stage::Bytes, shard, Kind::Drop(500_000)) });
    start(options()).wait().expect("complete");
    assert_is(dir.path(), &head);
    let mut left = names(dir.path());
    left.retain(|name| name != ".lock");
    assert_eq!(left, ["config.json", "mtp.safetensors"]);

    // Another commit is another head: nothing of the old one is continued.
    mirror.add(ORIGINAL, "README.md", b"news".to_vec());
    assert!(!plan(&hub).is_in(dir.path()));
    start(options()).wait().expect("complete");
    assert_is(dir.path(), &head);
}

#[test]
fn headers_that_lie_are_refused() {
    let mirror = Mirror::new();
    let hub = hub(&mirror.endpoint, None);
    let config = br#"{"num_hidden_layers":4}"#;
    let place = |end: u64| {
        let header =
            json!({"mtp.w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, end]}}).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 2]].concat()
    };
    let lies: [(&str, Vec<u8>); 4] = [
        ("a/too-long", place(4)),
        ("a/endless", [&u64::MAX.to_le_bytes()[..], b"{}"].concat()),
        ("a/short", vec![1, 2]),
        ("a/no-json", [&4u64.to_le_bytes()[..], b"nope"].concat()),
    ];
    for (repo, file) in lies {
        mirror.add(repo, "config.json", config.to_vec());
        mirror.add(repo, "model.safetensors", file);
        let refused = hub.inspect(&RepoRef::main(repo.parse().expect("a name")));
        assert!(
            matches!(refused, Err(foretoken_library::HubError::BadAnswer { .. })),
            "{repo}: {refused:?}"
        );
    }
}
