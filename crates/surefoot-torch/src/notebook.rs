//! Notebooks: the code cells as one text, each cell's place in it, and back again.
//!
//! Magics and shell escapes are the parser's business, but for cells that begin with a magic of
//! another language (`%%bash`, `%%writefile`…): those hold no Python and are left out.

use ruff_text_size::{TextRange, TextSize};
use serde_json::Value;

/// A code cell.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Counted from 1 among all cells.
    pub(crate) number: usize,
    /// Its stretch of the joined text.
    pub(crate) range: TextRange,
}

/// Cell magics whose body is Python of this notebook.
const PYTHON_MAGICS: [&str; 6] = ["time", "timeit", "capture", "prun", "python", "python3"];

/// The joined text of the code cells.
pub(crate) fn read(json: &str) -> Result<(String, Vec<Cell>), String> {
    let document: Value =
        serde_json::from_str(json).map_err(|error| format!("not a notebook: {error}"))?;
    let cells = document
        .get("cells")
        .and_then(Value::as_array)
        .ok_or("not a notebook of format 4: it has no cells")?;
    let mut text = String::new();
    let mut found = Vec::new();
    for (index, cell) in cells.iter().enumerate() {
        if cell.get("cell_type").and_then(Value::as_str) != Some("code") {
            continue;
        }
        let source = cell.get("source").map(cell_text).unwrap_or_default();
        if is_foreign(&source) {
            continue;
        }
        let start = offset(&text)?;
        text.push_str(&source);
        let range = TextRange::new(start, offset(&text)?);
        text.push('\n');
        found.push(Cell { number: index + 1, range });
    }
    Ok((text, found))
}

fn offset(text: &str) -> Result<TextSize, String> {
    TextSize::try_from(text.len()).map_err(|_| "larger than 4 GiB".to_owned())
}

fn cell_text(source: &Value) -> String {
    match source {
        Value::String(text) => text.clone(),
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

fn is_foreign(source: &str) -> bool {
    source.trim_start().strip_prefix("%%").is_some_and(|rest| {
        let magic = rest.split_whitespace().next().unwrap_or_default();
        !PYTHON_MAGICS.contains(&magic)
    })
}

/// The notebook with its code cells replaced by those of `text`, in the form Jupyter writes.
pub(crate) fn write(json: &str, replaced: &[(usize, String)]) -> Option<String> {
    let mut document: Value = serde_json::from_str(json).ok()?;
    let cells = document.get_mut("cells")?.as_array_mut()?;
    for (number, text) in replaced {
        let cell = cells.get_mut(number - 1)?.as_object_mut()?;
        let lines = text.split_inclusive('\n').map(|line| Value::String(line.to_owned())).collect();
        cell.insert("source".to_owned(), Value::Array(lines));
    }
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    serde::Serialize::serialize(&document, &mut serializer).ok()?;
    out.push(b'\n');
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTEBOOK: &str = r##"{"cells": [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["import torch\n", "x = 1"]},
        {"cell_type": "code", "source": "%%bash\nls"},
        {"cell_type": "code", "source": "%%time\ny = 2"}
    ], "nbformat": 4}"##;

    #[test]
    fn code_cells_are_joined_and_keep_their_numbers() {
        let (text, cells) = read(NOTEBOOK).expect("a notebook");
        assert_eq!(text, "import torch\nx = 1\n%%time\ny = 2\n");
        assert_eq!(cells.iter().map(|cell| cell.number).collect::<Vec<_>>(), [2, 4]);
        assert_eq!(&text[cells[1].range], "%%time\ny = 2");
    }

    #[test]
    fn replaced_cells_are_written_back_line_by_line() {
        let written = write(NOTEBOOK, &[(2, "import torch\nx = 3".to_owned())]).expect("written");
        let (text, _) = read(&written).expect("a notebook");
        assert!(text.starts_with("import torch\nx = 3\n"));
    }

    #[test]
    fn other_json_is_named_as_such() {
        assert!(read("{}").is_err_and(|message| message.contains("no cells")));
        assert!(read("nonsense").is_err_and(|message| message.starts_with("not a notebook")));
    }
}
