//! A text, character by character or by a tokenizer's pieces.

use std::collections::BTreeSet;
use std::path::Path;

use tokenizers::Tokenizer;

use super::{DataError, Form, Sample, Source, gzip};

/// Pieces of a text, one after the other.
#[derive(Debug)]
pub struct Text {
    name: String,
    vocabulary: usize,
    tokens: Vec<u32>,
    length: usize,
}

impl Text {
    /// Reads a UTF-8 file and takes it apart into pieces of `length` tokens: those to train on
    /// and, from its end, a `share` to test on. A token is a character, or what the tokenizer in
    /// a `tokenizer.json` makes of the text.
    pub fn read(
        path: &Path,
        tokenizer: Option<&Path>,
        length: usize,
        share: f64,
    ) -> Result<(Self, Self), DataError> {
        let text = String::from_utf8(gzip::read(path)?)
            .map_err(|error| DataError::new(path, format!("it is no UTF-8 text: {error}")))?;
        let (tokens, vocabulary) = match tokenizer {
            None => characters(&text),
            Some(file) => pieces(&text, file)?,
        };
        Self::cut(path, &tokens, vocabulary, length, share)
    }

    fn cut(
        path: &Path,
        tokens: &[u32],
        vocabulary: usize,
        length: usize,
        share: f64,
    ) -> Result<(Self, Self), DataError> {
        let held = (tokens.len() as f64 * share) as usize;
        let (train, test) = tokens.split_at(tokens.len() - held);
        if train.len() <= length || test.len() <= length {
            return Err(DataError::new(
                path,
                format!(
                    "its {} tokens are too few for pieces of {length} to train and test on",
                    tokens.len()
                ),
            )
            .hint("make `length` smaller or the text longer"));
        }
        let part = |tokens: &[u32]| Self {
            name: path.display().to_string(),
            vocabulary,
            tokens: tokens.to_vec(),
            length,
        };
        Ok((part(train), part(test)))
    }
}

/// Each character's number among those that occur, in their order, and how many those are.
fn characters(text: &str) -> (Vec<u32>, usize) {
    let known: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
    let number = |letter| known.binary_search(&letter).unwrap_or_default() as u32;
    (text.chars().map(number).collect(), known.len())
}

/// What a tokenizer makes of the text.
fn pieces(text: &str, file: &Path) -> Result<(Vec<u32>, usize), DataError> {
    let wrong = |error: tokenizers::Error| DataError::new(file, error.to_string());
    let tokenizer = Tokenizer::from_file(file).map_err(wrong)?;
    let encoding = tokenizer.encode_fast(text, false).map_err(wrong)?;
    Ok((encoding.get_ids().to_vec(), tokenizer.get_vocab_size(true)))
}

impl Source for Text {
    fn len(&self) -> usize {
        (self.tokens.len() - 1) / self.length
    }

    fn form(&self) -> Form {
        Form::Text { vocabulary: self.vocabulary, length: self.length }
    }

    fn read(&self, at: usize) -> Result<Sample, String> {
        let start = at * self.length;
        Ok(Sample::Tokens(self.tokens[start..=start + self.length].to_vec()))
    }

    fn name(&self, at: usize) -> String {
        format!("tokens {} and on of {}", at * self.length, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_overlap_by_the_one_token_that_is_foretold() {
        let (tokens, vocabulary) = characters("abcabcabcabc");
        assert_eq!((tokens.len(), vocabulary), (12, 3));
        let (train, test) = Text::cut(Path::new("t"), &tokens, vocabulary, 2, 0.25).unwrap();
        assert_eq!(train.len(), 4);
        assert_eq!(train.read(1).unwrap(), Sample::Tokens(vec![2, 0, 1]));
        assert_eq!(test.len(), 1);
        assert!(Text::cut(Path::new("t"), &tokens[..3], 3, 2, 0.25).is_err());
    }

    #[test]
    fn a_tokenizer_gives_larger_pieces_and_a_broken_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (text, file) = (folder.path().join("t.txt"), folder.path().join("tokenizer.json"));
        std::fs::write(&text, "hello world ".repeat(20)).unwrap();
        std::fs::write(
            &file,
            r#"{"model": {"type": "WordLevel", "vocab": {"hello": 0, "world": 1, "?": 2}, "unk_token": "?"},
                "pre_tokenizer": {"type": "Whitespace"}}"#,
        )
        .unwrap();
        let (train, _) = Text::read(&text, Some(&file), 3, 0.25).unwrap();
        assert_eq!(train.form(), Form::Text { vocabulary: 3, length: 3 });
        assert_eq!(train.read(0).unwrap(), Sample::Tokens(vec![0, 1, 0, 1]));
        std::fs::write(&file, "{").unwrap();
        let error = Text::read(&text, Some(&file), 3, 0.25).unwrap_err();
        assert!(error.place.ends_with("tokenizer.json"), "{error}");
    }
}
