//! For people: the message, the line of source with a caret under it, and what to do.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use ruff_text_size::TextSize;

use super::extent;
use crate::finding::{Finding, Severity};
use crate::project::CheckReport;
use crate::source::{FileError, Source};

/// The longest piece of a source line that is shown.
const WIDEST: usize = 140;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();
const LINE_NUMBER: Style = AnsiColor::Blue.on_default().bold();
const BOLD: Style = Style::new().bold();

/// The whole report; errors first, since what they hide is not in the rest.
pub fn render(report: &CheckReport, colour: bool) -> String {
    let mut out = String::new();
    for error in &report.errors {
        out.push_str(&error_text(error, colour));
    }
    for checked in &report.checked {
        for finding in &checked.findings {
            finding_text(&mut out, &checked.source, finding, colour);
        }
    }
    out
}

/// A file that could not be checked.
pub fn error_text(error: &FileError, colour: bool) -> String {
    let place = error.place.map(|place| format!(":{place}")).unwrap_or_default();
    let word = paint(colour, ERROR, "error");
    format!("{word}: {}\n  --> {}{place}\n\n", printable(&error.message), error.path)
}

fn finding_text(out: &mut String, source: &Source, finding: &Finding, colour: bool) {
    let tint = match finding.severity {
        Severity::Error => ERROR,
        Severity::Warning => WARNING,
        Severity::Hint => HINT,
    };
    let head = format!("{}[{}]", finding.severity.word(), finding.code);
    let (start, end) = extent(source, finding.range);
    let (line, line_start) = source.line_at(finding.range.start());
    let number = start.line.to_string();
    let gutter = " ".repeat(number.len());
    let bar = paint(colour, LINE_NUMBER, "|");
    let same_line = end.line == start.line;
    let width = if same_line { end.column.saturating_sub(start.column).max(1) } else { usize::MAX };
    let (shown, before, carets) = window(line, finding.range.start() - line_start, width);
    let caret = paint(colour, tint, &"^".repeat(carets));
    let mut write = |text: std::fmt::Arguments<'_>| {
        // Writing to a string can't fail.
        let _ = out.write_fmt(text);
    };
    write(format_args!("{}: {}\n", paint(colour, tint, &head), finding.message));
    write(format_args!("{gutter}--> {}:{start}\n", source.path));
    write(format_args!("{gutter} {bar}\n"));
    write(format_args!("{} {bar} {shown}\n", paint(colour, LINE_NUMBER, &number)));
    write(format_args!("{gutter} {bar} {}{caret}\n", " ".repeat(before)));
    write(format_args!("{gutter} = {}: {}\n", paint(colour, BOLD, "help"), finding.help));
    if let Some(fix) = &finding.fix {
        write(format_args!("{gutter} = {}: {} (--fix)\n", paint(colour, BOLD, "fix"), fix.title));
    }
    write(format_args!("\n"));
}

/// The part of a line around the caret, the columns before the caret, and how many carets.
fn window(line: &str, caret: TextSize, width: usize) -> (String, usize, usize) {
    let mut at = usize::from(caret).min(line.len());
    while !line.is_char_boundary(at) {
        at -= 1;
    }
    let before = line[..at].chars().count();
    let total = line.chars().count();
    let skip = if total > WIDEST { before.saturating_sub(WIDEST / 3) } else { 0 };
    let shown: String = line.chars().skip(skip).take(WIDEST).collect();
    let left = if skip > 0 { "…" } else { "" };
    let right = if total > skip + WIDEST { "…" } else { "" };
    let end = shown.chars().count();
    let column = before - skip;
    let carets = width.min(end.saturating_sub(column)).max(1);
    (format!("{left}{}{right}", printable(&shown)), column + left.chars().count(), carets)
}

/// Control characters would move the cursor or worse.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c == '\t' {
                ' '
            } else if c.is_control() {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

fn paint(colour: bool, style: Style, text: &str) -> String {
    if colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::window;

    #[test]
    fn the_caret_stands_under_its_column() {
        let (shown, before, carets) = window("    é = f(x)", 9.into(), 4);
        assert_eq!(shown, "    é = f(x)");
        assert_eq!((before, carets), (8, 4));
    }

    #[test]
    fn long_lines_are_cut_around_the_caret() {
        let line = "x".repeat(500) + "CARET" + &"y".repeat(500);
        let (shown, before, carets) = window(&line, 500.into(), 5);
        let under: String = shown.chars().skip(before).take(carets).collect();
        assert_eq!(under, "CARET");
        assert!(shown.chars().count() < 200);
    }

    #[test]
    fn control_characters_are_not_printed() {
        let (shown, _, _) = window("x = '\x1b[2J\t'", 0.into(), 1);
        assert!(!shown.contains('\x1b') && !shown.contains('\t'));
    }
}
