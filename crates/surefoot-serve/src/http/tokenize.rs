//! Texts to token ids, for requests: within limits of memory and without holding up others.
//!
//! A tokenizer takes about a hundred bytes of memory for each byte of text. A text that has too
//! many tokens is therefore found out by its beginning: parts of doubling length are tokenized, and
//! the first one that has clearly too many tokens ends it.

use surefoot_models::ModelError;
use surefoot_models::generate::text::Texts;
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::inputs::{Input, InputLimits};

/// Texts longer than this are tokenized one at a time, on a thread where that blocks nobody.
const LONG_TEXT: usize = 16 << 10;
/// Tokens by which the end of a part may differ from the whole text.
const CUT_TOKENS: usize = 64;
/// A tokenizer may drop bytes (spaces) or use one token for a long unknown word, so a token is
/// taken to cover at least this many bytes when texts are refused by their length alone.
const LEAST_BYTES_PER_TOKEN: usize = 128;

/// The most bytes that a text of `tokens` tokens is taken to have.
pub(super) fn most_bytes(texts: Option<&Texts>, tokens: usize) -> usize {
    let longest = texts.map_or(0, Texts::longest_token);
    tokens.saturating_mul(longest.max(LEAST_BYTES_PER_TOKEN))
}

/// Whether a text is tokenized with the special tokens that the tokenizer adds, or, like the text of
/// a chat template, spells them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Added,
    Written,
}

/// Tokenizes texts for all requests of a server.
pub(super) struct TokenizerPool {
    long: Semaphore,
}

impl TokenizerPool {
    pub(super) fn new() -> Self {
        Self { long: Semaphore::new(1) }
    }

    /// The tokens of all inputs of the field `param`.
    pub(super) async fn tokens(
        &self,
        texts: Option<&Texts>,
        inputs: Vec<Input>,
        param: &str,
        special: Special,
        limits: InputLimits,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        let size: usize = inputs.iter().map(Input::text_bytes).sum();
        let tokens_of = |input: Input| match (input, texts) {
            (Input::Tokens(tokens), _) => Ok(tokens),
            (Input::Text(text), Some(texts)) => {
                encoded(texts, &text, special, limits.tokens, param)
            }
            (Input::Text(_), None) => {
                let message = "this model has no tokenizer.json: give token ids instead of text";
                Err(ApiError::invalid(message).param(param))
            }
        };
        self.in_turn(size, || inputs.into_iter().map(tokens_of).collect()).await
    }

    /// Does work over texts of `size` bytes: at once if they are short, else one request at a time and where that
    /// blocks nobody.
    pub(super) async fn in_turn<T>(&self, size: usize, work: impl FnOnce() -> T) -> T {
        if size <= LONG_TEXT {
            return work();
        }
        let _turn = self.long.acquire().await;
        tokio::task::block_in_place(work)
    }
}

/// The tokens of `text`, which can have `most`.
fn encoded(
    texts: &Texts,
    text: &str,
    special: Special,
    most: usize,
    param: &str,
) -> Result<Vec<u32>, ApiError> {
    let encode = |text: &str| match special {
        Special::Added => texts.encode(text),
        Special::Written => texts.encode_as_written(text),
    };
    let wrong = |error: ModelError| ApiError::invalid(error.to_string()).param(param);
    let mut part = LONG_TEXT;
    while part < text.len() {
        let tokens = encode(&text[..text.floor_char_boundary(part)]).map_err(wrong)?.len();
        if tokens > most.saturating_add(CUT_TOKENS) {
            let message = format!(
                "the first {part} of {} bytes have {tokens} tokens; this server takes {most}",
                text.len()
            );
            return Err(ApiError::invalid(message).code("context_length_exceeded").param(param));
        }
        part *= 2;
    }
    encode(text).map_err(wrong)
}
