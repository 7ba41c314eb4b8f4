//! Turns the tables into one searcher: a single pass over the text finds the words that patterns
//! need, and only patterns whose words are in a line are tried on that line.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind};

use super::lines::{Log, Role};
use super::{DISCLAIMERS, FRAMEWORKS, HEDGES, Rule, TABLES, Weight};

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
    pub(crate) framework: Option<&'static str>,
}

/// All rules, compiled.
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
    rule: &'static Rule,
    unless: Vec<Guarded>,
    with: Vec<Lazy>,
    without: Vec<Lazy>,
}

struct Pattern {
    rule: usize,
    guarded: Guarded,
}

/// An expression that can only match where a word of each set is in the line.
struct Guarded {
    regex: Lazy,
    sets: Vec<Vec<usize>>,
    /// The longest that a match can be, if there is a limit.
    longest: Option<usize>,
}

impl Guarded {
    fn new(source: &'static str, words: &mut Words) -> Self {
        let (sets, longest) = needed_words(source);
        let ids = |set: Vec<String>| set.into_iter().map(|word| words.id(word)).collect();
        let sets = sets.into_iter().map(ids).collect();
        Self { sets, regex: Lazy::new(source), longest }
    }

    /// The part of a line that a match must be in: not further from its rarest words than the
    /// longest match reaches, and one byte more, for word boundaries.
    fn window(&self, here: &Here, start: usize, length: usize) -> (usize, usize) {
        let (Some(longest), Some(rarest)) = (self.longest, self.sets.first()) else {
            return (0, length);
        };
        let (first, last) = here.span(rarest);
        let from = (first - start).saturating_sub(longest + 1);
        (from, (last - start + longest + 1).min(length))
    }

    fn possible(&self, here: &Here) -> bool {
        self.sets.iter().all(|set| here.has_any(set))
    }
}

/// The words of all patterns while they are gathered; a word's number is its place.
#[derive(Default)]
struct Words {
    ids: HashMap<String, usize>,
    texts: Vec<String>,
    meanings: Vec<Vec<Meaning>>,
}

impl Words {
    fn id(&mut self, word: String) -> usize {
        let next = self.texts.len();
        let id = *self.ids.entry(word.clone()).or_insert(next);
        if id == next {
            self.texts.push(word);
            self.meanings.push(Vec::new());
        }
        id
    }
}

/// What was found in the line that is being read.
#[derive(Default)]
struct Here {
    /// One bit per word.
    words: Vec<u64>,
    /// Where each word that is here first begins and last ends, within the text.
    spans: Vec<(usize, usize)>,
    added: Vec<usize>,
    patterns: Vec<usize>,
}

impl Here {
    fn make_room(&mut self, words: usize) {
        self.words.resize(words.div_ceil(64), 0);
        self.spans.resize(words, (0, 0));
    }

    /// Whether the word is new in this line.
    fn add(&mut self, word: usize, start: usize, end: usize) -> bool {
        let new = !self.has(word);
        if new {
            self.words[word / 64] |= 1 << (word % 64);
            self.spans[word] = (start, end);
            self.added.push(word);
        } else {
            self.spans[word].1 = end;
        }
        new
    }

    fn has(&self, word: usize) -> bool {
        self.words[word / 64] & (1 << (word % 64)) != 0
    }

    fn has_any(&self, set: &[usize]) -> bool {
        set.iter().any(|&word| self.has(word))
    }

    /// From the first to the last of these words.
    fn span(&self, set: &[usize]) -> (usize, usize) {
        set.iter()
            .filter(|&&word| self.has(word))
            .map(|&word| self.spans[word])
            .fold((usize::MAX, 0), |all, one| (all.0.min(one.0), all.1.max(one.1)))
    }

    fn clear(&mut self) {
        for word in self.added.drain(..) {
            self.words[word / 64] = 0;
        }
        self.patterns.clear();
    }
}

/// A regular expression that is compiled when it is first needed: a message touches few of them.
struct Lazy {
    source: &'static str,
    regex: OnceLock<Regex>,
}

impl Lazy {
    fn new(source: &'static str) -> Self {
        Self { source, regex: OnceLock::new() }
    }

    fn get(&self) -> &Regex {
        self.regex.get_or_init(|| regex(self.source))
    }

    fn is_match(&self, bytes: &[u8]) -> bool {
        self.get().is_match(bytes)
    }
}

#[derive(Clone, Copy)]
enum Meaning {
    Pattern(usize),
    Framework(usize),
}

/// The rule set, compiled at first use.
pub(crate) fn compiled() -> &'static RuleSet {
    static RULES: OnceLock<RuleSet> = OnceLock::new();
    RULES.get_or_init(RuleSet::new)
}

impl RuleSet {
    fn new() -> Self {
        let mut rules = Vec::new();
        let mut patterns = Vec::new();
        let mut words = Words::default();
        for rule in TABLES.iter().copied().flatten() {
            for source in rule.any.iter().copied().flat_map(branches) {
                let guarded = Guarded::new(source, &mut words);
                let Some(rarest) = guarded.sets.first() else {
                    panic!("the pattern '{source}' has no word that it always needs");
                };
                for &word in rarest {
                    words.meanings[word].push(Meaning::Pattern(patterns.len()));
                }
                patterns.push(Pattern { rule: rules.len(), guarded });
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
                let word = words.id(mark.to_owned());
                words.meanings[word].push(Meaning::Framework(index));
            }
        }
        let Words { texts, meanings, .. } = words;
        let words = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::Standard)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts)
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

    pub(crate) fn rule(&self, index: usize) -> &'static Rule {
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
        Found {
            best: best.and_then(|(_, winner)| self.locate(winner, &log)),
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

    /// Tries the patterns whose words are all in this line, and forgets the line.
    fn try_line(
        &self,
        line: usize,
        here: &mut Here,
        log: &mut Log<'_>,
        best: &mut Option<(Rank, Winner)>,
    ) {
        // Heaviest first, so that most of the lighter ones needn't be tried.
        let weight = |&index: &usize| Reverse(self.rules[self.patterns[index].rule].rule.weight);
        here.patterns.sort_by_key(weight);
        for &index in &here.patterns {
            if self.patterns[index].guarded.possible(here) {
                self.try_pattern(index, line, here, log, best);
            }
        }
        here.clear();
    }

    fn try_pattern(
        &self,
        index: usize,
        line: usize,
        here: &Here,
        log: &mut Log<'_>,
        best: &mut Option<(Rank, Winner)>,
    ) {
        let pattern = &self.patterns[index];
        let compiled = &self.rules[pattern.rule];
        let rule = compiled.rule;
        if let Some((known, winner)) = best {
            // No match ends before its first word begins.
            let at = pattern.guarded.sets.first().map_or(0, |rarest| here.span(rarest).0);
            let rank = Rank { weight: rule.weight, last_error: log.is_last_error(line), at };
            let same_kind = self.rule(self.patterns[winner.pattern].rule).kind == rule.kind;
            if !rank.beats(known) || (same_kind && rank.as_strong_as(known)) {
                return;
            }
        }
        let (start, content) = log.line(line);
        let bytes = content.as_bytes();
        let regex = pattern.guarded.regex.get();
        // Where a match ends is cheap to know; where it begins is asked when it matters.
        let (from, to) = pattern.guarded.window(here, start, bytes.len());
        let Some(end) = regex.shortest_match_at(&bytes[..to], from) else { return };
        let role = log.role(line);
        if role == Role::Frame && !rule.frames {
            return;
        }
        if role == Role::Remark && log.error_follows(line) {
            return;
        }
        if compiled.unless.iter().any(|no| no.possible(here) && no.regex.is_match(bytes)) {
            return;
        }
        if rule.weight <= Weight::Usual || rule.check.is_some() {
            let Some(found) = regex.find_at(&bytes[..to], from) else { return };
            let fits = |check: fn(&str) -> bool| check(&String::from_utf8_lossy(found.as_bytes()));
            if rule.weight <= Weight::Usual
                && (self.hedge.is_match(&bytes[..found.start()])
                    || self.disclaimer.is_match(&bytes[found.end()..]))
                || !rule.check.is_none_or(fits)
            {
                return;
            }
        }
        let whole = log.text().as_bytes();
        if !compiled.with.is_empty() && !compiled.with.iter().any(|need| need.is_match(whole)) {
            return;
        }
        if compiled.without.iter().any(|no| no.is_match(whole)) {
            return;
        }
        let rank =
            Rank { weight: rule.weight, last_error: log.is_last_error(line), at: start + end };
        if best.as_ref().is_none_or(|(known, _)| rank.beats(known)) {
            *best = Some((rank, Winner { pattern: index, line, from, to }));
        }
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
    weight: Weight,
    /// On the last error line of the text.
    last_error: bool,
    /// Where the match ends.
    at: usize,
}

impl Rank {
    /// The last error of a log counts one step more, if it says anything definite: what was
    /// logged before it was survived, or led to it in other words.
    fn weight(&self) -> u8 {
        let weight = match self.weight {
            Weight::Hints => 0,
            Weight::Usual => 2,
            Weight::Names => 3,
            Weight::Overrides => 4,
        };
        if self.last_error && weight > 0 { weight + 1 } else { weight }
    }

    fn key(&self) -> (u8, bool) {
        (self.weight(), self.last_error)
    }

    fn beats(&self, other: &Self) -> bool {
        self.key() > other.key() || (self.as_strong_as(other) && self.at < other.at)
    }

    /// Whether only the place of the words is left to decide.
    fn as_strong_as(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

fn regex(source: &str) -> Regex {
    RegexBuilder::new(source)
        .case_insensitive(true)
        .unicode(false)
        .build()
        .unwrap_or_else(|error| panic!("a rule's pattern is wrong: {error}"))
}

/// The alternatives of a pattern, so that each is only tried where its own words are.
fn branches(source: &str) -> Vec<&str> {
    let bytes = source.as_bytes();
    let (mut depth, mut class, mut from, mut at) = (0, false, 0, 0);
    let mut found = Vec::new();
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b']' => class = false,
            _ if class => {}
            b'[' => class = true,
            b'(' => depth += 1,
            b')' => depth -= 1,
            b'|' if depth == 0 => {
                found.push(&source[from..at]);
                from = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    found.push(&source[from..]);
    found
}

/// Sets of words: every text that `source` matches has at least one word of each. The set that
/// is least likely to occur by chance comes first.
///
/// With them comes the length of the longest match, if there is a limit.
fn needed_words(source: &str) -> (Vec<Vec<String>>, Option<usize>) {
    let hir = regex_syntax::ParserBuilder::new()
        .unicode(false)
        .utf8(false)
        .build()
        .parse(source)
        .unwrap_or_else(|error| panic!("a rule's pattern is wrong: {error}"));
    let mut sets = required(&hir);
    sets.sort_by_key(|set| Reverse(rarity(set)));
    (sets, hir.properties().maximum_len())
}

/// How unlikely it is that a line has one of these words: long and few is rare.
fn rarity(set: &[String]) -> usize {
    const COMMON: &[&str] = &[
        "error", "device", "memory", "tensor", "failed", " error", "cuda", "not ", " not ",
        "is not ",
    ];
    let shortest = set.iter().map(String::len).min().unwrap_or(0);
    let common = set.iter().any(|word| COMMON.contains(&word.as_str()));
    (shortest * 4).saturating_sub(set.len()) / if common { 3 } else { 1 }
}

/// The sets of literals that `hir` can't match without.
fn required(hir: &Hir) -> Vec<Vec<String>> {
    const SHORTEST: usize = 3;
    // Ten letters tell enough, and keep the automaton within a processor's cache.
    const LONGEST: usize = 10;
    match hir.kind() {
        HirKind::Literal(literal) => match String::from_utf8(literal.0.to_vec()) {
            Ok(text) if text.len() >= SHORTEST => {
                let end = text.len() - text.len().saturating_sub(LONGEST);
                vec![vec![text[..end].to_ascii_lowercase()]]
            }
            _ => Vec::new(),
        },
        HirKind::Capture(group) => required(&group.sub),
        HirKind::Repetition(repeat) if repeat.min > 0 => required(&repeat.sub),
        HirKind::Concat(parts) => parts.iter().flat_map(required).collect(),
        HirKind::Alternation(parts) => {
            let best = |part| required(part).into_iter().max_by_key(|set| rarity(set));
            let sets: Option<Vec<_>> = parts.iter().map(best).collect();
            sets.map(|sets| vec![sets.concat()]).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_words_are_the_longest_that_every_match_has() {
        let needed_words = |source| needed_words(source).0;
        assert_eq!(needed_words(r"\bcuda out of memory\b"), [["cuda out o"]]);
        let sets = needed_words(r"unable to (allocate|map) \d+ bytes");
        assert_eq!(sets, [vec!["unable to "], vec![" bytes"], vec!["allocate", "map"]]);
        assert_eq!(needed_words(r"(Foo|barrel)+!"), [["foo", "barrel"]]);
        assert_eq!(needed_words(r"(optional )?needed"), [["needed"]]);
    }

    #[test]
    fn a_pattern_is_split_at_its_outer_alternatives_only() {
        assert_eq!(branches(r"a(b|c)|[|]d\||e"), [r"a(b|c)", r"[|]d\|", "e"]);
    }

    #[test]
    fn every_rule_says_something_and_can_be_found() {
        let set = compiled();
        assert!(set.rules.len() > 60, "{}", set.rules.len());
        for compiled in &set.rules {
            assert!(!compiled.rule.any.is_empty());
            let unless = compiled.unless.iter().map(|guarded| &guarded.regex);
            let all = unless.chain(&compiled.with).chain(&compiled.without);
            all.for_each(|lazy| assert!(!lazy.get().as_str().is_empty()));
        }
        for pattern in &set.patterns {
            let regex = &pattern.guarded.regex;
            assert!(!regex.get().is_match(b""), "'{}' matches nothing", regex.source);
        }
    }
}
