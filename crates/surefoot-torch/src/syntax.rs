//! Parsing, with a bound on nesting: the tree is walked and dropped recursively, so a tree deeper
//! than [`DEEPEST`] is refused before anything recursive touches it.

use ruff_python_ast::token::TokenKind;
use ruff_python_ast::visitor::{Visitor, walk_expr, walk_pattern, walk_stmt};
use ruff_python_ast::{Expr, ModModule, Pattern, Stmt};
use ruff_python_parser::{Mode, ParseOptions, Parsed, parse_cells_unchecked, parse_unchecked};

use crate::source::{FileError, Source};

/// The deepest tree that is checked. CPython's own parser gives up much earlier.
pub const DEEPEST: usize = 1000;

/// Parses a source; the first syntax error is the file's error.
pub fn parse(source: &Source) -> Result<Parsed<ModModule>, FileError> {
    let parsed = match &source.cells {
        Some(cells) => {
            let ranges = cells.iter().map(|cell| cell.range);
            parse_cells_unchecked(&source.text, ranges, &ParseOptions::from(Mode::Ipython))
        }
        None => match parse_unchecked(&source.text, ParseOptions::from(Mode::Module))
            .try_into_module()
        {
            Some(parsed) => parsed,
            None => return Err(fail(source, None, "can't be parsed as a module")),
        },
    };
    if may_be_deep(&parsed) && is_deep(parsed.syntax()) {
        // Dropping the tree would recurse as deep as walking it.
        std::mem::forget(parsed);
        return Err(fail(source, None, &format!("nested deeper than {DEEPEST} levels")));
    }
    match parsed.errors().first() {
        Some(error) => {
            let place = source.place(error.location.start());
            Err(fail(source, Some(place), &format!("invalid syntax: {}", error.error)))
        }
        None => Ok(parsed),
    }
}

fn fail(source: &Source, place: Option<crate::source::SourcePosition>, message: &str) -> FileError {
    FileError { path: source.path.clone(), place, message: message.to_owned() }
}

/// A tree can't be deeper than the tokens of one statement and its indentation: a cheap way to
/// leave ordinary files alone.
fn may_be_deep(parsed: &Parsed<ModModule>) -> bool {
    let (mut tokens, mut indents) = (0usize, 0usize);
    for token in parsed.tokens() {
        match token.kind() {
            TokenKind::Newline => tokens = 0,
            TokenKind::Indent => indents += 1,
            TokenKind::Dedent => indents = indents.saturating_sub(1),
            _ => tokens += 1,
        }
        if tokens + indents > DEEPEST {
            return true;
        }
    }
    false
}

fn is_deep(module: &ModModule) -> bool {
    let mut depth = Depth { now: 0, deep: false };
    for stmt in &module.body {
        depth.visit_stmt(stmt);
    }
    depth.deep
}

/// Measures depth, and goes no deeper than the bound.
struct Depth {
    now: usize,
    deep: bool,
}

impl Depth {
    fn enter(&mut self, walk: impl FnOnce(&mut Self)) {
        if self.now >= DEEPEST {
            self.deep = true;
        }
        if !self.deep {
            self.now += 1;
            stacker::maybe_grow(64 << 10, 1 << 20, || walk(self));
            self.now -= 1;
        }
    }
}

impl<'a> Visitor<'a> for Depth {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        self.enter(|depth| walk_stmt(depth, stmt));
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        self.enter(|depth| walk_expr(depth, expr));
    }

    fn visit_pattern(&mut self, pattern: &'a Pattern) {
        self.enter(|depth| walk_pattern(depth, pattern));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<Parsed<ModModule>, FileError> {
        parse(&Source::new("t.py".to_owned(), text.to_owned(), None))
    }

    #[test]
    fn deep_nesting_is_refused_in_every_form() {
        let n = 20_000;
        for text in [
            "[".repeat(n) + &"]".repeat(n),
            "-".repeat(n) + "1",
            "not ".repeat(n) + "1",
            "x".to_owned() + &".y".repeat(n),
            "x".to_owned() + &"()".repeat(n),
            "1".to_owned() + &"+1".repeat(n),
            "lambda: ".repeat(n) + "1",
            "1 if 1 else ".repeat(n) + "1",
        ] {
            let error = parse_text(&text).map(|_| ()).expect_err("an error");
            assert!(
                error.message.starts_with("nested deeper"),
                "{}: {}",
                &text[..20],
                error.message
            );
        }
        // Parentheses alone leave no trace in the tree.
        assert!(parse_text(&("(".repeat(n) + "1" + &")".repeat(n))).is_ok());
    }

    #[test]
    fn long_but_flat_tables_are_fine() {
        let table = format!("x = [{}]", "1, ".repeat(50_000));
        assert!(parse_text(&table).is_ok());
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let error = parse_text("x = 1\ny = (\n").map(|_| ()).expect_err("an error");
        assert!(error.place.is_some_and(|place| place.line >= 2));
    }
}
