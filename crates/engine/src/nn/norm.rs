use crate::Result;
use candle_core::Tensor;
use foretoken_kernels as kernels;

/// RMSNorm: x / sqrt(mean(x^2) + eps) * w, in f32.
#[derive(Debug, Clone)]
pub struct Norm {
    weight: Vec<f32>,
    eps: f32,
}

impl Norm {
    pub fn new(weight: Vec<f32>, eps: f32) -> Self {
        Self { weight, eps }
    }

    /// Over the last dimension, any rank.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kernels::rms_norm(x, &self.weight, self.eps)?)
    }

    /// The factors, whatever the file stores.
    pub fn weight(&self) -> &[f32] {
        &self.weight
    }

    pub fn eps(&self) -> f32 {
        self.eps
    }

    pub fn n_bytes(&self) -> usize {
        4 * self.weight.len()
    }

    pub fn width(&self) -> usize {
        self.weight.len()
    }
}
