//! A mixture of experts: each token goes through the few that its router chooses.
//!
//! Tokens of a pass are grouped by expert, and experts are applied in order, each once: its weights are needed in memory only
//! then. A token's results are added in the same order whatever is resident, so the sums are the same.
//!
//! In training the weights of the experts are tensors, so that gradients flow back through the router too; which experts are
//! chosen has no gradient.

use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData, activation};
use surefoot::fault::from_error;
use surefoot::recover::Point;
use surefoot::recover::drill::Handle;

use super::block::Linear;
use crate::arch::activation::Activation;
use crate::arch::blueprint::Experts;
use crate::error::ModelError;
use crate::stream::store::Session;
use crate::weights::binding::{BoundExperts, BoundProjection};

/// The experts of a block.
#[derive(Debug)]
pub(super) struct ExpertsRunner {
    router: Linear,
    shared_gate: Option<Linear>,
    /// Gate, value and way out of each.
    experts: Vec<[Linear; 3]>,
}

/// The columns that go through an expert, each with its weight.
type Chosen = Vec<(usize, f32)>;

impl ExpertsRunner {
    pub(super) fn load(bound: &BoundExperts, device: &Device) -> Result<Self, ModelError> {
        let linear = |bound: &BoundProjection| Linear::load(bound, device);
        let mut experts = Vec::with_capacity(bound.experts.len());
        for [gate, up, down] in &bound.experts {
            experts.push([linear(gate)?, linear(up)?, linear(down)?]);
        }
        Ok(Self {
            router: linear(&bound.router)?,
            shared_gate: match &bound.shared_gate {
                Some(gate) => Some(linear(gate)?),
                None => None,
            },
            experts,
        })
    }

    /// The sum of the chosen experts' results for `[hidden, columns]`, and what the result of a feed-forward for all tokens
    /// is multiplied with, `[1, columns]`.
    pub(super) fn run(
        &self,
        described: &Experts,
        activation: Activation,
        x: &Tensor<2>,
        session: &mut Session<'_>,
    ) -> Result<(Tensor<2>, Option<Tensor<2>>), ModelError> {
        let logits = self.router.apply(session, None, x.clone())?;
        let gate = match &self.shared_gate {
            Some(gate) => Some(activation::sigmoid(gate.apply(session, None, x.clone())?)),
            None => None,
        };
        let [hidden, columns] = x.dims();
        let device = x.device();
        let mut sum: Tensor<2> = Tensor::zeros([hidden, columns], &device);
        Handle::current().check(Point::Read)?;
        let differentiable = logits.is_autodiff().then(|| logits.clone());
        let logits = match &differentiable {
            Some(logits) => logits.clone().inner(),
            None => logits,
        };
        let logits = logits
            .try_into_vec_as::<f32>()
            .map_err(|error| from_error("the router of experts", error))?;
        let chosen = choose(&logits, columns, described);
        let shares = differentiable.map(|logits| shares(logits, &chosen, described));
        for (number, (expert, some)) in self.experts.iter().zip(&chosen).enumerate() {
            if some.is_empty() {
                continue;
            }
            let [gate, up, down] = expert;
            let at: Vec<i64> = some.iter().map(|(column, _)| *column as i64).collect();
            let weights: Vec<f32> = some.iter().map(|(_, weight)| *weight).collect();
            let at: Tensor<1, Int> = Tensor::from_data(TensorData::new(at, [some.len()]), &device);
            let weights: Tensor<2> = match &shares {
                Some(shares) => shares.clone().narrow(0, number, 1).select(1, at.clone()),
                None => Tensor::from_data(TensorData::new(weights, [1, some.len()]), &device),
            };
            let x = match some.len() == columns {
                true => x.clone(),
                false => x.clone().select(1, at.clone()),
            };
            let inner = activation.apply(gate.apply(session, None, x.clone())?)
                * up.apply(session, None, x)?;
            let y = down.apply(session, None, inner)? * weights;
            sum = match some.len() == columns {
                true => sum + y,
                false => sum.select_assign(1, at, y, IndexingUpdateOp::Add),
            };
        }
        Ok((sum, gate))
    }
}

/// The weight of each expert for each column, `[experts, columns]`, with its gradient; 0 where it was not chosen.
fn shares(logits: Tensor<2>, chosen: &[Chosen], described: &Experts) -> Tensor<2> {
    let [experts, columns] = logits.dims();
    let mut mask = vec![0.0_f32; experts * columns];
    for (expert, some) in chosen.iter().enumerate() {
        for (column, _) in some {
            mask[expert * columns + column] = 1.0;
        }
    }
    let device = logits.device().without_autodiff();
    let mask: Tensor<2> = Tensor::from_data(TensorData::new(mask, [experts, columns]), &device);
    let shares = activation::softmax(logits, 0) * mask;
    match described.normalize {
        true => shares.clone() / shares.sum_dim(0),
        false => shares,
    }
}

/// For each expert the columns that it was chosen for. `logits` has a row for each expert.
fn choose(logits: &[f32], columns: usize, described: &Experts) -> Vec<Chosen> {
    let count = described.experts.len();
    let mut chosen = vec![Chosen::new(); count];
    let mut weights = vec![(0_usize, 0.0_f32); count];
    for column in 0..columns {
        let of = |expert: usize| logits[expert * columns + column];
        let most = (0..count).map(of).fold(f32::NEG_INFINITY, f32::max);
        let all: f32 = (0..count).map(|expert| (of(expert) - most).exp()).sum();
        for (expert, weight) in weights.iter_mut().enumerate() {
            *weight = (expert, (of(expert) - most).exp() / all);
        }
        // Of equals the first: sorting is stable.
        weights.sort_by(|one, other| other.1.total_cmp(&one.1));
        let best = &weights[..described.per_token.min(count)];
        let scale = match described.normalize {
            true => 1.0 / best.iter().map(|(_, weight)| weight).sum::<f32>(),
            false => 1.0,
        };
        for (expert, weight) in best {
            chosen[*expert].push((column, weight * scale));
        }
    }
    chosen
}
