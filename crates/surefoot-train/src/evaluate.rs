//! How well a model does on samples that it was not trained on.

use std::ops::Range;

use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};
use surefoot::{BoxError, Fault, FaultKind, Footing, StepExt};

use crate::loader::{Loader, Loading, Recipe, plan};
use crate::model::Trainable;
use crate::ranks::bits;
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
    /// How often each class was predicted for each; none for text and numbers.
    pub confusion: Option<Confusion>,
}

/// How often each class was predicted for each class: rows are the right classes, columns the
/// predicted ones, both in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confusion {
    /// The counts.
    pub counts: Vec<Vec<u64>>,
}

/// How well one class is told from the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassFigures {
    /// Test samples of the class.
    pub samples: u64,
    /// The share of those predicted as this class that are of it; none if there are none.
    pub precision: Option<f64>,
    /// The share of its samples that are predicted as it; none if there are none.
    pub recall: Option<f64>,
}

impl Confusion {
    fn new(classes: usize) -> Self {
        Self { counts: vec![vec![0; classes]; classes] }
    }

    fn add(&mut self, targets: &[i32], guesses: &[i32]) {
        for (&target, &guess) in targets.iter().zip(guesses) {
            let cell =
                self.counts.get_mut(target as usize).and_then(|row| row.get_mut(guess as usize));
            if let Some(count) = cell {
                *count += 1;
            }
        }
    }

    /// The figures of each class.
    pub fn classes(&self) -> Vec<ClassFigures> {
        let share = |part: u64, of: u64| (of > 0).then(|| part as f64 / of as f64);
        (0..self.counts.len())
            .map(|class| {
                let right = self.counts[class][class];
                let samples = self.counts[class].iter().sum();
                let predicted = self.counts.iter().map(|row| row[class]).sum();
                ClassFigures {
                    samples,
                    precision: share(right, predicted),
                    recall: share(right, samples),
                }
            })
            .collect()
    }
}

/// Tests a state on all samples of a recipe.
pub fn evaluate<M: Trainable>(
    footing: &Footing,
    state: &State<M>,
    recipe: &Recipe,
    batch_size: usize,
    loading: Loading,
) -> Result<Evaluation, Fault> {
    let all = 0..recipe.source.len();
    let (tally, faults) = tally(footing, state, recipe, all, batch_size, loading)?;
    tally.evaluation(faults)
}

/// Sums over the samples that were tested; those of several parts are added up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    #[serde(with = "bits")]
    loss: f64,
    #[serde(with = "bits")]
    correct: f64,
    items: usize,
    skipped: Vec<String>,
    confusion: Option<Confusion>,
}

impl Tally {
    /// Adds the sums of another part.
    pub(crate) fn add(&mut self, other: Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.items += other.items;
        self.skipped.extend(other.skipped);
        match (&mut self.confusion, other.confusion) {
            (Some(own), Some(other)) => {
                let cells = other.counts.into_iter().flatten();
                own.counts.iter_mut().flatten().zip(cells).for_each(|(own, more)| *own += more);
            }
            (own @ None, other) => *own = other,
            (Some(_), None) => {}
        }
    }

    /// The result of the whole test.
    pub(crate) fn evaluation(self, faults: Vec<Fault>) -> Result<Evaluation, Fault> {
        let Self { loss, correct, items, skipped, confusion } = self;
        if items == 0 {
            let message = "no test sample can be read";
            return Err(Fault::new(FaultKind::DataLoading, OPERATION, message));
        }
        let items = items as f64;
        Ok(Evaluation { loss: loss / items, accuracy: correct / items, skipped, faults, confusion })
    }
}

/// Tests a state on some samples of a recipe; gives the sums, and the faults that were recovered from.
pub(crate) fn tally<M: Trainable>(
    footing: &Footing,
    state: &State<M>,
    recipe: &Recipe,
    samples: Range<usize>,
    batch_size: usize,
    loading: Loading,
) -> Result<(Tally, Vec<Fault>), Fault> {
    let mut plan = plan(samples.len(), batch_size, None, 0);
    plan.iter_mut().flatten().for_each(|at| *at += samples.start);
    let mut faults: Vec<Fault> = Vec::new();
    let confusion = recipe.source.form().classes().map(Confusion::new);
    let mut tally = Tally { confusion, ..Tally::default() };
    for batch in Loader::start(recipe.clone(), 0, plan, loading) {
        let mut batch = batch?;
        tally.skipped.append(&mut batch.skipped);
        if batch.samples() == 0 {
            continue;
        }
        let task = footing.task(OPERATION).starting_on(state.device);
        let outcome = task.run_in_parts(batch.samples(), |step| {
            let state = bring(state, step)?;
            let (mut sums, mut guesses) = ((0.0, 0.0), Vec::new());
            for range in step.ranges(batch.samples()) {
                let part = batch.on_device(range, step.device())?;
                let score = state.model.score(&part, step.autocast());
                let seen = Tensor::cat(vec![score.loss, score.correct], 0).try_into_data()?;
                let seen = seen.try_cast(DType::F64)?.try_to_vec::<f64>()?;
                sums = (sums.0 + seen[0], sums.1 + seen[1]);
                if let (Some(guessed), true) = (score.guesses, tally.confusion.is_some()) {
                    let guessed = guessed.try_into_data()?.try_cast(DType::I32)?;
                    guesses.extend(guessed.try_to_vec::<i32>()?);
                }
            }
            Ok::<_, BoxError>((sums, guesses))
        });
        let mut outcome = match outcome {
            Ok(outcome) => outcome,
            Err(mut fault) => {
                faults.append(&mut fault.earlier);
                return Err(fault.after(faults));
            }
        };
        faults.append(&mut outcome.faults);
        let ((batch_loss, batch_correct), guesses) = outcome.value;
        if let Some(confusion) = &mut tally.confusion {
            confusion.add(batch.targets(), &guesses);
        }
        tally.loss += batch_loss;
        tally.correct += batch_correct;
        tally.items += batch.items();
    }
    Ok((tally, faults))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_classes_come_from_the_counts() {
        let mut confusion = Confusion::new(3);
        confusion.add(&[0, 0, 0, 1, 1], &[0, 0, 1, 1, 0]);
        assert_eq!(confusion.counts, [[2, 1, 0], [1, 1, 0], [0, 0, 0]]);
        let figures = confusion.classes();
        assert_eq!((figures[0].samples, figures[0].recall), (3, Some(2.0 / 3.0)));
        assert_eq!(figures[1].precision, Some(0.5));
        assert_eq!((figures[2].precision, figures[2].recall), (None, None));
    }
}
