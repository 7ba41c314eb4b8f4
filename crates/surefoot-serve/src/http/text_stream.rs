//! Turns the engine's token events of a sequence into pieces of text.

use std::collections::BTreeMap;

use surefoot_models::generate::speculate::SpeculationCounts;
use surefoot_models::generate::text::Texts;
use surefoot_models::generate::tokens::FinishReason;
use surefoot_models::generate::writer::Writer;

use super::answer_end::AnswerEnd;
use super::call_reader::ToolCall;
use crate::engine::{EngineError, GenerationEvent, GenerationStream, Logprobs};

/// A token as it is shown, with how likely it was.
#[derive(Clone, Debug)]
pub(super) struct TokenText {
    pub(super) token: String,
    /// None for the first token of a prompt, which has nothing before it.
    pub(super) logprob: Option<f32>,
    pub(super) top: Vec<(String, f32)>,
}

/// Some more of a text. A piece with an end is the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    pub(super) text: String,
    /// The tokens since the last piece, if probabilities were asked for.
    pub(super) tokens: Vec<TokenText>,
    pub(super) end: Option<AnswerEnd>,
    /// Calls of tools, which are no part of the text.
    pub(super) calls: Vec<ToolCall>,
}

/// What the usage of an answer is made of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpentTokens {
    pub(super) count: usize,
    pub(super) proposals: SpeculationCounts,
    /// Tokens of the prompt that were not run again.
    pub(super) cached: usize,
}

impl SpentTokens {
    /// What the choices of a request took, each with its index. Those of one prompt follow each other, and of the
    /// prompt's tokens are cached those that none of them ran.
    pub(super) fn of_all(all: &[(usize, Self)], choices_of_a_prompt: usize) -> Self {
        let mut sum = Self::default();
        let mut cached: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, one) in all {
            sum.count += one.count;
            sum.proposals.accepted += one.proposals.accepted;
            sum.proposals.rejected += one.proposals.rejected;
            let least = cached.entry(index / choices_of_a_prompt.max(1)).or_insert(one.cached);
            *least = one.cached.min(*least);
        }
        Self { cached: cached.values().sum(), ..sum }
    }
}

/// The text of one sequence as it comes.
pub(super) struct TextStream<'a> {
    texts: &'a Texts,
    writer: Writer<'a>,
    heard: GenerationStream,
    pending: Vec<TokenText>,
    count: usize,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(texts: &'a Texts, stops: &'a [String], heard: GenerationStream) -> Self {
        Self { texts, writer: Writer::new(texts, stops), heard, pending: Vec::new(), count: 0 }
    }

    /// How many tokens came so far, what became of those that were proposed, and how many of the prompt were known.
    pub(super) fn spent(&self) -> SpentTokens {
        SpentTokens {
            count: self.count,
            proposals: self.heard.speculation(),
            cached: self.heard.cached_tokens(),
        }
    }

    /// The next piece that is sure to stay.
    pub(super) async fn next(&mut self) -> Result<Piece, EngineError> {
        loop {
            match self.heard.recv().await {
                Some(GenerationEvent::Prompt(prompt)) => {
                    let mut tokens = Vec::with_capacity(prompt.len());
                    for (id, logprobs) in &prompt {
                        tokens.push(self.spell(*id, logprobs.as_ref())?);
                    }
                    return Ok(Piece { tokens, ..Piece::default() });
                }
                Some(GenerationEvent::Token { id, logprobs }) => {
                    self.count += 1;
                    if let Some(logprobs) = logprobs {
                        let spelt = self.spell(id, Some(&logprobs))?;
                        self.pending.push(spelt);
                    }
                    if self.writer.push(id)? {
                        self.heard.enough();
                        return Ok(self.last(AnswerEnd::Stop));
                    }
                    let text = self.writer.fresh().to_owned();
                    if !text.is_empty() {
                        let tokens = std::mem::take(&mut self.pending);
                        return Ok(Piece { text, tokens, ..Piece::default() });
                    }
                }
                Some(GenerationEvent::Ended(FinishReason::EndOfText | FinishReason::Stopped)) => {
                    return Ok(self.last(AnswerEnd::Stop));
                }
                Some(GenerationEvent::Ended(
                    FinishReason::MaxTokens | FinishReason::ContextFull,
                )) => {
                    return Ok(self.last(AnswerEnd::Length));
                }
                Some(GenerationEvent::Failed(error)) => return Err(error),
                None => return Err(EngineError::Closed),
            }
        }
    }

    /// All of it.
    pub(super) async fn whole(&mut self) -> Result<Piece, EngineError> {
        let mut whole = Piece::default();
        while whole.end.is_none() {
            let piece = self.next().await?;
            whole.text.push_str(&piece.text);
            whole.tokens.extend(piece.tokens);
            whole.end = piece.end;
        }
        Ok(whole)
    }

    fn last(&mut self, end: AnswerEnd) -> Piece {
        let text = self.writer.rest().to_owned();
        Piece {
            text,
            tokens: std::mem::take(&mut self.pending),
            end: Some(end),
            ..Piece::default()
        }
    }

    fn spell(&self, id: u32, logprobs: Option<&Logprobs>) -> Result<TokenText, EngineError> {
        let mut top = Vec::new();
        for likely in logprobs.map_or(&[][..], |logprobs| &logprobs.top) {
            top.push((self.texts.spell(likely.id)?, likely.logprob));
        }
        let logprob = logprobs.map(|logprobs| logprobs.chosen);
        Ok(TokenText { token: self.texts.spell(id)?, logprob, top })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_choices_took_is_added_up_and_a_prompt_counts_once() {
        let spent = |cached| SpentTokens { count: 2, cached, ..SpentTokens::default() };
        let all = [(3, spent(5)), (0, spent(0)), (2, spent(4)), (1, spent(9))];
        let sum = SpentTokens::of_all(&all, 2);
        assert_eq!((sum.count, sum.cached), (8, 4));
    }
}
