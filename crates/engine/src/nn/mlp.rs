use crate::Result;
use crate::nn::Linear;
use candle_core::Tensor;
use foretoken_kernels as kernels;

/// down(silu(gate(x)) * up(x)), both factors limited when there is a limit.
#[derive(Debug, Clone)]
pub struct Mlp {
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
    /// See [`kernels::swiglu_limited`].
    pub limit: Option<f32>,
}

impl Mlp {
    /// [rows, hidden] -> [rows, hidden].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (gate, up) = (self.gate.forward(x)?, self.up.forward(x)?);
        self.down.forward(&match self.limit {
            Some(limit) => kernels::swiglu_limited(&gate, &up, limit)?,
            None => kernels::swiglu(&gate, &up)?,
        })
    }
}
