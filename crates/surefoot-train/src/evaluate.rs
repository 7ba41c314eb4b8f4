//! How well a model does on samples that it was not trained on.

use burn::tensor::{DType, Tensor};
use surefoot::{BoxError, Fault, FaultKind, Footing, StepExt};

use crate::loader::{Loader, Loading, Recipe, plan};
use crate::model::Trainable;
use crate::state::State;
use crate::step::bring;

/// The name of the operation in the journal and in drills.
pub const OPERATION: &str = "evaluate";

/// The result of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f64,
    /// The share of right answers.
    pub accuracy: f64,
    /// Samples that can't be read and were left out, each with the reason.
    pub skipped: Vec<String>,
    /// Faults that were recovered from, oldest first.
    pub faults: Vec<Fault>,
}

/// Tests a state on all samples of a recipe.
pub fn evaluate<M: Trainable>(
    footing: &Footing,
    state: &State<M>,
    recipe: &Recipe,
    batch_size: usize,
    loading: Loading,
) -> Result<Evaluation, Fault> {
    let plan = plan(recipe.source.len(), batch_size, None, 0);
    let (mut loss, mut correct, mut items, mut skipped) = (0.0, 0.0, 0usize, Vec::new());
    let mut faults: Vec<Fault> = Vec::new();
    for batch in Loader::start(recipe.clone(), 0, plan, loading) {
        let mut batch = batch?;
        skipped.append(&mut batch.skipped);
        if batch.samples() == 0 {
            continue;
        }
        let task = footing.task(OPERATION).starting_on(state.device);
        let outcome = task.run_in_parts(batch.samples(), |step| {
            let state = bring(state, step)?;
            let mut sums = (0.0, 0.0);
            for range in step.ranges(batch.samples()) {
                let part = batch.on_device(range, step.device())?;
                let score = state.model.score(&part, step.autocast());
                let seen = Tensor::cat(vec![score.loss, score.correct], 0).try_into_data()?;
                let seen = seen.try_cast(DType::F64)?.try_to_vec::<f64>()?;
                sums = (sums.0 + seen[0], sums.1 + seen[1]);
            }
            Ok::<_, BoxError>(sums)
        });
        let mut outcome = match outcome {
            Ok(outcome) => outcome,
            Err(mut fault) => {
                faults.append(&mut fault.earlier);
                return Err(fault.after(faults));
            }
        };
        faults.append(&mut outcome.faults);
        let (batch_loss, batch_correct) = outcome.value;
        loss += batch_loss;
        correct += batch_correct;
        items += batch.items();
    }
    if items == 0 {
        return Err(Fault::new(FaultKind::DataLoading, OPERATION, "no test sample can be read"));
    }
    let items = items as f64;
    Ok(Evaluation { loss: loss / items, accuracy: correct / items, skipped, faults })
}
