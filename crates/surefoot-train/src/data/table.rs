//! Tables: a CSV file with numbers and a class in each line.

use std::collections::BTreeMap;
use std::path::Path;

use super::{DataError, Form, Sample, Source, gzip};

/// Numbers with their classes, in memory.
#[derive(Debug)]
pub struct Table {
    name: String,
    features: usize,
    classes: Vec<String>,
    rows: Vec<Row>,
}

/// A line's numbers and class, or what is wrong with it.
type Parsed = Result<(Vec<f32>, String), String>;

#[derive(Debug)]
struct Row {
    line: usize,
    content: Result<(Vec<f32>, usize), String>,
}

impl Table {
    /// Reads a file whose `label` column (its heading, or a number from 1; the last if none)
    /// holds the class. A first line that isn't all numbers is the heading.
    pub fn read(path: &Path, label: Option<&str>) -> Result<Self, DataError> {
        let bytes = gzip::read(path)?;
        let text =
            String::from_utf8(bytes).map_err(|_| DataError::new(path, "it is no UTF-8 text"))?;
        Self::parse(path, &text, label)
    }

    fn parse(path: &Path, text: &str, label: Option<&str>) -> Result<Self, DataError> {
        let mut lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(at, line)| (at + 1, fields(line)))
            .peekable();
        let Some((_, first)) = lines.peek().cloned() else {
            return Err(DataError::new(path, "it is empty"));
        };
        if first.len() < 2 {
            return Err(DataError::new(path, "its first line has no comma")
                .hint("a line holds numbers and a class, separated by commas"));
        }
        let numeric = first.iter().filter(|field| field.parse::<f32>().is_ok()).count();
        let heading = (numeric + 1 < first.len()).then(|| lines.next()).flatten();
        let column = label_column(path, &first, heading.is_some(), label)?;
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        let parsed: Vec<(usize, Parsed)> = lines
            .map(|(line, fields)| {
                let row = row(&fields, first.len(), column);
                if let Ok((_, class)) = &row {
                    names.entry(class.clone()).or_default();
                }
                (line, row)
            })
            .collect();
        // Classes are numbered by their names, so that the order of lines doesn't matter.
        let classes = in_order(names.into_keys().collect());
        if classes.len() < 2 {
            return Err(DataError::new(
                path,
                format!(
                    "column {} has {} classes; at least 2 are needed",
                    column + 1,
                    classes.len()
                ),
            ));
        }
        let number: BTreeMap<&str, usize> =
            classes.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let rows = parsed
            .into_iter()
            .map(|(line, row)| Row {
                line,
                content: row.map(|(values, class)| {
                    let class = number.get(class.as_str()).copied().unwrap_or_default();
                    (values, class)
                }),
            })
            .collect();
        let name = path.display().to_string();
        Ok(Self { name, features: first.len() - 1, classes, rows })
    }

    /// The classes' names, in the order of their numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
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

fn fields(line: &str) -> Vec<String> {
    line.split(',').map(|field| field.trim().trim_matches('"').to_owned()).collect()
}

fn label_column(
    path: &Path,
    first: &[String],
    has_heading: bool,
    label: Option<&str>,
) -> Result<usize, DataError> {
    let Some(label) = label else { return Ok(first.len() - 1) };
    let by_name = has_heading.then(|| first.iter().position(|field| field == label)).flatten();
    let by_number = || label.parse::<usize>().ok()?.checked_sub(1).filter(|at| *at < first.len());
    by_name.or_else(by_number).ok_or_else(|| {
        DataError::new(path, format!("it has no column '{label}'")).hint(format!(
            "its columns are {}, or 1 to {}",
            first.join(", "),
            first.len()
        ))
    })
}

fn row(fields: &[String], columns: usize, label: usize) -> Parsed {
    if fields.len() != columns {
        return Err(format!("it has {} fields where the first line has {columns}", fields.len()));
    }
    let mut values = Vec::with_capacity(columns - 1);
    for (at, field) in fields.iter().enumerate().filter(|(at, _)| *at != label) {
        match field.parse::<f32>() {
            Ok(number) if number.is_finite() => values.push(number),
            _ => return Err(format!("field {} is '{field}', which is no number", at + 1)),
        }
    }
    Ok((values, fields[label].clone()))
}

impl Source for Table {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn form(&self) -> Form {
        Form::Dense { channels: self.features, height: 1, width: 1, classes: self.classes.len() }
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str, label: Option<&str>) -> Result<Table, DataError> {
        Table::parse(Path::new("t.csv"), text, label)
    }

    #[test]
    fn a_heading_is_recognised_and_names_the_label() {
        let table = parse("kind,a,b\ncat,1,2\ndog,3,4\n", Some("kind")).unwrap();
        assert_eq!(table.classes(), ["cat", "dog"]);
        assert_eq!(table.read(1).unwrap(), Sample::Dense { values: vec![3.0, 4.0], label: 1 });
        let without = parse("1,2,10\n3,4,9\n", None).unwrap();
        assert_eq!(without.classes(), ["9", "10"]);
        assert_eq!(without.len(), 2);
    }

    #[test]
    fn a_bad_line_is_one_bad_sample_with_its_line() {
        let table = parse("a,b,c\n1,2,x\n1,oops,y\n1,y\n3,4,z\n", None).unwrap();
        assert_eq!(table.name(1), "line 3 of t.csv");
        assert!(table.read(1).unwrap_err().contains("'oops'"));
        assert!(table.read(2).unwrap_err().contains("2 fields"));
        assert!(parse("a,b\n1,2\n3,4\n", Some("z")).unwrap_err().hint.is_some());
    }

    #[test]
    fn numbers_among_words_are_ordered_as_words() {
        assert_eq!(
            parse("1,10\n2,9\n3,1.0\n4,1\n", None).unwrap().classes(),
            ["1", "1.0", "9", "10"]
        );
        let mixed = parse("1,10\n2,9\n3,1a\n", None).unwrap();
        assert_eq!(mixed.classes(), ["10", "1a", "9"]);
        // 9 < 10 < 1a < 9 in a circle: enough of them make a sort by pairs panic.
        let many: String = (0..60)
            .map(|n| if n % 3 == 0 { format!("0,{n}a\n") } else { format!("0,{}\n", n * 7 % 60) })
            .collect();
        assert!(parse(&many, None).unwrap().classes().len() > 40);
    }

    proptest! {
        #[test]
        fn any_text_is_a_table_or_an_error(text in "[a-c0-9,.\n\"]{0,80}") {
            if let Ok(table) = parse(&text, None) {
                (0..table.len()).for_each(|at| drop(table.read(at)));
            }
        }
    }
}
