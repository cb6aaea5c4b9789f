use crate::models::layout::Layout;
use serde_json::Value;

/// `reference/step3p5.md` 2: routed experts under `mlp`, norms as factors, levels under `mtp.layers`.
pub(in crate::models) const LAYOUT: Layout = Layout {
    names: super::NAMES,
    mlx: &[
        (".moe.gate.", ".mlp.gate.gate."),
        (".moe.router_bias", ".mlp.gate.router_bias"),
        (".moe.", ".mlp.switch_mlp."),
        (".share_expert.", ".mlp.share_expert."),
    ],
    norms: |config| {
        let plain = config.get("zero_centered").and_then(Value::as_bool) == Some(false);
        (!plain).then_some(super::NORMS)
    },
    level: Some(|level| Some(format!("mtp.layers.{level}"))),
    router: Some(".moe.gate"),
};
