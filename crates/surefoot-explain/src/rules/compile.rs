//! Turns tables into a searcher: a single pass over the text finds the words that patterns
//! need, and only patterns whose words are in a line are tried on that line.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::guarded::{Guarded, Here, Lazy, Words, branches};
use super::lines::{Log, Role};
use super::{
    DISCLAIMERS, FRAMEWORKS, FaultKind, HEDGES, TABLES, TextRule, Weight, phrasings, topics,
};

/// A rule that matched, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Match {
    pub(crate) rule: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// What a search found.
pub(crate) struct Found {
    pub(crate) best: Option<Match>,
    /// Only a notice about something ordinary was found, in a text that may say more.
    pub(crate) weak: bool,
    pub(crate) framework: Option<&'static str>,
}

/// Rules, compiled.
pub(crate) struct RuleSet {
    rules: Vec<CompiledRule>,
    patterns: Vec<Pattern>,
    words: AhoCorasick,
    /// What each word of `words` stands for.
    meanings: Vec<Vec<Meaning>>,
    hedge: Lazy,
    disclaimer: Lazy,
}

struct CompiledRule {
    rule: &'static TextRule,
    unless: Vec<Guarded>,
    with: Vec<Lazy>,
    without: Vec<Lazy>,
}

struct Pattern {
    rule: usize,
    /// The rule's weight, beside what else is asked of every candidate.
    weight: Weight,
    guarded: Guarded,
}

#[derive(Clone, Copy)]
enum Meaning {
    Pattern(usize),
    Framework(usize),
}

/// The rules that name a fault, compiled at first use.
pub(crate) fn named() -> &'static RuleSet {
    static RULES: OnceLock<RuleSet> = OnceLock::new();
    RULES.get_or_init(|| RuleSet::new(TABLES))
}

/// The turns of phrase, for what no rule names; compiled when the first such text comes.
pub(crate) fn phrased() -> &'static RuleSet {
    static RULES: OnceLock<RuleSet> = OnceLock::new();
    RULES.get_or_init(|| RuleSet::new(&[phrasings::RULES]))
}

/// The subjects, for what no turn of phrase fits either.
pub(crate) fn about() -> &'static RuleSet {
    static RULES: OnceLock<RuleSet> = OnceLock::new();
    RULES.get_or_init(|| RuleSet::new(&[topics::RULES]))
}

impl RuleSet {
    #[cfg_attr(
        not(test),
        expect(clippy::expect_used, reason = "the rules are constants, which tests compile")
    )]
    fn new(tables: &[&'static [TextRule]]) -> Self {
        let mut rules = Vec::new();
        let mut patterns = Vec::new();
        let mut words = Words::default();
        let mut meant = Vec::new();
        for rule in tables.iter().copied().flatten() {
            for source in rule.any.iter().copied().flat_map(branches) {
                let guarded = Guarded::new(source, &mut words);
                let Some(rarest) = guarded.sets.first() else {
                    panic!("the pattern '{source}' has no word that it always needs");
                };
                meant.extend(rarest.iter().map(|&word| (word, Meaning::Pattern(patterns.len()))));
                patterns.push(Pattern { rule: rules.len(), weight: rule.weight, guarded });
            }
            let lazy =
                |sources: &'static [&'static str]| sources.iter().copied().map(Lazy::new).collect();
            let unless = rule.unless.iter().copied().flat_map(branches);
            rules.push(CompiledRule {
                rule,
                unless: unless.map(|source| Guarded::new(source, &mut words)).collect(),
                with: lazy(rule.with),
                without: lazy(rule.without),
            });
        }
        for (index, (_, marks)) in FRAMEWORKS.iter().enumerate() {
            for &mark in *marks {
                meant.push((words.id(mark.to_owned()), Meaning::Framework(index)));
            }
        }
        let mut meanings = vec![Vec::new(); words.texts.len()];
        for (word, meaning) in meant {
            meanings[word].push(meaning);
        }
        // A table of all transitions is several times as fast and as large: of the few words of the later stages it stays
        // within a processor's cache.
        let kind = match words.texts.len() {
            ..1000 => AhoCorasickKind::DFA,
            _ => AhoCorasickKind::ContiguousNFA,
        };
        let words = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::Standard)
            .kind(Some(kind))
            .build(words.texts)
            .expect("a few hundred short words fit an automaton");
        Self {
            rules,
            patterns,
            words,
            meanings,
            hedge: Lazy::new(HEDGES),
            disclaimer: Lazy::new(DISCLAIMERS),
        }
    }

    pub(crate) fn rule(&self, index: usize) -> &'static TextRule {
        self.rules[index].rule
    }

    /// The match that explains `text` best.
    pub(crate) fn search(&self, text: &str) -> Found {
        thread_local!(static HERE: RefCell<Here> = RefCell::default());
        HERE.with_borrow_mut(|here| self.search_with(here, text))
    }

    fn search_with(&self, here: &mut Here, text: &str) -> Found {
        here.make_room(self.meanings.len());
        let mut log = Log::new(text);
        let mut framework = usize::MAX;
        let mut best: Option<(Rank, Winner)> = None;
        let mut line = 0;
        let mut end = 0;
        for hit in self.words.find_overlapping_iter(text) {
            if hit.start() >= end {
                self.try_line(line, here, &mut log, &mut best);
                line = log.line_at(hit.start());
                let (start, content) = log.line(line);
                end = start + content.len();
            }
            let word = hit.pattern().as_usize();
            if !here.add(word, hit.start(), hit.end()) {
                continue;
            }
            for &meaning in &self.meanings[word] {
                match meaning {
                    Meaning::Framework(index) => framework = framework.min(index),
                    Meaning::Pattern(index) => here.patterns.push(index),
                }
            }
        }
        self.try_line(line, here, &mut log, &mut best);
        let weak = best.as_ref().is_some_and(|(rank, _)| rank.weight <= Rank::NOTICE);
        Found {
            best: best.and_then(|(_, winner)| self.locate(winner, &log)),
            weak,
            framework: FRAMEWORKS.get(framework).map(|(name, _)| *name),
        }
    }

    /// Where the winner's words are.
    fn locate(&self, winner: Winner, log: &Log<'_>) -> Option<Match> {
        let pattern = &self.patterns[winner.pattern];
        let (start, content) = log.line(winner.line);
        let part = &content.as_bytes()[..winner.to];
        let found = pattern.guarded.regex.get().find_at(part, winner.from)?;
        Some(Match { rule: pattern.rule, start: start + found.start(), end: start + found.end() })
    }

    /// Tries the patterns whose words are all in this line, and forgets the line. The heaviest
    /// of a line speaks for it.
    fn try_line(
        &self,
        line: usize,
        here: &mut Here,
        log: &mut Log<'_>,
        best: &mut Option<(Rank, Winner)>,
    ) {
        here.patterns.sort_by_key(|&index| Reverse(self.patterns[index].weight));
        let mut of_line: Option<(Rank, Winner)> = None;
        for &index in &here.patterns {
            let weight = self.patterns[index].weight;
            if of_line.as_ref().is_some_and(|(_, known)| self.weight_of(known) > weight) {
                break;
            }
            if self.patterns[index].guarded.possible(here) {
                let known = of_line.as_ref().or(best.as_ref());
                let found = self.try_pattern(index, line, here, log, known);
                let better = |(rank, _): &(Rank, Winner)| {
                    of_line.as_ref().is_none_or(|(known, _)| rank.beats(known))
                };
                if found.as_ref().is_some_and(better) {
                    of_line = found;
                }
            }
        }
        if let Some((rank, winner)) = of_line
            && best.as_ref().is_none_or(|(known, _)| rank.beats(known))
        {
            *best = Some((rank, winner));
        }
        here.clear();
    }

    fn weight_of(&self, winner: &Winner) -> Weight {
        self.patterns[winner.pattern].weight
    }

    /// The pattern's match, if it could be better than what is known.
    fn try_pattern(
        &self,
        index: usize,
        line: usize,
        here: &Here,
        log: &mut Log<'_>,
        known: Option<&(Rank, Winner)>,
    ) -> Option<(Rank, Winner)> {
        let pattern = &self.patterns[index];
        let compiled = &self.rules[pattern.rule];
        let rule = compiled.rule;
        if let Some((known, winner)) = known {
            // No match ends before its first word begins, and none is more than an error.
            let at = pattern.guarded.sets.first().map_or(0, |rarest| here.span(rarest).0);
            let rank = Rank::new(rule, false, log.is_last_error(line), at);
            let same_kind = self.rule(self.patterns[winner.pattern].rule).kind == rule.kind;
            if !rank.beats(known) || (same_kind && rank.as_strong_as(known)) {
                return None;
            }
        }
        let (start, content) = log.line(line);
        let bytes = content.as_bytes();
        let regex = pattern.guarded.regex.get();
        // Where a match ends is cheap to know; where it begins is asked when it matters.
        let (from, to) = pattern.guarded.window(here, start, bytes.len());
        let end = regex.shortest_match_at(&bytes[..to], from)?;
        let role = log.role(line);
        if role == Role::Frame && !rule.frames || role == Role::Remark && log.error_follows(line) {
            return None;
        }
        if compiled.unless.iter().any(|no| no.possible(here) && no.regex.is_match(bytes)) {
            return None;
        }
        if rule.weight <= Weight::Usual || rule.check.is_some() {
            let found = regex.find_at(&bytes[..to], from)?;
            let fits = |check: fn(&str) -> bool| check(&String::from_utf8_lossy(found.as_bytes()));
            if rule.weight <= Weight::Usual
                && (self.hedge.is_match(&bytes[..found.start()])
                    || self.disclaimer.is_match(&bytes[found.end()..]))
                || !rule.check.is_none_or(fits)
            {
                return None;
            }
        }
        let whole = log.text().as_bytes();
        if !compiled.with.is_empty() && !compiled.with.iter().any(|need| need.is_match(whole)) {
            return None;
        }
        if compiled.without.iter().any(|no| no.is_match(whole)) {
            return None;
        }
        let remark = role == Role::Remark;
        let rank = Rank::new(rule, remark, log.is_last_error(line), start + end);
        Some((rank, Winner { pattern: index, line, from, to }))
    }
}

/// The pattern that leads so far, its line, and the part of the line that its words are in.
#[derive(Clone, Copy)]
struct Winner {
    pattern: usize,
    line: usize,
    from: usize,
    to: usize,
}

/// What makes one match better than another.
#[derive(Clone, Copy)]
struct Rank {
    /// How much the match says, where it says it.
    weight: u8,
    /// On the last error line of the text.
    last_error: bool,
    /// Where the match ends.
    at: usize,
}

impl Rank {
    /// What a notice about something ordinary weighs.
    const NOTICE: u8 = 1;

    /// The last error of a log counts one step more, if it says anything definite: what was
    /// logged before it was survived, or led to it in other words. A remark counts less than
    /// any error; one about something ordinary counts least.
    fn new(rule: &TextRule, remark: bool, last_error: bool, at: usize) -> Self {
        let weight = match (remark, rule.weight) {
            (false, Weight::Overrides) => 8,
            (false, Weight::Names) => 7,
            (false, Weight::Usual) => 6,
            (true, _) if rule.kind == FaultKind::NotDeviceRelated => Self::NOTICE,
            (true, Weight::Overrides) => 5,
            (true, Weight::Names) => 4,
            (true, Weight::Usual) => 3,
            (false, Weight::Hints) => 2,
            (true, Weight::Hints) => 0,
        };
        let definite = rule.weight != Weight::Hints;
        Self { weight: weight + u8::from(last_error && definite), last_error, at }
    }

    fn key(&self) -> (u8, bool) {
        (self.weight, self.last_error)
    }

    fn beats(&self, other: &Self) -> bool {
        self.key() > other.key() || (self.as_strong_as(other) && self.at < other.at)
    }

    /// Whether only the place of the words is left to decide.
    fn as_strong_as(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_says_something_and_can_be_found() {
        let sets = [named(), phrased(), about()];
        assert!(sets[0].rules.len() > 60, "{}", sets[0].rules.len());
        for compiled in sets.iter().flat_map(|set| &set.rules) {
            assert!(!compiled.rule.any.is_empty());
            let unless = compiled.unless.iter().map(|guarded| &guarded.regex);
            let all = unless.chain(&compiled.with).chain(&compiled.without);
            all.for_each(|lazy| assert!(!lazy.get().as_str().is_empty()));
        }
        for pattern in sets.iter().flat_map(|set| &set.patterns) {
            let regex = &pattern.guarded.regex;
            assert!(!regex.get().is_match(b""), "'{}' matches nothing", regex.source);
        }
    }
}
