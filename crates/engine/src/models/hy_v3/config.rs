//! `config.json` of Hy3 and what it makes of each layer.

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
    pub moe_intermediate_size: Option<usize>,
    pub expert_hidden_dim: Option<usize>,
    pub num_hidden_layers: usize,
    pub first_k_dense_replace: Option<usize>,
    pub mlp_layer_types: Option<Vec<String>>,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub qk_norm: Option<bool>,
    pub num_experts_per_tok: usize,
    pub num_shared_experts: Option<usize>,
    pub moe_router_use_sigmoid: Option<bool>,
    pub moe_router_enable_expert_bias: Option<bool>,
    pub route_norm: Option<bool>,
    pub router_scaling_factor: Option<f64>,
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: Option<f64>,
    pub rope_theta: Option<f64>,
    pub rope_parameters: Option<Value>,
    pub rope_scaling: Option<Value>,
    pub tie_word_embeddings: Option<bool>,
    pub hidden_act: Option<String>,
    pub num_nextn_predict_layers: Option<usize>,
}

impl Config {
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let c: Self = read_config(checkpoint)?;
        check_attention(&c.attention(), &c.rope()?)?;
        if let Some(types) = &c.mlp_layer_types {
            check_list("mlp_layer_types", types.len(), c.num_hidden_layers)?;
        }
        if let Some(act) = c.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(unsupported("hidden_act", act));
        }
        Ok(c)
    }

    pub fn eps(&self) -> f32 {
        self.rms_norm_eps.unwrap_or(1e-5) as f32
    }

    pub fn expert_width(&self) -> Result<usize> {
        match (self.moe_intermediate_size, self.expert_hidden_dim) {
            (Some(a), Some(b)) if a != b => Err(unsupported("expert_hidden_dim", b)),
            (a, b) => a.or(b).ok_or_else(|| unsupported("moe_intermediate_size", "missing")),
        }
    }

    /// The nextn layer always is; its number is not below `num_hidden_layers`.
    pub fn is_moe(&self, layer: usize) -> Result<bool> {
        let listed = self.mlp_layer_types.as_ref().filter(|_| layer < self.num_hidden_layers);
        let dense = self.first_k_dense_replace.unwrap_or(1).min(self.num_hidden_layers);
        match listed.and_then(|types| types.get(layer)).map(String::as_str) {
            Some("sparse") => Ok(true),
            Some("dense") => Ok(false),
            Some(other) => Err(unsupported("mlp_layer_types", other)),
            None => Ok(layer >= dense),
        }
    }

    pub fn attention(&self) -> AttentionSpec {
        AttentionSpec {
            n_heads: self.num_attention_heads,
            n_kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            window: None,
        }
    }

    pub fn rope(&self) -> Result<RopeSpec> {
        let of = |key: &str| self.rope_parameters.as_ref().and_then(|table| table.get(key));
        // Older conversions have them beside each other at the top (`reference/hy_v3.md` 1).
        for table in [&self.rope_parameters, &self.rope_scaling] {
            if let Some(scaling) = rope_scaling(table.as_ref())? {
                return Err(unsupported("rope_type", format!("{scaling:?}")));
            }
        }
        let theta = of("rope_theta").and_then(Value::as_f64).or(self.rope_theta);
        let theta = theta.ok_or_else(|| unsupported("rope_theta", "missing"))?;
        let (width, context) = (self.head_dim, self.max_position_embeddings);
        Ok(RopeSpec { theta, width, scaling: None, context })
    }
}
