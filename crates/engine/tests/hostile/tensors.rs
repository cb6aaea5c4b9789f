//! Tensors of the trunk: missing, of the wrong shape or type, at odds with each other.

use super::maker::{Folder, Stored};
use crate::{HY, HY_MLX, LLAMA, Row, STEP, STEP_MLX, refused, row};
use safetensors::Dtype;
use serde_json::json;

const EXPERT: &str = "model.layers.2.mlp.experts.5.up_proj.weight";
const HY_ROUTER: &str = "model.layers.2.mlp.router.gate.weight";
const STEP_ROUTER: &str = "model.layers.3.moe.gate.weight";
const O_PROJ: &str = "model.layers.1.self_attn.o_proj.weight";
/// A packed matrix of either MLX fixture: k = 128, groups of 64.
const V_PROJ: &str = "model.layers.1.self_attn.v_proj";
const V_WEIGHT: &str = "model.layers.1.self_attn.v_proj.weight";
const V_SCALES: &str = "model.layers.1.self_attn.v_proj.scales";
const V_BIASES: &str = "model.layers.1.self_attn.v_proj.biases";
const EMBED: &str = "model.embed_tokens.weight";
/// More elements than any file has, in a shape that holds none.
const ENDLESS: usize = 1 << 60;

fn reshape(t: &mut Stored, shape: &[usize]) {
    t.shape = shape.to_vec();
    t.data.resize(t.len() * t.dtype.bitsize() / 8, 0);
}

fn retype(t: &mut Stored, dtype: Dtype) {
    t.dtype = dtype;
    t.data.resize(t.len() * dtype.bitsize() / 8, 1);
}

/// Another number of groups for the packed matrix.
fn groups(f: &Folder, n: usize) {
    let columns = |t: &mut Stored| reshape(t, &[64, n]);
    f.tensor(V_SCALES, columns);
    f.tensor(V_BIASES, columns);
}

pub const ROWS: &[Row] = &[
    // Missing
    row(
        "a norm is missing",
        STEP,
        |f| f.lose(|name| name == "model.norm.weight"),
        refused!(MissingTensor { name, .. } if name == "model.norm.weight"),
    ),
    row(
        "an expert's matrix is missing",
        HY,
        |f| f.lose(|name| name == EXPERT),
        refused!(MissingTensor { name, .. } if name == EXPERT),
    ),
    row(
        "a router's bias is missing",
        STEP,
        |f| f.lose(|name| name == "model.layers.3.moe.router_bias"),
        refused!(MissingTensor { name, .. } if name == "model.layers.3.moe.router_bias"),
    ),
    row(
        "a gate of the heads is missing",
        STEP_MLX,
        |f| f.lose(|name| name.starts_with("model.layers.2.self_attn.g_proj.")),
        refused!(MissingTensor { name, .. } if name == "model.layers.2.self_attn.g_proj.weight"),
    ),
    row(
        "a whole layer is missing",
        HY,
        |f| f.lose(|name| name.starts_with("model.layers.3.")),
        refused!(MissingTensor { name, .. } if name.starts_with("model.layers.3.")),
    ),
    row(
        "no lm_head, and none is tied",
        HY,
        |f| f.lose(|name| name == "lm_head.weight"),
        refused!(MissingTensor { name, .. } if name == "lm_head.weight"),
    ),
    row(
        "no lm_head, and none is tied",
        STEP_MLX,
        |f| f.lose(|name| name.starts_with("lm_head.")),
        refused!(MissingTensor { name, .. } if name == "lm_head.weight"),
    ),
    row(
        "not tied by the config, and the file ends with the norm",
        LLAMA,
        |f| f.set("tie_word_embeddings", false),
        refused!(MissingTensor { name, .. } if name == "lm_head.weight"),
    ),
    // Shapes
    row(
        "turned",
        STEP,
        |f| f.tensor(O_PROJ, |t| t.shape.reverse()),
        refused!(ShapeMismatch { name, want, got }
            if name == O_PROJ && *want == [128, 192] && *got == [192, 128]),
    ),
    row(
        "flat",
        HY,
        |f| f.tensor(EXPERT, |t| t.shape = vec![64 * 128]),
        refused!(ShapeMismatch { name, want, got }
            if name == EXPERT && *want == [64, 128] && *got == [8192]),
    ),
    row(
        "one dimension more",
        STEP,
        |f| f.tensor("model.norm.weight", |t| t.shape = vec![1, 128]),
        refused!(ShapeMismatch { name, got, .. } if name == "model.norm.weight" && *got == [1, 128]),
    ),
    row(
        "an expert's stack turned",
        STEP_MLX,
        |f| f.tensor("model.layers.2.mlp.switch_mlp.up_proj.scales", |t| t.shape = vec![64, 8, 2]),
        refused!(ShapeMismatch { name, got, .. }
            if name == "model.layers.2.mlp.switch_mlp.up_proj.scales" && *got == [64, 8, 2]),
    ),
    row(
        "a smaller vocabulary in the config",
        HY,
        |f| f.set("vocab_size", 1500),
        refused!(ShapeMismatch { name, want, got }
            if name == EMBED && *want == [1500, 128] && *got == [1536, 128]),
    ),
    row(
        "a larger vocabulary in the config",
        STEP_MLX,
        |f| f.set("vocab_size", 2048),
        refused!(ShapeMismatch { name, want, .. } if name == EMBED && want[0] == 2048),
    ),
    row(
        "no rows",
        HY,
        |f| f.tensor(EMBED, |t| reshape(t, &[0, 128])),
        refused!(ShapeMismatch { name, got, .. } if name == EMBED && *got == [0, 128]),
    ),
    row(
        "no dimensions",
        HY,
        |f| f.tensor(HY_ROUTER, |t| reshape(t, &[])),
        refused!(UnsupportedFormat { name, format } if name == HY_ROUTER && format.contains("[]")),
    ),
    row(
        "a router for endless experts of no width",
        HY,
        |f| f.tensor(HY_ROUTER, |t| reshape(t, &[ENDLESS, 0])),
        refused!(ShapeMismatch { name, got, .. } if name == HY_ROUTER && *got == [ENDLESS, 0]),
    ),
    row(
        "a router for endless experts of no width",
        STEP,
        |f| f.tensor(STEP_ROUTER, |t| reshape(t, &[ENDLESS, 0])),
        refused!(ShapeMismatch { name, got, .. } if name == STEP_ROUTER && *got == [ENDLESS, 0]),
    ),
    row(
        "endless words in no row",
        STEP_MLX,
        |f| f.tensor(V_WEIGHT, |t| reshape(t, &[0, ENDLESS])),
        refused!(UnsupportedFormat { name, format }
            if name == V_WEIGHT && format.contains("1152921504606846976 words")),
    ),
    row(
        "no groups",
        HY_MLX,
        |f| groups(f, 0),
        refused!(UnsupportedFormat { name, format } if name == V_SCALES && format.contains("0 groups")),
    ),
    // Types
    row(
        "whole numbers",
        HY,
        |f| f.tensor(EXPERT, |t| retype(t, Dtype::I32)),
        refused!(UnsupportedFormat { name, format } if name == EXPERT && format.contains("I32")),
    ),
    row(
        "eight-bit floats",
        STEP,
        |f| f.tensor(O_PROJ, |t| retype(t, Dtype::F8_E4M3)),
        refused!(UnsupportedFormat { name, format } if name == O_PROJ && format.contains("F8_E4M3")),
    ),
    row(
        "eight-bit floats for a norm",
        HY,
        |f| f.tensor("model.norm.weight", |t| retype(t, Dtype::F8_E5M2)),
        refused!(UnsupportedFormat { name, format }
            if name == "model.norm.weight" && format.contains("F8_E5M2")),
    ),
    row(
        "a bias the family has not",
        HY,
        |f| {
            f.copy(
                "model.layers.0.self_attn.q_norm.weight",
                "model.layers.0.self_attn.q_proj.bias",
                |t| {
                    reshape(t, &[256]);
                },
            );
        },
        refused!(UnsupportedFormat { name, format }
            if name == "model.layers.0.self_attn.q_proj.bias" && format.contains("bias")),
    ),
    // Experts
    row(
        "a router with more rows than experts",
        HY,
        |f| {
            f.tensor(HY_ROUTER, |t| t.rows(9));
            f.tensor("model.layers.2.mlp.expert_bias", |t| t.rows(9));
        },
        refused!(MissingTensor { name, .. }
            if name == "model.layers.2.mlp.experts.8.gate_proj.weight"),
    ),
    row(
        "a router with fewer rows than experts",
        HY,
        |f| {
            f.tensor(HY_ROUTER, |t| t.rows(7));
            f.tensor("model.layers.2.mlp.expert_bias", |t| t.rows(7));
        },
        refused!(ShapeMismatch { name, want, got }
            if name == "model.layers.2.mlp.experts" && *want == [7] && *got == [8]),
    ),
    row(
        "a router with more rows than experts",
        STEP,
        |f| {
            f.tensor(STEP_ROUTER, |t| t.rows(9));
            f.tensor("model.layers.3.moe.router_bias", |t| t.rows(9));
        },
        refused!(ShapeMismatch { name, want, got }
            if name == "model.layers.3.moe.gate_proj.weight" && want[0] == 9 && got[0] == 8),
    ),
    row(
        "a router with fewer rows than experts",
        HY_MLX,
        |f| {
            let rows = |t: &mut Stored| t.rows(7);
            f.each(|name| name.starts_with("model.layers.2.mlp.router."), rows);
        },
        refused!(ShapeMismatch { name, want, got } if want[0] == 7 && got[0] == 8
            && name == "model.layers.2.mlp.switch_mlp.gate_proj.weight"),
    ),
    row(
        "a longer bias than the router has rows",
        STEP,
        |f| f.tensor("model.layers.3.moe.router_bias", |t| t.rows(9)),
        refused!(ShapeMismatch { name, want, got }
            if name == "model.layers.3.moe.router_bias" && *want == [8] && *got == [9]),
    ),
    row(
        "a shorter bias than the router has rows",
        HY,
        |f| f.tensor("model.layers.2.mlp.expert_bias", |t| t.rows(7)),
        refused!(ShapeMismatch { name, want, got }
            if name == "model.layers.2.mlp.expert_bias" && *want == [8] && *got == [7]),
    ),
    row(
        "more experts per token than there are",
        HY,
        |f| f.set("num_experts_per_tok", 9),
        refused!(UnsupportedConfig { key, value }
            if key == "num_experts_per_tok" && value == "9 of 8 experts"),
    ),
    row(
        "more experts per token than there are",
        STEP_MLX,
        |f| f.set("moe_top_k", 1u64 << 60),
        refused!(UnsupportedConfig { key, value }
            if key == "moe_top_k" && value == "1152921504606846976 of 8 experts"),
    ),
    row(
        "no experts per token",
        STEP,
        |f| f.set("moe_top_k", 0),
        refused!(UnsupportedConfig { key, value } if key == "moe_top_k" && value == "0 of 8 experts"),
    ),
    // Packed matrices
    row(
        "scales without biases",
        STEP_MLX,
        |f| f.lose(|name| name == V_BIASES),
        refused!(MissingTensor { name, .. } if name == V_BIASES),
    ),
    row(
        "experts' scales without biases",
        HY_MLX,
        |f| f.lose(|name| name == "model.layers.1.mlp.switch_mlp.down_proj.biases"),
        refused!(MissingTensor { name, .. }
            if name == "model.layers.1.mlp.switch_mlp.down_proj.biases"),
    ),
    row(
        "biases without scales",
        HY_MLX,
        |f| f.lose(|name| name == V_SCALES),
        refused!(MissingTensor { name, .. } if name == V_SCALES),
    ),
    row(
        "codes by themselves",
        STEP_MLX,
        |f| f.lose(|name| name == V_SCALES || name == V_BIASES),
        refused!(MissingTensor { name, .. } if name == V_SCALES),
    ),
    row(
        "scales of another type than the biases",
        STEP_MLX,
        |f| f.tensor(V_SCALES, |t| retype(t, Dtype::F32)),
        refused!(UnsupportedFormat { name, format }
            if name == V_BIASES && format.contains("another type")),
    ),
    row(
        "scales of a float mode the config is silent about",
        STEP_MLX,
        |f| {
            f.tensor(V_SCALES, |t| retype(t, Dtype::U8));
            f.lose(|name| name == V_BIASES);
        },
        refused!(UnsupportedFormat { name, format } if name == V_SCALES && format.contains("U8")),
    ),
    row(
        "floats beside scales",
        HY_MLX,
        |f| f.tensor(V_WEIGHT, |t| retype(t, Dtype::BF16)),
        refused!(UnsupportedFormat { name, format } if name == V_WEIGHT && format.contains("BF16")),
    ),
    row(
        "groups that do not divide the row",
        STEP_MLX,
        |f| groups(f, 3),
        refused!(UnsupportedFormat { name, format }
            if name == V_SCALES && format.contains("3 groups") && format.contains("128")),
    ),
    row(
        "groups of sixteen",
        HY_MLX,
        |f| groups(f, 8),
        refused!(UnsupportedFormat { name, format }
            if name == V_WEIGHT && format.contains("groups of 16")),
    ),
    row(
        "words that do not make whole bits",
        STEP_MLX,
        |f| f.tensor(V_WEIGHT, |t| reshape(t, &[64, 15])),
        refused!(UnsupportedFormat { name, format }
            if name == V_WEIGHT && format.contains("15 words") && format.contains("128")),
    ),
    row(
        "seven bits",
        STEP_MLX,
        |f| f.tensor(V_WEIGHT, |t| reshape(t, &[64, 28])),
        refused!(UnsupportedFormat { name, format } if name == V_WEIGHT && format.contains("7 bits")),
    ),
    row(
        "packed otherwise than the config says",
        HY_MLX,
        |f| f.config(|c| c["quantization"][V_PROJ] = json!({"group_size": 64, "bits": 4})),
        refused!(UnsupportedFormat { name, format }
            if name == V_WEIGHT && format.contains("8-bit g64") && format.contains("4-bit g64")),
    ),
];
