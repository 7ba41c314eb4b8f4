//! Applying safe fixes: all that don't touch each other, then again, until nothing is left to do.
//! A text that no longer parses is never kept.

use std::fs;
use std::io::Write;
use std::path::Path;

use ruff_text_size::{TextRange, TextSize};
use similar::TextDiff;

use crate::check::check;
use crate::encoding;
use crate::finding::{Edit, Finding};
use crate::notebook::{self, Cell};
use crate::rules::CheckRule;
use crate::source::Source;

/// Fixes can uncover others, but not for ever.
const PASSES: usize = 16;

/// A source with its fixes applied.
#[derive(Debug)]
pub struct Fixed {
    /// The new text.
    pub source: Source,
    /// How many findings were fixed.
    pub count: usize,
}

/// Applies what can be fixed; `None` if nothing can.
pub fn fix(source: &Source, rules: &[&'static CheckRule]) -> Option<Fixed> {
    let mut now = source.clone();
    let mut count = 0;
    for _ in 0..PASSES {
        let Ok(findings) = check(&now, rules) else { break };
        let (edits, fixed) = compatible(&findings);
        if edits.is_empty() {
            break;
        }
        let next = apply(&now, &edits);
        // A fix must leave a file that parses, and must not bring the same finding back.
        if check(&next, rules).is_err() || next.text == now.text {
            break;
        }
        now = next;
        count += fixed;
    }
    (count > 0).then_some(Fixed { source: now, count })
}

/// The edits of as many fixes as don't touch each other, and how many fixes they are.
fn compatible(findings: &[Finding]) -> (Vec<Edit>, usize) {
    let mut edits: Vec<Edit> = Vec::new();
    let mut count = 0;
    for fix in findings.iter().filter_map(|finding| finding.fix.as_ref()) {
        let touches = |edit: &Edit| {
            edits.iter().any(|other| {
                edit.range.start() <= other.range.end() && other.range.start() <= edit.range.end()
            })
        };
        if !fix.edits.iter().any(touches) {
            edits.extend(fix.edits.iter().cloned());
            count += 1;
        }
    }
    edits.sort_by_key(|edit| edit.range.start());
    (edits, count)
}

fn apply(source: &Source, edits: &[Edit]) -> Source {
    let Some(cells) = &source.cells else {
        let whole = TextRange::up_to(size(source.text.len()));
        return source.with_text(rewritten(&source.text, whole, edits), None);
    };
    let mut text = String::with_capacity(source.text.len());
    let mut moved = Vec::with_capacity(cells.len());
    for cell in cells {
        let start = size(text.len());
        text.push_str(&rewritten(&source.text, cell.range, edits));
        moved.push(Cell { number: cell.number, range: TextRange::new(start, size(text.len())) });
        text.push('\n');
    }
    source.with_text(text, Some(moved))
}

fn size(length: usize) -> TextSize {
    TextSize::try_from(length).unwrap_or(TextSize::from(u32::MAX))
}

/// The stretch of text with the edits inside it applied.
fn rewritten(text: &str, within: TextRange, edits: &[Edit]) -> String {
    let mut out = String::new();
    let mut at = within.start();
    for edit in edits.iter().filter(|edit| within.contains_range(edit.range)) {
        out.push_str(&text[TextRange::new(at, edit.range.start())]);
        out.push_str(&edit.text);
        at = edit.range.end();
    }
    out.push_str(&text[TextRange::new(at, within.end())]);
    out
}

/// What a fix changes, as a unified diff; one for each cell of a notebook.
pub fn diff(old: &Source, new: &Source) -> String {
    let unified = |name: &str, old: &str, new: &str| {
        let diff = TextDiff::from_lines(old, new);
        diff.unified_diff().header(&format!("a/{name}"), &format!("b/{name}")).to_string()
    };
    let (Some(before), Some(after)) = (&old.cells, &new.cells) else {
        return unified(&old.path, &old.text, &new.text);
    };
    before
        .iter()
        .zip(after)
        .filter(|(a, b)| old.text[a.range] != new.text[b.range])
        .map(|(a, b)| {
            let name = format!("{} (cell {})", old.path, a.number);
            unified(&name, &old.text[a.range], &new.text[b.range])
        })
        .collect()
}

/// Writes a fixed source over its file, in the encoding that the file has: beside it first, then in
/// its place.
pub fn write(old: &Source, fixed: &Fixed) -> std::io::Result<()> {
    let path = Path::new(&fixed.source.path).canonicalize()?;
    let bytes = file_bytes(&fs::read(&path)?, old, &fixed.source)
        .ok_or_else(|| std::io::Error::other("the file changed while it was being fixed"))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut beside = tempfile::NamedTempFile::new_in(folder)?;
    beside.write_all(&bytes)?;
    beside.as_file().set_permissions(fs::metadata(&path)?.permissions())?;
    beside.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

/// The file's bytes for a fixed source; `None` if the file is not the one that was read, or a
/// notebook can't take the cells.
fn file_bytes(file: &[u8], old: &Source, new: &Source) -> Option<Vec<u8>> {
    let (Some(before), Some(after)) = (&old.cells, &new.cells) else {
        let unchanged = encoding::encode(&old.text, old.encoding).is_some_and(|text| text == file);
        return unchanged.then(|| encoding::encode(&new.text, new.encoding)).flatten();
    };
    let replaced: Vec<(usize, String)> = before
        .iter()
        .zip(after)
        .filter(|(a, b)| old.text[a.range] != new.text[b.range])
        .map(|(_, b)| (b.number, new.text[b.range].to_owned()))
        .collect();
    notebook::write(std::str::from_utf8(file).ok()?, &replaced).map(String::into_bytes)
}
