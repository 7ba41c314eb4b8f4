//! Rates the tokens of prompts, for clients that ask how likely they are.
//!
//! Each prompt is one guarded run of its own, before its sequence joins the others. The decoding thread alone calls it.

use std::time::Instant;

use surefoot_models::ModelError;
use surefoot_models::generate::tokens::FinishReason;

use super::decoder::Decoder;
use super::error::EngineError;
use super::logprobs::Logprobs;
use super::sequence::Sequence;

impl Decoder {
    /// Rates the tokens of a sequence's prompt, and gives it back unless it is done or has failed.
    pub(super) fn rate_prompt(&self, mut sequence: Sequence) -> Option<Sequence> {
        let begun = Instant::now();
        // A fault that the ladder has no answer to may not come again.
        let rated = self.ratings(&sequence).or_else(|_| self.ratings(&sequence));
        let error = match rated {
            Ok(Some(ratings)) => {
                self.metrics.batch("prompt", 1, begun.elapsed());
                sequence.rate_prompt(ratings);
                if !sequence.is_only_rated() {
                    return Some(sequence);
                }
                self.metrics.prompt_tokens(sequence.prompt);
                self.metrics.finished();
                sequence.end(FinishReason::MaxTokens);
                return None;
            }
            Ok(None) => EngineError::NotFinite,
            Err(error) => EngineError::from(error),
        };
        sequence.fail(error);
        None
    }

    /// How likely the tokens of a prompt are, from the second on, by one guarded run; none if the model
    /// gives numbers that are not finite.
    fn ratings(&self, sequence: &Sequence) -> Result<Option<Vec<Logprobs>>, ModelError> {
        let request = self.capacity.request("decode").samples(self.capacity.sequences);
        let outcome = self.runner.run(&request, |attempt| {
            // The plan has room for the logits of so many tokens.
            let part = attempt.samples_at_once().min(self.capacity.pass_tokens).max(1);
            let _permit = self.budget.acquire(part);
            let mut ratings = Vec::with_capacity(sequence.prompt);
            let mut is_finite = true;
            let mut passes = attempt.model().passes();
            passes.set_adapters(vec![sequence.adapter()]);
            passes.score(sequence.tokens(), part, |place, logits| {
                is_finite &= logits.iter().all(|logit| logit.is_finite());
                ratings.extend(sequence.rating(place, logits).filter(|_| is_finite));
            })?;
            Ok(is_finite.then_some(ratings))
        });
        outcome.map(|outcome| outcome.value)
    }
}
