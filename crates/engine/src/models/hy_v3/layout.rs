use crate::models::layout::Layout;

/// `reference/hy_v3.md` 2.3: one level, its decoder layer under `mtp.layer`.
pub(in crate::models) const LAYOUT: Layout = Layout {
    names: super::NAMES,
    mlx: &[
        (".mlp.experts.", ".mlp.switch_mlp."),
        (".mlp.expert_bias", ".mlp.router.expert_bias"),
        ("^mtp.self_attn.", "mtp.layer.self_attn."),
        ("^mtp.mlp.", "mtp.layer.mlp."),
        ("^mtp.input_layernorm.", "mtp.layer.input_layernorm."),
        ("^mtp.post_attention_layernorm.", "mtp.layer.post_attention_layernorm."),
    ],
    norms: |_| None,
    level: Some(|level| (level == 0).then(|| "mtp".to_owned())),
    router: Some(".mlp.router.gate"),
};
