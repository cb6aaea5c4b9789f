use crate::Result;
use crate::nn::Linear;
use candle_core::Tensor;

/// down(silu(gate(x)) * up(x)), both factors limited when there is a limit.
#[derive(Debug, Clone)]
pub struct Mlp {
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
    /// See [`foretoken_kernels::swiglu_limited`].
    pub limit: Option<f32>,
}

impl Mlp {
    /// [rows, hidden] -> [rows, hidden].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&Linear::forward_gated(&self.gate, &self.up, self.limit, x)?)
    }
}
