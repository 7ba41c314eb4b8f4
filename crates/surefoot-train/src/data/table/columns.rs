//! Which columns of a table are learned from, and which one is predicted.

use std::path::Path;

use super::{DataError, Parsed, TableOptions};

/// The columns of a file.
pub(super) struct Columns {
    /// Where the columns that are learned from are, in the order of the model's inputs.
    features: Vec<usize>,
    /// What they are called.
    pub(super) names: Vec<String>,
    /// Where the column that is predicted is; none if there is none.
    pub(super) label: Option<usize>,
    /// What it is called.
    pub(super) label_name: String,
    /// How many fields a line has.
    fields: usize,
    pub(super) notes: Vec<String>,
}

impl Columns {
    /// Finds the columns and takes the heading, if there is one, out of `lines`.
    pub(super) fn find(
        path: &Path,
        lines: &mut Vec<(u64, Vec<String>)>,
        options: TableOptions<'_>,
    ) -> Result<Self, DataError> {
        let first = lines.first().map(|(_, fields)| fields.clone()).unwrap_or_default();
        if first.len() < 2 && !options.unlabelled {
            return Err(DataError::new(path, "its first line has no comma")
                .hint("a line holds numbers and a label, separated by commas"));
        }
        let known_names = options.known.map(|known| known.columns.as_slice()).unwrap_or_default();
        let words = first.iter().filter(|field| field.parse::<f32>().is_err()).count();
        let names_known = known_names.iter().any(|name| first.contains(name));
        let heading = words > 1 || (words == first.len() && names_known);
        if heading {
            lines.remove(0);
        }
        let name = |at: usize| match heading {
            true => first[at].clone(),
            false => format!("column {}", at + 1),
        };
        let by_name = |wanted: &str| {
            let named = heading.then(|| first.iter().position(|field| field == wanted)).flatten();
            let number = wanted.strip_prefix("column ").unwrap_or(wanted).parse::<usize>();
            let number = || number.ok()?.checked_sub(1).filter(|at| *at < first.len());
            named.or_else(number)
        };
        let missing = |wanted: &str, why: &str| {
            let all: Vec<String> = (0..first.len()).map(name).collect();
            DataError::new(path, format!("it has no column '{wanted}'{why}")).hint(format!(
                "its columns are {}, or 1 to {}",
                all.join(", "),
                first.len()
            ))
        };
        let label = Self::label(options, known_names, &first, by_name);
        let label = match label {
            Err(wanted) if !options.unlabelled => return Err(missing(&wanted, "")),
            other => other.ok(),
        };
        let mut ignored = Vec::new();
        for wanted in options.ignore {
            ignored
                .push(by_name(wanted).ok_or_else(|| missing(wanted, ", which is to be ignored"))?);
        }
        let others = (0..first.len()).filter(|at| Some(*at) != label && !ignored.contains(at));
        let mut notes = Vec::new();
        let features: Vec<usize> = match (known_names, heading) {
            ([], _) | (_, false) => others.collect(),
            (known, true) => {
                let find = |name: &String| {
                    let at = first.iter().position(|field| field == name);
                    at.ok_or_else(|| missing(name, ", which the model was trained with"))
                };
                let features = known.iter().map(find).collect::<Result<Vec<_>, _>>()?;
                let new: Vec<String> =
                    others.filter(|at| !features.contains(at)).map(name).collect();
                if !new.is_empty() {
                    let new = new.join(", ");
                    notes.push(format!("columns that the model was not trained with: {new}"));
                }
                features
            }
        };
        if !known_names.is_empty() && features.len() != known_names.len() {
            let why = format!(
                "it has {} columns to predict from, and the model was trained with {}: {}",
                features.len(),
                known_names.len(),
                known_names.join(", ")
            );
            return Err(DataError::new(path, why));
        }
        if features.is_empty() {
            return Err(DataError::new(path, "it has no column to learn from"));
        }
        let label_name = label.map(name).unwrap_or_default();
        // What is in the column doesn't matter to predictions.
        let label = label.filter(|_| !options.unlabelled);
        let names = features.iter().map(|at| name(*at)).collect();
        Ok(Self { features, names, label, label_name, fields: first.len(), notes })
    }

    /// Where the label is, or what it should be called.
    fn label(
        options: TableOptions<'_>,
        known_names: &[String],
        first: &[String],
        by_name: impl Fn(&str) -> Option<usize>,
    ) -> Result<usize, String> {
        if let Some(wanted) = options.label {
            return by_name(wanted).ok_or_else(|| wanted.to_owned());
        }
        let known = options.known.and_then(|known| known.label.as_deref());
        match known {
            Some(wanted) if by_name(wanted).is_some() => by_name(wanted).ok_or(String::new()),
            Some(wanted) if first.len() == known_names.len() => Err(wanted.to_owned()),
            Some(wanted) if first.iter().any(|field| known_names.contains(field)) => {
                Err(wanted.to_owned())
            }
            _ => Ok(first.len() - 1),
        }
    }

    /// A column that has text in most lines is a mistake about the column, not about each line.
    pub(super) fn check_text(
        &self,
        path: &Path,
        lines: &[(u64, Vec<String>)],
    ) -> Result<(), DataError> {
        for (&at, name) in self.features.iter().zip(&self.names) {
            let mut texts = lines.iter().filter_map(|(line, fields)| {
                let field = fields.get(at).filter(|field| !field.is_empty())?;
                field.parse::<f32>().is_err().then_some((line, field))
            });
            let Some((line, text)) = texts.next() else { continue };
            if 2 * (texts.count() + 1) > lines.len() {
                let why = format!(
                    "the column '{name}' holds text ('{text}' in line {line}), and only numbers \
                     can be learned from"
                );
                let hint = format!(
                    "leave it out: --set 'data.ignore=[{name}]'; or name the column to predict: \
                     --set data.label=NAME"
                );
                return Err(DataError::new(path, why).hint(hint));
            }
        }
        Ok(())
    }

    /// The numbers and the label of a line.
    pub(super) fn row(&self, fields: &[String]) -> Parsed {
        if fields.len() != self.fields {
            let (has, should) = (fields.len(), self.fields);
            return Err(format!("it has {has} fields where the first line has {should}"));
        }
        let mut values = Vec::with_capacity(self.features.len());
        for (&at, name) in self.features.iter().zip(&self.names) {
            match fields[at].parse::<f32>() {
                Ok(number) if number.is_finite() => values.push(number),
                _ if fields[at].is_empty() => return Err(format!("its {name} is empty")),
                _ => return Err(format!("its {name} is '{}', which is not a number", fields[at])),
            }
        }
        match self.label.map(|at| fields[at].as_str()) {
            Some("") => Err(format!("its label ({}) is empty", self.label_name)),
            label => Ok((values, label.unwrap_or_default().to_owned())),
        }
    }
}
