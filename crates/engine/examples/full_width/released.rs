//! The released models' settings (`reference/step3p5.md` 1, `reference/hy_v3.md` 1), cut to one dense layer, one layer with
//! experts and the head.

use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Step3p5,
    HyV3,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::Step3p5, Self::HyV3];

    pub fn name(self) -> &'static str {
        match self {
            Self::Step3p5 => "step3p5",
            Self::HyV3 => "hy_v3",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    Released,
    /// The same layers in a megabyte, for the test.
    Tiny,
}

/// `config.json`, but for its quantisation.
pub fn config(family: Family, width: Width) -> Value {
    let (mut config, tiny) = match family {
        Family::Step3p5 => (step3p5(), STEP3P5_TINY),
        Family::HyV3 => (hy_v3(), HY_V3_TINY),
    };
    if width == Width::Tiny {
        for (key, value) in tiny {
            config[*key] = json!(value);
        }
        if family == Family::Step3p5 {
            config["attention_other_setting"]["num_attention_heads"] = json!(6);
            config["attention_other_setting"]["num_attention_groups"] = json!(2);
            config["attention_other_setting"]["head_dim"] = json!(32);
        }
    }
    config
}

/// Of Step's 48 layers: the first, full attention and dense; the last sliding one with experts, whose routed experts are
/// limited; the nextn layers.
const KEPT: [usize; 5] = [0, 43, 45, 46, 47];

fn step3p5() -> Value {
    let kept = |of: &dyn Fn(usize) -> Value| KEPT.map(of);
    let by_kind = |full: Value, sliding: Value| {
        kept(&|i| if i % 4 == 0 { full.clone() } else { sliding.clone() })
    };
    let limits = |limited: &[usize], limit: f64| {
        kept(&|i| json!(if limited.contains(&i) { limit } else { 0.0 }))
    };
    let with_experts: Vec<String> = (0..KEPT.len())
        .filter(|at| (3..45).contains(&KEPT[*at]))
        .map(|at| at.to_string())
        .collect();
    json!({
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "torch_dtype": "bfloat16",
        "vocab_size": 128_896, "hidden_size": 4096, "intermediate_size": 11_264, "hidden_act": "silu",
        "num_hidden_layers": KEPT.iter().filter(|i| **i < 45).count(),
        "num_nextn_predict_layers": 3, "tie_word_embeddings": false, "rms_norm_eps": 1e-5,
        "layer_types": by_kind(json!("full_attention"), json!("sliding_attention")),
        "att_impl_type": "GQA", "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128,
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
            "num_attention_groups": 8, "head_dim": 128},
        "sliding_window": 512, "sink": false,
        "rope_theta": by_kind(json!(5e6), json!(1e4)),
        "partial_rotary_factors": by_kind(json!(0.5), json!(1.0)),
        "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 131_072,
            "low_freq_factor": 1.0, "high_freq_factor": 32.0},
        "yarn_only_types": ["full_attention"], "use_rope_layers": [],
        "max_position_embeddings": 262_144, "max_seq_len": 262_144,
        "use_head_wise_attn_gate": true, "use_qk_norm": true, "zero_centered": true,
        "use_moe": true, "moe_layers_enum": with_experts.join(","),
        "moe_num_experts": 288, "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
        "moe_router_activation": "sigmoid", "use_moe_router_bias": true, "need_fp32_gate": true,
        "moe_router_scaling_factor": 3.0, "norm_expert_weight": true,
        "swiglu_limits": limits(&[43, 44], 7.0), "swiglu_limits_shared": limits(&[44], 16.0),
        "bos_token_id": 0, "eos_token_id": [1, 2, 128_007],
    })
}

/// Layers 0 and 1 of 80, and the nextn layer.
fn hy_v3() -> Value {
    json!({
        "architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "dtype": "bfloat16",
        "bos_token_id": 120_000, "eos_token_id": 120_025, "eod_token_id": 120_026, "pad_token_id": 120_002,
        "sep_token_id": 120_007, "vocab_size": 120_832, "hidden_size": 4096, "intermediate_size": 13_312,
        "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "qk_norm": true,
        "num_experts": 192, "num_experts_per_tok": 8, "num_shared_experts": 1,
        "expert_hidden_dim": 1536, "moe_intermediate_size": 1536,
        "moe_router_enable_expert_bias": true, "moe_router_use_sigmoid": true, "route_norm": true,
        "router_scaling_factor": 2.826, "hidden_act": "silu", "initializer_range": 0.006,
        "max_position_embeddings": 262_144, "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 11_158_840.0, "rope_type": "default"},
        "tie_word_embeddings": false, "enable_attention_fp32_softmax": false, "enable_lm_head_fp32": true,
        "enable_moe_fp32_combine": false, "output_router_logits": true, "transformers_version": "5.6.0",
        "use_cache": true, "use_grouped_mm": false,
    })
}

const STEP3P5_TINY: &[(&str, usize)] = &[
    ("vocab_size", 1000),
    ("hidden_size", 128),
    ("intermediate_size", 192),
    ("num_attention_heads", 4),
    ("num_attention_groups", 2),
    ("head_dim", 32),
    ("sliding_window", 32),
    ("moe_num_experts", 12),
    ("moe_intermediate_size", 64),
    ("share_expert_dim", 64),
];

const HY_V3_TINY: &[(&str, usize)] = &[
    ("vocab_size", 1000),
    ("hidden_size", 128),
    ("intermediate_size", 192),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 2),
    ("head_dim", 32),
    ("num_experts", 12),
    ("expert_hidden_dim", 64),
    ("moe_intermediate_size", 64),
];
