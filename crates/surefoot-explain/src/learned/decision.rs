//! The answer of rules and model together.

use surefoot_core::fault::FaultKind;

use super::RULES_SURE_ABOVE;
use super::calibration::RulesAnswer;
use super::model::{KINDS, Model};
use super::reading::Reading;

/// What rules and model say together about a text.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// The likeliest kind.
    pub kind: FaultKind,
    /// How likely it is.
    pub confidence: f32,
    /// The second likeliest kind with its probability, where the model was asked.
    pub second: Option<(FaultKind, f32)>,
}

impl Decision {
    /// The second kind, where it is likely enough to be named.
    pub fn plausible_second(&self) -> Option<(FaultKind, f32)> {
        self.second.filter(|&(_, probability)| self.confidence < 0.97 && probability >= 0.02)
    }
}

/// Decides between what the rules found and what the model scores. `None` where the rules are sure
/// or the text is too short to say anything: the rules' answer stands.
pub fn decide(model: &Model, text: &str, rules: FaultKind, confidence: f32) -> Option<Decision> {
    decide_on(model, text, rules, confidence).map(|(decision, _)| decision)
}

/// The same, with the reading of the text that the decision was made on.
pub(crate) fn decide_on(
    model: &Model,
    text: &str,
    rules: FaultKind,
    confidence: f32,
) -> Option<(Decision, Reading)> {
    /// Below this the rules recognised nothing.
    const RECOGNISED: f32 = 0.2;
    /// One or two words can be anything.
    const FEWEST_WORDS: usize = 3;
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    if confidence > RULES_SURE_ABOVE || words.take(FEWEST_WORDS).count() < FEWEST_WORDS {
        return None;
    }
    let rules =
        if confidence < RECOGNISED { RulesAnswer::Unknown } else { RulesAnswer::Hint(rules) };
    let reading = Reading::new(model, text);
    let probabilities = model.calibration.probabilities(&model.scores_of(&reading)?, rules);
    let mut order: [usize; KINDS.len()] = std::array::from_fn(|index| index);
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    let of = |index: usize| (KINDS[index], probabilities[index]);
    let (kind, confidence) = of(order[0]);
    Some((Decision { kind, confidence, second: Some(of(order[1])) }, reading))
}

/// The kind that the model finds likelier than the one that the rules are sure of, where it contradicts them clearly: a second
/// guess for single answers. It costs as much as a decision, so `explain` does not ask for it.
pub fn doubt(model: &Model, text: &str, rules: FaultKind) -> Option<(FaultKind, f32)> {
    const CLEARLY: f32 = 0.3;
    let scores = model.scores(text)?;
    let probabilities = model.calibration.probabilities(&scores, RulesAnswer::Hint(rules));
    let others = KINDS.iter().copied().zip(probabilities).filter(|&(kind, _)| kind != rules);
    let likeliest = others.max_by(|a, b| a.1.total_cmp(&b.1));
    likeliest.filter(|&(_, probability)| probability >= CLEARLY)
}
