//! From what an engine says of a sequence to pieces of text.

use surefoot_models::generate::text::Texts;
use surefoot_models::generate::tokens::FinishReason;
use surefoot_models::generate::writer::Writer;

use crate::engine::{EngineError, GenerationEvent, GenerationStream, Logprobs};

/// A token as it is shown, with how likely it was.
#[derive(Clone, Debug)]
pub(super) struct TokenText {
    pub(super) token: String,
    pub(super) logprob: f32,
    pub(super) top: Vec<(String, f32)>,
}

/// Some more of a text. A piece with an end is the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    pub(super) text: String,
    /// The tokens since the last piece, if probabilities were asked for.
    pub(super) tokens: Vec<TokenText>,
    pub(super) end: Option<&'static str>,
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

    /// How many tokens came so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The next piece that is sure to stay.
    pub(super) async fn next(&mut self) -> Result<Piece, EngineError> {
        loop {
            match self.heard.recv().await {
                Some(GenerationEvent::Token { id, logprobs }) => {
                    self.count += 1;
                    if let Some(logprobs) = logprobs {
                        let spelt = self.spell(id, &logprobs)?;
                        self.pending.push(spelt);
                    }
                    if self.writer.push(id)? {
                        self.heard.enough();
                        return Ok(self.last("stop"));
                    }
                    let text = self.writer.fresh().to_owned();
                    if !text.is_empty() {
                        let tokens = std::mem::take(&mut self.pending);
                        return Ok(Piece { text, tokens, end: None });
                    }
                }
                Some(GenerationEvent::Ended(FinishReason::EndOfText | FinishReason::Stopped)) => {
                    return Ok(self.last("stop"));
                }
                Some(GenerationEvent::Ended(
                    FinishReason::MaxTokens | FinishReason::ContextFull,
                )) => {
                    return Ok(self.last("length"));
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

    fn last(&mut self, end: &'static str) -> Piece {
        let text = self.writer.rest().to_owned();
        Piece { text, tokens: std::mem::take(&mut self.pending), end: Some(end) }
    }

    fn spell(&self, id: u32, logprobs: &Logprobs) -> Result<TokenText, EngineError> {
        let mut top = Vec::with_capacity(logprobs.top.len());
        for likely in &logprobs.top {
            top.push((self.texts.spell(likely.id)?, likely.logprob));
        }
        Ok(TokenText { token: self.texts.spell(id)?, logprob: logprobs.chosen, top })
    }
}
