//! Grammars in Lark's notation, which `llguidance` reads.
//!
//! Its lexer takes the longest match, so what a terminal is decides what a grammar means. To mean what
//! llama.cpp means by a grammar, a part that has no recursion is one regular expression where something in
//! it repeats, and other parts are terminals of one character each. What is left is a part that repeats
//! right before a recursive rule which could begin with the same characters: there, the repetition goes on.

use super::error::FormatError;
use super::gbnf::Part;

/// The longest regular expression that a rule without recursion is written as.
const MAX_REGEX: usize = 16 << 10;
/// The longest grammar.
const MAX_LARK: usize = 1 << 20;

/// A text as a regular expression that matches it.
pub(super) fn escaped(text: &str) -> String {
    text.chars().map(escaped_char).collect()
}

/// A character as a regular expression, which is also good inside a class and between slashes.
pub(super) fn escaped_char(c: char) -> String {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' => c.to_string(),
        other => format!("\\x{{{:x}}}", other as u32),
    }
}

/// Translates the rules of a grammar, of which the first is the start.
pub(super) fn of_gbnf(rules: &[Part]) -> Result<String, FormatError> {
    let mut writer = Writer { rules, regexes: vec![None; rules.len()] };
    for rule in 0..rules.len() {
        writer.find_regex(rule, 0);
    }
    if let Some(Known::Regex { regex, .. }) = &writer.regexes[0] {
        return Ok(match regex.is_empty() {
            true => "start: \"\"\n".to_owned(),
            false => format!("start: /{regex}/\n"),
        });
    }
    let mut lark = "start: r0\n".to_owned();
    for (number, rule) in rules.iter().enumerate() {
        if let Some(Known::Recursive) = writer.regexes[number] {
            lark.push_str(&format!("r{number}: {}\n", writer.written(rule)));
        }
        if lark.len() > MAX_LARK {
            return Err(FormatError::TooLarge(format!("it has more than {MAX_LARK} bytes")));
        }
    }
    Ok(lark)
}

/// What is known of a rule.
#[derive(Clone, Debug)]
enum Known {
    /// It is being looked at: whoever meets it again is recursive.
    Open,
    Regex {
        regex: String,
        repeats: bool,
    },
    /// It can't be written as one regular expression.
    Recursive,
}

struct Writer<'r> {
    rules: &'r [Part],
    regexes: Vec<Option<Known>>,
}

/// Deeper chains of rules are not looked through.
const MAX_CHAIN: usize = 200;

impl Writer<'_> {
    /// Finds out whether a rule can be one regular expression.
    fn find_regex(&mut self, rule: usize, depth: usize) {
        if self.regexes[rule].is_some() {
            return;
        }
        self.regexes[rule] = Some(Known::Open);
        let rules = self.rules;
        if depth < MAX_CHAIN {
            self.find_regexes_within(&rules[rule], depth + 1);
        }
        let found = match self.regex(&rules[rule]) {
            Some((regex, repeats)) if depth < MAX_CHAIN => Known::Regex { regex, repeats },
            _ => Known::Recursive,
        };
        self.regexes[rule] = Some(found);
    }

    fn find_regexes_within(&mut self, part: &Part, depth: usize) {
        match part {
            Part::Character(_) | Part::Name(..) => {}
            Part::Rule(rule) => self.find_regex(*rule, depth),
            Part::Sequence(parts) | Part::Choice(parts) => {
                parts.iter().for_each(|part| self.find_regexes_within(part, depth));
            }
            Part::Repeat(part, ..) => self.find_regexes_within(part, depth),
        }
    }

    /// A part as one regular expression, and whether something in it repeats; none if it is recursive.
    fn regex(&self, part: &Part) -> Option<(String, bool)> {
        let (regex, repeats) = match part {
            Part::Character(regex) => (regex.clone(), false),
            Part::Name(..) => return None,
            Part::Rule(rule) => match &self.regexes[*rule] {
                Some(Known::Regex { regex, repeats }) => (format!("(?:{regex})"), *repeats),
                _ => return None,
            },
            Part::Sequence(parts) => {
                let mut all = (String::new(), false);
                for part in parts {
                    let (regex, repeats) = self.regex(part)?;
                    all.0.push_str(&regex);
                    all.1 |= repeats;
                }
                all
            }
            Part::Choice(parts) => {
                let mut all = (Vec::new(), false);
                for part in parts {
                    let (regex, repeats) = self.regex(part)?;
                    all.0.push(regex);
                    all.1 |= repeats;
                }
                (format!("(?:{})", all.0.join("|")), all.1)
            }
            Part::Repeat(part, least, most) => {
                let (regex, _) = self.regex(part)?;
                (format!("(?:{regex}){}", repetition(*least, *most)), true)
            }
        };
        (regex.len() <= MAX_REGEX).then_some((regex, repeats))
    }

    /// A part as the right side of a rule.
    fn written(&self, part: &Part) -> String {
        match part {
            Part::Sequence(parts) => self.sequence(parts),
            Part::Choice(parts) => {
                let written: Vec<String> = parts.iter().map(|part| self.written(part)).collect();
                format!("({})", written.join(" | "))
            }
            other => self.sequence(std::slice::from_ref(other)),
        }
    }

    fn sequence(&self, parts: &[Part]) -> String {
        let mut written = Vec::new();
        let mut at = 0;
        while at < parts.len() {
            match self.regex(&parts[at]) {
                Some((mut regex, true)) => {
                    // What repeats takes what it can, so it must know what comes behind it.
                    while let Some((next, _)) = parts.get(at + 1).and_then(|p| self.regex(p)) {
                        regex.push_str(&next);
                        at += 1;
                    }
                    written.push(format!("/{regex}/"));
                }
                _ => written.push(match &parts[at] {
                    Part::Character(regex) => format!("/{regex}/"),
                    Part::Name(..) => String::new(),
                    Part::Rule(rule) => match &self.regexes[*rule] {
                        Some(Known::Recursive) => format!("r{rule}"),
                        _ => self.written(&self.rules[*rule]),
                    },
                    Part::Repeat(_, _, Some(0)) => "\"\"".to_owned(),
                    Part::Repeat(part, least, most) => {
                        format!("({}){}", self.written(part), repetition(*least, *most))
                    }
                    part @ (Part::Sequence(_) | Part::Choice(_)) => self.written(part),
                }),
            }
            at += 1;
        }
        match written.is_empty() {
            true => "\"\"".to_owned(),
            false => written.join(" "),
        }
    }
}

fn repetition(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}
