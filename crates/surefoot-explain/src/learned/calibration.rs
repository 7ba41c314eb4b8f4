//! How scores and the rules' answer become probabilities.
//!
//! The probability of a kind is the softmax of `temperature × score`, where the kind that the rules
//! name gets an offset first: one where they gave a hint, another where they knew nothing and said
//! `not_device_related` for want of anything better. The three numbers are fitted on messages that
//! neither the rules nor the scoring model had seen.

use surefoot_core::fault::FaultKind;

use super::model::{KINDS, Scores};

/// The three numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Calibration {
    /// What scores are multiplied with.
    pub temperature: f32,
    /// Added to `not_device_related` where the rules recognised nothing.
    pub unknown_offset: f32,
    /// Added to the kind that the rules gave as a hint.
    pub hint_offset: f32,
}

/// What the rules said about a text that they were not sure about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesAnswer {
    /// They recognised nothing.
    Unknown,
    /// They recognised words that go with this kind.
    Hint(FaultKind),
}

/// A message with a known kind: what an unseen model scored and the rules said.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// What a model that was not trained on the message scored.
    pub scores: Scores,
    /// What rules that were not tuned on the message said.
    pub rules: RulesAnswer,
    /// Its kind.
    pub kind: FaultKind,
}

impl Default for Calibration {
    fn default() -> Self {
        Self { temperature: 1.0, unknown_offset: 0.0, hint_offset: 1.0 }
    }
}

impl Calibration {
    /// The probability of each kind, in the order of [`KINDS`].
    pub fn probabilities(&self, scores: &Scores, rules: RulesAnswer) -> Scores {
        let mut logits = scores.map(|score| f64::from(self.temperature) * f64::from(score));
        let (kind, offset) = match rules {
            RulesAnswer::Unknown => (FaultKind::NotDeviceRelated, self.unknown_offset),
            RulesAnswer::Hint(kind) => (kind, self.hint_offset),
        };
        if let Some(index) = KINDS.iter().position(|&known| known == kind) {
            logits[index] += f64::from(offset);
        }
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers = logits.map(|logit| libm::exp(logit - most));
        let sum: f64 = powers.iter().sum();
        powers.map(|power| (power / sum) as f32)
    }

    /// The calibration under which the observations are likeliest, found by narrowing one number
    /// after the other.
    pub fn fit(observations: &[Observation]) -> Self {
        let mut best = Self::default();
        let fields: [fn(&mut Self) -> &mut f32; 3] =
            [|c| &mut c.temperature, |c| &mut c.unknown_offset, |c| &mut c.hint_offset];
        let mut step = 1.0_f32;
        let mut loss = best.loss(observations);
        while step > 0.005 {
            let mut better = false;
            for field in fields {
                for change in [step, -step] {
                    let mut next = best;
                    *field(&mut next) += change;
                    let next_loss = next.loss(observations);
                    if next.temperature > 0.0 && next_loss < loss {
                        (best, loss, better) = (next, next_loss, true);
                    }
                }
            }
            if !better {
                step /= 2.0;
            }
        }
        best
    }

    /// The negative log-likelihood, with a mild pull to the default where there is little to see.
    fn loss(&self, observations: &[Observation]) -> f64 {
        let start = Self::default();
        let pull = [
            self.temperature - start.temperature,
            self.unknown_offset - start.unknown_offset,
            self.hint_offset - start.hint_offset,
        ];
        let pull: f64 = pull.iter().map(|&by| 0.05 * f64::from(by) * f64::from(by)).sum();
        let lost: f64 = observations
            .iter()
            .filter_map(|seen| {
                let right = KINDS.iter().position(|&kind| kind == seen.kind)?;
                let probability = self.probabilities(&seen.scores, seen.rules)[right];
                Some(-libm::log(f64::from(probability).max(1e-9)))
            })
            .sum();
        lost + pull
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(index: usize, score: f32) -> Scores {
        let mut scores = Scores::default();
        scores[index] = score;
        scores
    }

    #[test]
    fn probabilities_sum_to_one_and_follow_the_rules_hint() {
        let calibration = Calibration { temperature: 2.0, unknown_offset: 0.5, hint_offset: 3.0 };
        let sure = calibration.probabilities(&scores(0, 4.0), RulesAnswer::Unknown);
        assert!((sure.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        assert!(sure[0] > 0.99, "{sure:?}");
        let hinted = calibration.probabilities(&scores(0, 1.0), RulesAnswer::Hint(KINDS[3]));
        assert!(hinted[3] > hinted[0], "{hinted:?}");
    }

    #[test]
    fn a_model_that_is_right_half_the_time_is_fitted_to_say_one_half() {
        // The same scores every time; the first kind is right in every second case.
        let observations: Vec<Observation> = (0..400)
            .map(|number| Observation {
                scores: scores(0, 6.0),
                rules: RulesAnswer::Hint(FaultKind::Numeric),
                kind: if number % 2 == 0 { KINDS[0] } else { FaultKind::Numeric },
            })
            .collect();
        let fitted = Calibration::fit(&observations);
        let found = fitted.probabilities(&scores(0, 6.0), observations[0].rules);
        assert!((found[0] - 0.5).abs() < 0.03, "{found:?}");
    }
}
