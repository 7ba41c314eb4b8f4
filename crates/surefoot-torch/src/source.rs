//! A file as text: a Python script, or the code cells of a notebook joined into one.

use std::fs;
use std::io::Read;
use std::path::Path;

use encoding_rs::Encoding;
use ruff_source_file::{LineIndex, OneIndexed, PositionEncoding, SourceLocation};
use ruff_text_size::{TextRange, TextSize};
use serde::Serialize;

use crate::encoding::{self, DecodeError};
use crate::notebook::{self, Cell};

/// Files larger than this are refused: no one writes them, and each byte costs many more.
pub const LARGEST: u64 = 16 << 20;

/// Why a file could not be checked, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct FileError {
    /// The file as it was named.
    pub path: String,
    /// The place of the trouble, where there is one.
    pub place: Option<SourcePosition>,
    /// What is wrong.
    pub message: String,
}

/// A position that people count: from 1, columns in characters, lines within a notebook's cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SourcePosition {
    /// The notebook cell, counted from 1 among all cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<usize>,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl std::fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.cell {
            Some(cell) => write!(f, "cell {cell}:{}:{}", self.line, self.column),
            None => write!(f, "{}:{}", self.line, self.column),
        }
    }
}

/// What a character of a position counts: bytes, or units of UTF-16 as editors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// Bytes of UTF-8.
    Utf8,
    /// Units of UTF-16.
    Utf16,
}

impl From<Units> for PositionEncoding {
    fn from(units: Units) -> Self {
        match units {
            Units::Utf8 => Self::Utf8,
            Units::Utf16 => Self::Utf16,
        }
    }
}

/// A file's text and what is needed to name places in it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file as it was named.
    pub path: String,
    /// The Python text.
    pub text: String,
    /// The code cells of a notebook.
    pub(crate) cells: Option<Vec<Cell>>,
    lines: LineIndex,
    /// The file's encoding where it is not UTF-8.
    pub(crate) encoding: Option<&'static Encoding>,
}

impl Source {
    /// Reads a file, a notebook if its name ends so.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let name = path.display().to_string();
        let fail = |message: String| FileError { path: name.clone(), place: None, message };
        let mut bytes = Vec::new();
        fs::File::open(path)
            .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
            .map_err(|error| fail(format!("can't be read: {error}")))?;
        Self::from_bytes(name.clone(), bytes)
    }

    /// Takes the bytes of a file of this name.
    pub fn from_bytes(path: String, bytes: Vec<u8>) -> Result<Self, FileError> {
        let fail = |place, message: String| FileError { path: path.clone(), place, message };
        if bytes.len() as u64 > LARGEST {
            let limit = LARGEST >> 20;
            return Err(fail(None, format!("larger than {limit} MiB, too large to check")));
        }
        if path.ends_with(".ipynb") {
            let text = String::from_utf8(bytes)
                .map_err(|error| fail(None, format!("not a notebook: {}", error.utf8_error())))?;
            let (text, cells) = notebook::read(&text).map_err(|message| fail(None, message))?;
            return Ok(Self::new(path, text, Some(cells)));
        }
        let (text, encoding) = encoding::decode(&bytes).map_err(|error| {
            let place = match error {
                DecodeError::NotUtf8 { valid } => Some(place_of_byte(&bytes, valid)),
                _ => None,
            };
            fail(place, error.to_string())
        })?;
        Ok(Self { encoding, ..Self::new(path, text, None) })
    }

    /// Takes the text of a Python file of this name, decoded already.
    pub fn from_text(path: String, text: String) -> Result<Self, FileError> {
        if text.len() as u64 > LARGEST {
            let message = format!("larger than {} MiB, too large to check", LARGEST >> 20);
            return Err(FileError { path, place: None, message });
        }
        Ok(Self::new(path, text, None))
    }

    pub(crate) fn new(path: String, text: String, cells: Option<Vec<Cell>>) -> Self {
        let lines = LineIndex::from_source_text(&text);
        Self { path, text, cells, lines, encoding: None }
    }

    /// The same file with another text.
    pub(crate) fn with_text(&self, text: String, cells: Option<Vec<Cell>>) -> Self {
        Self { encoding: self.encoding, ..Self::new(self.path.clone(), text, cells) }
    }

    /// Whether it is a notebook.
    pub fn is_notebook(&self) -> bool {
        self.cells.is_some()
    }

    /// The line of the joined text, from 0.
    pub(crate) fn row(&self, offset: TextSize) -> usize {
        self.lines.line_index(self.clamp(offset)).to_zero_indexed()
    }

    fn clamp(&self, offset: TextSize) -> TextSize {
        let mut at = usize::from(offset).min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        TextSize::try_from(at).unwrap_or_default()
    }

    /// The place of an offset, as people count.
    pub fn place(&self, offset: TextSize) -> SourcePosition {
        let position = self.lines.line_column(self.clamp(offset), &self.text);
        let (line, column) = (position.line.get(), position.column.get());
        let Some(cells) = &self.cells else { return SourcePosition { cell: None, line, column } };
        let cell = cells.iter().rev().find(|cell| cell.range.start() <= offset);
        let Some(cell) = cell else { return SourcePosition { cell: None, line, column } };
        let first = self.lines.line_index(cell.range.start()).get();
        SourcePosition { cell: Some(cell.number), line: line + 1 - first, column }
    }

    /// The line and the character of a byte of the text, both counted from 0.
    pub fn position(&self, offset: usize, units: Units) -> (usize, usize) {
        let offset = self.clamp(TextSize::try_from(offset).unwrap_or(TextSize::from(u32::MAX)));
        let at = self.lines.source_location(offset, &self.text, units.into());
        (at.line.to_zero_indexed(), at.character_offset.to_zero_indexed())
    }

    /// The byte of the text at a line and a character, both counted from 0; beyond the end of a line,
    /// or of the text, its end.
    pub fn offset(&self, line: usize, character: usize, units: Units) -> usize {
        if line >= self.lines.line_count() {
            return self.text.len();
        }
        let line = OneIndexed::from_zero_indexed(line);
        // A line longer than the text has no such character.
        let character_offset = OneIndexed::from_zero_indexed(character.min(self.text.len()));
        let at =
            self.lines.offset(SourceLocation { line, character_offset }, &self.text, units.into());
        let range = self.lines.line_range(line, &self.text);
        let ending = self.text[range].trim_end_matches(['\r', '\n']).len();
        usize::from(self.clamp(at)).min(usize::from(range.start()) + ending)
    }

    /// The text of the line that an offset is on, and where that line starts.
    pub(crate) fn line_at(&self, offset: TextSize) -> (&str, TextSize) {
        let line = OneIndexed::from_zero_indexed(self.row(offset));
        let range: TextRange = self.lines.line_range(line, &self.text);
        (self.text[range].trim_end_matches(['\r', '\n']), range.start())
    }

    /// Lines of Python.
    pub fn line_count(&self) -> usize {
        self.lines.line_count()
    }
}

/// The place of a byte, for bytes that are no text: the column is counted in bytes.
fn place_of_byte(bytes: &[u8], at: usize) -> SourcePosition {
    let before = &bytes[..at];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |n| n + 1);
    SourcePosition { cell: None, line, column: at - start + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_units_and_stay_in_their_line() {
        let source =
            Source::from_text("t.py".to_owned(), "é = '𝄞'\r\nx\n".to_owned()).expect("small");
        let quote = source.text.rfind('\'').expect("a quote");
        assert_eq!(source.position(quote, Units::Utf16), (0, 7));
        assert_eq!(source.position(quote, Units::Utf8), (0, 10));
        assert_eq!(source.offset(0, 7, Units::Utf16), quote);
        assert_eq!(source.offset(0, 10, Units::Utf8), quote);
        // Beyond the end of the line, of the text, and inside a character.
        assert_eq!(source.offset(0, 99, Units::Utf16), quote + 1);
        assert_eq!(source.offset(9, 0, Units::Utf16), source.text.len());
        assert_eq!(source.offset(1, usize::MAX, Units::Utf8), source.text.len() - 1);
        assert_eq!(source.offset(0, 1, Units::Utf8), 0);
    }
}
