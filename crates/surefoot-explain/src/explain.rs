//! What an error message means: the text classifier, used where an error only comes as text.
//!
//! How it decides:
//! 1. One pass over the text looks for the words that rules need (see `rules`).
//! 2. A rule is tried only on the lines that hold its words. A line is either a stack frame
//!    (never evidence, unless the rule asks for frames), a remark (a warning or an information,
//!    dropped when an error follows it), or an error.
//! 3. The heaviest match wins. Among equals the last error of the log does, then the earliest.
//! 4. What no rule names is asked for turns of phrase (`rules/phrasings.rs`), then for its
//!    subject (`rules/topics.rs`), at low confidence.
//! 5. Where the rules' confidence is at most [`learned::RULES_SURE_ABOVE`], a linear model joins in
//!    and says how likely each kind is (`learned`).
//!
//! Recovery uses [`kind_of_text`], which stops before the model and never guesses.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde::Serialize;

use crate::learned::{self, Model};
use crate::rules::{self, Match, RuleSet, Weight};
use surefoot_core::fault::FaultKind;

/// The longest text that is looked at, in bytes. Of a longer one the end is kept: that is where
/// a log says why the program died.
pub const MAX_TEXT: usize = 1 << 20;

/// The confidence where only the subject of a message is known.
const SUBJECT_ONLY: f32 = 0.3;

/// What a message means, and what to change.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The kind of fault, named for the recovery that would help.
    pub kind: FaultKind,
    /// How likely the kind is right. From rules alone, 0.95: the text names the fault; 0.8: the usual
    /// words for it; 0.5: a hint; 0.3: only what it is about; 0.1: nothing was recognised. Up to 0.5
    /// [`explain`] replaces it by the calibrated probability of the learned stage.
    pub confidence: f32,
    /// The kind that is meant instead, where a second one is plausible.
    pub second: Option<SecondGuess>,
    /// What decided.
    pub decided_by: DecidedBy,
    /// The part of the text that decided, without colour codes; empty if nothing was recognised.
    pub evidence: String,
    /// The single words that decided, most telling first, where the learned stage did.
    pub words: Vec<String>,
    /// What happened, in plain words.
    pub cause: &'static str,
    /// What to change, most useful first.
    pub advice: Vec<&'static str>,
    /// Where the message comes from, when it says so.
    pub framework: Option<&'static str>,
}

/// The second likeliest kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SecondGuess {
    /// The kind.
    pub kind: FaultKind,
    /// How likely it is.
    pub probability: f32,
}

/// What decided on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DecidedBy {
    /// The error's type, without its text.
    Type,
    /// The rules named it.
    Rules,
    /// The learned stage found it likelier than what the rules said.
    Learned,
}

impl Explanation {
    /// Whether anything was recognised. If not, the kind is a default and not a finding.
    pub fn recognised(&self) -> bool {
        !self.evidence.is_empty()
    }
}

/// The kind that recovery may act on: what the words say by the rules, not what they are only
/// about, and nothing that was learned.
pub fn kind_of_text(text: &str) -> FaultKind {
    let found = explain_by_rules(text);
    if found.confidence > SUBJECT_ONLY { found.kind } else { FaultKind::NotDeviceRelated }
}

/// What a fault of a known kind means, where its words say nothing: for errors that are known by their type.
pub fn explain_kind(kind: FaultKind) -> Explanation {
    Explanation {
        kind,
        confidence: 1.0,
        second: None,
        decided_by: DecidedBy::Type,
        evidence: String::new(),
        words: Vec::new(),
        cause: rules::cause_of(kind),
        advice: rules::advice_for(kind).to_vec(),
        framework: None,
    }
}

/// Says what an error message, a traceback or a log means.
pub fn explain(text: &str) -> Explanation {
    let text = readable(text);
    let found = rules_on(&text);
    if found.confidence > learned::RULES_SURE_ABOVE { found } else { with_learned(&text, found) }
}

/// What the rules alone say.
pub fn explain_by_rules(text: &str) -> Explanation {
    rules_on(&readable(text))
}

/// The part of the text that is read, without colours, with its lines.
fn readable(text: &str) -> Cow<'_, str> {
    with_lines(without_colours(tail(text)))
}

fn rules_on(text: &str) -> Explanation {
    if let Some(bare) = without_prefix(text) {
        let found = explain_lines(&bare);
        if found.recognised() {
            return found;
        }
    }
    // What all lines begin with may be the message itself, with a number at its end.
    explain_lines(text)
}

/// Asks the learned stage about a text that the rules are not sure about.
fn with_learned(text: &str, mut found: Explanation) -> Explanation {
    let Some(model) = Model::embedded() else { return found };
    let decided = learned::decide_on(model, text, found.kind, found.confidence);
    let Some((decision, reading)) = decided else { return found };
    let second = decision.plausible_second();
    found.confidence = decision.confidence;
    found.second = second.map(|(kind, probability)| SecondGuess { kind, probability });
    if decision.kind == found.kind {
        return found;
    }
    let other = decision.second.map_or(found.kind, |(kind, _)| kind);
    let spoke = learned::evidence(model, text, &reading, decision.kind, other);
    let Some(spoke) = spoke else { return found };
    found.kind = decision.kind;
    found.decided_by = DecidedBy::Learned;
    found.evidence = evidence(text, spoke.start, spoke.end);
    found.words = spoke.words;
    found.cause = rules::cause_of(decision.kind);
    found.advice = rules::advice_for(decision.kind).to_vec();
    found
}

fn explain_lines(text: &str) -> Explanation {
    let unwrapped = OnceCell::new();
    let mut framework = None;
    let mut notice = None;
    for (rules, most) in
        [(rules::named as fn() -> _, 1.0), (rules::phrased, 0.5), (rules::about, SUBJECT_ONLY)]
    {
        let rules: &RuleSet = rules();
        let found = rules.search(text);
        framework = framework.or(found.framework);
        if let Some(best) = found.best {
            let finding = finding(rules, most, text, best, framework);
            if !found.weak {
                return finding;
            }
            notice = notice.or(Some(finding));
            continue;
        }
        if let Some(unwrapped) = unwrapped.get_or_init(|| unwrap(text)) {
            let found = rules.search(unwrapped);
            if let Some(best) = found.best.filter(|_| !found.weak) {
                return finding(rules, most, unwrapped, best, found.framework);
            }
        }
    }
    if let Some(notice) = notice {
        return notice;
    }
    Explanation {
        kind: FaultKind::NotDeviceRelated,
        confidence: 0.1,
        second: None,
        decided_by: DecidedBy::Rules,
        evidence: String::new(),
        words: Vec::new(),
        cause: "Nothing in this text is known to be a device fault.",
        advice: rules::advice_for(FaultKind::NotDeviceRelated).to_vec(),
        framework,
    }
}

fn finding(
    rules: &RuleSet,
    most: f32,
    text: &str,
    best: Match,
    framework: Option<&'static str>,
) -> Explanation {
    let rule = rules.rule(best.rule);
    let mut advice = rule.advice.to_vec();
    advice.extend(rules::advice_for(rule.kind).iter().filter(|line| !rule.advice.contains(line)));
    Explanation {
        kind: rule.kind,
        confidence: confidence(rule.weight).min(most),
        second: None,
        decided_by: DecidedBy::Rules,
        evidence: evidence(text, best.start, best.end),
        words: Vec::new(),
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
    Cow::Owned(anstream::adapter::strip_str(text).to_string())
}

/// Gives a message that was logged as one line its lines back: `\\n` as two characters breaks
/// lines, but not inside a path such as `C:\new\name`.
fn with_lines(text: Cow<'_, str>) -> Cow<'_, str> {
    // The single character first: it is much quicker to look for, and most texts have none.
    if !text.contains('\\') || text.contains('\n') || !text.contains("\\n") {
        return text;
    }
    let mut lines = String::with_capacity(text.len());
    for word in text.split_inclusive(' ') {
        let drive = word.find(":\\").is_some_and(|at| {
            let mut letters = word[..at].chars().rev();
            letters.next().is_some_and(char::is_alphabetic)
                && !letters.next().is_some_and(char::is_alphanumeric)
        });
        let in_path = drive
            || word.match_indices('\\').any(|(at, _)| {
                word[at + 1..].starts_with(|c: char| c.is_alphanumeric() && !"nrt".contains(c))
            });
        let mut rest = word;
        while let Some(at) = rest.find("\\n") {
            let (before, after) = rest.split_at(at);
            let ends = before.ends_with(|c: char| !c.is_alphanumeric() && c != ':')
                || before.strip_suffix(':').is_some_and(|head| head.ends_with(char::is_numeric));
            lines.push_str(before);
            lines.push_str(if ends || !in_path { "\n" } else { "\\n" });
            rest = &after[2..];
        }
        lines.push_str(rest);
    }
    Cow::Owned(lines)
}

/// Takes away what a logger put before every line of a message: it says nothing, and hides where
/// lines begin. `None` where there is nothing of the kind.
fn without_prefix(text: &str) -> Option<String> {
    const SHORTEST: usize = 6;
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return None };
    let shared = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let length = shared(first, second);
    if length < SHORTEST {
        return None;
    }
    let length = lines.fold(length, |length, line| length.min(shared(first, line)));
    let ends = |c: char| matches!(c, ']' | ')' | ':' | '|' | '>');
    let prefix = first[..first.floor_char_boundary(length)].rfind(ends).map_or(0, |at| at + 1);
    if prefix < SHORTEST {
        return None;
    }
    let bare = |line: &str| line.get(prefix..).unwrap_or_default().to_owned();
    Some(text.lines().map(bare).collect::<Vec<_>>().join("\n"))
}

/// A short message that was wrapped over lines, or padded, as one line; a box of lines around it
/// goes too. What begins like a message of its own stays on its own line. `None` where that
/// changes nothing or the text is too long to be one message.
fn unwrap(text: &str) -> Option<String> {
    const LONGEST: usize = 4096;
    let wrapped = text.trim().contains('\n') || text.contains("  ") || text.contains('\t');
    if !wrapped || text.len() > LONGEST {
        return None;
    }
    let mut whole = String::with_capacity(text.len());
    for line in text.lines() {
        let words = line.split(|c: char| c.is_whitespace() || c == '│');
        let mut first = true;
        for word in words.filter(|word| !word.is_empty()) {
            let own = first && rules::begins_message(line);
            if !whole.is_empty() {
                whole.push(if own { '\n' } else { ' ' });
            }
            whole.push_str(word);
            first = false;
        }
    }
    Some(whole)
}

#[cfg(test)]
mod tests;
