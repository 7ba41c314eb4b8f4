//! One initialisation per key.
//!
//! Protocol: a key is absent, being made by one caller, or made. Callers that find it being made
//! wait on that key's own condition; other keys don't wait. If making it fails or panics the key is
//! absent again and one of the waiting callers makes it. The lock is never held while a value is
//! being made.

use std::collections::HashMap;
use std::hash::Hash;

use crate::patience::Patience;
use crate::sync::{Arc, Condvar, Mutex, lock, wait, wait_until};

/// A map whose values are made once, by the first caller that needs them.
#[derive(Debug)]
pub struct OnceMap<K, V> {
    state: Mutex<State<K, V>>,
}

#[derive(Debug)]
struct State<K, V> {
    entries: HashMap<K, Entry<V>>,
    initialisations: u64,
}

#[derive(Debug)]
enum Entry<V> {
    /// Someone makes it, and tells when that is over.
    Making(Arc<Condvar>),
    Made(V),
}

impl<K, V> Default for OnceMap<K, V> {
    fn default() -> Self {
        let state = State { entries: HashMap::new(), initialisations: 0 };
        Self { state: Mutex::new(state) }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> OnceMap<K, V> {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of `key`; `make` makes it if nobody has. While it runs, others that ask for
    /// `key` wait for it. If it fails or panics, one of them tries next.
    ///
    /// `make` must not ask for the same key: it would wait for itself.
    pub fn get_or_try_make<E>(&self, key: &K, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        match self.begin(key, Patience::Forever) {
            Begun::Made(value) => Ok(value),
            Begun::Mine(turn) => {
                let value = make()?;
                turn.finish(value.clone());
                Ok(value)
            }
            Begun::Busy => unreachable!("patience without end does not run out"),
        }
    }

    /// The value of `key`, or the turn to make it. Where another caller makes it, waits as long
    /// as `patience` says.
    pub fn begin<'m>(&'m self, key: &'m K, patience: Patience) -> Begun<'m, K, V> {
        let mut state = lock(&self.state);
        let mut over = false;
        loop {
            match state.entries.get(key) {
                Some(Entry::Made(value)) => return Begun::Made(value.clone()),
                Some(Entry::Making(_)) if over => return Begun::Busy,
                Some(Entry::Making(told)) => {
                    let told = Arc::clone(told);
                    match patience {
                        Patience::None => return Begun::Busy,
                        Patience::Until(deadline) => {
                            (state, over) = wait_until(&told, &self.state, state, deadline);
                        }
                        Patience::Forever => state = wait(&told, state),
                    }
                }
                None => break,
            }
        }
        let over = Arc::new(Condvar::new());
        state.entries.insert(key.clone(), Entry::Making(Arc::clone(&over)));
        Begun::Mine(Turn { map: self, key, over, made: None })
    }

    /// The value of `key`, made by `make` if nobody has. See [`OnceMap::get_or_try_make`].
    pub fn get_or_make(&self, key: &K, make: impl FnOnce() -> V) -> V {
        match self.get_or_try_make(key, || Ok::<_, std::convert::Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// The value of `key` if it is made.
    pub fn get(&self, key: &K) -> Option<V> {
        match lock(&self.state).entries.get(key) {
            Some(Entry::Made(value)) => Some(value.clone()),
            _ => None,
        }
    }

    /// Forgets the value of `key`, so that the next caller makes it anew. One that is being made
    /// is left alone.
    pub fn forget(&self, key: &K) -> Option<V> {
        let mut state = lock(&self.state);
        match state.entries.get(key) {
            Some(Entry::Made(_)) => match state.entries.remove(key) {
                Some(Entry::Made(value)) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// Forgets every value but that of `key`. Those that are being made are left alone.
    pub fn forget_others(&self, key: &K) {
        let mut others = Vec::new();
        let mut state = lock(&self.state);
        state.entries.retain(|at, entry| match entry {
            Entry::Made(value) if at != key => {
                others.push(value.clone());
                false
            }
            _ => true,
        });
        // Nobody should wait while a large value is freed.
        drop(state);
        drop(others);
    }

    /// How many values were made, successfully, since the map exists.
    pub fn initialisations(&self) -> u64 {
        lock(&self.state).initialisations
    }

    /// How many keys have their value.
    pub fn len(&self) -> usize {
        let state = lock(&self.state);
        state.entries.values().filter(|entry| matches!(entry, Entry::Made(_))).count()
    }

    /// Whether no key has its value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a caller that asked for a key has.
pub enum Begun<'m, K: Eq + Hash + Clone, V: Clone> {
    /// The value.
    Made(V),
    /// The turn to make it.
    Mine(Turn<'m, K, V>),
    /// Neither: another caller makes it, for longer than this one waits.
    Busy,
}

/// One caller's turn at making a value. Its end, by [`Turn::finish`] or by being dropped without
/// it, in a panic too, is told to those who wait.
pub struct Turn<'m, K: Eq + Hash + Clone, V: Clone> {
    map: &'m OnceMap<K, V>,
    key: &'m K,
    over: Arc<Condvar>,
    made: Option<V>,
}

impl<K: Eq + Hash + Clone, V: Clone> Turn<'_, K, V> {
    /// The value is made.
    pub fn finish(mut self, value: V) {
        self.made = Some(value);
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Drop for Turn<'_, K, V> {
    fn drop(&mut self) {
        let mut state = lock(&self.map.state);
        match self.made.take() {
            Some(value) => {
                state.entries.insert(self.key.clone(), Entry::Made(value));
                state.initialisations += 1;
            }
            None => drop(state.entries.remove(self.key)),
        }
        drop(state);
        self.over.notify_all();
    }
}
