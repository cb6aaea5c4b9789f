//! The head: in parts, with more or fewer levels than promised, and put on another trunk.

use super::maker::{Folder, Stored};
use crate::{Damage, Expect, HY, HY_BARE, HY_HEAD, HY_MLX, Row, STEP, STEP_MLX, refused, row};

const EH_PROJ: &str = "model.layers.4.eh_proj.weight";

const fn graft(name: &'static str, donor: &'static str, damage: Damage, expect: Expect) -> Row {
    Row { donor: Some((donor, damage)), ..row(name, HY_BARE, |_| (), expect) }
}

/// Every tensor of a level, but for what stays.
fn strip(f: &Folder, level: &str, stays: &[&str]) {
    f.lose(|name| name.starts_with(level) && !stays.iter().any(|end| name.ends_with(end)));
}

fn widen(t: &mut Stored, shape: &[usize]) {
    t.shape = shape.to_vec();
    t.data.resize(t.len() * t.dtype.bitsize() / 8, 0);
}

pub const ROWS: &[Row] = &[
    row(
        "one norm is missing",
        HY,
        |f| f.lose(|name| name == "model.layers.4.enorm.weight"),
        refused!(
        HeadIncomplete { missing } if *missing == ["model.layers.4.enorm.weight"]),
    ),
    row(
        "eh_proj is missing",
        HY,
        |f| f.lose(|name| name == EH_PROJ),
        refused!(
        HeadIncomplete { missing } if *missing == [EH_PROJ]),
    ),
    row(
        "two parts are missing",
        HY,
        |f| f.lose(|name| name == EH_PROJ || name.ends_with("4.final_layernorm.weight")),
        refused!(HeadIncomplete { missing }
            if *missing == [EH_PROJ, "model.layers.4.final_layernorm.weight"]),
    ),
    row(
        "one expert is missing",
        HY,
        |f| f.lose(|name| name.starts_with("model.layers.4.mlp.experts.6.")),
        refused!(HeadIncomplete { missing }
            if *missing == ["model.layers.4.mlp.experts.6.gate_proj.weight"]),
    ),
    row(
        "the scales of eh_proj are missing",
        HY_MLX,
        |f| f.lose(|name| name == "mtp.eh_proj.scales"),
        refused!(
        HeadIncomplete { missing } if *missing == ["mtp.eh_proj.scales"]),
    ),
    row(
        "only its norms are left",
        HY,
        |f| strip(f, "model.layers.4.", &["norm.weight"]),
        refused!(
        HeadIncomplete { missing } if *missing == [EH_PROJ]),
    ),
    row(
        "a level's own output matrix is missing",
        STEP,
        |f| f.lose(|name| name == "model.layers.6.transformer.shared_head.output.weight"),
        refused!(HeadIncomplete { missing } if *missing == ["model.layers.6.transformer.shared_head.output.weight"]),
    ),
    row(
        "a level's attention is missing",
        STEP_MLX,
        |f| f.lose(|name| name.starts_with("mtp.layers.1.self_attn.q_proj")),
        refused!(HeadIncomplete { missing } if *missing == ["mtp.layers.1.self_attn.q_proj.weight"]),
    ),
    row(
        "three levels promised, one is there",
        STEP,
        |f| {
            strip(f, "model.layers.6.", &[]);
            strip(f, "model.layers.7.", &[]);
        },
        refused!(HeadIncomplete { missing } if missing.len() == 10
            && missing.iter().any(|name| name == "model.layers.6.eh_proj.weight")
            && missing.iter().any(|name| name == "model.layers.7.eh_proj.weight")),
    ),
    row(
        "2^60 levels promised",
        STEP,
        |f| f.set("num_nextn_predict_layers", 1u64 << 60),
        refused!(
        HeadIncomplete { missing } if missing[0] == "model.layers.8.enorm.weight"),
    ),
    row(
        "eh_proj turned",
        HY,
        |f| f.tensor(EH_PROJ, |t| t.shape.reverse()),
        refused!(
        ShapeMismatch { name, want, got }
            if name == EH_PROJ && *want == [128, 256] && *got == [256, 128]),
    ),
    row(
        "a narrower norm",
        STEP_MLX,
        |f| f.tensor("mtp.layers.2.hnorm.weight", |t| t.rows(64)),
        refused!(
        ShapeMismatch { name, got, .. } if name == "mtp.layers.2.hnorm.weight" && *got == [64]),
    ),
    row(
        "the head's router has fewer rows than experts",
        HY,
        |f| {
            f.tensor("model.layers.4.mlp.router.gate.weight", |t| t.rows(4));
            f.tensor("model.layers.4.mlp.expert_bias", |t| t.rows(4));
        },
        refused!(ShapeMismatch { name, got, .. }
            if name == "model.layers.4.mlp.experts" && *got == [8]),
    ),
    // From another folder
    graft(
        "a head of another width",
        HY_HEAD,
        |f| f.set("hidden_size", 256),
        refused!(
        HeadMismatch { key: "hidden_size", head, trunk } if head == "256" && trunk == "128"),
    ),
    graft(
        "a head of another vocabulary",
        HY_HEAD,
        |f| f.set("vocab_size", 2048),
        refused!(
        HeadMismatch { key: "vocab_size", head, trunk } if head == "2048" && trunk == "1536"),
    ),
    graft(
        "a head whose tensors are wider than it says",
        HY_HEAD,
        |f| f.tensor(EH_PROJ, |t| widen(t, &[128, 512])),
        refused!(ShapeMismatch { name, want, got }
            if name == EH_PROJ && *want == [128, 256] && *got == [128, 512]),
    ),
    graft(
        "a head of another family",
        STEP,
        |_| (),
        refused!(
        HeadMismatch { key: "model_type", head, trunk } if head == "step3p5" && trunk == "hy_v3"),
    ),
    graft(
        "a folder with half a head",
        HY_HEAD,
        |f| f.lose(|name| name.ends_with("hnorm.weight")),
        refused!(
        HeadIncomplete { missing } if *missing == ["model.layers.4.hnorm.weight"]),
    ),
    graft(
        "a folder without a head",
        HY_BARE,
        |_| (),
        refused!(
        HeadIncomplete { missing } if missing.iter().any(|name| name == EH_PROJ)),
    ),
    graft(
        "a head cut off",
        HY_HEAD,
        |f| f.bytes("mtp.safetensors", |raw| raw.truncate(raw.len() / 2)),
        refused!(Corrupt { file, why } if file.ends_with("mtp.safetensors") && why.contains("cut off")),
    ),
    graft(
        "a head with more experts per token than it has",
        HY_HEAD,
        |f| f.set("num_experts_per_tok", 9),
        refused!(UnsupportedConfig { key, value }
            if key == "num_experts_per_tok" && value == "9 of 8 experts"),
    ),
    graft(
        "a head behind 2^64 - 1 layers",
        HY_HEAD,
        |f| f.set("num_hidden_layers", u64::MAX),
        refused!(
        UnsupportedConfig { key, .. } if key == "num_hidden_layers"),
    ),
];
