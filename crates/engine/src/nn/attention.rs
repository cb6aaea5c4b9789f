use crate::Result;
use crate::cache::LayerCache;
use crate::nn::{Linear, Norm, Rope};
use candle_core::{DType, Tensor};
use foretoken_kernels::{self as kernels, Activations, AttendSpec};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSpec {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Keys a query sees, its own included; `None` = all.
    pub window: Option<usize>,
}

/// Grouped-query attention with optional per-head norms before the rotation and an optional gate per head after it all.
#[derive(Debug, Clone)]
pub struct Attention {
    pub spec: AttentionSpec,
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub o: Linear,
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
    /// hidden -> heads: each head's output times the sigmoid of its scalar, which reads the same input as q, k and v.
    pub gate: Option<Linear>,
    pub rope: Rope,
}

impl Attention {
    /// What keys and values are remembered in: where x is rounded to 8 bits, 16 are enough for them.
    pub fn kv_type(&self) -> DType {
        match self.k.activations() {
            Activations::Exact => DType::F32,
            Activations::Int8 => DType::F16,
        }
    }

    /// [rows, hidden] -> [rows, hidden]; appends the rows' keys and values to `cache`.
    pub fn forward(&self, x: &Tensor, cache: &mut LayerCache) -> Result<Tensor> {
        let AttentionSpec { n_heads, n_kv_heads, head_dim, window } = self.spec;
        let rows = x.dim(0)?;
        let position = cache.len();
        let turn = |x: Tensor, norm: &Option<Norm>, heads: usize| -> Result<Tensor> {
            let x = x.reshape((rows, heads, head_dim))?;
            let x = norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))?;
            Ok(self.rope.forward(&x, position)?.reshape((rows, heads * head_dim))?)
        };
        let [q, k, v] = Linear::forward_all([&self.q, &self.k, &self.v], x)?;
        let (q, k) = (turn(q, &self.q_norm, n_heads)?, turn(k, &self.k_norm, n_kv_heads)?);
        let seen = match self.kv_type() {
            DType::F16 => cache.append(&kernels::to_half(&k)?, &kernels::to_half(&v)?)?,
            _ => cache.append(&k, &v)?,
        };
        let spec = AttendSpec {
            n_heads,
            n_kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            query_position: position,
            key_position: seen.first_position,
            origin: seen.origin,
            window,
        };
        let mut out = kernels::attend(&q, &seen.keys, &seen.values, spec)?;
        if let Some(gate) = &self.gate {
            out = kernels::gate_heads(&out, &gate.forward(x)?)?;
        }
        self.o.forward(&out)
    }
}
