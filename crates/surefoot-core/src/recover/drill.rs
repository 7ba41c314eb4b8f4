//! Fault injection: faults on purpose, to see that recovery works before it is needed.
//!
//! A drill is written as `KIND` or `KIND:at=during,step=3,count=2,op=forward`. It strikes guarded
//! runs in the same way as a real fault would, on the path that every run takes:
//!
//! | `at=` | where it strikes |
//! | --- | --- |
//! | `before` (default) | after a device was chosen, before the work starts |
//! | `during` | inside the work, at the `nth` [`Point`] of a try (all kinds of points, or `point=`) |
//! | `between-parts` | between two parts of a batch that is split |
//! | `after` | when the work is done and confirmed, before its result is handed over |
//!
//! A part of guarded work can have a name of its own ([`Drill::part`]), such as `block 3` of a model.
//!
//! Code that runs inside guarded work marks its operations, allocations and reads with [`point`].
//! Without a drill that costs a read of a thread-local variable. Work on other threads takes a
//! [`Handle`] along.

mod rule;

use std::cell::RefCell;
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::fault::{Fault, FaultKind, raise};
use rule::{DrillRule, parse};

pub use rule::DrillError;

/// Where in a guarded run a drill strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Moment {
    /// After a device was chosen, before the work starts.
    #[default]
    Before,
    /// Inside the work.
    During,
    /// Between two parts of a split batch.
    BetweenParts,
    /// When the work is done and confirmed, before its result is handed over.
    After,
}

impl Moment {
    /// Every moment, in the order of a run.
    pub const ALL: [Self; 4] = [Self::Before, Self::During, Self::BetweenParts, Self::After];

    /// Its name in a drill.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::During => "during",
            Self::BetweenParts => "between-parts",
            Self::After => "after",
        }
    }
}

/// What guarded work is about to do where a drill can strike it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// An operation on tensors.
    Operation,
    /// Memory is allocated: a value is placed, or memory is reserved.
    Allocation,
    /// A file or a result is read.
    Read,
}

impl Point {
    const ALL: [Self; 3] = [Self::Operation, Self::Allocation, Self::Read];

    fn as_str(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Allocation => "allocation",
            Self::Read => "read",
        }
    }
}

/// Faults that strike on purpose. Clones share their counts.
#[derive(Clone, Debug, Default)]
pub struct Drill {
    rules: Vec<Arc<DrillRule>>,
    /// How many guarded runs of each operation were started.
    runs: Arc<Mutex<HashMap<String, u64>>>,
}

/// How often one rule of a drill has struck.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Strikes {
    /// The rule as it could be written.
    pub rule: String,
    /// How often it struck.
    pub struck: u64,
}

impl Drill {
    /// A drill that strikes once: in the run number `step` of an operation, counted from 0.
    pub fn once(kind: FaultKind, step: u64) -> Self {
        Self::of(DrillRule { step, ..DrillRule::new(kind) })
    }

    /// A drill that strikes `count` tries in a row, from the first run.
    pub fn times(kind: FaultKind, count: u64) -> Self {
        Self::of(DrillRule { count, ..DrillRule::new(kind) })
    }

    fn of(rule: DrillRule) -> Self {
        Self { rules: vec![Arc::new(rule)], runs: Arc::default() }
    }

    /// Adds the faults of `other`.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self
    }

    /// Limits all faults so far to one device.
    #[must_use]
    pub fn on(self, device: &str) -> Self {
        self.change(|rule| rule.device = Some(device.to_owned()))
    }

    /// Makes all faults so far strike at `moment`.
    #[must_use]
    pub fn at(self, moment: Moment) -> Self {
        self.change(|rule| rule.at = moment)
    }

    /// Makes faults during work strike at the `nth` point of a try, counted from 1.
    #[must_use]
    pub fn nth(self, nth: u64) -> Self {
        self.change(|rule| rule.nth = nth.max(1))
    }

    fn change(mut self, change: impl Fn(&mut DrillRule)) -> Self {
        for rule in &mut self.rules {
            let mut changed = rule.copy();
            change(&mut changed);
            *rule = Arc::new(changed);
        }
        self
    }

    /// Whether there is nothing to strike.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// How often each rule has struck so far. A rule that never struck at the end of a program
    /// tested nothing, which its user should know.
    pub fn strikes(&self) -> Vec<Strikes> {
        let count = |rule: &Arc<DrillRule>| Strikes {
            rule: rule.to_string(),
            struck: rule.struck.load(Ordering::Relaxed),
        };
        self.rules.iter().map(count).collect()
    }

    /// Counts the start of a guarded run of `operation`; gives its number, from 0.
    pub(crate) fn start_run(&self, operation: &str) -> u64 {
        if self.rules.is_empty() {
            return 0;
        }
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let run = runs.entry(operation.to_owned()).or_default();
        *run += 1;
        *run - 1
    }

    /// Prepares one try of a run: until the scope is dropped, points of this thread belong to it.
    pub(crate) fn enter(&self, operation: &str, device: &str, run: u64) -> Scope {
        if self.rules.is_empty() {
            return Scope { outer: ACTIVE.replace(None), entered: None };
        }
        let attempt = Arc::new(Attempt {
            rules: self.rules.clone(),
            operation: operation.to_owned(),
            device: device.to_owned(),
            run,
            points: Default::default(),
            whole: None,
        });
        Scope { outer: ACTIVE.replace(Some(Arc::clone(&attempt))), entered: Some(attempt) }
    }

    /// Runs `work` as a part of guarded work that has a name of its own, such as `block 3`. Faults
    /// with `op=` that name strike before, during or after it; all others strike as if it had none.
    pub fn part<T, F: From<Fault>>(
        &self,
        name: &str,
        device: &str,
        work: impl FnOnce() -> Result<T, F>,
    ) -> Result<T, F> {
        let is_named = |rule: &&Arc<DrillRule>| rule.operation.as_deref() == Some(name);
        let rules: Vec<_> = self.rules.iter().filter(is_named).cloned().collect();
        if rules.is_empty() {
            return work();
        }
        let attempt = Arc::new(Attempt {
            rules,
            operation: name.to_owned(),
            device: device.to_owned(),
            run: self.start_run(name),
            points: Default::default(),
            whole: ACTIVE.with_borrow(Clone::clone),
        });
        let outer = ACTIVE.replace(Some(Arc::clone(&attempt)));
        let scope = Scope { outer, entered: Some(attempt) };
        scope.strike(Moment::Before)?;
        let value = work()?;
        scope.strike(Moment::After)?;
        Ok(value)
    }
}

/// One try of a guarded run, as drills see it.
#[derive(Debug)]
struct Attempt {
    rules: Vec<Arc<DrillRule>>,
    operation: String,
    device: String,
    run: u64,
    points: [AtomicU64; 3],
    /// The work that this is a part of, whose points these are too.
    whole: Option<Arc<Attempt>>,
}

thread_local! {
    /// The try that this thread works on, if a drill may strike it.
    static ACTIVE: RefCell<Option<Arc<Attempt>>> = const { RefCell::new(None) };
}

/// While it lives, points of this thread belong to one try. Runs may be nested.
#[derive(Debug)]
pub(crate) struct Scope {
    outer: Option<Arc<Attempt>>,
    entered: Option<Arc<Attempt>>,
}

impl Scope {
    /// The fault that strikes at `moment`, if one does.
    pub(crate) fn strike(&self, moment: Moment) -> Result<(), Fault> {
        self.entered.as_ref().map_or(Ok(()), |attempt| attempt.strike(moment))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        ACTIVE.set(self.outer.take());
    }
}

/// Marks an operation, an allocation or a read inside guarded work: a drill may strike here. It
/// does so as a panic, as tensor libraries report their faults.
#[inline]
pub fn point(point: Point) {
    if let Err(fault) = Handle::current().check(point) {
        raise(fault);
    }
}

/// Marks the boundary between two parts of a split batch.
pub(crate) fn between_parts() {
    let strike =
        ACTIVE.with_borrow(|active| active.as_ref().map(|a| a.strike(Moment::BetweenParts)));
    if let Some(Err(fault)) = strike {
        raise(fault);
    }
}

/// The try that the current thread works on, for threads that work for it.
#[derive(Clone, Debug, Default)]
pub struct Handle(Option<Arc<Attempt>>);

impl Handle {
    /// The current thread's.
    #[inline]
    pub fn current() -> Self {
        Self(ACTIVE.with_borrow(Clone::clone))
    }

    /// Like [`point`], for code that returns its errors.
    #[inline]
    pub fn check(&self, point: Point) -> Result<(), Fault> {
        self.0.as_ref().map_or(Ok(()), |attempt| attempt.reach(point))
    }
}

impl Attempt {
    fn strike(&self, moment: Moment) -> Result<(), Fault> {
        let strikes = |rule: &&Arc<DrillRule>| rule.at == moment && rule.strikes(self);
        self.rules.iter().find(strikes).map_or(Ok(()), |rule| Err(rule.fault(self)))
    }

    fn reach(&self, point: Point) -> Result<(), Fault> {
        let of_kind = self.points[point as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let of_all: u64 = self.points.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let here = |rule: &&Arc<DrillRule>| {
            rule.at == Moment::During
                && match rule.point {
                    Some(wanted) => wanted == point && rule.nth == of_kind,
                    None => rule.nth == of_all,
                }
                && rule.strikes(self)
        };
        if let Some(rule) = self.rules.iter().find(here) {
            return Err(rule.fault(self));
        }
        self.whole.as_ref().map_or(Ok(()), |whole| whole.reach(point))
    }
}

impl FromStr for Drill {
    type Err = DrillError;

    fn from_str(text: &str) -> Result<Self, DrillError> {
        let rules = text.split(';').map(|rule| parse(rule.trim()).map(Arc::new));
        Ok(Self { rules: rules.collect::<Result<_, _>>()?, runs: Arc::default() })
    }
}

#[cfg(test)]
mod tests;
