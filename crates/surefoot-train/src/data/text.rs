//! A text, character by character or by a tokenizer's pieces.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use surefoot_models::folder::checkpoint::Checkpoint;
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

/// How text becomes tokens. Checkpoints hold all of it: a model can't be used without it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vocabulary {
    /// A token for each of these characters, numbered in this order, which is ascending.
    Characters(String),
    /// The whole text of a `tokenizer.json`.
    Tokenizer(String),
    /// That of a pretrained model, which stays in its folder.
    OfModel {
        /// A digest of its tokenizer, configuration and the forms of its tensors, so that another model is not
        /// taken for it.
        digest: String,
    },
}

impl Vocabulary {
    /// The characters that occur in a text.
    pub fn of_characters(text: &str) -> Self {
        Self::Characters(text.chars().collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// That of the pretrained model in `folder`.
    pub fn of_model(folder: &Path) -> Result<Self, DataError> {
        // The error names the folder.
        let wrong = |error: &dyn std::fmt::Display| {
            DataError::new(Path::new("model.path"), error.to_string())
                .hint("`model.path` names the model's folder; --set model.path=DIR gives another")
        };
        let mut hasher = blake3::Hasher::new();
        for name in ["config.json", "tokenizer.json"] {
            let file = folder.join(name);
            if file.is_file() {
                hasher.update(&super::read_file(&file)?);
            }
        }
        let checkpoint = Checkpoint::open(folder).map_err(|error| wrong(&error))?;
        for (name, stored) in checkpoint.tensors() {
            hasher.update(name.as_bytes()).update(stored.form().as_bytes());
        }
        Ok(Self::OfModel { digest: hasher.finalize().to_hex().to_string() })
    }

    /// How many different tokens there are. `file` is what the vocabulary is called in errors.
    pub fn size(&self, file: &Path) -> Result<usize, DataError> {
        match self {
            Self::Characters(known) => Ok(known.chars().count()),
            Self::Tokenizer(json) => Ok(tokenizer(json, file)?.get_vocab_size(true)),
            Self::OfModel { .. } => Err(elsewhere()),
        }
    }

    /// The tokens of a text; `file` is what the text is called in errors.
    pub fn encode(&self, text: &str, file: &Path) -> Result<Vec<u32>, DataError> {
        match self {
            Self::Characters(known) => {
                let known: Vec<char> = known.chars().collect();
                let number = |(line, letter): (usize, char)| {
                    known.binary_search(&letter).map(|at| at as u32).map_err(|_| {
                        let place = format!("{}:{line}", file.display());
                        let why = format!(
                            "{letter:?} is not among the {} characters that the model knows",
                            known.len()
                        );
                        DataError::new(Path::new(&place), why)
                    })
                };
                let lines = (1..).zip(text.split_inclusive('\n'));
                lines
                    .flat_map(|(at, line)| line.chars().map(move |letter| (at, letter)))
                    .map(number)
                    .collect()
            }
            Self::Tokenizer(json) => {
                let wrong = |error: tokenizers::Error| DataError::new(file, error.to_string());
                let encoding = tokenizer(json, file)?.encode_fast(text, false).map_err(wrong)?;
                Ok(encoding.get_ids().to_vec())
            }
            Self::OfModel { .. } => Err(elsewhere()),
        }
    }

    /// The text of a token.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DataError> {
        match self {
            Self::Characters(known) => {
                let known: Vec<char> = known.chars().collect();
                Ok(tokens.iter().filter_map(|token| known.get(*token as usize)).collect())
            }
            Self::Tokenizer(json) => {
                let file = Path::new("the checkpoint's tokenizer");
                let wrong = |error: tokenizers::Error| DataError::new(file, error.to_string());
                tokenizer(json, file)?.decode(tokens, false).map_err(wrong)
            }
            Self::OfModel { .. } => Err(elsewhere()),
        }
    }
}

fn elsewhere() -> DataError {
    DataError::new(
        Path::new("the checkpoint"),
        "its tokenizer is in the folder of the pretrained model",
    )
}

fn tokenizer(json: &str, file: &Path) -> Result<Tokenizer, DataError> {
    json.parse().map_err(|error: tokenizers::Error| DataError::new(file, error.to_string()))
}

impl Text {
    /// Reads a UTF-8 file and takes it apart into pieces of `length` tokens: those to train on
    /// and, from its end, a `share` to test on. A token is a character, or what the tokenizer in
    /// a `tokenizer.json` makes of the text; with a `known` vocabulary, what that makes of it.
    pub fn read(
        path: &Path,
        tokenizer: Option<&Path>,
        length: usize,
        share: f64,
        known: Option<&Vocabulary>,
    ) -> Result<(Self, Self, Vocabulary), DataError> {
        let text = String::from_utf8(gzip::read(path)?)
            .map_err(|error| DataError::new(path, format!("it is not UTF-8 text: {error}")))?;
        let vocabulary = match (known, tokenizer) {
            (Some(known), _) => known.clone(),
            (None, None) => Vocabulary::of_characters(&text),
            (None, Some(file)) => {
                let bytes = super::read_file(file)?;
                let json = String::from_utf8(bytes)
                    .map_err(|_| DataError::new(file, "it is not UTF-8 text"))?;
                Vocabulary::Tokenizer(json)
            }
        };
        let size = vocabulary.size(tokenizer.unwrap_or(path))?;
        let tokens = vocabulary.encode(&text, path)?;
        let (train, test) = Self::cut(path, &tokens, size, length, share)?;
        Ok((train, test, vocabulary))
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
    fn pieces_overlap_by_the_one_token_that_is_predicted() {
        let text = "abcabcabcabc";
        let vocabulary = Vocabulary::of_characters(text);
        let tokens = vocabulary.encode(text, Path::new("t")).unwrap();
        assert_eq!((tokens.len(), vocabulary.size(Path::new("t"))), (12, Ok(3)));
        let (train, test) = Text::cut(Path::new("t"), &tokens, 3, 2, 0.25).unwrap();
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
        let (train, _, vocabulary) = Text::read(&text, Some(&file), 3, 0.25, None).unwrap();
        assert_eq!(train.form(), Form::Text { vocabulary: 3, length: 3 });
        assert_eq!(train.read(0).unwrap(), Sample::Tokens(vec![0, 1, 0, 1]));
        std::fs::write(&file, "{").unwrap();
        // What is known needs no file.
        assert!(Text::read(&text, None, 3, 0.25, Some(&vocabulary)).is_ok());
        let error = Text::read(&text, Some(&file), 3, 0.25, None).unwrap_err();
        assert!(error.place.ends_with("tokenizer.json"), "{error}");
    }

    #[test]
    fn a_character_that_is_not_known_is_named_with_its_line() {
        let vocabulary = Vocabulary::of_characters("ab\n");
        let error = vocabulary.encode("ab\nabé", Path::new("t.txt")).unwrap_err();
        assert!(error.place == "t.txt:2" && error.why.contains("'é'"), "{error}");
        assert_eq!(vocabulary.decode(&[2, 1, 0]).unwrap(), "ba\n");
    }
}
