use crate::Result;
use crate::nn::Linear;
use candle_core::Tensor;
use foretoken_kernels as kernels;

/// down(silu(gate(x)) * up(x)).
#[derive(Debug, Clone)]
pub struct Mlp {
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

impl Mlp {
    /// [rows, hidden] -> [rows, hidden].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&kernels::swiglu(&self.gate.forward(x)?, &self.up.forward(x)?)?)
    }
}
