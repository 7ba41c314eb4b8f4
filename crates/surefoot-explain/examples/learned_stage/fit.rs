//! Training with calibration: the model on everything given, its three numbers on predictions for
//! messages that were left out of training with their whole source.

use surefoot_core::fault::FaultKind;
use surefoot_explain::learned::{
    Calibration, Model, Observation, RULES_SURE_ABOVE, RulesAnswer, Sample, Settings, train,
};

use crate::data::Message;

/// Folds of the calibration.
const FOLDS: usize = 5;

/// Which fold a group belongs to; the same for all messages of one source.
pub(crate) fn fold_of(group: &str, folds: usize) -> usize {
    let hash = group
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    ((hash ^ (hash >> 29)) % folds as u64) as usize
}

pub(crate) fn model_of<'a>(
    messages: impl IntoIterator<Item = &'a Message>,
    ordinary: &'a [String],
) -> Model {
    let ordinary = ordinary.iter().map(|text| Sample { text, kind: FaultKind::NotDeviceRelated });
    let samples: Vec<Sample<'_>> =
        messages.into_iter().map(Message::sample).chain(ordinary).collect();
    train(&samples, &Settings::default())
}

/// A calibrated model of these messages.
pub(crate) fn calibrated(messages: &[&Message], ordinary: &[String]) -> Model {
    let mut model = model_of(messages.iter().copied(), ordinary);
    let unsure = |message: &&Message| {
        message.rules_before.is_some_and(|before| before.confidence <= RULES_SURE_ABOVE)
    };
    let mut observations = Vec::new();
    if messages.iter().copied().filter(|message| unsure(message)).count() >= 100 {
        for fold in 0..FOLDS {
            let inside = |message: &&Message| fold_of(message.group(), FOLDS) == fold;
            let rest = messages.iter().copied().filter(|message| !inside(message));
            let part = model_of(rest, ordinary);
            for message in messages.iter().copied().filter(inside).filter(unsure) {
                let (Some(before), Some(scores)) =
                    (message.rules_before, part.scores(&message.message))
                else {
                    continue;
                };
                let rules = match before.confidence {
                    ..0.2 => RulesAnswer::Unknown,
                    _ => RulesAnswer::Hint(before.kind),
                };
                observations.push(Observation { scores, rules, kind: message.label });
            }
        }
        model.calibration = Calibration::fit(&observations);
    }
    model
}
