//! Head-wise gate: each head of the attention output times the sigmoid of its own scalar.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

/// `x` [rows, heads * dim] times sigmoid(`gate` [rows, heads]), both f32 contiguous.
pub fn gate_heads(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    x.apply_op2_no_bwd(gate, &GateHeads)
}

struct GateHeads;

impl CustomOp2 for GateHeads {
    fn name(&self) -> &'static str {
        "gate-heads"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let ((rows, width), (gate_rows, heads)) = (l1.shape().dims2()?, l2.shape().dims2()?);
        let (Some((a, b)), Some((c, d))) = (l1.contiguous_offsets(), l2.contiguous_offsets())
        else {
            candle_core::bail!("gate-heads: x and gate must be contiguous");
        };
        if rows != gate_rows || heads == 0 || !width.is_multiple_of(heads) || width == 0 {
            candle_core::bail!("gate-heads: x is {:?}, the gate {:?}", l1.dims(), l2.dims());
        }
        let mut out = s1.as_slice::<f32>()?[a..b].to_vec();
        for (head, gate) in out.chunks_mut(width / heads).zip(&s2.as_slice::<f32>()?[c..d]) {
            let factor = 1.0 / (1.0 + (-gate).exp());
            for value in head {
                *value *= factor;
            }
        }
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn one_factor_per_row_and_head() -> Result<()> {
        let x = Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6., 7., 8.], (2, 4), &Device::Cpu)?;
        let gate = Tensor::from_vec(vec![0f32, 100., -100., 0.], (2, 2), &Device::Cpu)?;
        let y = gate_heads(&x, &gate)?.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(y[..4], [0.5, 1., 3., 4.]);
        assert!(y[4].abs() < 1e-30 && y[5].abs() < 1e-30);
        assert_eq!(y[6..], [3.5, 4.]);
        assert!(
            gate_heads(&x, &Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu)?).is_err()
        );
        Ok(())
    }
}
