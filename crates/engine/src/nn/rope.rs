use crate::Result;
use candle_core::Tensor;
use foretoken_kernels::{self as kernels, RopeTable};
use std::f64::consts::PI;
use std::sync::Arc;

/// A change of the inverse frequencies for long contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Llama 3's rule (`reference/mimo.md`, dense trunks): long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 { factor: f64, low: f64, high: f64, original_context: f64 },
    /// All frequencies divided by the factor.
    Linear { factor: f64 },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    pub theta: f64,
    /// Dimensions of a head that turn (even).
    pub width: usize,
    pub scaling: Option<RopeScaling>,
    /// Longest position the table holds.
    pub context: usize,
}

impl RopeSpec {
    /// Radians per position for each pair, `width / 2` of them.
    pub fn inv_freq(&self) -> Vec<f64> {
        let plain =
            (0..self.width / 2).map(|j| self.theta.powf(-2.0 * j as f64 / self.width as f64));
        plain
            .map(|f| match self.scaling {
                None => f,
                Some(RopeScaling::Linear { factor }) => f / factor,
                Some(RopeScaling::Llama3 { factor, low, high, original_context }) => {
                    let wavelength = 2.0 * PI / f;
                    if wavelength > original_context / low {
                        f / factor
                    } else if wavelength < original_context / high {
                        f
                    } else {
                        let s = (original_context / wavelength - low) / (high - low);
                        (1.0 - s) * f / factor + s * f
                    }
                }
            })
            .collect()
    }
}

/// Rotary position embedding with its table, shared by the layers of one kind.
#[derive(Debug, Clone)]
pub struct Rope {
    table: Arc<RopeTable>,
}

impl Rope {
    pub fn new(spec: RopeSpec) -> Self {
        Self { table: Arc::new(RopeTable::new(&spec.inv_freq(), spec.context)) }
    }

    pub fn table(&self) -> &Arc<RopeTable> {
        &self.table
    }

    /// `x` [rows, heads, head_dim]; row i stands at `first + i`.
    pub fn forward(&self, x: &Tensor, first: usize) -> Result<Tensor> {
        Ok(kernels::rope(x, &self.table, first)?)
    }
}
