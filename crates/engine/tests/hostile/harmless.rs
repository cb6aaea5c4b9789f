//! What is wrong and must load all the same: the tensors decide, and what nobody reads is listed.

use super::maker::{Folder, INDEX};
use crate::{
    Expect, HY, HY_BARE, HY_HEAD, HY_MLX, Head, LLAMA, Loads, Row, SHARD, STEP, STEP_MLX, Text, row,
};
use serde_json::{Value, json};

/// The shard of `HY` with `eh_proj`.
const HY_HEAD_SHARD: &str = "model-00001-of-00003.safetensors";

const fn loads(head: Head, leftovers: &'static [&'static str], text: Text) -> Expect {
    Expect::Loads(Loads { head, leftovers, text })
}

/// The fixture as it is.
const fn as_ever(head: Head) -> Expect {
    loads(head, &[], Text::Golden)
}

const STEP_HEAD: Head = Head::Levels(3, SHARD);
const MTP_FILE: &str = "model-mtp.safetensors";

/// Per-layer lists that end with the trunk.
fn shorten_lists(f: &Folder) {
    f.config(|c| {
        for list in c.as_object_mut().expect("settings").values_mut() {
            if let Value::Array(list) = list {
                list.truncate(if list.len() == 8 { 5 } else { list.len() });
            }
        }
    });
}

pub const ROWS: &[Row] = &[
    // Folders
    row("no index", HY, |f| f.remove(INDEX), as_ever(Head::Levels(1, HY_HEAD_SHARD))),
    row(
        "a mark at the start of the config",
        STEP,
        |f| f.bytes("config.json", |raw| *raw = [b"\xef\xbb\xbf", raw.as_slice()].concat()),
        as_ever(STEP_HEAD),
    ),
    row(
        "what a Mac leaves beside a shard",
        STEP,
        |f| f.write("._model.safetensors", [0; 300]),
        as_ever(STEP_HEAD),
    ),
    row(
        "what a Mac leaves, in the index",
        STEP_MLX,
        |f| {
            f.write("._model.safetensors", [0; 300]);
            f.json(INDEX, |index| index["weight_map"]["x"] = json!("._model.safetensors"));
        },
        as_ever(Head::Levels(3, MTP_FILE)),
    ),
    row(
        "a stale shard beside the index",
        HY,
        |f| f.write("model-00009-of-00009.safetensors", "half a download"),
        as_ever(Head::Levels(1, HY_HEAD_SHARD)),
    ),
    row(
        "an index that names another shard for a tensor",
        HY,
        |f| {
            let other = json!("model-00001-of-00003.safetensors");
            f.json(INDEX, |index| {
                let map = index["weight_map"].as_object_mut().expect("a map");
                *map.values_mut().find(|shard| **shard != other).expect("a shard") = other.clone();
            });
        },
        as_ever(Head::Levels(1, HY_HEAD_SHARD)),
    ),
    row(
        "a head's file the index does not know",
        STEP_MLX,
        |f| {
            f.json(INDEX, |index| {
                let map = index["weight_map"].as_object_mut().expect("a map");
                map.retain(|_, shard| shard != MTP_FILE);
            });
        },
        as_ever(Head::Levels(3, MTP_FILE)),
    ),
    // The flag and the tensor
    row(
        "tied by the config, with an lm_head of its own",
        HY,
        |f| f.set("tie_word_embeddings", true),
        as_ever(Head::Levels(1, HY_HEAD_SHARD)),
    ),
    row(
        "tied by the config, with an lm_head of its own",
        STEP_MLX,
        |f| f.set("tie_word_embeddings", true),
        as_ever(Head::Levels(3, MTP_FILE)),
    ),
    row(
        "tied by the config, the embedding stored twice",
        LLAMA,
        |f| f.copy("model.embed_tokens.weight", "lm_head.weight", |_| ()),
        as_ever(Head::Absent(&["No MTP head"])),
    ),
    row(
        "tied by the config alone",
        HY,
        |f| {
            f.set("tie_word_embeddings", true);
            f.lose(|name| name == "lm_head.weight");
        },
        loads(Head::Levels(1, HY_HEAD_SHARD), &[], Text::Other),
    ),
    row(
        "no flag and no lm_head",
        LLAMA,
        |f| f.set("tie_word_embeddings", Value::Null),
        as_ever(Head::Absent(&[])),
    ),
    row(
        "no flag and an lm_head",
        STEP,
        |f| f.set("tie_word_embeddings", Value::Null),
        as_ever(STEP_HEAD),
    ),
    // The head
    row(
        "promised and lost",
        HY,
        |f| f.lose(|name| name.starts_with("model.layers.4.")),
        as_ever(Head::Absent(&["promises", "lost", "model.layers.4."])),
    ),
    row(
        "promised and lost",
        STEP_MLX,
        |f| f.lose(|name| name.starts_with("mtp.")),
        as_ever(Head::Absent(&["promises", "lost", "model.layers.5 to 7."])),
    ),
    row(
        "neither promised nor there",
        STEP,
        |f| {
            f.set("num_nextn_predict_layers", 0);
            f.lose(|name| (5..8).any(|i| name.starts_with(&format!("model.layers.{i}."))));
        },
        as_ever(Head::Absent(&["No MTP head"])),
    ),
    row(
        "not promised and there",
        HY,
        |f| f.set("num_nextn_predict_layers", 0),
        as_ever(Head::Levels(1, HY_HEAD_SHARD)),
    ),
    row(
        "not promised and there",
        STEP,
        |f| f.set("num_nextn_predict_layers", 0),
        as_ever(STEP_HEAD),
    ),
    row(
        "one level promised, three there",
        STEP,
        |f| f.set("num_nextn_predict_layers", 1),
        loads(Head::Levels(1, SHARD), &["model.layers.6.", "model.layers.7."], Text::Golden),
    ),
    row(
        "levels beyond a hole",
        STEP,
        |f| {
            f.set("num_nextn_predict_layers", 0);
            f.lose(|name| name.starts_with("model.layers.6."));
        },
        loads(Head::Levels(1, SHARD), &["model.layers.7."], Text::Golden),
    ),
    row(
        "three levels promised for one",
        HY,
        |f| f.set("num_nextn_predict_layers", 3),
        as_ever(Head::Levels(1, HY_HEAD_SHARD)),
    ),
    row(
        "a layer beyond the head",
        HY,
        |f| f.copy("model.layers.4.enorm.weight", "model.layers.5.enorm.weight", |_| ()),
        loads(Head::Levels(1, HY_HEAD_SHARD), &["model.layers.5.enorm.weight"], Text::Golden),
    ),
    row(
        "layers far beyond the levels",
        STEP,
        |f| {
            f.copy("model.layers.7.eh_proj.weight", "model.layers.8.eh_proj.weight", |_| ());
            f.copy(
                "model.layers.0.input_layernorm.weight",
                "model.layers.99.input_layernorm.weight",
                |_| (),
            );
        },
        loads(STEP_HEAD, &["model.layers.8.", "model.layers.99."], Text::Golden),
    ),
    row(
        "tensors of another part of a larger model",
        STEP,
        |f| f.copy("model.norm.weight", "vision_model.norm.weight", |_| ()),
        loads(STEP_HEAD, &["vision_model."], Text::Golden),
    ),
    Row {
        donor: Some((HY_HEAD, |f| f.set("max_position_embeddings", 16))),
        ..row(
            "a head that says it reads sixteen tokens, on a trunk that reads more",
            HY_BARE,
            |_| (),
            as_ever(Head::Levels(1, "mtp.safetensors")),
        )
    },
    Row {
        donor: Some((HY, |_| ())),
        ..row("a whole model for a donor", HY_BARE, |_| (), as_ever(Head::Levels(1, HY_HEAD_SHARD)))
    },
    // Settings
    row("lists that end with the trunk", STEP, shorten_lists, as_ever(STEP_HEAD)),
    row(
        "lists that end with the trunk",
        STEP_MLX,
        shorten_lists,
        as_ever(Head::Levels(3, MTP_FILE)),
    ),
    row(
        "more experts in the config than there are",
        HY,
        |f| f.set("num_experts", 192),
        as_ever(Head::Levels(1, HY_HEAD_SHARD)),
    ),
    row(
        "a window that never closes",
        STEP,
        |f| f.set("sliding_window", 1 << 24),
        loads(STEP_HEAD, &[], Text::Other),
    ),
    row(
        "no table of packings",
        STEP_MLX,
        |f| {
            f.config(|c| {
                let settings = c.as_object_mut().expect("settings");
                settings.retain(|key, _| !key.starts_with("quantization"));
            });
        },
        as_ever(Head::Levels(3, MTP_FILE)),
    ),
    row(
        "another packing by default than any module has",
        HY_MLX,
        |f| f.set("/quantization/bits", 6),
        as_ever(Head::Levels(1, MTP_FILE)),
    ),
    row(
        "a packed module the config calls unpacked",
        HY_MLX,
        |f| f.config(|c| c["quantization"]["model.layers.1.self_attn.v_proj"] = json!(false)),
        as_ever(Head::Levels(1, MTP_FILE)),
    ),
];
