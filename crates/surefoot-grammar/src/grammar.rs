//! Context-free grammars over bytes, whose terminals are regular expressions.
//!
//! [`Grammar`] is what schemas, regular expressions and notations are translated to. [`Grammar::checked`]
//! removes what no text satisfies and refuses rules that begin with themselves, so that
//! [`Machine`](crate::machine::Machine) ends for every input and never gets into a dead end.

use std::collections::HashMap;

use derivre::{Regex, RegexAst, RegexBuilder};

use crate::error::GrammarError;

/// The most rules and alternatives of one grammar.
const MAX_PARTS: usize = 50_000;
/// The most work for the check whether a terminal matches anything.
const FUEL: u64 = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Symbol {
    Terminal(usize),
    Rule(usize),
}

#[derive(Debug)]
struct Rule {
    name: String,
    alternatives: Vec<Vec<Symbol>>,
}

/// Rules, of which the first is the start.
#[derive(Debug, Default)]
pub(crate) struct Grammar {
    rules: Vec<Rule>,
    terminals: Vec<RegexAst>,
    literals: HashMap<String, usize>,
    parts: usize,
}

/// A grammar that was checked.
pub(crate) struct Checked {
    /// The alternatives of each rule; the first rule is the start.
    pub(crate) rules: Vec<Vec<Vec<Symbol>>>,
    pub(crate) terminals: Vec<Regex>,
}

impl Grammar {
    /// A new rule without alternatives.
    pub(crate) fn rule(&mut self, name: &str) -> usize {
        self.rules.push(Rule { name: name.to_owned(), alternatives: Vec::new() });
        self.parts += 1;
        self.rules.len() - 1
    }

    /// One more alternative of a rule.
    pub(crate) fn add(&mut self, rule: usize, symbols: Vec<Symbol>) -> Result<(), GrammarError> {
        self.parts += 1 + symbols.len();
        if self.parts > MAX_PARTS {
            return Err(GrammarError::TooLarge(format!("it has more than {MAX_PARTS} parts")));
        }
        self.rules[rule].alternatives.push(symbols);
        Ok(())
    }

    pub(crate) fn terminal(&mut self, regex: RegexAst) -> Symbol {
        self.terminals.push(regex);
        Symbol::Terminal(self.terminals.len() - 1)
    }

    pub(crate) fn literal(&mut self, text: &str) -> Symbol {
        if let Some(&known) = self.literals.get(text) {
            return Symbol::Terminal(known);
        }
        let symbol = self.terminal(RegexAst::Literal(text.to_owned()));
        self.literals.insert(text.to_owned(), self.terminals.len() - 1);
        symbol
    }

    /// Compiles the terminals, of which only texts of the bytes `spellable` count, removes what can't
    /// be satisfied, and checks the rest.
    pub(crate) fn checked(self, spellable: &[bool; 256]) -> Result<Checked, GrammarError> {
        let mut terminals = Vec::with_capacity(self.terminals.len());
        let mut productive_terminals = Vec::with_capacity(self.terminals.len());
        for terminal in self.terminals {
            let mut regex = compiled(terminal, spellable)?;
            productive_terminals.push(!regex.always_empty());
            terminals.push(regex);
        }
        let nullable_terminals: Vec<bool> = terminals
            .iter_mut()
            .map(|regex| {
                let state = regex.initial_state();
                regex.is_accepting(state)
            })
            .collect();
        let names: Vec<String> = self.rules.iter().map(|rule| rule.name.clone()).collect();
        let mut rules: Vec<Vec<Vec<Symbol>>> =
            self.rules.into_iter().map(|rule| rule.alternatives).collect();
        let productive = satisfied(&rules, |symbol, known| match symbol {
            Symbol::Terminal(id) => productive_terminals[id],
            Symbol::Rule(id) => known[id],
        });
        if !productive.first().copied().unwrap_or(false) {
            return Err(GrammarError::Unsatisfiable);
        }
        for alternatives in &mut rules {
            alternatives.retain(|symbols| {
                symbols.iter().all(|symbol| match *symbol {
                    Symbol::Terminal(id) => productive_terminals[id],
                    Symbol::Rule(id) => productive[id],
                })
            });
        }
        let nullable = satisfied(&rules, |symbol, known| match symbol {
            Symbol::Terminal(id) => nullable_terminals[id],
            Symbol::Rule(id) => known[id],
        });
        let is_nullable = |symbol: Symbol| match symbol {
            Symbol::Terminal(id) => nullable_terminals[id],
            Symbol::Rule(id) => nullable[id],
        };
        if let Some(rule) = left_recursive(&rules, is_nullable) {
            return Err(GrammarError::LeftRecursion(names[rule].clone()));
        }
        Ok(Checked { rules, terminals })
    }
}

fn compiled(terminal: RegexAst, spellable: &[bool; 256]) -> Result<Regex, GrammarError> {
    let terminal = if spellable.iter().all(|can| *can) {
        terminal
    } else {
        let mut set = vec![0_u32; 8];
        for (byte, _) in spellable.iter().enumerate().filter(|(_, can)| **can) {
            set[byte / 32] |= 1 << (byte % 32);
        }
        let any = RegexAst::Repeat(Box::new(RegexAst::ByteSet(set)), 0, u32::MAX);
        RegexAst::And(vec![terminal, any])
    };
    let mut builder = RegexBuilder::new();
    let expression =
        builder.mk(&terminal).map_err(|error| GrammarError::Regex(error.to_string()))?;
    builder
        .into_regex_limited(expression, FUEL)
        .map_err(|error| GrammarError::TooLarge(error.to_string()))
}

/// For which rules one alternative has only symbols that are satisfied, to the fixed point.
fn satisfied(rules: &[Vec<Vec<Symbol>>], satisfies: impl Fn(Symbol, &[bool]) -> bool) -> Vec<bool> {
    let mut known = vec![false; rules.len()];
    loop {
        let mut changed = false;
        for (id, alternatives) in rules.iter().enumerate() {
            let now = !known[id]
                && alternatives
                    .iter()
                    .any(|symbols| symbols.iter().all(|&symbol| satisfies(symbol, &known)));
            if now {
                known[id] = true;
                changed = true;
            }
        }
        if !changed {
            return known;
        }
    }
}

/// A rule that can begin with itself.
fn left_recursive(
    rules: &[Vec<Vec<Symbol>>],
    is_nullable: impl Fn(Symbol) -> bool,
) -> Option<usize> {
    let firsts: Vec<Vec<usize>> = rules
        .iter()
        .map(|alternatives| {
            let mut firsts = Vec::new();
            for symbols in alternatives {
                for &symbol in symbols {
                    if let Symbol::Rule(id) = symbol {
                        firsts.push(id);
                    }
                    if !is_nullable(symbol) {
                        break;
                    }
                }
            }
            firsts
        })
        .collect();
    // Depth first: a rule that is met again on the way to itself is in a circle.
    let mut done = vec![false; rules.len()];
    let mut on_way = vec![false; rules.len()];
    for start in 0..rules.len() {
        let mut way = vec![(start, 0)];
        while let Some((rule, next)) = way.pop() {
            if next == 0 {
                if done[rule] {
                    continue;
                }
                on_way[rule] = true;
            }
            match firsts[rule].get(next) {
                Some(&first) if on_way[first] => return Some(first),
                Some(&first) => {
                    way.push((rule, next + 1));
                    way.push((first, 0));
                }
                None => {
                    on_way[rule] = false;
                    done[rule] = true;
                }
            }
        }
    }
    None
}
