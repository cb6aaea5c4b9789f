//! A head alone, fetched out of repositories shaped like the released ones.

mod support;

use foretoken_library::download::{Options, Outcome};
use foretoken_library::hub::HeadPlace;
use foretoken_library::{HeadPlan, Hub, RepoRef};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use support::*;

const ORIGINAL: &str = "maker/original";

/// Name, type and bytes of a tensor.
type Tensor = (String, &'static str, Vec<u8>);

fn tensor(seed: u64, name: &str, dtype: &'static str, n: usize) -> Tensor {
    (name.to_owned(), dtype, noise(seed, n))
}

fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, bytes) in tensors {
        let end = data.len() + bytes.len();
        let width = if *dtype == "F32" { 4 } else { 2 };
        let place = json!({"dtype": dtype, "shape": [bytes.len() / width], "data_offsets": [data.len(), end]});
        header.insert(name.clone(), place);
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Tensors by name, from a file's bytes.
fn read(file: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let bytes = std::fs::read(file).expect("there");
    let n = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + n]).expect("JSON");
    assert_eq!(n % 8, 0, "the data is aligned");
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors
        .map(|(name, place)| {
            let at = |i: usize| place["data_offsets"][i].as_u64().expect("a number") as usize;
            let dtype = place["dtype"].as_str().expect("a type").to_owned();
            assert_eq!(at(0) % if dtype == "F32" { 4 } else { 2 }, 0, "{name} is aligned");
            (name, (dtype, bytes[8 + n + at(0)..8 + n + at(1)].to_vec()))
        })
        .collect()
}

/// An original as Hy3's is: layers out of order, the head spread over shards between the trunk's tensors.
fn original(mirror: &Mirror) -> Vec<Tensor> {
    let head = vec![
        tensor(1, "model.layers.4.mlp.expert_bias", "F32", 4 * 33),
        tensor(2, "model.layers.4.eh_proj.weight", "BF16", 900_002),
        tensor(3, "model.layers.4.mlp.experts.0.up_proj.weight", "BF16", 1_500_000),
        tensor(4, "model.layers.4.mlp.experts.1.up_proj.weight", "BF16", 1_500_000),
        tensor(5, "model.layers.4.final_layernorm.weight", "BF16", 4096),
    ];
    let trunk = |i: u64| tensor(100 + i, &format!("model.layers.{}.w", i % 4), "BF16", 3_000_000);
    let shards = [
        vec![
            head[0].clone(),
            trunk(0),
            head[1].clone(),
            head[2].clone(),
            head[3].clone(),
            trunk(1),
        ],
        vec![trunk(2)],
        vec![head[4].clone(), trunk(3)],
    ];
    let mut map = serde_json::Map::new();
    for (i, shard) in shards.iter().enumerate() {
        let file = format!("model-0000{}-of-00003.safetensors", i + 1);
        mirror.add(ORIGINAL, &file, safetensors(shard));
        map.extend(shard.iter().map(|(name, ..)| (name.clone(), json!(file))));
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    mirror.add(ORIGINAL, "model.safetensors.index.json", index.into_bytes());
    let config = br#"{"model_type":"hy_v3","num_hidden_layers":4,"num_nextn_predict_layers":1}"#;
    mirror.add(ORIGINAL, "config.json", config.to_vec());
    head
}

fn plan(hub: &Hub) -> HeadPlan {
    let model = hub.inspect(&RepoRef::main(ORIGINAL.parse().expect("a name"))).expect("inspected");
    HeadPlan::new(&model).expect("it has a head")
}

fn assert_is(folder: &Path, head: &[Tensor]) {
    let found = read(&folder.join("mtp.safetensors"));
    assert_eq!(found.len(), head.len());
    for (name, dtype, bytes) in head {
        assert!(found[name] == ((*dtype).to_owned(), bytes.clone()), "{name}");
    }
    let config: Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).expect("there"))
            .expect("JSON");
    assert_eq!(config["num_hidden_layers"], 4);
}

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
