//! Changes of the logits that a request asks for, before its token is chosen.
//!
//! In this order, as vLLM and transformers have it: the repetition penalty over prompt and answer,
//! OpenAI's frequency and presence penalties over the answer, the bias, and min-p, which leaves only
//! tokens that have at least this share of the most likely token's probability.

use std::collections::{BTreeSet, HashMap};

/// What a request asks for; by default nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitRules {
    /// Taken off the logit of each token for every time that the answer has it.
    pub frequency_penalty: f32,
    /// Taken off the logit of each token that the answer has.
    pub presence_penalty: f32,
    /// The logits of tokens that prompt or answer have are divided by it if they are positive, and
    /// multiplied with it if not; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens.
    pub bias: Vec<(u32, f32)>,
    /// The least probability, as a share of the most likely token's; 0 leaves all.
    pub min_p: f32,
}

impl Default for LogitRules {
    fn default() -> Self {
        Self {
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            bias: Vec::new(),
            min_p: 0.0,
        }
    }
}

impl LogitRules {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The logits after the rules, for a sequence of `prompt` and `answer` that is sampled at
    /// `temperature`.
    pub(crate) fn apply(
        &self,
        logits: &[f32],
        prompt: &[u32],
        answer: &[u32],
        temperature: f32,
    ) -> Vec<f32> {
        let mut logits = logits.to_vec();
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for id in answer {
            *counts.entry(*id).or_default() += 1;
        }
        if self.repetition_penalty != 1.0 {
            let seen: BTreeSet<u32> = prompt.iter().chain(answer).copied().collect();
            for id in seen {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit = match *logit > 0.0 {
                        true => *logit / self.repetition_penalty,
                        false => *logit * self.repetition_penalty,
                    };
                }
            }
        }
        for (id, count) in counts {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= self.frequency_penalty * count as f32 + self.presence_penalty;
            }
        }
        for (id, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        if self.min_p > 0.0 {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let least = most + temperature.max(1e-6) * self.min_p.ln();
            for logit in &mut logits {
                if *logit < least {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        logits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [2.0, -1.0, 1.0, 0.5];

    #[test]
    fn nothing_asked_changes_nothing() {
        let rules = LogitRules::default();
        assert!(rules.is_empty());
        assert_eq!(rules.apply(&LOGITS, &[0, 1], &[2, 2], 1.0), LOGITS);
    }

    #[test]
    fn penalties_count_the_answer_and_repetition_the_prompt_too() {
        let rules =
            LogitRules { frequency_penalty: 0.5, presence_penalty: 0.25, ..LogitRules::default() };
        // Token 2 is there twice, token 3 once; the prompt does not count.
        assert_eq!(rules.apply(&LOGITS, &[0, 0], &[2, 3, 2], 1.0), [2.0, -1.0, -0.25, -0.25]);
        let rules = LogitRules { repetition_penalty: 2.0, ..LogitRules::default() };
        assert_eq!(rules.apply(&LOGITS, &[0, 1, 1], &[3], 1.0), [1.0, -2.0, 1.0, 0.25]);
    }

    #[test]
    fn a_bias_bans_and_forces_tokens_and_ignores_those_that_are_not_there() {
        let bias = vec![(0, -100.0), (3, 100.0), (9, 1.0)];
        let rules = LogitRules { bias, ..LogitRules::default() };
        assert_eq!(rules.apply(&LOGITS, &[], &[], 1.0), [-98.0, -1.0, 1.0, 100.5]);
    }

    #[test]
    fn min_p_leaves_those_that_are_likely_enough_at_the_temperature() {
        // Probabilities in relation to the first: 1, e^-3, e^-1, e^-1.5.
        let left = |min_p: f32, temperature: f32| -> Vec<bool> {
            let rules = LogitRules { min_p, ..LogitRules::default() };
            rules.apply(&LOGITS, &[], &[], temperature).iter().map(|l| l.is_finite()).collect()
        };
        assert_eq!(left(0.3, 1.0), [true, false, true, false]);
        assert_eq!(left(0.2, 1.0), [true, false, true, true]);
        // At twice the temperature: 1, e^-1.5, e^-0.5, e^-0.75.
        assert_eq!(left(0.2, 2.0), [true, true, true, true]);
        assert_eq!(left(1.0, 1.0), [true, false, false, false]);
    }
}
