//! An original release whose head is spread over its shards, and what a head fetched out of it must be.

use super::{Mirror, noise};
use foretoken_library::{HeadPlan, Hub, RepoRef};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

pub const ORIGINAL: &str = "maker/original";

/// Name, type and bytes of a tensor.
pub type Tensor = (String, &'static str, Vec<u8>);

pub fn tensor(seed: u64, name: &str, dtype: &'static str, n: usize) -> Tensor {
    (name.to_owned(), dtype, noise(seed, n))
}

pub fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
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
pub fn original(mirror: &Mirror) -> Vec<Tensor> {
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

pub fn plan(hub: &Hub) -> HeadPlan {
    let model = hub.inspect(&RepoRef::main(ORIGINAL.parse().expect("a name"))).expect("inspected");
    HeadPlan::new(&model).expect("it has a head")
}

pub fn assert_is(folder: &Path, head: &[Tensor]) {
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
