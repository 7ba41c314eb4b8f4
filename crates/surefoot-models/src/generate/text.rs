//! Text to tokens and back, by the folder's `tokenizer.json` or the metadata of a GGUF file.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use surefoot::fault::catch;
use tokenizers::utils::truncation::{TruncationParams, truncate_encodings};
use tokenizers::{Encoding, PostProcessor, Tokenizer};

use super::gguf_tokenizer;
use super::token_bytes::{self, UnknownDecoder};
use crate::error::ModelError;
use crate::folder::gguf;

/// The largest published ones have about 35 MB.
const MAX_TOKENIZER: u64 = 64 << 20;

/// The tokens of two texts that a model is given together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenPair {
    /// The ids.
    pub ids: Vec<u32>,
    /// To which of the texts each belongs, as the tokenizer says: 0 or 1, or 0 for all of them.
    pub types: Vec<u8>,
}

/// A tokenizer that fits its model.
pub struct Texts {
    file: PathBuf,
    tokenizer: Tokenizer,
    untruncated: OnceLock<Tokenizer>,
    vocab: usize,
    longest_token: usize,
    /// Special tokens that are part of decoded texts all the same.
    shown: Vec<(u32, String)>,
}

impl Texts {
    /// The tokenizer of a model folder or GGUF file as the text of a `tokenizer.json`, and the file it
    /// is in.
    pub fn json(folder: &Path) -> Result<(PathBuf, Vec<u8>), ModelError> {
        if gguf::is_gguf(folder) {
            let json = gguf_tokenizer::json(folder, &gguf::header(folder)?)?;
            return Ok((folder.to_owned(), json));
        }
        let file = folder.join("tokenizer.json");
        if !file.exists() {
            return Err(ModelError::file(&file, "doesn't exist, so text can't be read"));
        }
        let json = crate::folder::read_bounded(&file, MAX_TOKENIZER)?;
        Ok((file, json))
    }

    /// Reads the tokenizer of `folder` and checks that a vocabulary of `vocab` holds its ids.
    pub fn open(folder: &Path, vocab: usize) -> Result<Self, ModelError> {
        let (file, json) = Self::json(folder)?;
        // A file that is cut off makes the parser panic.
        let parsed = catch(|| Tokenizer::from_bytes(&json))
            .map_err(|panic| panic.message)
            .and_then(|parsed| parsed.map_err(|error| error.to_string()));
        let mut tokenizer = parsed.map_err(|problem| {
            let problem = problem.lines().next().unwrap_or_default();
            ModelError::file(&file, format!("can't be read: {problem}"))
        })?;
        drop(json);
        let tokens = tokenizer.get_vocab(true);
        let longest_token = tokens.keys().map(String::len).max().unwrap_or(0);
        let largest = tokens.into_iter().max_by_key(|(_, id)| *id);
        if let Some((token, id)) = largest.filter(|(_, id)| *id as usize >= vocab) {
            return Err(ModelError::file(
                &file,
                format!(
                    "doesn't fit the model: token {token:?} has id {id}, the embedding has {vocab} rows"
                ),
            ));
        }
        // Batches are padded where they are run, not in the text.
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| ModelError::file(&file, format!("can't be used: {error}")))?;
        let untruncated = OnceLock::new();
        let shown = Vec::new();
        Ok(Self { file, tokenizer, untruncated, vocab, longest_token, shown })
    }

    /// Makes special tokens that are one of these words part of decoded texts, as marks that are to be read there.
    pub fn show(&mut self, words: &[&str]) {
        let added = self.tokenizer.get_added_tokens_decoder();
        let is_word = |content: &str| words.contains(&content);
        let mut shown: Vec<(u32, String)> = added
            .into_iter()
            .filter(|(_, token)| token.special && is_word(&token.content))
            .map(|(id, token)| (id, token.content))
            .collect();
        shown.sort_unstable();
        self.shown = shown;
    }

    /// The first token that another tokenizer does not have, or has under another number; none if both have
    /// the same vocabulary.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let (own, others) = (self.tokenizer.get_vocab(true), other.tokenizer.get_vocab(true));
        let mut tokens: Vec<(&String, &u32)> = own.iter().collect();
        tokens.sort_by_key(|(_, id)| **id);
        let differing = tokens.into_iter().find(|(token, id)| others.get(*token) != Some(*id));
        if let Some((token, id)) = differing {
            return Some(match others.get(token) {
                Some(other) => {
                    format!("token {token:?} is {id} in the one and {other} in the other")
                }
                None => format!("token {token:?} ({id}) is only in the one"),
            });
        }
        let extra = others.iter().filter(|(token, _)| !own.contains_key(*token));
        let (token, id) = extra.min_by_key(|(_, id)| **id)?;
        Some(format!("token {token:?} ({id}) is only in the other"))
    }

    /// Whether the model folder or GGUF file at `path` has a tokenizer.
    pub fn exist(path: &Path) -> bool {
        match gguf::is_gguf(path) {
            true => gguf::header(path)
                .is_ok_and(|gguf| gguf.metadata.contains_key("tokenizer.ggml.tokens")),
            false => path.join("tokenizer.json").exists(),
        }
    }

    /// The most bytes that a token of the vocabulary stands for: the longest one as it is written
    /// in the vocabulary, which is never shorter than the bytes it stands for.
    pub fn longest_token(&self) -> usize {
        self.longest_token
    }

    /// Cuts texts to `tokens` tokens from now on, special ones included.
    pub fn truncate(&mut self, tokens: usize) -> Result<(), ModelError> {
        let params = TruncationParams { max_length: tokens, ..TruncationParams::default() };
        self.tokenizer
            .with_truncation(Some(params))
            .map(|_| ())
            .map_err(|error| ModelError::file(&self.file, format!("can't truncate: {error}")))
    }

    /// The tokens of `text`, with the special ones the tokenizer adds.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.encoded(text, true)
    }

    /// The tokens of a text that spells its special tokens out, as chat templates do.
    pub fn encode_as_written(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.encoded(text, false)
    }

    /// The tokens of `text` with the bytes of it that each stands for; `special` adds what the tokenizer adds, which stands for
    /// no bytes.
    pub fn encode_with_places(
        &self,
        text: &str,
        special: bool,
    ) -> Result<(Vec<u32>, Vec<Range<usize>>), ModelError> {
        let encoding = self.encoding(text, special)?;
        let places = encoding.get_offsets().iter().map(|(start, end)| *start..*end);
        Ok((encoding.get_ids().to_vec(), places.collect()))
    }

    /// The tokens of `text`, and how many were cut off by [`Self::truncate`].
    pub fn encode_truncated(&self, text: &str) -> Result<(Vec<u32>, usize), ModelError> {
        let encoding = self.encoding(text, true)?;
        let ids = encoding.get_ids().to_vec();
        if encoding.get_overflowing().is_empty() {
            return Ok((ids, 0));
        }
        let whole = self.untruncated()?.encode(text, true).map_err(|error| {
            ModelError::file(&self.file, format!("can't encode the text: {error}"))
        })?;
        let cut = whole.get_ids().len().saturating_sub(ids.len());
        Ok((ids, cut))
    }

    /// A copy of the tokenizer that cuts nothing, made when the first text was cut.
    fn untruncated(&self) -> Result<&Tokenizer, ModelError> {
        if let Some(tokenizer) = self.untruncated.get() {
            return Ok(tokenizer);
        }
        let mut tokenizer = self.tokenizer.clone();
        tokenizer
            .with_truncation(None)
            .map_err(|error| ModelError::file(&self.file, format!("can't be used: {error}")))?;
        Ok(self.untruncated.get_or_init(|| tokenizer))
    }

    /// The tokens of two texts that a model is given together, with the special ones between and around them, and
    /// how many were cut off so that at most `most` are left: from the longer text, token by token.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        most: usize,
    ) -> Result<(TokenPair, usize), ModelError> {
        let wrong = |error: tokenizers::Error| {
            ModelError::file(&self.file, format!("can't encode the texts: {error}"))
        };
        let tokenizer = match self.tokenizer.get_truncation() {
            None => &self.tokenizer,
            Some(_) => self.untruncated()?,
        };
        let whole = tokenizer.encode((first, second), true).map_err(wrong)?;
        let length = whole.get_ids().len();
        let encoding = if length <= most {
            whole
        } else {
            let special = tokenizer.get_post_processor().map_or(0, |it| it.added_tokens(true));
            let params = TruncationParams {
                max_length: most.saturating_sub(special),
                ..TruncationParams::default()
            };
            let first = tokenizer.encode(first, false).map_err(wrong)?;
            let second = tokenizer.encode(second, false).map_err(wrong)?;
            let (first, second) =
                truncate_encodings(first, Some(second), &params).map_err(wrong)?;
            tokenizer.post_process(first, second, true).map_err(wrong)?
        };
        self.check_vocabulary(&encoding)?;
        let ids = encoding.get_ids().to_vec();
        let types = encoding.get_type_ids().iter().map(|kind| u8::try_from(*kind).unwrap_or(0));
        let cut = length - ids.len();
        Ok((TokenPair { types: types.collect(), ids }, cut))
    }

    fn encoded(&self, text: &str, special: bool) -> Result<Vec<u32>, ModelError> {
        Ok(self.encoding(text, special)?.get_ids().to_vec())
    }

    fn encoding(&self, text: &str, special: bool) -> Result<Encoding, ModelError> {
        let encoding = self.tokenizer.encode(text, special).map_err(|error| {
            ModelError::file(&self.file, format!("can't encode the text: {error}"))
        })?;
        self.check_vocabulary(&encoding)?;
        Ok(encoding)
    }

    fn check_vocabulary(&self, encoding: &Encoding) -> Result<(), ModelError> {
        match encoding.get_ids().iter().find(|&&id| id as usize >= self.vocab) {
            Some(id) => Err(ModelError::file(
                &self.file,
                format!("gave token {id}, but the model has {} tokens", self.vocab),
            )),
            None => Ok(()),
        }
    }

    /// The text of one token, also of a special one; characters that it only begins are `\u{fffd}`.
    pub fn spell(&self, id: u32) -> Result<String, ModelError> {
        self.tokenizer.decode(&[id], false).map_err(|error| {
            ModelError::file(&self.file, format!("can't decode token {id}: {error}"))
        })
    }

    /// The bytes that each token of the model stands for; none for special ones, but for those that are
    /// [shown](Self::show).
    pub fn token_bytes(&self) -> Result<Vec<Option<Vec<u8>>>, UnknownDecoder> {
        let mut bytes = token_bytes::token_bytes(&self.tokenizer, self.vocab)?;
        for (id, word) in &self.shown {
            if let Some(token) = bytes.get_mut(*id as usize) {
                *token = Some(word.clone().into_bytes());
            }
        }
        Ok(bytes)
    }

    /// The text of `ids`, without special tokens, but for those that are [shown](Self::show).
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        let shown = |id: &u32| self.shown.iter().find(|(shown, _)| shown == id);
        if !ids.iter().any(|id| shown(id).is_some()) {
            return self.decode_plain(ids);
        }
        let mut text = String::new();
        for part in ids.split_inclusive(|id| shown(id).is_some()) {
            let Some((last, before)) = part.split_last() else { continue };
            match shown(last) {
                Some((_, word)) => {
                    text.push_str(&self.decode_plain(before)?);
                    text.push_str(word);
                }
                None => text.push_str(&self.decode_plain(part)?),
            }
        }
        Ok(text)
    }

    fn decode_plain(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.tokenizer.decode(ids, true).map_err(|error| {
            ModelError::file(&self.file, format!("can't decode the tokens: {error}"))
        })
    }
}
