//! Expressions and the words they can't match without, so that one pass over a text tells which
//! of them are worth trying, and where.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::OnceLock;

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind};

/// An expression that can only match where a word of each set is in the line.
pub(super) struct Guarded {
    pub(super) regex: Lazy,
    pub(super) sets: Vec<Vec<usize>>,
    /// The longest that a match can be, if there is a limit.
    longest: Option<usize>,
}

impl Guarded {
    pub(super) fn new(source: &'static str, words: &mut Words) -> Self {
        let (sets, longest) = needed_words(source);
        let ids = |set: Vec<String>| set.into_iter().map(|word| words.id(word)).collect();
        let sets = sets.into_iter().map(ids).collect();
        Self { sets, regex: Lazy::new(source), longest }
    }

    /// The part of a line that a match must be in: not further from its rarest words than the
    /// longest match reaches, and one byte more, for word boundaries.
    pub(super) fn window(&self, here: &Here, start: usize, length: usize) -> (usize, usize) {
        let (Some(longest), Some(rarest)) = (self.longest, self.sets.first()) else {
            return (0, length);
        };
        let (first, last) = here.span(rarest);
        let from = (first - start).saturating_sub(longest + 1);
        (from, (last - start + longest + 1).min(length))
    }

    pub(super) fn possible(&self, here: &Here) -> bool {
        self.sets.iter().all(|set| here.has_any(set))
    }
}

/// The words of all patterns while they are gathered; a word's number is its place.
#[derive(Default)]
pub(super) struct Words {
    ids: HashMap<String, usize>,
    pub(super) texts: Vec<String>,
}

impl Words {
    pub(super) fn id(&mut self, word: String) -> usize {
        let next = self.texts.len();
        let id = *self.ids.entry(word.clone()).or_insert(next);
        if id == next {
            self.texts.push(word);
        }
        id
    }
}

/// What was found in the line that is being read.
#[derive(Default)]
pub(super) struct Here {
    /// One bit per word.
    words: Vec<u64>,
    /// Where each word that is here first begins and last ends, within the text.
    spans: Vec<(usize, usize)>,
    added: Vec<usize>,
    /// The patterns whose rarest words are here.
    pub(super) patterns: Vec<usize>,
}

impl Here {
    pub(super) fn make_room(&mut self, words: usize) {
        self.words.resize(words.div_ceil(64), 0);
        self.spans.resize(words, (0, 0));
    }

    /// Whether the word is new in this line.
    pub(super) fn add(&mut self, word: usize, start: usize, end: usize) -> bool {
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
    pub(super) fn span(&self, set: &[usize]) -> (usize, usize) {
        set.iter()
            .filter(|&&word| self.has(word))
            .map(|&word| self.spans[word])
            .fold((usize::MAX, 0), |all, one| (all.0.min(one.0), all.1.max(one.1)))
    }

    pub(super) fn clear(&mut self) {
        for word in self.added.drain(..) {
            self.words[word / 64] = 0;
        }
        self.patterns.clear();
    }
}

/// A regular expression that is compiled when it is first needed: a message touches few of them.
pub(super) struct Lazy {
    pub(super) source: &'static str,
    regex: OnceLock<Regex>,
}

impl Lazy {
    pub(super) fn new(source: &'static str) -> Self {
        Self { source, regex: OnceLock::new() }
    }

    pub(super) fn get(&self) -> &Regex {
        self.regex.get_or_init(|| regex(self.source))
    }

    pub(super) fn is_match(&self, bytes: &[u8]) -> bool {
        self.get().is_match(bytes)
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
pub(super) fn branches(source: &str) -> Vec<&str> {
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
}
