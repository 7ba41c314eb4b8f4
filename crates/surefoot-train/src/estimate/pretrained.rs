//! What training a published model takes, from its configuration and the headers of its files. A folder that can't be opened
//! counts nothing: opening it for training says what is wrong.

use surefoot::device::memory::resident;
use surefoot_models::Opened;
use surefoot_models::adapter::{Projections, default_targets};
use surefoot_models::weights::binding::Matrix;

use crate::config::{PretrainedConfig, Tune};
use crate::data::Form;

/// The numbers that are trained.
pub(super) fn parameters(config: &PretrainedConfig, form: Form) -> u128 {
    let Ok(opened) = Opened::new(&config.path) else { return 0 };
    let hidden = opened.blueprint.hidden as u128;
    let classifier = form.classes().map_or(0, |classes| (hidden + 1) * classes as u128);
    let of_model = match config.tune {
        Tune::Lora => {
            let projections = Projections::of(&opened);
            let names = match config.targets.is_empty() {
                true => default_targets(&projections),
                false => config.targets.clone(),
            };
            let targets = projections.named(&names).into_iter();
            targets.map(|target| (config.rank * (target.inputs + target.outputs)) as u128).sum()
        }
        Tune::Full => {
            let pooler = form.classes().map_or(0, |_| hidden * (hidden + 1));
            let size = |shape: &[usize]| shape.iter().product::<usize>() as u128;
            opened.tensors().iter().map(|stored| size(&stored.shape)).sum::<u128>() + pooler
        }
        Tune::Head if form.classes().is_some() => 0,
        Tune::Head => {
            opened.head().map_or(0, |stored| stored.shape.iter().product::<usize>() as u128)
        }
    };
    of_model + classifier
}

/// Numbers that a forward and backward pass keep for one row.
pub(super) fn activations(config: &PretrainedConfig, form: Form, checkpointing: bool) -> u128 {
    let Ok(opened) = Opened::new(&config.path) else { return 0 };
    let blueprint = &opened.blueprint;
    let (length, outputs) = (form.size() as u128, form.outputs() as u128);
    let (hidden, inner) = (blueprint.hidden as u128, blueprint.inner() as u128);
    // Of a block: norms, queries, keys, values, results of the halves; gate, value and their product; scores.
    let block = 12 * hidden + 5 * inner + 3 * blueprint.heads as u128 * length;
    // Dropout keeps what is left of each projection's inputs, and which they are.
    let dropped = if config.dropout > 0.0 { 12 * hidden + 2 * inner } else { 0 };
    let block = block + dropped;
    let logits = if form.classes().is_some() { 0 } else { 3 * outputs };
    // Of the blocks only the inputs are kept then, and one block at a time is run again.
    let blocks = blueprint.blocks.len() as u128;
    let kept = if checkpointing { blocks * hidden + block } else { blocks * block };
    length * (kept + logits)
}

/// Values, gradients, two moments, and the next values and moments beside them.
const COPIES: u128 = 7;

/// Whether the weights, what is trained and the activations of one row take more than `budget` without gradient checkpointing.
/// It depends on the configuration and the model's files alone, so that a run that goes on later does the same.
pub(super) fn needs_checkpointing(config: &PretrainedConfig, form: Form, budget: u64) -> bool {
    let Ok(opened) = Opened::new(&config.path) else { return false };
    let weights: u64 = opened.binding.matrices.iter().map(Matrix::file_bytes).sum();
    let trained = parameters(config, form) * COPIES * 4;
    let row = activations(config, form, false) * 4;
    u128::from(weights) + trained + row > u128::from(budget)
}

/// The share of the matrices that can stay in memory within the budget, from 0 to 1: what it leaves beside what the process
/// holds now, what is trained, and the activations of one row.
pub(crate) fn resident_share(config: &PretrainedConfig, opened: &Opened, form: Form) -> f64 {
    let Some(budget) = config.budget else { return 1.0 };
    let weights: u64 = opened.binding.matrices.iter().map(Matrix::file_bytes).sum();
    let trained = parameters(config, form) * COPIES * 4;
    let row = activations(config, form, true) * 4;
    let besides = u128::from(resident()) + trained + row;
    let left = u128::from(budget).saturating_sub(besides);
    (left as f64 / weights.max(1) as f64).min(1.0)
}
