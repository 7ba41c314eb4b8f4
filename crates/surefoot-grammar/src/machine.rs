//! What a text may go on with, byte by byte.
//!
//! A [`Machine`] runs a checked grammar without choosing between its alternatives: a state is the set of
//! all places in the grammar that the bytes so far can have led to. A place is a terminal, the state of
//! its regular expression, and the continuation: what of the grammar comes behind it. Continuations and
//! states have numbers, equal ones the same, and the step from a state by a byte is computed once.
//!
//! Invariant: from each place of a state the text can be completed, since grammars are checked and
//! the regular expressions have no dead ends. So a state without places that does not accept is the dead
//! one, number 0.

use std::collections::{HashMap, HashSet, VecDeque};

use derivre::{NextByte, Regex, StateID};

use crate::error::GrammarError;
use crate::grammar::{Checked, Symbol};

/// The most states of one grammar.
const MAX_STATES: usize = 60_000;
/// The most places of a state.
const MAX_PLACES: usize = 10_000;
/// The most states of a regular expression that are looked at to find its shortest end.
const MAX_SEARCH: usize = 5_000;

const UNKNOWN: u32 = u32::MAX;
/// Nothing comes behind: the text is complete.
const END: u32 = 0;

/// The number of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State(u32);

impl State {
    pub(crate) const DEAD: Self = Self(0);
}

/// From `dot` on in an alternative, then `parent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Continuation {
    alternative: u32,
    dot: u32,
    parent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    terminal: u32,
    at: StateID,
    behind: u32,
}

struct Known {
    places: Box<[Place]>,
    accepts: bool,
    /// The state behind each class of bytes.
    next: Option<Box<[u32]>>,
    /// The fewest bytes that complete the text.
    least: Option<u32>,
}

pub(crate) struct Machine {
    terminals: Vec<Regex>,
    alternatives: Vec<Vec<Symbol>>,
    /// The alternatives of each rule.
    rules: Vec<Vec<u32>>,
    /// The fewest bytes of each rule and terminal.
    rule_least: Vec<u32>,
    terminal_least: Vec<u32>,
    continuations: Vec<(Continuation, u32)>,
    continuation_numbers: HashMap<Continuation, u32>,
    states: Vec<Known>,
    state_numbers: HashMap<(Box<[Place]>, bool), u32>,
    classes: Box<[u8; 256]>,
    class_count: usize,
    ends: HashMap<(u32, StateID), u32>,
    start: State,
}

impl Machine {
    pub(crate) fn new(grammar: Checked) -> Result<Self, GrammarError> {
        let mut alternatives = Vec::new();
        let mut rules = Vec::with_capacity(grammar.rules.len());
        for rule in grammar.rules {
            let mut numbers = Vec::with_capacity(rule.len());
            for symbols in rule {
                numbers.push(alternatives.len() as u32);
                alternatives.push(symbols);
            }
            rules.push(numbers);
        }
        let (classes, class_count) = classes(&grammar.terminals);
        let dead = Known { places: Box::new([]), accepts: false, next: None, least: None };
        let end = Continuation { alternative: u32::MAX, dot: 0, parent: 0 };
        let mut machine = Self {
            terminals: grammar.terminals,
            alternatives,
            rules,
            rule_least: Vec::new(),
            terminal_least: Vec::new(),
            continuations: vec![(end, 0)],
            continuation_numbers: HashMap::new(),
            states: vec![dead],
            state_numbers: HashMap::new(),
            classes,
            class_count,
            ends: HashMap::new(),
            start: State::DEAD,
        };
        machine.measure();
        let mut places = Places::default();
        for at in 0..machine.rules[0].len() {
            let alternative = machine.rules[0][at];
            let behind = machine.continuation(alternative, 0, END);
            machine.enter(behind, &mut places)?;
        }
        machine.start = machine.state(places)?;
        Ok(machine)
    }

    pub(crate) fn start(&self) -> State {
        self.start
    }

    /// How full the machine is, from 0 to 1: a full one takes no further states.
    pub(crate) fn fullness(&self) -> f64 {
        self.states.len() as f64 / MAX_STATES as f64
    }

    /// Whether the text may end here.
    pub(crate) fn accepts(&self, state: State) -> bool {
        self.states[state.0 as usize].accepts
    }

    /// Whether the text may go on.
    pub(crate) fn goes_on(&self, state: State) -> bool {
        !self.states[state.0 as usize].places.is_empty()
    }

    /// The state behind a byte.
    pub(crate) fn step(&mut self, state: State, byte: u8) -> Result<State, GrammarError> {
        let class = usize::from(self.classes[usize::from(byte)]);
        let known = &self.states[state.0 as usize];
        if let Some(next) = &known.next
            && next[class] != UNKNOWN
        {
            return Ok(State(next[class]));
        }
        let mut places = Places::default();
        for at in 0..self.states[state.0 as usize].places.len() {
            let place = self.states[state.0 as usize].places[at];
            let regex = &mut self.terminals[place.terminal as usize];
            let next = regex.transition(place.at, byte);
            if next.is_dead() {
                continue;
            }
            let accepts = regex.is_accepting(next);
            if !accepts || regex.next_byte(next) != NextByte::ForcedEOI {
                places.add(Place { at: next, ..place })?;
            }
            if accepts {
                self.enter(place.behind, &mut places)?;
            }
        }
        let next = self.state(places)?;
        let count = self.class_count;
        let table = &mut self.states[state.0 as usize].next;
        table.get_or_insert_with(|| vec![UNKNOWN; count].into_boxed_slice())[class] = next.0;
        Ok(next)
    }

    /// Adds all places where `behind` can begin.
    fn enter(&mut self, behind: u32, places: &mut Places) -> Result<(), GrammarError> {
        let mut waiting = vec![behind];
        while let Some(behind) = waiting.pop() {
            if !places.entered.insert(behind) {
                continue;
            }
            if behind == END {
                places.accepts = true;
                continue;
            }
            let (Continuation { alternative, dot, parent }, _) =
                self.continuations[behind as usize];
            let rest = self.continuation(alternative, dot + 1, parent);
            match self.alternatives[alternative as usize][dot as usize] {
                Symbol::Terminal(id) => {
                    let regex = &mut self.terminals[id];
                    let at = regex.initial_state();
                    let accepts = regex.is_accepting(at);
                    if !accepts || regex.next_byte(at) != NextByte::ForcedEOI {
                        places.add(Place { terminal: id as u32, at, behind: rest })?;
                    }
                    if accepts {
                        waiting.push(rest);
                    }
                }
                Symbol::Rule(id) => {
                    for at in 0..self.rules[id].len() {
                        let alternative = self.rules[id][at];
                        waiting.push(self.continuation(alternative, 0, rest));
                    }
                }
            }
        }
        Ok(())
    }

    /// The number of a continuation. At the end of an alternative it is the one behind it.
    fn continuation(&mut self, alternative: u32, dot: u32, parent: u32) -> u32 {
        let symbols = &self.alternatives[alternative as usize];
        if dot as usize >= symbols.len() {
            return parent;
        }
        let new = Continuation { alternative, dot, parent };
        if let Some(&known) = self.continuation_numbers.get(&new) {
            return known;
        }
        let own = symbols[dot as usize..].iter().fold(0_u32, |sum, symbol| {
            sum.saturating_add(match *symbol {
                Symbol::Terminal(id) => self.terminal_least[id],
                Symbol::Rule(id) => self.rule_least[id],
            })
        });
        let least = own.saturating_add(self.continuations[parent as usize].1);
        let number = self.continuations.len() as u32;
        self.continuations.push((new, least));
        self.continuation_numbers.insert(new, number);
        number
    }

    /// The number of a state.
    fn state(&mut self, places: Places) -> Result<State, GrammarError> {
        let Places { mut list, accepts, .. } = places;
        if list.is_empty() && !accepts {
            return Ok(State::DEAD);
        }
        list.sort_unstable_by_key(|place| (place.terminal, place.at.as_u32(), place.behind));
        let key = (list.into_boxed_slice(), accepts);
        if let Some(&known) = self.state_numbers.get(&key) {
            return Ok(State(known));
        }
        if self.states.len() >= MAX_STATES {
            let problem = format!("texts that satisfy it have more than {MAX_STATES} states");
            return Err(GrammarError::TooLarge(problem));
        }
        let number = self.states.len() as u32;
        self.states.push(Known { places: key.0.clone(), accepts, next: None, least: None });
        self.state_numbers.insert(key, number);
        Ok(State(number))
    }

    /// The fewest bytes that complete a text; more than there are if that is not known.
    pub(crate) fn least(&mut self, state: State) -> u32 {
        let known = &self.states[state.0 as usize];
        if let Some(least) = known.least {
            return least;
        }
        let least = if known.accepts {
            0
        } else {
            let places = known.places.clone();
            let all = places.iter().map(|place| {
                let own = self.shortest(place.terminal, place.at);
                own.saturating_add(self.continuations[place.behind as usize].1)
            });
            all.min().unwrap_or(u32::MAX)
        };
        self.states[state.0 as usize].least = Some(least);
        least
    }

    /// The fewest bytes with which a terminal ends.
    fn shortest(&mut self, terminal: u32, at: StateID) -> u32 {
        if let Some(&known) = self.ends.get(&(terminal, at)) {
            return known;
        }
        let representatives = representatives(&self.terminals[terminal as usize]);
        let mut from: HashMap<StateID, (StateID, u32)> = HashMap::from([(at, (at, 0))]);
        let mut waiting = VecDeque::from([at]);
        // The nearest end so far: the last state on the way to it, and how far the end is from there.
        let mut best: Option<(StateID, u32, u32)> = None;
        while let Some(state) = waiting.pop_front() {
            let depth = from[&state].1;
            if best.is_some_and(|(.., total)| total <= depth) || from.len() > MAX_SEARCH {
                break;
            }
            let known = self.ends.get(&(terminal, state)).copied();
            let regex = &mut self.terminals[terminal as usize];
            if let Some(rest) = if regex.is_accepting(state) { Some(0) } else { known } {
                let total = depth.saturating_add(rest);
                if best.is_none_or(|(.., least)| total < least) {
                    best = Some((state, rest, total));
                }
                continue;
            }
            for &byte in &representatives {
                let next = regex.transition(state, byte);
                if !next.is_dead() && !from.contains_key(&next) {
                    from.insert(next, (state, depth + 1));
                    waiting.push_back(next);
                }
            }
        }
        let Some((mut state, mut rest, _)) = best.filter(|(.., total)| *total < u32::MAX) else {
            self.ends.insert((terminal, at), u32::MAX);
            return u32::MAX;
        };
        loop {
            self.ends.insert((terminal, state), rest);
            if state == at {
                return rest;
            }
            state = from[&state].0;
            rest += 1;
        }
    }

    /// The fewest bytes of terminals and rules.
    fn measure(&mut self) {
        for terminal in 0..self.terminals.len() {
            let at = self.terminals[terminal].initial_state();
            let least = if at.is_dead() { u32::MAX } else { self.shortest(terminal as u32, at) };
            self.terminal_least.push(least);
        }
        let mut least = vec![u32::MAX; self.rules.len()];
        loop {
            let mut changed = false;
            for (rule, numbers) in self.rules.iter().enumerate() {
                let shortest = numbers.iter().map(|&number| {
                    let symbols = &self.alternatives[number as usize];
                    symbols.iter().fold(0_u32, |sum, symbol| {
                        sum.saturating_add(match *symbol {
                            Symbol::Terminal(id) => self.terminal_least[id],
                            Symbol::Rule(id) => least[id],
                        })
                    })
                });
                let shortest = shortest.min().unwrap_or(u32::MAX);
                if shortest < least[rule] {
                    least[rule] = shortest;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        self.rule_least = least;
    }
}

/// The places of a state that is being computed.
#[derive(Default)]
struct Places {
    list: Vec<Place>,
    known: HashSet<Place>,
    entered: HashSet<u32>,
    accepts: bool,
}

impl Places {
    fn add(&mut self, place: Place) -> Result<(), GrammarError> {
        if self.known.insert(place) {
            if self.list.len() >= MAX_PLACES {
                let problem = format!("a text can be read in more than {MAX_PLACES} ways");
                return Err(GrammarError::TooLarge(problem));
            }
            self.list.push(place);
        }
        Ok(())
    }
}

/// Classes of bytes that no terminal tells apart.
fn classes(terminals: &[Regex]) -> (Box<[u8; 256]>, usize) {
    let mut classes = Box::new([0; 256]);
    let mut known: HashMap<Vec<usize>, u8> = HashMap::new();
    for byte in 0..=255_u8 {
        let kind: Vec<usize> = terminals.iter().map(|regex| regex.alpha().map(byte)).collect();
        let next = known.len() as u8;
        classes[usize::from(byte)] = *known.entry(kind).or_insert(next);
    }
    (classes, known.len())
}

/// One byte of each class that a regular expression tells apart.
fn representatives(regex: &Regex) -> Vec<u8> {
    let mut seen = HashSet::new();
    (0..=255_u8).filter(|byte| seen.insert(regex.alpha().map(*byte))).collect()
}
