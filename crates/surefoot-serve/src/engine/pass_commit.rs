//! Takes over what a pass gave: tokens are chosen, kept and sent, and sequences that end leave.
//!
//! This comes after the guarded run, so it happens once however often the run was tried. The decoding thread alone calls it.

use std::time::Duration;

use surefoot_models::{ModelError, StepOutput};

use super::bucket;
use super::decode_pass::{Answered, CacheSlot, Pass, PassResult};
use super::decoder::Decoder;
use super::error::EngineError;
use super::live::LiveSequences;
use super::sequence::TokenOutcome;

impl Decoder {
    /// Takes over the result of a pass: tokens are chosen and sent, sequences that end leave, and
    /// those for which there is no room any more are parked.
    pub(super) fn commit(
        &self,
        live: &mut LiveSequences,
        slot: &mut CacheSlot,
        pass: &Pass,
        result: PassResult,
        took: Duration,
    ) {
        live.park_beyond(result.room, slot);
        let joined = live.joined;
        let output = match result.output {
            Ok(output) => output,
            Err(error) => return self.refuse(live, slot, pass, &error),
        };
        let count = match &output {
            StepOutput::Logits(logits) => logits.numbers.len() / logits.cols.max(1),
            StepOutput::MostLikely(tokens) => tokens.len(),
        };
        let answered: Vec<Answered> = match pass {
            Pass::Step => {
                live.step_took = took;
                self.metrics.batch("decode", count, took);
                (0..count).map(Answered::plainly).collect()
            }
            Pass::Tokens(shares) => {
                let prompts = shares.iter().any(|share| share.is_prompt);
                self.metrics.batch(if prompts { "prompt" } else { "decode" }, shares.len(), took);
                result.answered
            }
            Pass::Join(_) => {
                live.joined += count;
                let new = &live.sequences[joined..joined + count];
                self.metrics.batch("prompt", count, took);
                let longest = new.iter().map(|sequence| sequence.tokens().len()).max();
                live.ran_prompts(count * bucket::width(longest.unwrap_or(0)), took);
                (joined..joined + count).map(Answered::plainly).collect()
            }
        };
        self.accept(live, slot, answered, &output);
    }

    /// Fails the sequences that the model does not take.
    fn refuse(
        &self,
        live: &mut LiveSequences,
        slot: &mut CacheSlot,
        pass: &Pass,
        error: &ModelError,
    ) {
        let refused = match pass {
            // Which of them it is, each shows alone.
            Pass::Tokens(shares) if shares.len() > 1 => {
                return self.try_each_alone(live, slot, pass);
            }
            Pass::Tokens(shares) => shares.first().map_or(0..0, |share| share.at..share.at + 1),
            Pass::Join(count) => live.joined..(live.joined + count).min(live.sequences.len()),
            Pass::Step => {
                slot.clear();
                0..std::mem::take(&mut live.joined)
            }
        };
        for sequence in live.sequences.drain(refused) {
            live.speculator.end(sequence.key);
            sequence.fail(EngineError::Request(error.to_string()));
        }
    }

    /// Gives each of these sequences its token, and those that were proposed behind it as far as they are right; those
    /// that end leave.
    fn accept(
        &self,
        live: &mut LiveSequences,
        slot: &mut CacheSlot,
        answered: Vec<Answered>,
        output: &StepOutput,
    ) {
        live.ended_last = 0;
        let mut generated = 0;
        let mut row = 0;
        let mut order: Vec<(usize, Answered)> = Vec::with_capacity(answered.len());
        for one in answered {
            let first = row;
            row += one.rows();
            order.push((first, one));
        }
        // From the last one on: who leaves gives its place to one that had its turn.
        order.sort_by_key(|(_, one)| std::cmp::Reverse(one.at));
        for (first, Answered { at: place, proposed }) in order {
            let sequence = &mut live.sequences[place];
            let before = sequence.generated();
            let (fate, accepted) = match output {
                StepOutput::Logits(logits) => {
                    let rows = (first..).map(|row| logits.row(row));
                    sequence.accept_proposed(rows, &proposed, &self.ends)
                }
                StepOutput::MostLikely(tokens) => {
                    (sequence.accept_most_likely(tokens[first], &self.ends), 0)
                }
            };
            if before == 0 {
                self.metrics.prompt_tokens(sequence.prompt);
            }
            generated += sequence.generated() - before;
            if before == 0 && sequence.generated() > 0 {
                self.metrics.first_token(sequence.accepted.elapsed());
            }
            if !proposed.is_empty() {
                self.metrics.speculated(proposed.len(), accepted);
                live.speculator.verified(sequence.key, proposed.len(), accepted);
                slot.pages.truncate(sequence.key, sequence.tokens().len() - 1);
            }
            match fate {
                TokenOutcome::Continues => {}
                TokenOutcome::Ended(ending) => {
                    live.ended_last += 1;
                    let ended = live.take_out(place, slot);
                    self.metrics.finished();
                    ended.end(ending);
                }
                TokenOutcome::NotFinite => {
                    let failed = live.take_out(place, slot);
                    failed.fail(EngineError::NotFinite);
                }
                TokenOutcome::Unsatisfied(error) => {
                    let failed = live.take_out(place, slot);
                    failed.fail(EngineError::Constraint(error));
                }
            }
        }
        self.metrics.generated_tokens(generated);
    }
}
