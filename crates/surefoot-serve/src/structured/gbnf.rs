//! Reads grammars in the notation of llama.cpp (GBNF).
//!
//! `name ::= alternatives`, with "literals", [classes], `.`, names, groups, `* + ? {m} {m,} {m,n}`, and
//! comments behind `#`. [`lark`](super::lark) translates what is read.

use super::error::FormatError;
use super::lark::escaped_char;

/// The most repetitions of a part.
const MAX_REPEAT: u32 = 1000;
/// The deepest nesting of groups.
const MAX_DEPTH: usize = 64;

/// A part of a rule.
#[derive(Debug)]
pub(super) enum Part {
    /// One character, as a regular expression.
    Character(String),
    /// The number of a rule.
    Rule(usize),
    Sequence(Vec<Part>),
    Choice(Vec<Part>),
    Repeat(Box<Part>, u32, Option<u32>),
    /// The name of a rule, in a line. The reader replaces it by its number.
    Name(String, usize),
}

/// The rules of a grammar, the one named `root` first.
pub(super) fn rules(text: &str) -> Result<Vec<Part>, FormatError> {
    let mut reader = Reader { rest: text.chars().collect(), at: 0, depth: 0 };
    let mut rules: Vec<(String, Part)> = Vec::new();
    reader.skip(true);
    while !reader.is_done() {
        let line = reader.line();
        let name = reader.name()?;
        reader.skip(true);
        for expected in "::=".chars() {
            if reader.next() != Some(expected) {
                return Err(reader.wrong(format!("'::=' is missing behind '{name}'")));
            }
        }
        reader.skip(true);
        let part = reader.choice()?;
        if rules.iter().any(|(other, _)| *other == name) {
            let problem = format!("'{name}' is there twice");
            return Err(FormatError::Grammar { line, problem });
        }
        rules.push((name, part));
        reader.skip(true);
    }
    // The start comes first.
    rules.sort_by_key(|(name, _)| name != "root");
    if rules.first().is_none_or(|(name, _)| name != "root") {
        let problem = "there is no rule 'root'".to_owned();
        return Err(FormatError::Grammar { line: 1, problem });
    }
    let (names, mut parts): (Vec<String>, Vec<Part>) = rules.into_iter().unzip();
    for part in &mut parts {
        number(part, &names)?;
    }
    Ok(parts)
}

/// Replaces names by numbers.
fn number(part: &mut Part, names: &[String]) -> Result<(), FormatError> {
    match part {
        Part::Character(_) | Part::Rule(_) => Ok(()),
        Part::Sequence(parts) | Part::Choice(parts) => {
            parts.iter_mut().try_for_each(|part| number(part, names))
        }
        Part::Repeat(part, ..) => number(part, names),
        Part::Name(name, line) => match names.iter().position(|known| known == name) {
            Some(rule) => {
                *part = Part::Rule(rule);
                Ok(())
            }
            None => Err(FormatError::Grammar {
                line: *line,
                problem: format!("there is no rule '{name}'"),
            }),
        },
    }
}

struct Reader {
    rest: Vec<char>,
    at: usize,
    depth: usize,
}

impl Reader {
    fn is_done(&self) -> bool {
        self.at >= self.rest.len()
    }

    fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += 1;
        next
    }

    fn line(&self) -> usize {
        1 + self.rest[..self.at.min(self.rest.len())].iter().filter(|c| **c == '\n').count()
    }

    fn wrong(&self, problem: impl Into<String>) -> FormatError {
        FormatError::Grammar { line: self.line(), problem: problem.into() }
    }

    /// Passes over spaces and comments, and over the ends of lines if `lines` says so.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, FormatError> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| is_part(*c)) {
            name.push(c);
            self.at += 1;
        }
        match name.is_empty() {
            true => Err(self.wrong(match self.peek() {
                Some(c) => format!("a rule's name is expected, not {c:?}"),
                None => "a rule's name is expected".to_owned(),
            })),
            false => Ok(name),
        }
    }

    /// Whether `name ::=` comes next, which ends the rule before.
    fn at_rule(&self) -> bool {
        let mut at = self.at;
        let is_part = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '_';
        while self.rest.get(at).is_some_and(is_part) {
            at += 1;
        }
        if at == self.at {
            return false;
        }
        while self.rest.get(at).is_some_and(|c| c.is_whitespace()) {
            at += 1;
        }
        self.rest[at.min(self.rest.len())..].starts_with(&[':', ':', '='])
    }

    fn choice(&mut self) -> Result<Part, FormatError> {
        let mut choices = vec![self.sequence()?];
        while self.peek() == Some('|') {
            self.at += 1;
            self.skip(true);
            choices.push(self.sequence()?);
        }
        Ok(match choices.pop() {
            Some(only) if choices.is_empty() => only,
            last => {
                choices.extend(last);
                Part::Choice(choices)
            }
        })
    }

    fn sequence(&mut self) -> Result<Part, FormatError> {
        let mut parts = Vec::new();
        loop {
            // Alternatives may go on in the next line.
            self.skip(true);
            match self.peek() {
                None | Some('|' | ')') => break,
                Some(_) if self.at_rule() => break,
                Some(_) => {}
            }
            let part = self.element()?;
            let part = self.repeated(part)?;
            parts.push(part);
        }
        Ok(match parts.pop() {
            Some(only) if parts.is_empty() => only,
            last => {
                parts.extend(last);
                Part::Sequence(parts)
            }
        })
    }

    fn element(&mut self) -> Result<Part, FormatError> {
        match self.peek() {
            Some('"') => {
                self.at += 1;
                let mut text = Vec::new();
                loop {
                    let c = match self.next() {
                        Some('"') => return Ok(Part::Sequence(text)),
                        Some('\\') => self.escape()?,
                        Some(c) => c,
                        None => return Err(self.wrong("a text has no end: '\"' is missing")),
                    };
                    text.push(Part::Character(escaped_char(c)));
                }
            }
            Some('[') => self.class(),
            Some('.') => {
                self.at += 1;
                Ok(Part::Character("(?s:.)".to_owned()))
            }
            Some('(') => {
                self.at += 1;
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(self.wrong(format!("groups are nested more than {MAX_DEPTH} deep")));
                }
                self.skip(true);
                let part = self.choice()?;
                self.depth -= 1;
                match self.next() {
                    Some(')') => Ok(part),
                    _ => Err(self.wrong("a group has no end: ')' is missing")),
                }
            }
            Some(c) if c.is_ascii_alphanumeric() || c == '_' || c == '-' => {
                let line = self.line();
                Ok(Part::Name(self.name()?, line))
            }
            Some(c) => Err(self.wrong(format!("{c:?} can't be here"))),
            None => Err(self.wrong("the grammar ends early")),
        }
    }

    fn class(&mut self) -> Result<Part, FormatError> {
        self.at += 1;
        let mut class = String::from("[");
        if self.peek() == Some('^') {
            self.at += 1;
            class.push('^');
        }
        let mut is_empty = true;
        loop {
            let low = match self.next() {
                Some(']') => break,
                Some('\\') => self.escape()?,
                Some(c) => c,
                None => return Err(self.wrong("a class has no end: ']' is missing")),
            };
            is_empty = false;
            class.push_str(&escaped_char(low));
            if self.peek() == Some('-') && self.rest.get(self.at + 1).is_some_and(|c| *c != ']') {
                self.at += 1;
                let high = match self.next() {
                    Some('\\') => self.escape()?,
                    Some(c) => c,
                    None => return Err(self.wrong("a class has no end: ']' is missing")),
                };
                if high < low {
                    return Err(self.wrong(format!("the range {low:?} to {high:?} is empty")));
                }
                class.push('-');
                class.push_str(&escaped_char(high));
            }
        }
        match (is_empty, class.as_str()) {
            (true, "[^") => Ok(Part::Character("(?s:.)".to_owned())),
            (true, _) => Err(self.wrong("a class is empty")),
            (false, _) => {
                class.push(']');
                Ok(Part::Character(class))
            }
        }
    }

    fn escape(&mut self) -> Result<char, FormatError> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            Some(c) => return Err(self.wrong(format!("'\\{c}' is not known"))),
            None => return Err(self.wrong("the grammar ends behind '\\'")),
        };
        let mut code = 0;
        for _ in 0..digits {
            let digit = self.next().and_then(|c| c.to_digit(16));
            let Some(digit) = digit else {
                return Err(self.wrong(format!("{digits} hexadecimal digits are expected")));
            };
            code = code * 16 + digit;
        }
        char::from_u32(code).ok_or_else(|| self.wrong(format!("{code:x} is not a character")))
    }

    fn repeated(&mut self, mut part: Part) -> Result<Part, FormatError> {
        loop {
            self.skip(false);
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let least = self.number()?.unwrap_or(0);
                    self.skip(false);
                    let most = match self.peek() {
                        Some(',') => {
                            self.at += 1;
                            self.number()?
                        }
                        _ => Some(least),
                    };
                    self.skip(false);
                    if self.peek() != Some('}') {
                        return Err(self.wrong("'}' is missing"));
                    }
                    (least, most)
                }
                _ => return Ok(part),
            };
            self.at += 1;
            if most.is_some_and(|most| most < least) {
                return Err(self.wrong(format!("{{{least},…}} ends before it begins")));
            }
            if least.max(most.unwrap_or(0)) > MAX_REPEAT {
                return Err(
                    self.wrong(format!("a part can be repeated {MAX_REPEAT} times at most"))
                );
            }
            part = Part::Repeat(Box::new(part), least, most);
        }
    }

    fn number(&mut self) -> Result<Option<u32>, FormatError> {
        self.skip(false);
        let mut digits = String::new();
        while let Some(c) = self.peek().filter(char::is_ascii_digit) {
            digits.push(c);
            self.at += 1;
        }
        match digits.is_empty() {
            true => Ok(None),
            false => {
                digits.parse().map(Some).map_err(|_| self.wrong(format!("{digits} is too large")))
            }
        }
    }
}
