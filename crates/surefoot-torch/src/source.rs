//! A file as text: a Python script, or the code cells of a notebook joined into one.

use std::fs;
use std::io::Read;
use std::path::Path;

use ruff_source_file::{LineIndex, OneIndexed};
use ruff_text_size::{TextRange, TextSize};
use serde::Serialize;

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
    pub place: Option<Place>,
    /// What is wrong.
    pub message: String,
}

/// A position that people count: from 1, columns in characters, lines within a notebook's cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The notebook cell, counted from 1 among all cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<usize>,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.cell {
            Some(cell) => write!(f, "cell {cell}:{}:{}", self.line, self.column),
            None => write!(f, "{}:{}", self.line, self.column),
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
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let before = &error.as_bytes()[..valid];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            let column =
                valid - before.iter().rposition(|byte| *byte == b'\n').map_or(0, |n| n + 1);
            let place = Place { cell: None, line, column: column + 1 };
            fail(Some(place), format!("not UTF-8 at byte {valid}; save the file as UTF-8"))
        })?;
        if path.ends_with(".ipynb") {
            let (text, cells) = notebook::read(&text).map_err(|message| fail(None, message))?;
            Ok(Self::new(path, text, Some(cells)))
        } else {
            Ok(Self::new(path, text, None))
        }
    }

    pub(crate) fn new(path: String, text: String, cells: Option<Vec<Cell>>) -> Self {
        let lines = LineIndex::from_source_text(&text);
        Self { path, text, cells, lines }
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
    pub fn place(&self, offset: TextSize) -> Place {
        let position = self.lines.line_column(self.clamp(offset), &self.text);
        let (line, column) = (position.line.get(), position.column.get());
        let Some(cells) = &self.cells else { return Place { cell: None, line, column } };
        let cell = cells.iter().rev().find(|cell| cell.range.start() <= offset);
        let Some(cell) = cell else { return Place { cell: None, line, column } };
        let first = self.lines.line_index(cell.range.start()).get();
        Place { cell: Some(cell.number), line: line + 1 - first, column }
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
