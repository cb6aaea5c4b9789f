//! `config.json`: values nobody can have meant, kinds nobody knows, lists that end too early.

use super::maker::Folder;
use crate::{Expect, HY, HY_MLX, LLAMA, Row, STEP, STEP_MLX, refused, row};
use serde_json::{Value, json};

/// Nobody has built this much of anything.
const ABSURD: u64 = 1 << 60;
const ABSURD_TEXT: &str = "1152921504606846976";

/// A setting with a value, and what the error names: the setting, or another key; and words of the value.
macro_rules! set {
    ($name:literal, $fixture:expr, $key:literal = $value:expr, $text:expr) => {
        set!($name, $fixture, $key = $value => $key, $text)
    };
    ($name:literal, $fixture:expr, $key:literal = $value:expr => $named:literal, $text:expr) => {
        row($name, $fixture, |f| f.set($key, $value), Expect::Setting($named, $text))
    };
}

fn shorten(f: &Folder, list: &str, n: usize) {
    f.config(|c| c[list].as_array_mut().expect("a list").truncate(n));
}

pub const ROWS: &[Row] = &[
    row(
        "a family nobody knows",
        HY,
        |f| f.set("model_type", "hy_v4"),
        refused!(UnsupportedModel { model_type } if model_type == "hy_v4"),
    ),
    row(
        "no family",
        STEP,
        |f| f.set("model_type", Value::Null),
        refused!(UnsupportedModel { model_type } if model_type.is_empty()),
    ),
    // Numbers
    row(
        "a word for a number",
        STEP,
        |f| f.set("moe_intermediate_size", "many"),
        refused!(Corrupt { file, why }
            if file.ends_with("config.json") && why.contains("moe_intermediate_size")),
    ),
    row(
        "a negative number",
        HY,
        |f| f.set("num_key_value_heads", -2),
        refused!(Corrupt { file, why }
            if file.ends_with("config.json") && why.contains("num_key_value_heads")),
    ),
    row(
        "half a layer",
        LLAMA,
        |f| f.set("num_hidden_layers", 1.5),
        refused!(Corrupt { file, why }
            if file.ends_with("config.json") && why.contains("num_hidden_layers")),
    ),
    row(
        "a setting is missing",
        HY,
        |f| {
            f.config(|c| {
                c.as_object_mut().expect("settings").remove("head_dim");
            });
        },
        refused!(Corrupt { file, why } if file.ends_with("config.json") && why.contains("head_dim")),
    ),
    set!("hidden 2^60", HY, "hidden_size" = ABSURD, ABSURD_TEXT),
    set!("hidden 2^63", STEP, "hidden_size" = 1u64 << 63, "9223372036854775808"),
    set!("hidden 2^60", LLAMA, "hidden_size" = ABSURD, ABSURD_TEXT),
    set!("hidden 0", HY, "hidden_size" = 0, "0"),
    set!("a vocabulary of 2^60", STEP, "vocab_size" = ABSURD, ABSURD_TEXT),
    set!("a vocabulary of 0", HY, "vocab_size" = 0, "0"),
    set!("no layers", STEP, "num_hidden_layers" = 0, "0"),
    set!("2^60 layers", HY, "num_hidden_layers" = ABSURD, ABSURD_TEXT),
    set!("2^60 heads", HY, "num_attention_heads" = ABSURD, ABSURD_TEXT),
    set!("2^60 heads in sliding layers", STEP,
        "/attention_other_setting/num_attention_heads" = ABSURD => "num_attention_heads", ABSURD_TEXT),
    set!("no key-value heads", STEP, "num_attention_groups" = 0, "0"),
    set!("three key-value heads for eight", HY, "num_key_value_heads" = 3 => "the number of key-value heads", "3 for 8"),
    set!("heads of 2^60", STEP, "head_dim" = ABSURD, ABSURD_TEXT),
    set!("heads of 20", HY, "head_dim" = 20, "20"),
    set!("experts of 2^60", STEP_MLX, "moe_intermediate_size" = ABSURD, ABSURD_TEXT),
    set!("2^60 shared experts", HY, "num_shared_experts" = ABSURD, ABSURD_TEXT),
    set!("two widths for one expert", HY_MLX, "expert_hidden_dim" = 96, "96"),
    set!("a context of 2^60", HY, "max_position_embeddings" = ABSURD, ABSURD_TEXT),
    set!("a context of 0", STEP, "max_position_embeddings" = 0, "0"),
    set!("a window of 2^60", STEP, "sliding_window" = ABSURD, ABSURD_TEXT),
    set!("a window of 0", STEP, "sliding_window" = 0, "0"),
    set!("no window for sliding layers", STEP, "sliding_window" = Value::Null, "missing"),
    set!("a negative epsilon", STEP, "rms_norm_eps" = -1.0, "-1"),
    // Positions
    set!("a rope nobody knows", HY, "/rope_parameters/rope_type" = "yarn" => "rope_type", "yarn"),
    set!("a rope nobody knows", STEP, "/rope_scaling/rope_type" = "longrope" => "rope_type", "longrope"),
    set!("a rope nobody knows", LLAMA, "/rope_scaling/rope_type" = "dynamic" => "rope_type", "dynamic"),
    set!("a rope in the older place", HY,
        "rope_scaling" = json!({"type": "yarn", "factor": 4.0}) => "rope_type", "yarn"),
    set!("a number for a kind of rope", STEP, "/rope_scaling/rope_type" = 3 => "rope_type", "3"),
    set!("a rope stretched by nothing", STEP, "/rope_scaling/factor" = 0 => "rope_scaling.factor", "0"),
    set!("a rope without its factor", STEP,
        "/rope_scaling/factor" = Value::Null => "rope_scaling.factor", "missing"),
    set!("a negative theta", HY, "/rope_parameters/rope_theta" = -1.0 => "rope_theta", "-1"),
    set!("no theta", HY, "/rope_parameters/rope_theta" = Value::Null => "rope_theta", "missing"),
    set!("a word among the thetas", STEP, "/rope_theta/2" = "large" => "rope_theta", "large"),
    set!("more rotated than there is", STEP,
        "/partial_rotary_factors/1" = 1e300 => "the rotated width", "of 32"),
    // Lists by layer
    set!("a kind of layer nobody knows", STEP,
        "/layer_types/3" = "linear_attention" => "layer_types", "linear_attention"),
    set!(
        "a kind of MLP nobody knows",
        HY,
        "mlp_layer_types" = json!(["dense", "sparse", "latent", "sparse"]),
        "latent"
    ),
    set!(
        "kinds of MLP for three of four layers",
        HY,
        "mlp_layer_types" = json!(["dense", "sparse", "sparse"]),
        "3 entries for 4 layers"
    ),
    row(
        "no kinds of layers",
        STEP,
        |f| shorten(f, "layer_types", 0),
        Expect::Setting("layer_types", "0 entries for 5 layers"),
    ),
    row(
        "kinds for three of five layers",
        STEP,
        |f| shorten(f, "layer_types", 3),
        Expect::Setting("layer_types", "3 entries for 5 layers"),
    ),
    row(
        "thetas for four of five layers",
        STEP,
        |f| shorten(f, "rope_theta", 4),
        Expect::Setting("rope_theta", "4 entries for 5 layers"),
    ),
    row(
        "rotated shares for four of five layers",
        STEP_MLX,
        |f| shorten(f, "partial_rotary_factors", 4),
        Expect::Setting("partial_rotary_factors", "4 entries for 5 layers"),
    ),
    row(
        "limits for three of five layers",
        STEP,
        |f| shorten(f, "swiglu_limits", 3),
        Expect::Setting("swiglu_limits", "3 entries for 5 layers"),
    ),
    row(
        "shared limits for four of five layers",
        STEP,
        |f| shorten(f, "swiglu_limits_shared", 4),
        Expect::Setting("swiglu_limits_shared", "4 entries for 5 layers"),
    ),
    set!("layers without a position", STEP, "use_rope_layers" = json!([true, false]), "false"),
    set!("routed layers nobody can read", STEP, "moe_layers_enum" = "2,three,4", "three"),
    set!("a router nobody knows", STEP, "moe_router_activation" = "tanh", "tanh"),
    set!("an activation nobody knows", HY, "hidden_act" = "gelu", "gelu"),
    // A number of layers that counts the head, or not all of the trunk
    set!("the head counted as a layer", HY, "num_hidden_layers" = 5, "layer 4"),
    row(
        "a level counted as a layer",
        STEP,
        |f| {
            f.set("num_hidden_layers", 6);
            f.set("num_nextn_predict_layers", 2);
        },
        Expect::Setting("num_hidden_layers", "layer 5"),
    ),
    // The last trunk layer stands where a head would, and has nothing of one.
    row(
        "a layer not counted",
        HY,
        |f| f.set("num_hidden_layers", 3),
        refused!(HeadIncomplete { missing }
            if missing.iter().any(|name| name == "model.layers.3.eh_proj.weight")),
    ),
    // Other people's formats
    set!("a float mode", STEP_MLX, "/quantization/mode" = "mxfp4" => "quantization.mode", "mxfp4"),
    row(
        "a float mode for one module",
        HY_MLX,
        |f| {
            let mode = json!({"group_size": 32, "bits": 4, "mode": "nvfp4"});
            f.config(|c| c["quantization"]["model.layers.1.self_attn.v_proj"] = mode);
        },
        Expect::Setting("model.layers.1.self_attn.v_proj.mode", "nvfp4"),
    ),
    set!("AWQ", HY,
        "quantization_config" = json!({"quant_method": "awq", "bits": 4, "group_size": 128})
            => "quantization_config.quant_method", "awq"),
    set!("block-wise eight-bit floats", STEP,
        "quantization_config" = json!({"quant_method": "fp8", "weight_block_size": [128, 128]})
            => "quantization_config.quant_method", "fp8"),
    set!("a packer nobody knows", STEP,
        "quantization_config" = json!({"quant_method": "auto-round", "bits": 4, "group_size": 128})
            => "quantization_config.quant_method", "auto-round"),
];
