//! A CSV file of texts, each with a label: to classify texts with a pretrained encoder.
//!
//! The text is in the column `data.text` (or one that is called `text`, or the first), the label in `data.label` (or one that
//! is called `label`, or the last). A line without one of them is an error with its number.

use std::collections::BTreeSet;
use std::path::Path;

use surefoot_models::generate::text::Texts;

use super::csv_lines::CsvLines;
use super::{DataError, Example, gzip};
use crate::config::DataConfig;

/// The texts of a file with their classes.
pub(super) struct TextTable {
    pub(super) examples: Vec<Example>,
    /// The names of the classes, in the order of their numbers.
    pub(super) classes: Vec<String>,
    /// The headings of the text and of the label.
    pub(super) text: String,
    pub(super) label: String,
    /// Texts that were longer than the model takes.
    pub(super) cut: usize,
}

/// Reads a file; classes are those that are `known`, or else all labels in alphabetical order.
pub(super) fn read(
    path: &Path,
    config: &DataConfig,
    texts: &mut Texts,
    length: usize,
    known: Option<&[String]>,
) -> Result<TextTable, DataError> {
    let bytes = gzip::read(path)?;
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(&bytes[..]);
    let wrong = |why: String| DataError::new(path, why);
    let headings: Vec<String> = reader
        .headers()
        .map_err(|error| wrong(format!("its first line can't be read: {error}")))?
        .iter()
        .map(|heading| heading.trim().to_owned())
        .collect();
    if headings.len() < 2 {
        return Err(wrong("it needs a column of texts and one of labels".to_owned()));
    }
    let column = |asked: Option<&str>, usual: &str, otherwise: usize| match asked {
        None => Ok(headings.iter().position(|heading| heading == usual).unwrap_or(otherwise)),
        Some(name) => headings.iter().position(|heading| heading == name).ok_or_else(|| {
            wrong(format!("it has no column '{name}', but {}", headings.join(", ")))
        }),
    };
    let text_at = column(config.text.as_deref(), "text", 0)?;
    let label_at = column(config.label.as_deref(), "label", headings.len() - 1)?;
    if text_at == label_at {
        return Err(wrong(format!("'{}' can't be both the text and the label", headings[text_at])));
    }
    texts.truncate(length).map_err(|error| wrong(error.to_string()))?;
    let mut read: Vec<(String, Vec<u32>, String)> = Vec::new();
    let mut cut = 0;
    let mut counter = CsvLines::new(&bytes);
    for record in reader.records() {
        let record = record.map_err(|error| wrong(error.to_string()))?;
        let line = counter.line_of(&record);
        let name = format!("{}:{line}", path.display());
        let refused = |why: &str| DataError::new(Path::new(&name), why);
        let field = |at: usize| record.get(at).map(str::trim).filter(|field| !field.is_empty());
        let text = field(text_at).ok_or_else(|| refused("it has no text"))?;
        let label = field(label_at).ok_or_else(|| refused("it has no label"))?;
        let (tokens, over) =
            texts.encode_truncated(text).map_err(|error| refused(&error.to_string()))?;
        cut += usize::from(over > 0);
        if tokens.is_empty() {
            return Err(refused("its text has no tokens"));
        }
        read.push((name.clone(), tokens, label.to_owned()));
    }
    let classes: Vec<String> = match known {
        Some(known) => known.to_vec(),
        None => read
            .iter()
            .map(|(_, _, label)| label.clone())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect(),
    };
    if classes.len() < 2 {
        return Err(wrong(format!("its labels are all the same: {}", classes.join(", "))));
    }
    let examples = read.into_iter().map(|(name, tokens, label)| {
        let class = classes.binary_search(&label).map_err(|_| {
            let why = format!("its label '{label}' is none of {}", classes.join(", "));
            DataError::new(Path::new(&name), why)
        })?;
        let predicted = vec![false; tokens.len()];
        Ok(Example { name, tokens, predicted, class: Some(class) })
    });
    let examples = examples.collect::<Result<Vec<_>, DataError>>()?;
    let (text, label) = (headings[text_at].clone(), headings[label_at].clone());
    Ok(TextTable { examples, classes, text, label, cut })
}
