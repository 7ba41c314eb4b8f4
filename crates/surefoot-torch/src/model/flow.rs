//! The names and object states at one point of the walk, and how two such points join.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::value::{ObjectId, State, Value};

/// Names and states at one point, over those of the scopes around it.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow<'a> {
    pub(super) names: FxHashMap<&'a str, Value<'a>>,
    pub(super) states: FxHashMap<ObjectId, State>,
    pub(super) outer: Option<Rc<Self>>,
}

impl<'a> Flow<'a> {
    pub(super) fn inside(outer: Rc<Self>) -> Self {
        Self { names: FxHashMap::default(), states: FxHashMap::default(), outer: Some(outer) }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value<'a>> {
        let mut flow = self;
        loop {
            if let Some(value) = flow.names.get(name) {
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

    /// Binds a name. What was known of its attributes is forgotten.
    pub(super) fn bind(&mut self, name: &'a str, value: Value<'a>) {
        self.names.retain(|known, _| {
            !(known.len() > name.len()
                && known.as_bytes()[name.len()] == b'.'
                && known.starts_with(name))
        });
        self.names.insert(name, value);
    }
}
