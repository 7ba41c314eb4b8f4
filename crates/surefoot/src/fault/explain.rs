//! What an error message means: the text classifier, used where an error only comes as text.
//!
//! How it decides:
//! 1. One pass over the text looks for the words that rules need (see [`rules`](super::rules)).
//! 2. A rule is tried only on the lines that hold its words. A line is either a stack frame
//!    (never evidence, unless the rule asks for frames), a remark (a warning or an information,
//!    dropped when an error follows it), or an error.
//! 3. The heaviest match wins. Among equals the last error of the log does, then the earliest.
//! 4. What no rule names is asked for turns of phrase (`rules/phrasings.rs`), at low confidence.
//!
//! No match means [`FaultKind::NotDeviceRelated`] with low confidence: it never guesses.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde::Serialize;

use super::kind::FaultKind;
use super::rules::{self, Match, RuleSet, Weight};

/// The longest text that is looked at, in bytes. Of a longer one the end is kept: that is where
/// a log says why the program died.
pub const MAX_TEXT: usize = 1 << 20;

/// What a message means, and what to change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The kind of fault, named for the recovery that would help.
    pub kind: FaultKind,
    /// 0.95: the text names the fault. 0.8: the usual words for it. 0.5: a hint.
    /// 0.1: nothing was recognised.
    pub confidence: f32,
    /// The part of the text that decided, without colour codes; empty if nothing was recognised.
    pub evidence: String,
    /// What happened, in plain words.
    pub cause: &'static str,
    /// What to change, most useful first.
    pub advice: Vec<&'static str>,
    /// Where the message comes from, when it says so.
    pub framework: Option<&'static str>,
}

impl Explanation {
    /// Whether any rule matched. If not, the kind is a default and not a finding.
    pub fn recognised(&self) -> bool {
        !self.evidence.is_empty()
    }
}

/// Says what an error message, a traceback or a log means.
pub fn explain(text: &str) -> Explanation {
    let text = without_colours(tail(text));
    let unwrapped = OnceCell::new();
    let mut framework = None;
    for rules in [rules::named, rules::phrased] {
        let rules = rules();
        let found = rules.search(&text);
        if let Some(best) = found.best {
            return finding(rules, &text, best, found.framework);
        }
        framework = found.framework;
        if let Some(unwrapped) = unwrapped.get_or_init(|| unwrap(&text)) {
            let found = rules.search(unwrapped);
            if let Some(best) = found.best {
                return finding(rules, unwrapped, best, found.framework);
            }
        }
    }
    Explanation {
        kind: FaultKind::NotDeviceRelated,
        confidence: 0.1,
        evidence: String::new(),
        cause: "Nothing in this text is known to be a device fault.",
        advice: FaultKind::NotDeviceRelated.advice().to_vec(),
        framework,
    }
}

fn finding(
    rules: &RuleSet,
    text: &str,
    best: Match,
    framework: Option<&'static str>,
) -> Explanation {
    let rule = rules.rule(best.rule);
    let mut advice = rule.advice.to_vec();
    advice.extend(rule.kind.advice().iter().filter(|line| !rule.advice.contains(line)));
    Explanation {
        kind: rule.kind,
        confidence: confidence(rule.weight),
        evidence: evidence(text, best.start, best.end),
        cause: if rule.cause.is_empty() { rules::cause_of(rule.kind) } else { rule.cause },
        advice,
        framework,
    }
}

fn confidence(weight: Weight) -> f32 {
    match weight {
        Weight::Overrides | Weight::Names => 0.95,
        Weight::Usual => 0.8,
        Weight::Hints => 0.5,
    }
}

/// The matched span, widened to whole characters and cut to a readable length.
fn evidence(text: &str, start: usize, end: usize) -> String {
    const LONGEST: usize = 240;
    let start = text.floor_char_boundary(start);
    let end = text.ceil_char_boundary(end);
    let end = end.min(text.floor_char_boundary(start + LONGEST));
    text[start..end].trim().to_owned()
}

fn tail(text: &str) -> &str {
    if text.len() <= MAX_TEXT {
        return text;
    }
    &text[text.ceil_char_boundary(text.len() - MAX_TEXT)..]
}

/// Takes terminal colours out: they glue letters to words (`[31mCUDA`) and hide their beginning.
fn without_colours(text: &str) -> Cow<'_, str> {
    if !text.contains('\x1b') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut parts = text.split('\x1b');
    plain.extend(parts.next());
    for part in parts {
        let ends = |c: char| !matches!(c, '[' | ';' | '?' | '0'..='9');
        let rest = match part.strip_prefix('[').and_then(|code| code.find(ends).map(|i| &code[i..]))
        {
            Some(after) => after.get(1..).unwrap_or_default(),
            None => part,
        };
        plain.push_str(rest);
    }
    Cow::Owned(plain)
}

/// A short message that was wrapped over lines, or padded, as one line; a box of lines around it
/// goes too. `None` where that changes nothing or the text is too long to be one message.
fn unwrap(text: &str) -> Option<String> {
    const LONGEST: usize = 4096;
    let wrapped = text.trim().contains('\n') || text.contains("  ") || text.contains('\t');
    if !wrapped || text.len() > LONGEST {
        return None;
    }
    let words = text.split(|c: char| c.is_whitespace() || c == '│').filter(|word| !word.is_empty());
    Some(words.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests;
