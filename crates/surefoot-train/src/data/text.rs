//! A text, character by character.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::{DataError, Form, Sample, Source, gzip};

/// Pieces of a text, one after the other.
#[derive(Debug)]
pub struct Text {
    name: String,
    characters: Arc<Vec<char>>,
    tokens: Vec<u32>,
    length: usize,
}

impl Text {
    /// Reads a UTF-8 file and takes it apart into pieces of `length` characters: those to train
    /// on and, from its end, a `share` to test on.
    pub fn read(path: &Path, length: usize, share: f64) -> Result<(Self, Self), DataError> {
        let text = String::from_utf8(gzip::read(path)?)
            .map_err(|error| DataError::new(path, format!("it is no UTF-8 text: {error}")))?;
        Self::parse(path, &text, length, share)
    }

    fn parse(
        path: &Path,
        text: &str,
        length: usize,
        share: f64,
    ) -> Result<(Self, Self), DataError> {
        let characters: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
        let tokens: Vec<u32> = text
            .chars()
            .map(|letter| characters.binary_search(&letter).unwrap_or_default() as u32)
            .collect();
        let held = (tokens.len() as f64 * share) as usize;
        let (train, test) = tokens.split_at(tokens.len() - held);
        if train.len() <= length || test.len() <= length {
            return Err(DataError::new(
                path,
                format!(
                    "its {} characters are too few for pieces of {length} to train and test on",
                    tokens.len()
                ),
            )
            .hint("make `length` smaller or the text longer"));
        }
        let characters = Arc::new(characters);
        let part = |tokens: &[u32]| Self {
            name: path.display().to_string(),
            characters: Arc::clone(&characters),
            tokens: tokens.to_vec(),
            length,
        };
        Ok((part(train), part(test)))
    }

    /// The characters, in the order of their numbers.
    pub fn characters(&self) -> &[char] {
        &self.characters
    }
}

impl Source for Text {
    fn len(&self) -> usize {
        (self.tokens.len() - 1) / self.length
    }

    fn form(&self) -> Form {
        Form::Text { vocabulary: self.characters.len(), length: self.length }
    }

    fn read(&self, at: usize) -> Result<Sample, String> {
        let start = at * self.length;
        Ok(Sample::Tokens(self.tokens[start..=start + self.length].to_vec()))
    }

    fn name(&self, at: usize) -> String {
        format!("characters {} and on of {}", at * self.length, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_overlap_by_the_one_character_that_is_foretold() {
        let (train, test) = Text::parse(Path::new("t"), "abcabcabcabc", 2, 0.25).unwrap();
        assert_eq!(train.characters(), ['a', 'b', 'c']);
        assert_eq!(train.len(), 4);
        assert_eq!(train.read(1).unwrap(), Sample::Tokens(vec![2, 0, 1]));
        assert_eq!(test.len(), 1);
        assert!(Text::parse(Path::new("t"), "abc", 2, 0.25).is_err());
    }
}
