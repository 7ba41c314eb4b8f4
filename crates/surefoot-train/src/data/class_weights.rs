//! How much the samples of each class count in the loss.

use std::path::Path;

use super::{DataError, DataSet, Form, Label, Target};
use crate::config::ClassWeights;

/// The weight of each class, in the order of their numbers; none if all count the same.
pub fn class_weights(
    weights: &ClassWeights,
    data: &DataSet,
) -> Result<Option<Vec<f32>>, DataError> {
    let Form::Dense { target: Target::Classes(classes), .. } = data.form() else {
        return match weights {
            ClassWeights::Equal => Ok(None),
            _ => Err(DataError::new(
                Path::new("data.class_weights"),
                "only classes have weights, and this data has none",
            )),
        };
    };
    match weights {
        ClassWeights::Equal => Ok(None),
        ClassWeights::Balanced => {
            let mut counts = vec![0u64; classes];
            for at in 0..data.train.len() {
                if let Some(Label::Class(class)) = data.train.label(at) {
                    counts[class] += 1;
                }
            }
            Ok(Some(balanced(&counts)))
        }
        ClassWeights::Given(given) => {
            let mut all = vec![1.0; classes];
            for (name, weight) in given {
                let names = &data.description.classes;
                let Some(class) = names.iter().position(|class| class == name) else {
                    let why = format!("there is no class '{name}'");
                    return Err(DataError::new(Path::new("data.class_weights"), why)
                        .hint(format!("the classes are {}", names.join(", "))));
                };
                all[class] = *weight as f32;
            }
            Ok(Some(all))
        }
    }
}

/// Weights that make each class count the same in sum, and 1 on average over the samples. A class
/// without samples has no say.
fn balanced(counts: &[u64]) -> Vec<f32> {
    let present = counts.iter().filter(|count| **count > 0).count().max(1) as f64;
    let samples = counts.iter().sum::<u64>() as f64;
    let weight = |count: &u64| match *count {
        0 => 1.0,
        count => (samples / (present * count as f64)) as f32,
    };
    counts.iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_classes_count_the_same_and_samples_one_on_average() {
        let weights = balanced(&[90, 10, 0]);
        assert!((weights[0] * 90.0 - weights[1] * 10.0).abs() < 1e-4, "{weights:?}");
        assert!((weights[0] * 90.0 + weights[1] * 10.0 - 100.0).abs() < 1e-3, "{weights:?}");
    }
}
