use crate::Result;
use candle_core::{Device, Tensor};
use foretoken_kernels::{self as kernels, Weight};
use std::sync::Arc;

/// y = x W^T (+ b), for any storage of W.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Arc<Weight>,
    bias: Option<Tensor>,
}

impl Linear {
    pub fn new(weight: Weight) -> Self {
        Self { weight: Arc::new(weight), bias: None }
    }

    pub fn with_bias(weight: Weight, bias: Vec<f32>) -> candle_core::Result<Self> {
        let n = bias.len();
        Ok(Self { weight: Arc::new(weight), bias: Some(Tensor::from_vec(bias, n, &Device::Cpu)?) })
    }

    /// [rows, k] -> [rows, n].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = kernels::linear(x, &self.weight)?;
        Ok(match &self.bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        })
    }

    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    pub fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// The rows `ids` of the matrix as a linear map of its own (a reduced vocabulary head).
    pub fn select(&self, ids: &[u32]) -> Result<Self> {
        Ok(Self::new(self.weight.select(ids)?))
    }
}

/// A table of token vectors; a tied language-model head is the same matrix seen as a [`Linear`].
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Arc<Weight>,
}

impl Embedding {
    pub fn new(table: Weight) -> Self {
        Self { table: Arc::new(table) }
    }

    /// [ids] -> [ids, hidden].
    pub fn forward(&self, ids: &[u32]) -> Result<Tensor> {
        Ok(self.table.rows(ids, &Device::Cpu)?)
    }

    pub fn as_linear(&self) -> Linear {
        Linear { weight: self.table.clone(), bias: None }
    }

    pub fn weight(&self) -> &Weight {
        &self.table
    }
}
