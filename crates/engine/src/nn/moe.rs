use crate::Result;
use crate::nn::{Linear, Mlp};
use candle_core::Tensor;
use foretoken_kernels::{self as kernels, Experts};

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    Sigmoid,
    Softmax,
}

/// Keeps a sum of scores that are all 0 from dividing by 0.
const TINY: f32 = 1e-20;

/// Which experts a row goes to, and with what weight; all of it in f32.
#[derive(Debug, Clone)]
pub struct Router {
    /// hidden -> experts.
    pub gate: Linear,
    /// Added to the scores for choosing only, never for weighting.
    pub selection_bias: Option<Vec<f32>>,
    pub score: Score,
    pub n_experts_per_token: usize,
    /// Weights of a row are divided by their sum.
    pub renormalise: bool,
    /// Of the routed sum, after renormalising.
    pub scale: f32,
}

impl Router {
    /// [rows, hidden] -> for each row `n_experts_per_token` experts, ascending, and their weights.
    pub fn choose(&self, x: &Tensor) -> Result<(Vec<u32>, Vec<f32>)> {
        let mut scores = self.gate.forward(x)?.flatten_all()?.to_vec1::<f32>()?;
        let n_experts = self.gate.weight().dims().0;
        let (mut chosen, mut weights) = (Vec::new(), Vec::new());
        for scores in scores.chunks_mut(n_experts) {
            self.score.apply(scores);
            let wanted = |e: u32| {
                scores[e as usize] + self.selection_bias.as_ref().map_or(0.0, |b| b[e as usize])
            };
            // What is not finite must reach the logits, where it is an error: a choice would hide it.
            if (0..n_experts as u32).any(|e| !wanted(e).is_finite()) {
                chosen.extend(0..self.n_experts_per_token as u32);
                weights.extend(std::iter::repeat_n(f32::NAN, self.n_experts_per_token));
                continue;
            }
            let mut order: Vec<u32> = (0..n_experts as u32).collect();
            // Of equals, the lower expert.
            order.sort_by(|a, b| wanted(*b).total_cmp(&wanted(*a)));
            order.truncate(self.n_experts_per_token);
            order.sort_unstable();
            let sum: f32 = order.iter().map(|e| scores[*e as usize]).sum();
            let divisor = if self.renormalise { sum + TINY } else { 1.0 };
            weights.extend(order.iter().map(|e| scores[*e as usize] / divisor * self.scale));
            chosen.extend(order);
        }
        Ok((chosen, weights))
    }
}

impl Score {
    fn apply(self, logits: &mut [f32]) {
        match self {
            Self::Sigmoid => logits.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp())),
            Self::Softmax => {
                let top = logits.iter().copied().fold(f32::MIN, f32::max);
                logits.iter_mut().for_each(|v| *v = (*v - top).exp());
                let sum: f32 = logits.iter().sum();
                logits.iter_mut().for_each(|v| *v /= sum);
            }
        }
    }
}

/// Routed experts and, beside them, one that every row goes through.
#[derive(Debug, Clone)]
pub struct Moe {
    pub router: Router,
    pub experts: Experts,
    pub shared: Option<Mlp>,
}

impl Moe {
    /// [rows, hidden] -> [rows, hidden].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (chosen, weights) = self.router.choose(x)?;
        let routed = kernels::expert_mlp(x, &self.experts, &chosen, &weights)?;
        Ok(match &self.shared {
            Some(shared) => kernels::add(&routed, &shared.forward(x)?)?,
            None => routed,
        })
    }
}

/// What follows attention in a block.
#[derive(Debug, Clone)]
pub enum Ffn {
    Dense(Mlp),
    Moe(Moe),
}

impl Ffn {
    /// [rows, hidden] -> [rows, hidden].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Moe(moe) => moe.forward(x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use foretoken_kernels::{Bytes, Dense, FloatType, Weight};

    fn router(score: Score, renormalise: bool) -> Router {
        // Three experts that read one of three inputs each.
        let eye = [1f32, 0., 0., 0., 1., 0., 0., 0., 1.];
        let bytes = Bytes::from_vec(eye.iter().flat_map(|v| v.to_le_bytes()).collect());
        let dense = Dense::new(bytes, FloatType::F32, (3, 3)).expect("nine floats");
        Router {
            gate: Linear::new(Weight::Dense(dense)),
            selection_bias: Some(vec![0.0, 0.0, 1.0]),
            score,
            n_experts_per_token: 2,
            renormalise,
            scale: 3.0,
        }
    }

    #[test]
    fn the_bias_chooses_and_does_not_weigh() {
        let x = Tensor::from_vec(vec![1f32, 0., -1.], (1, 3), &Device::Cpu).expect("a row");
        let sigmoid = |v: f32| 1.0 / (1.0 + (-v).exp());
        let (chosen, weights) = router(Score::Sigmoid, true).choose(&x).expect("chooses");
        assert_eq!(chosen, [0, 2]);
        let sum = sigmoid(1.0) + sigmoid(-1.0);
        assert!((weights[0] - 3.0 * sigmoid(1.0) / sum).abs() < 1e-6);
        assert!((weights[1] - 3.0 * sigmoid(-1.0) / sum).abs() < 1e-6);
        let (chosen, weights) = router(Score::Softmax, false).choose(&x).expect("chooses");
        assert_eq!(chosen, [0, 2]);
        let sum = 1f32.exp() + 1.0 + (-1f32).exp();
        assert!((weights[0] - 3.0 * 1f32.exp() / sum).abs() < 1e-6);
    }
}
