//! The names and object states at one point of the walk.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::value::{ObjectId, State, Value};

/// A scope with more names than this is a table, not a program; further names are not followed,
/// so that branches in it stay cheap to copy.
const MOST_NAMES: usize = 1024;

/// Names and states at one point, over those of the scopes around it.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow<'a> {
    /// Plain names.
    pub(super) names: FxHashMap<&'a str, Value<'a>>,
    /// Dotted names, such as `self.model`.
    pub(super) places: FxHashMap<&'a str, Value<'a>>,
    /// States that are no longer what the object was made with.
    pub(super) states: FxHashMap<ObjectId, State>,
    /// Objects from this one on were made after the last fork.
    pub(super) since: ObjectId,
    pub(super) outer: Option<Rc<Self>>,
}

impl<'a> Flow<'a> {
    pub(super) fn inside(outer: Rc<Self>) -> Self {
        Self { outer: Some(outer), ..Self::default() }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value<'a>> {
        let dotted = name.contains('.');
        let mut flow = self;
        loop {
            let map = if dotted { &flow.places } else { &flow.names };
            if let Some(value) = map.get(name) {
                return Some(value);
            }
            flow = flow.outer.as_deref()?;
        }
    }

    pub(super) fn state(&self, id: ObjectId) -> Option<State> {
        let mut flow = self;
        loop {
            if let Some(state) = flow.states.get(&id) {
                return Some(*state);
            }
            flow = flow.outer.as_deref()?;
        }
    }

    /// Binds a name and leaves what is known of its attributes.
    pub(super) fn remember(&mut self, name: &'a str, value: Value<'a>) {
        let map = if name.contains('.') { &mut self.places } else { &mut self.names };
        if map.len() < MOST_NAMES || map.contains_key(name) {
            map.insert(name, value);
        } else if self.get(name).is_some() {
            let map = if name.contains('.') { &mut self.places } else { &mut self.names };
            map.insert(name, Value::Unknown);
        }
    }

    /// Binds a name. What was known of its attributes is forgotten.
    pub(super) fn bind(&mut self, name: &'a str, value: Value<'a>) {
        if !self.places.is_empty() {
            self.places.retain(|known, _| {
                !(known.len() > name.len()
                    && known.as_bytes()[name.len()] == b'.'
                    && known.starts_with(name))
            });
        }
        self.remember(name, value);
    }
}
