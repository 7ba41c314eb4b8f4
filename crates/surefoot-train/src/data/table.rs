//! Tables: a CSV file with numbers and a class, or a number to predict, in each line.
//!
//! A line that can't be used is one bad sample, named with its line. What is wrong with a whole
//! column (text where numbers are needed, a column that the model needs and that isn't there) is
//! an error of the file.

mod columns;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::csv_lines::CsvLines;
use super::folder::unknown_class;
use super::{DataDescription, DataError, Form, Label, Sample, Source, Target, gzip};
use crate::config::Task;
use columns::Columns;

/// A column with more different whole numbers than this, and than a tenth of its lines, is
/// taken for numbers to predict, not for classes.
const MOST_CLASSES_OF_NUMBERS: usize = 20;

/// Numbers with their labels, in memory.
#[derive(Debug)]
pub struct Table {
    name: String,
    columns: Vec<String>,
    label: String,
    classes: Vec<String>,
    regression: bool,
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// How a table is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableOptions<'a> {
    /// The column to predict: its heading, or a number from 1; the last if none.
    pub label: Option<&'a str>,
    /// Columns that are left out, by heading or number.
    pub ignore: &'a [String],
    /// Whether classes or numbers are predicted.
    pub task: Task,
    /// What is known from training: columns and classes are matched by name.
    pub known: Option<&'a DataDescription>,
    /// Whether the column to predict may be missing, as in data to predict from.
    pub unlabelled: bool,
}

#[derive(Debug)]
struct Row {
    line: u64,
    content: Result<(Vec<f32>, Label), String>,
}

/// A line's numbers and the text of its label, or what is wrong with it.
type Parsed = Result<(Vec<f32>, String), String>;

impl Table {
    /// Reads a file, packed with gzip or not. A first line that isn't all numbers is the heading.
    pub fn read(path: &Path, options: TableOptions<'_>) -> Result<Self, DataError> {
        Self::parse(path, &gzip::read(path)?, options)
    }

    /// Reads the bytes of a file; `path` is what they are called in errors.
    pub fn parse(path: &Path, bytes: &[u8], options: TableOptions<'_>) -> Result<Self, DataError> {
        let mut lines = records(path, bytes)?;
        let columns = Columns::find(path, &mut lines, options)?;
        columns.check_text(path, &lines)?;
        let parsed: Vec<(u64, Parsed)> =
            lines.iter().map(|(line, fields)| (*line, columns.row(fields))).collect();
        let mut notes = columns.notes.clone();
        let regression = is_regression(&parsed, options, &columns, &mut notes);
        let classes = match (regression, options.known) {
            _ if columns.label.is_none() => {
                options.known.map(|known| known.classes.clone()).unwrap_or_default()
            }
            (true, _) => Vec::new(),
            (false, Some(known)) => known_classes(path, &parsed, known)?,
            (false, None) => learned_classes(path, &parsed, &columns)?,
        };
        let number: BTreeMap<&str, usize> =
            classes.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let label = |text: &str| match (regression, text.parse::<f32>()) {
            _ if columns.label.is_none() => Ok(Label::Class(0)),
            (false, _) => Ok(Label::Class(number.get(text).copied().unwrap_or_default())),
            (true, Ok(value)) if value.is_finite() => Ok(Label::Number(value)),
            (true, _) => {
                Err(format!("its {} is '{text}', which is not a number", columns.label_name))
            }
        };
        let rows = parsed
            .into_iter()
            .map(|(line, row)| Row {
                line,
                content: row.and_then(|(values, text)| Ok((values, label(&text)?))),
            })
            .collect();
        Ok(Self {
            name: path.display().to_string(),
            columns: columns.names,
            label: columns.label_name,
            classes,
            regression,
            rows,
            notes,
        })
    }

    /// The classes' names, in the order of their numbers; none if numbers are predicted.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The names of the columns that are learned from.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The name of the column that is predicted.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What the user should know about how the file was read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The fields of each line that isn't empty, with its number.
fn records(path: &Path, bytes: &[u8]) -> Result<Vec<(u64, Vec<String>)>, DataError> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(bytes);
    let mut lines = Vec::new();
    let mut counter = CsvLines::new(bytes);
    for record in reader.records() {
        let record = record.map_err(|error| DataError::new(path, error.to_string()))?;
        let line = counter.line_of(&record);
        if record.iter().any(|field| !field.is_empty()) {
            lines.push((line, record.iter().map(str::to_owned).collect()));
        }
    }
    match lines.first() {
        None => Err(DataError::new(path, "it is empty")),
        Some(_) => Ok(lines),
    }
}

/// Whether numbers are predicted: as asked, as in training, or by what the labels look like.
fn is_regression(
    parsed: &[(u64, Parsed)],
    options: TableOptions<'_>,
    columns: &Columns,
    notes: &mut Vec<String>,
) -> bool {
    match (options.known, options.task) {
        (Some(known), _) => return known.form.is_regression(),
        (None, Task::Classify) => return false,
        (None, Task::Regress) => return true,
        (None, Task::Auto) => {}
    }
    let labels: Vec<&str> =
        parsed.iter().filter_map(|(_, row)| Some(row.as_ref().ok()?.1.as_str())).collect();
    let numbers: Option<Vec<f64>> = labels.iter().map(|label| label.parse().ok()).collect();
    let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) else { return false };
    let different = labels.iter().collect::<BTreeSet<_>>().len();
    let fractions = numbers.iter().any(|number| number.fract() != 0.0);
    let many = different > MOST_CLASSES_OF_NUMBERS.max(labels.len() / 10);
    let regression = (fractions && different > 2) || many;
    if regression {
        notes.push(format!(
            "{} has {different} different numbers: they are predicted as numbers (regression); \
             `data.task: classify` makes them classes",
            columns.label_name
        ));
    }
    regression
}

/// Classes are numbered by their names, so that the order of lines doesn't matter.
fn learned_classes(
    path: &Path,
    parsed: &[(u64, Parsed)],
    columns: &Columns,
) -> Result<Vec<String>, DataError> {
    let names: BTreeSet<&str> =
        parsed.iter().filter_map(|(_, row)| Some(row.as_ref().ok()?.1.as_str())).collect();
    let classes = in_order(names.into_iter().map(str::to_owned).collect());
    if classes.len() >= 2 {
        return Ok(classes);
    }
    let why = match parsed.iter().find_map(|(line, row)| Some((line, row.as_ref().err()?))) {
        Some((line, why)) => format!("; line {line} can't be read: {why}"),
        None => String::new(),
    };
    let (name, count) = (&columns.label_name, classes.len());
    Err(DataError::new(path, format!("{name} has {count} classes; at least 2 are needed{why}")))
}

fn known_classes(
    path: &Path,
    parsed: &[(u64, Parsed)],
    known: &DataDescription,
) -> Result<Vec<String>, DataError> {
    for (line, row) in parsed {
        if let Ok((_, class)) = row
            && !known.classes.contains(class)
        {
            let place = format!("{}:{line}", path.display());
            return Err(unknown_class(Path::new(&place), class, &known.classes));
        }
    }
    Ok(known.classes.clone())
}

/// Numbers by their size; by their letters as soon as one is no number: numbers among words would
/// have no order that holds for all.
fn in_order(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    let numbers: Option<Vec<f64>> = names.iter().map(|name| name.parse().ok()).collect();
    let Some(numbers) = numbers else { return names };
    let mut pairs: Vec<(f64, String)> = numbers.into_iter().zip(names).collect();
    pairs.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    pairs.into_iter().map(|(_, name)| name).collect()
}

impl Source for Table {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn form(&self) -> Form {
        let target = match self.regression {
            true => Target::Number,
            false => Target::Classes(self.classes.len()),
        };
        Form::Dense { channels: self.columns.len(), height: 1, width: 1, target }
    }

    fn read(&self, at: usize) -> Result<Sample, String> {
        let (values, label) = self.rows[at].content.clone()?;
        Ok(Sample::Dense { values, label })
    }

    fn name(&self, at: usize) -> String {
        format!("line {} of {}", self.rows[at].line, self.name)
    }
}

#[cfg(test)]
mod tests;
