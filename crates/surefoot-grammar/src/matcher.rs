//! A constraint of a text, and where in it a sequence is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::GrammarError;
use crate::grammar::Grammar;
use crate::machine::{Machine, State};
use crate::vocabulary::Vocabulary;

/// The most masks that are kept for one constraint.
const KEPT_MASKS: usize = 256;

/// What a text has to satisfy, ready for the tokens of one model. Sequences share what was computed.
pub struct Constraint {
    vocabulary: Arc<Vocabulary>,
    shared: Mutex<Shared>,
}

struct Shared {
    machine: Machine,
    masks: HashMap<State, Arc<Mask>>,
}

/// The tokens that may come next.
struct Mask {
    allowed: Vec<u64>,
    /// The most bytes that a text may still need behind one of them, at the least.
    farthest: u32,
}

impl Mask {
    fn has(&self, id: usize) -> bool {
        self.allowed.get(id / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    pub(crate) fn new(grammar: Grammar, vocabulary: Arc<Vocabulary>) -> Result<Self, GrammarError> {
        let machine = Machine::new(grammar.checked(vocabulary.spellable())?)?;
        let shared = Mutex::new(Shared { machine, masks: HashMap::new() });
        Ok(Self { vocabulary, shared })
    }

    /// Whether it holds so much that a new one should be made instead of using it for further texts.
    pub fn is_worn(&self) -> bool {
        self.lock().machine.fullness() > 0.5
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // What is shared are results that are stored whole.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where in a constraint a text is.
#[derive(Clone, Debug)]
pub struct Matcher {
    constraint: Arc<Constraint>,
    state: State,
}

impl Matcher {
    /// The beginning of a text.
    pub fn new(constraint: Arc<Constraint>) -> Self {
        let state = constraint.lock().machine.start();
        Self { constraint, state }
    }

    /// Whether the text is complete.
    pub fn is_complete(&self) -> bool {
        self.constraint.lock().machine.accepts(self.state)
    }

    /// Whether the text is complete and nothing can come behind it.
    pub fn has_ended(&self) -> bool {
        let shared = self.constraint.lock();
        shared.machine.accepts(self.state) && !shared.machine.goes_on(self.state)
    }

    /// Sets the logits of tokens that can't come next to minus infinity. Tokens of `ends` can come
    /// where the text is complete. Tokens behind which `room` tokens, with this one, are too few to
    /// complete the text can't come either, if there are others. False if none is left because the text
    /// is complete.
    pub fn restrict(
        &self,
        logits: &mut [f32],
        ends: &[u32],
        room: usize,
    ) -> Result<bool, GrammarError> {
        let vocabulary = &self.constraint.vocabulary;
        let mut shared = self.constraint.lock();
        let mut mask = shared.mask(vocabulary, self.state)?;
        let room = u32::try_from(room).unwrap_or(u32::MAX).saturating_sub(1);
        let complete = shared.machine.accepts(self.state);
        if mask.farthest > room {
            let near = shared.computed(vocabulary, self.state, room)?;
            if complete || near.allowed.iter().any(|word| *word != 0) {
                mask = Arc::new(near);
            }
        }
        let mut any = false;
        for (id, logit) in logits.iter_mut().enumerate() {
            // A token that ends the text does nothing else, be it that it has a text.
            let is_end = ends.contains(&(id as u32));
            if if is_end { complete } else { mask.has(id) } {
                any = true;
            } else {
                *logit = f32::NEG_INFINITY;
            }
        }
        if any || complete { Ok(any) } else { Err(GrammarError::NoToken) }
    }

    /// Goes on behind a token; false if it can't come here.
    pub fn accept(&mut self, id: u32) -> Result<bool, GrammarError> {
        let mut shared = self.constraint.lock();
        let mut state = self.state;
        for &byte in self.constraint.vocabulary.bytes(id) {
            state = shared.machine.step(state, byte)?;
        }
        if state == State::DEAD || self.constraint.vocabulary.bytes(id).is_empty() {
            return Ok(false);
        }
        self.state = state;
        Ok(true)
    }
}

impl Shared {
    fn mask(&mut self, vocabulary: &Vocabulary, state: State) -> Result<Arc<Mask>, GrammarError> {
        if let Some(mask) = self.masks.get(&state) {
            return Ok(Arc::clone(mask));
        }
        let mask = Arc::new(self.computed(vocabulary, state, u32::MAX)?);
        if self.masks.len() >= KEPT_MASKS {
            self.masks.clear();
        }
        self.masks.insert(state, Arc::clone(&mask));
        Ok(mask)
    }

    /// The tokens behind which at most `room` bytes complete the text.
    fn computed(
        &mut self,
        vocabulary: &Vocabulary,
        state: State,
        room: u32,
    ) -> Result<Mask, GrammarError> {
        let machine = &mut self.machine;
        let mut reached = Vec::new();
        vocabulary.walk(
            state,
            |state, byte| {
                let next = machine.step(state, byte)?;
                Ok((next != State::DEAD).then_some(next))
            },
            |id, state| reached.push((id, state)),
        )?;
        let mut mask = Mask { allowed: vec![0; vocabulary.size().div_ceil(64)], farthest: 0 };
        for (id, state) in reached {
            let least = machine.least(state);
            if least <= room {
                mask.farthest = mask.farthest.max(least);
                mask.allowed[id as usize / 64] |= 1 << (id % 64);
            }
        }
        Ok(mask)
    }
}
