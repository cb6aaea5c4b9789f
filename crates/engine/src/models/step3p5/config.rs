//! `config.json` of Step 3.5 and what it makes of each layer. Nothing else looks into its per-layer lists.

use crate::Result;
use crate::models::parts::{check_attention, check_list, read_config, rope_scaling, unsupported};
use crate::nn::{AttentionSpec, RopeSpec};
use crate::weights::Checkpoint;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
pub(super) struct Config {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_nextn_predict_layers: Option<usize>,
    pub vocab_size: usize,
    pub layer_types: Vec<String>,
    pub num_attention_heads: usize,
    pub num_attention_groups: usize,
    pub head_dim: usize,
    attention_other_setting: Option<OtherAttention>,
    pub sliding_window: Option<usize>,
    pub rope_theta: Value,
    pub partial_rotary_factors: Option<Vec<f64>>,
    pub rope_scaling: Option<Value>,
    pub yarn_only_types: Option<Vec<String>>,
    pub use_rope_layers: Option<Vec<bool>>,
    pub max_position_embeddings: Option<usize>,
    pub max_seq_len: Option<usize>,
    pub use_head_wise_attn_gate: Option<bool>,
    pub use_qk_norm: Option<bool>,
    pub zero_centered: Option<bool>,
    pub rms_norm_eps: Option<f64>,
    pub moe_layers_enum: Option<Value>,
    pub moe_top_k: usize,
    pub moe_intermediate_size: usize,
    #[serde(alias = "share_expert_dims")]
    pub share_expert_dim: usize,
    pub moe_router_activation: Option<String>,
    pub use_moe_router_bias: Option<bool>,
    pub moe_router_scaling_factor: Option<f64>,
    pub norm_expert_weight: Option<bool>,
    pub swiglu_limits: Option<Vec<Option<f64>>>,
    pub swiglu_limits_shared: Option<Vec<Option<f64>>>,
    pub tie_word_embeddings: Option<bool>,
}

/// Attention of the layers of one type, where it differs.
#[derive(Debug, Deserialize)]
pub(super) struct OtherAttention {
    attention_type: String,
    num_attention_heads: usize,
    num_attention_groups: usize,
    head_dim: usize,
}

/// What one layer is, all lists looked up.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LayerSpec {
    pub attention: AttentionSpec,
    pub rope: RopeSpec,
    pub is_moe: bool,
    /// Of the routed experts, and of the shared expert or the dense MLP.
    pub limits: (Option<f32>, Option<f32>),
}

impl Config {
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let c: Self = read_config(checkpoint)?;
        c.check_lists()?;
        if c.use_rope_layers.iter().flatten().any(|rope| !rope) {
            return Err(unsupported("use_rope_layers", "false"));
        }
        match c.moe_router_activation.as_deref().unwrap_or("sigmoid") {
            "sigmoid" | "softmax" => Ok(c),
            other => Err(unsupported("moe_router_activation", other)),
        }
    }

    /// Empty lists stand for none; the kinds of layers are always needed.
    fn check_lists(&self) -> Result<()> {
        let n = self.num_hidden_layers;
        let len = |list: &Option<Vec<_>>| list.as_ref().map(Vec::len);
        for (key, len) in [
            ("layer_types", Some(self.layer_types.len())),
            ("rope_theta", self.rope_theta.as_array().map(Vec::len)),
            ("partial_rotary_factors", self.partial_rotary_factors.as_ref().map(Vec::len)),
            ("swiglu_limits", len(&self.swiglu_limits)),
            ("swiglu_limits_shared", len(&self.swiglu_limits_shared)),
        ] {
            let needed = matches!(key, "layer_types" | "rope_theta");
            if let Some(len) = len.filter(|len| needed || *len > 0) {
                check_list(key, len, n)?;
            }
        }
        let routed = self.moe_layers_enum.as_ref().and_then(Value::as_str).unwrap_or_default();
        let readable = |number: &str| number.trim().parse::<usize>().is_ok();
        match routed.split(',').find(|number| !routed.is_empty() && !readable(number)) {
            Some(_) => Err(unsupported("moe_layers_enum", routed)),
            None => Ok(()),
        }
    }

    pub fn eps(&self) -> f32 {
        self.rms_norm_eps.unwrap_or(1e-5) as f32
    }

    pub fn reaching(self, context: usize) -> Self {
        Self { max_position_embeddings: Some(context), ..self }
    }

    pub fn context(&self) -> usize {
        self.max_position_embeddings.or(self.max_seq_len).unwrap_or(4096)
    }

    /// The place in per-layer lists; a list that ends with the trunk lends a nextn layer its first sliding entry. None ends
    /// before, see `check_lists`.
    fn entry(&self, layer: usize, len: usize) -> usize {
        let sliding = || self.layer_types.iter().position(|kind| kind == "sliding_attention");
        if layer < len { layer } else { sliding().unwrap_or(0) }
    }

    fn is_moe(&self, layer: usize) -> bool {
        let listed = match &self.moe_layers_enum {
            Some(Value::String(list)) => list.split(',').any(|n| n.trim().parse() == Ok(layer)),
            Some(Value::Array(list)) => list.iter().any(|n| n.as_u64() == Some(layer as u64)),
            _ => layer > 0,
        };
        listed && layer < self.num_hidden_layers
    }

    pub fn layer(&self, layer: usize) -> Result<LayerSpec> {
        let at = |len| self.entry(layer, len);
        let kind = self.layer_types.get(at(self.layer_types.len()));
        let kind = kind.ok_or_else(|| unsupported("layer_types", "too short"))?;
        let other = self.attention_other_setting.as_ref().filter(|o| o.attention_type == *kind);
        let (n_heads, n_kv_heads, head_dim) = match other {
            Some(o) => (o.num_attention_heads, o.num_attention_groups, o.head_dim),
            None => (self.num_attention_heads, self.num_attention_groups, self.head_dim),
        };
        let window = match kind.as_str() {
            "full_attention" => None,
            "sliding_attention" => {
                Some(self.sliding_window.ok_or_else(|| unsupported("sliding_window", "missing"))?)
            }
            other => return Err(unsupported("layer_types", other)),
        };
        let attention = AttentionSpec { n_heads, n_kv_heads, head_dim, window };
        let theta = match &self.rope_theta {
            Value::Array(list) => list.get(at(list.len())).and_then(Value::as_f64),
            one => one.as_f64(),
        };
        let theta = theta.ok_or_else(|| unsupported("rope_theta", &self.rope_theta))?;
        let factor = self.partial_rotary_factors.as_ref().and_then(|f| f.get(at(f.len())));
        let width = (head_dim as f64 * factor.unwrap_or(&1.0)) as usize;
        let scaled = self.yarn_only_types.as_ref().is_none_or(|types| types.contains(kind));
        let scaling = rope_scaling(self.rope_scaling.as_ref().filter(|_| scaled))?;
        let limit = |list: &Option<Vec<Option<f64>>>| {
            let of_layer = list.as_ref().and_then(|list| *list.get(layer)?);
            of_layer.filter(|limit| *limit > 0.0).map(|limit| limit as f32)
        };
        let rope = RopeSpec { theta, width, scaling, context: self.context() };
        check_attention(&attention, &rope)?;
        Ok(LayerSpec {
            attention,
            rope,
            is_moe: self.is_moe(layer),
            limits: (limit(&self.swiglu_limits), limit(&self.swiglu_limits_shared)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::RopeScaling;
    use serde_json::json;

    /// The release's settings that differ by layer (`reference/step3p5.md` 1), with lists of `n` entries.
    fn released(n: usize) -> Config {
        let every = |full: Value, sliding: Value| -> Vec<Value> {
            (0..n).map(|i| if i % 4 == 0 { full.clone() } else { sliding.clone() }).collect()
        };
        let limits = |of: &dyn Fn(usize) -> Value| (0..n).map(of).collect::<Vec<_>>();
        serde_json::from_value(json!({
            "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45, "vocab_size": 128896,
            "num_nextn_predict_layers": 3, "max_position_embeddings": 262144, "head_dim": 128,
            "num_attention_heads": 64, "num_attention_groups": 8, "sliding_window": 512,
            "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
                "num_attention_groups": 8, "head_dim": 128},
            "layer_types": every(json!("full_attention"), json!("sliding_attention")),
            "rope_theta": every(json!(5e6), json!(1e4)),
            "partial_rotary_factors": every(json!(0.5), json!(1.0)),
            "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 131072,
                "low_freq_factor": 1.0, "high_freq_factor": 32.0},
            "yarn_only_types": ["full_attention"],
            "moe_layers_enum": (3..45).map(|i| i.to_string()).collect::<Vec<_>>().join(","),
            "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dims": 1280,
            "swiglu_limits": limits(&|i| if i == 43 || i == 44 { json!(7) } else { json!(0) }),
            "swiglu_limits_shared": limits(&|i| if i == 44 { json!(16) } else { Value::Null }),
        }))
        .expect("the released settings")
    }

    #[test]
    fn layers_of_the_release() {
        // Lists that end with the trunk lend the head the first sliding layer.
        for c in [released(48), released(45)] {
            let full = c.layer(44).expect("a full layer");
            assert_eq!((full.attention.n_heads, full.attention.window), (64, None));
            assert_eq!((full.rope.theta, full.rope.width), (5e6, 64));
            assert!(matches!(full.rope.scaling, Some(RopeScaling::Llama3 { factor: 2.0, .. })));
            assert!(full.is_moe);
            assert_eq!(full.limits, (Some(7.0), Some(16.0)));
            assert_eq!(c.layer(43).expect("a sliding layer").limits, (Some(7.0), None));
            assert!(!c.layer(2).expect("a dense layer").is_moe);
            for head in 45..48 {
                let head = c.layer(head).expect("a nextn layer");
                assert_eq!((head.attention.n_heads, head.attention.window), (96, Some(512)));
                assert_eq!((head.rope.theta, head.rope.width, head.rope.scaling), (1e4, 128, None));
                assert!(!head.is_moe);
                assert_eq!(head.limits, (None, None));
            }
        }
    }
}
