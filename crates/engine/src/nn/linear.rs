use crate::Result;
use candle_core::{Device, Tensor};
use foretoken_kernels::{self as kernels, Activations, Weight};
use std::sync::Arc;

/// y = x W^T (+ b), for any storage of W.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Arc<Weight>,
    bias: Option<Tensor>,
    activations: Activations,
}

impl Linear {
    pub fn new(weight: Weight) -> Self {
        Self { weight: Arc::new(weight), bias: None, activations: Activations::Exact }
    }

    pub fn with_bias(weight: Weight, bias: Vec<f32>) -> candle_core::Result<Self> {
        let n = bias.len();
        Ok(Self { bias: Some(Tensor::from_vec(bias, n, &Device::Cpu)?), ..Self::new(weight) })
    }

    /// The same map with x seen otherwise; [`Activations::Exact`] until somebody says so.
    pub fn seeing(self, activations: Activations) -> Self {
        Self { activations, ..self }
    }

    /// [rows, k] -> [rows, n].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [y] = Self::forward_all([self], x)?;
        Ok(y)
    }

    /// Several maps of one x, read once.
    pub fn forward_all<const N: usize>(maps: [&Self; N], x: &Tensor) -> Result<[Tensor; N]> {
        let alike = maps.iter().all(|map| map.activations == maps[0].activations);
        let all = if alike {
            kernels::linear_many(x, &maps.map(Self::weight), maps[0].activations)?
        } else {
            let one = |map: &&Self| kernels::linear_many(x, &[map.weight()], map.activations);
            maps.iter().map(one).collect::<candle_core::Result<Vec<_>>>()?.concat()
        };
        let biased = |(y, map): (Tensor, &Self)| match &map.bias {
            Some(bias) => kernels::add(&y, bias),
            None => Ok(y),
        };
        let all: Vec<_> =
            all.into_iter().zip(maps).map(biased).collect::<candle_core::Result<_>>()?;
        Ok(all.try_into().expect("as many results as maps"))
    }

    /// silu(gate x) * up x; `limit` as in [`kernels::swiglu_limited`].
    pub fn forward_gated(gate: &Self, up: &Self, limit: Option<f32>, x: &Tensor) -> Result<Tensor> {
        if gate.bias.is_none() && up.bias.is_none() && gate.activations == up.activations {
            return Ok(kernels::gated(x, &gate.weight, &up.weight, limit, gate.activations)?);
        }
        let [gate, up] = Self::forward_all([gate, up], x)?;
        Ok(match limit {
            Some(limit) => kernels::swiglu_limited(&gate, &up, limit)?,
            None => kernels::swiglu(&gate, &up)?,
        })
    }

    pub fn activations(&self) -> Activations {
        self.activations
    }

    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    /// [n].
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The rows `ids` of the matrix as a linear map of its own (a reduced vocabulary head).
    pub fn select(&self, ids: &[u32]) -> Result<Self> {
        Ok(Self::new(self.weight.select(ids)?).seeing(self.activations))
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
        let weight = self.table.clone();
        Linear { weight, bias: None, activations: Activations::Exact }
    }

    pub fn weight(&self) -> &Weight {
        &self.table
    }
}
