//! What lies in the folder: downloads that went wrong, indexes and headers that lie.

use super::maker::{Folder, INDEX};
use crate::{HY, LLAMA, Row, SHARD, STEP, STEP_MLX, refused, row};
use serde_json::{Value, json};

const HY_SHARD: &str = "model-00002-of-00003.safetensors";
const NORM: &str = "model.norm.weight";
const LFS: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 5330912\n";
const PAGE: &str = "\n<!DOCTYPE html>\n<html><body>Sign in</body></html>";

fn index(f: &Folder, shard: &str) {
    f.write(INDEX, json!({ "weight_map": { NORM: shard } }).to_string());
}

/// The place of the tensor's bytes in its shard.
fn offsets(header: &mut Value, name: &str) -> (u64, u64) {
    let at = |i: usize| header[name]["data_offsets"][i].as_u64().expect("a number");
    (at(0), at(1))
}

pub const ROWS: &[Row] = &[
    row(
        "no config",
        STEP,
        |f| f.remove("config.json"),
        refused!(FileMissing { file } if file.ends_with("config.json")),
    ),
    row(
        "a list for a config",
        HY,
        |f| f.write("config.json", "[]"),
        refused!(Corrupt { file, why } if file.ends_with("config.json") && why.contains("object")),
    ),
    row(
        "half a config",
        HY,
        |f| f.bytes("config.json", |raw| raw.truncate(100)),
        refused!(Corrupt { file, why } if file.ends_with("config.json") && why.contains("JSON")),
    ),
    row(
        "a pointer for a config",
        STEP,
        |f| f.write("config.json", LFS),
        refused!(Corrupt { file, why } if file.ends_with("config.json") && why.contains("git-lfs")),
    ),
    row(
        "no weights",
        STEP,
        |f| f.remove(SHARD),
        refused!(FileMissing { file } if file.ends_with(SHARD)),
    ),
    row(
        "a head and no trunk",
        STEP_MLX,
        |f| {
            f.remove(INDEX);
            f.remove(SHARD);
        },
        refused!(FileMissing { file } if file.ends_with(SHARD)),
    ),
    row(
        "an index without a shard",
        HY,
        |f| f.remove(HY_SHARD),
        refused!(ShardMissing { index, shard } if index.ends_with(INDEX) && shard == HY_SHARD),
    ),
    row(
        "an index that leads out of the folder",
        STEP,
        |f| index(f, "../model.safetensors"),
        refused!(Corrupt { file, why } if file.ends_with(INDEX) && why.contains("outside")),
    ),
    row(
        "an index with a path from the root",
        STEP,
        |f| index(f, "/etc/passwd"),
        refused!(Corrupt { file, why } if file.ends_with(INDEX) && why.contains("outside")),
    ),
    row(
        "an index without a map",
        HY,
        |f| f.write(INDEX, "{}"),
        refused!(Corrupt { file, why } if file.ends_with(INDEX) && why.contains("weight_map")),
    ),
    row(
        "a web page for an index",
        HY,
        |f| f.write(INDEX, PAGE),
        refused!(Corrupt { file, why } if file.ends_with(INDEX) && why.contains("web page")),
    ),
    row(
        "an index that forgets a shard",
        HY,
        |f| {
            f.json(INDEX, |index| {
                let map = index["weight_map"].as_object_mut().expect("a map");
                map.retain(|_, shard| shard != HY_SHARD);
            });
        },
        refused!(MissingTensor { name, .. } if name.starts_with("model.")),
    ),
    row(
        "a shard cut off",
        HY,
        |f| f.bytes(HY_SHARD, |raw| raw.truncate(raw.len() - 1000)),
        refused!(Corrupt { file, why } if file.ends_with(HY_SHARD) && why.contains("cut off")),
    ),
    row(
        "a shard cut off in its header",
        STEP,
        |f| f.bytes(SHARD, |raw| raw.truncate(100)),
        refused!(Corrupt { file, why } if file.ends_with(SHARD) && why.contains("cut off")),
    ),
    row(
        "a shard with more than its tensors",
        STEP,
        |f| f.bytes(SHARD, |raw| raw.extend([0; 64])),
        refused!(Corrupt { file, .. } if file.ends_with(SHARD)),
    ),
    row(
        "an empty shard",
        LLAMA,
        |f| f.write(SHARD, ""),
        refused!(Corrupt { file, why } if file.ends_with(SHARD) && why.contains("empty")),
    ),
    row(
        "five bytes",
        STEP,
        |f| f.write(SHARD, "hello"),
        refused!(Corrupt { file, why } if file.ends_with(SHARD) && why.contains("safetensors")),
    ),
    row(
        "a git-lfs pointer",
        HY,
        |f| f.write(HY_SHARD, LFS),
        refused!(Corrupt { file, why } if file.ends_with(HY_SHARD) && why.contains("git-lfs")),
    ),
    row(
        "a git-lfs pointer for a head's file",
        STEP_MLX,
        |f| f.write("model-mtp.safetensors", LFS),
        refused!(Corrupt { file, why }
            if file.ends_with("model-mtp.safetensors") && why.contains("git-lfs")),
    ),
    row(
        "a web page",
        HY,
        |f| f.write(HY_SHARD, PAGE),
        refused!(Corrupt { file, why } if file.ends_with(HY_SHARD) && why.contains("web page")),
    ),
    row(
        "an error of the server",
        STEP,
        |f| f.write(SHARD, r#"{"error": "Repository not found"}"#),
        refused!(Corrupt { file, why } if file.ends_with(SHARD) && why.contains("not a safetensors")),
    ),
    row(
        "a header longer than the file",
        STEP,
        |f| f.bytes(SHARD, |raw| raw[..8].copy_from_slice(&6_000_000u64.to_le_bytes())),
        refused!(Corrupt { file, why } if file.ends_with(SHARD) && why.contains("6000000")),
    ),
    row(
        "a header without end",
        STEP,
        |f| f.bytes(SHARD, |raw| raw[..8].copy_from_slice(&u64::MAX.to_le_bytes())),
        refused!(Corrupt { file, why } if file.ends_with(SHARD) && why.contains("18446744073709551615")),
    ),
    row(
        "a header that is no JSON",
        STEP,
        |f| f.bytes(SHARD, |raw| raw[8] = b'<'),
        refused!(Corrupt { file, why } if file.ends_with(SHARD) && why.contains("header")),
    ),
    row(
        "a header that is no text",
        STEP,
        |f| f.bytes(SHARD, |raw| raw[12] = 0xff),
        refused!(Corrupt { file, .. } if file.ends_with(SHARD)),
    ),
    row(
        "two tensors in one place",
        STEP,
        |f| {
            f.header(SHARD, |h| {
                let (from, to) = offsets(h, NORM);
                h[NORM]["data_offsets"] = json!([from - 2, to - 2]);
            });
        },
        refused!(Corrupt { file, why } if file.ends_with(SHARD) && why.contains(NORM)),
    ),
    row(
        "a tensor past the end",
        STEP,
        |f| {
            f.header(SHARD, |h| {
                let (from, _) = offsets(h, NORM);
                h[NORM]["data_offsets"] = json!([from, 1u64 << 60]);
            });
        },
        refused!(Corrupt { file, .. } if file.ends_with(SHARD)),
    ),
    row(
        "a tensor that ends before it begins",
        STEP,
        |f| {
            f.header(SHARD, |h| {
                let (from, to) = offsets(h, NORM);
                h[NORM]["data_offsets"] = json!([to, from]);
            });
        },
        refused!(Corrupt { file, .. } if file.ends_with(SHARD)),
    ),
    row(
        "a shape larger than its bytes",
        HY,
        |f| f.header(HY_SHARD, |h| first(h)["shape"] = json!([4096, 4096])),
        refused!(Corrupt { file, .. } if file.ends_with(HY_SHARD)),
    ),
    row(
        "a shape past all numbers",
        HY,
        |f| f.header(HY_SHARD, |h| first(h)["shape"] = json!([1u64 << 60, 1u64 << 60])),
        refused!(Corrupt { file, .. } if file.ends_with(HY_SHARD)),
    ),
    row(
        "a type nobody knows",
        HY,
        |f| f.header(HY_SHARD, |h| first(h)["dtype"] = json!("Q4_K")),
        refused!(Corrupt { file, why } if file.ends_with(HY_SHARD) && why.contains("Q4_K")),
    ),
    row(
        "one tensor in two shards",
        HY,
        |f| f.copy(NORM, "twice", |t| t.name = twin(f)),
        refused!(Corrupt { file, why }
            if file.to_string_lossy().contains("-of-00003") && why.contains("again")),
    ),
    row(
        "one tensor under two names",
        HY,
        |f| {
            f.copy(NORM, "mtp.enorm.weight", |_| ());
            f.copy(NORM, "model.mtp.enorm.weight", |_| ());
        },
        refused!(Corrupt { why, .. } if why.contains("model.mtp.enorm.weight")
            && why.contains(" mtp.enorm.weight")),
    ),
];

/// The first tensor of a header.
fn first(header: &mut Value) -> &mut Value {
    let tensors = header.as_object_mut().expect("a header");
    tensors.iter_mut().find(|(name, _)| *name != "__metadata__").expect("a tensor").1
}

/// A tensor that is not in the first shard.
fn twin(f: &Folder) -> String {
    let tensors = super::maker::stored(&f.path().join(HY_SHARD));
    tensors.into_iter().next().expect("a tensor").name
}
