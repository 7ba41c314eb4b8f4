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
//! Code that runs inside guarded work marks its operations, allocations and reads with [`point`].
//! Without a drill that costs a read of a thread-local variable. Work on other threads takes a
//! [`Handle`] along.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::fault::{Fault, FaultKind, raise};

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
    rules: Vec<Arc<Rule>>,
    /// How many guarded runs of each operation were started.
    runs: Arc<Mutex<HashMap<String, u64>>>,
}

#[derive(Debug)]
struct Rule {
    kind: FaultKind,
    device: Option<String>,
    operation: Option<String>,
    at: Moment,
    point: Option<Point>,
    nth: u64,
    step: u64,
    count: u64,
    probability: f64,
    seed: u64,
    considered: AtomicU64,
    struck: AtomicU64,
}

/// A drill that can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a drill: {why}; write KIND:at=before,op=forward,step=3,count=2,device=gpu,nth=1,point=operation,probability=0.5,seed=7, all but the kind optional"
)]
pub struct DrillError {
    text: String,
    why: String,
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
        Self::of(Rule { step, ..Rule::new(kind) })
    }

    /// A drill that strikes `count` tries in a row, from the first run.
    pub fn times(kind: FaultKind, count: u64) -> Self {
        Self::of(Rule { count, ..Rule::new(kind) })
    }

    fn of(rule: Rule) -> Self {
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

    fn change(mut self, change: impl Fn(&mut Rule)) -> Self {
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
        let count = |rule: &Arc<Rule>| Strikes {
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
        });
        Scope { outer: ACTIVE.replace(Some(Arc::clone(&attempt))), entered: Some(attempt) }
    }
}

/// One try of a guarded run, as drills see it.
#[derive(Debug)]
struct Attempt {
    rules: Vec<Arc<Rule>>,
    operation: String,
    device: String,
    run: u64,
    points: [AtomicU64; 3],
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
        let strikes = |rule: &&Arc<Rule>| rule.at == moment && rule.strikes(self);
        self.rules.iter().find(strikes).map_or(Ok(()), |rule| Err(rule.fault(self)))
    }

    fn reach(&self, point: Point) -> Result<(), Fault> {
        let of_kind = self.points[point as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let of_all: u64 = self.points.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let here = |rule: &&Arc<Rule>| {
            rule.at == Moment::During
                && match rule.point {
                    Some(wanted) => wanted == point && rule.nth == of_kind,
                    None => rule.nth == of_all,
                }
                && rule.strikes(self)
        };
        self.rules.iter().find(here).map_or(Ok(()), |rule| Err(rule.fault(self)))
    }
}

impl Rule {
    fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            device: None,
            operation: None,
            at: Moment::Before,
            point: None,
            nth: 1,
            step: 0,
            count: 1,
            probability: 1.0,
            seed: 0,
            considered: AtomicU64::new(0),
            struck: AtomicU64::new(0),
        }
    }

    /// The same rule, which has not struck yet.
    fn copy(&self) -> Self {
        Self {
            device: self.device.clone(),
            operation: self.operation.clone(),
            considered: AtomicU64::new(0),
            struck: AtomicU64::new(0),
            ..*self
        }
    }

    fn strikes(&self, attempt: &Attempt) -> bool {
        let fits = self.device.as_ref().is_none_or(|wanted| *wanted == attempt.device)
            && self.operation.as_ref().is_none_or(|wanted| *wanted == attempt.operation)
            && attempt.run >= self.step;
        if !fits {
            return false;
        }
        let now = self.considered.fetch_add(1, Ordering::Relaxed);
        if chance(self.seed, now) >= self.probability {
            return false;
        }
        self.struck
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |struck| {
                (struck < self.count).then_some(struck + 1)
            })
            .is_ok()
    }

    fn fault(&self, attempt: &Attempt) -> Fault {
        let message = format!("a drill: {} on purpose, {} the work", self.kind, self.at.as_str());
        Fault::new(self.kind, attempt.operation.as_str(), message).on(&attempt.device)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:at={},step={},count={}", self.kind, self.at.as_str(), self.step, self.count)?;
        if let Some(operation) = &self.operation {
            write!(f, ",op={operation}")?;
        }
        if let Some(device) = &self.device {
            write!(f, ",device={device}")?;
        }
        Ok(())
    }
}

/// A number in 0..1 that depends on nothing but its arguments. It is the finaliser of SplitMix64,
/// by hand: a generator with a state would make the strikes of one rule depend on those of others.
fn chance(seed: u64, step: u64) -> f64 {
    let mut x = seed.wrapping_add(step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

impl FromStr for Drill {
    type Err = DrillError;

    fn from_str(text: &str) -> Result<Self, DrillError> {
        let rules = text.split(';').map(|rule| parse(rule.trim()).map(Arc::new));
        Ok(Self { rules: rules.collect::<Result<_, _>>()?, runs: Arc::default() })
    }
}

fn parse(text: &str) -> Result<Rule, DrillError> {
    let wrong = |why: String| DrillError { text: text.to_owned(), why };
    let (kind, settings) = text.split_once(':').unwrap_or((text, ""));
    let mut rule = Rule::new(
        kind.parse().map_err(|error: crate::fault::UnknownKind| wrong(error.to_string()))?,
    );
    for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| wrong(format!("'{setting}' has no '='")))?;
        let number =
            || value.parse::<u64>().map_err(|_| wrong(format!("'{value}' is no whole number")));
        match key {
            "step" => rule.step = number()?,
            "count" => rule.count = number()?,
            "seed" => rule.seed = number()?,
            "nth" => rule.nth = number()?.max(1),
            "device" => rule.device = Some(value.to_owned()),
            "op" => rule.operation = Some(value.to_owned()),
            "at" => {
                rule.at =
                    Moment::ALL.into_iter().find(|at| at.as_str() == value).ok_or_else(|| {
                        let names = Moment::ALL.map(Moment::as_str).join(", ");
                        wrong(format!("at='{value}' is not one of {names}"))
                    })?;
            }
            "point" => {
                let found = Point::ALL.into_iter().find(|point| point.as_str() == value);
                rule.point = Some(found.ok_or_else(|| {
                    let names = Point::ALL.map(Point::as_str).join(", ");
                    wrong(format!("point='{value}' is not one of {names}"))
                })?);
            }
            "probability" => {
                rule.probability = value
                    .parse()
                    .ok()
                    .filter(|p| (0.0..=1.0).contains(p))
                    .ok_or_else(|| wrong(format!("'{value}' is not from 0 to 1")))?;
            }
            _ => return Err(wrong(format!("'{key}' is not a setting"))),
        }
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::catch;
    use proptest::prelude::*;

    /// The runs of "op" on "cpu" that are struck before they start, of `runs` with one try each.
    fn struck_runs(drill: &Drill, runs: u64) -> Vec<u64> {
        (0..runs)
            .filter(|_| {
                let run = drill.start_run("op");
                drill.enter("op", "cpu", run).strike(Moment::Before).is_err()
            })
            .collect()
    }

    #[test]
    fn a_drill_strikes_where_and_as_often_as_it_says() {
        let drill: Drill = "out_of_memory:step=2,count=3".parse().unwrap();
        assert_eq!(struck_runs(&drill, 10), [2, 3, 4]);
        assert_eq!(drill.strikes()[0].struck, 3);
        assert_eq!(struck_runs(&Drill::once(FaultKind::Numeric, 1), 4), [1]);
        let elsewhere: Drill = "out_of_memory:device=gpu".parse().unwrap();
        assert!(struck_runs(&elsewhere, 5).is_empty());
        let other: Drill = "out_of_memory:op=backward".parse().unwrap();
        assert!(struck_runs(&other, 5).is_empty());
        assert_eq!(other.strikes()[0].struck, 0);
    }

    #[test]
    fn steps_are_counted_for_each_operation_and_tries_are_not_steps() {
        let drill: Drill = "out_of_memory:step=1,count=2".parse().unwrap();
        let try_once = |operation: &str, run| {
            drill.enter(operation, "cpu", run).strike(Moment::Before).is_err()
        };
        let (first, other) = (drill.start_run("step"), drill.start_run("evaluate"));
        assert_eq!((first, other), (0, 0));
        assert!(!try_once("step", first) && !try_once("evaluate", other));
        let second = drill.start_run("step");
        let tries: Vec<_> = (0..3).map(|_| try_once("step", second)).collect();
        assert_eq!(tries, [true, true, false], "two tries of one run are struck");
    }

    #[test]
    fn a_strike_during_work_comes_at_the_point_it_names() {
        let reached = |drill: &str| {
            let drill: Drill = drill.parse().unwrap();
            let _scope = drill.enter("op", "cpu", drill.start_run("op"));
            let mut reached = Vec::new();
            let caught = catch(|| {
                for at in [Point::Allocation, Point::Operation, Point::Read, Point::Operation] {
                    point(at);
                    reached.push(at);
                }
            });
            (reached.len(), caught.err().and_then(|record| record.fault().map(|f| f.kind)))
        };
        let oom = Some(FaultKind::OutOfMemory);
        assert_eq!(reached("out_of_memory:at=during"), (0, oom));
        assert_eq!(reached("out_of_memory:at=during,nth=3"), (2, oom));
        assert_eq!(reached("out_of_memory:at=during,point=operation,nth=2"), (3, oom));
        assert_eq!(reached("out_of_memory:at=during,point=read"), (2, oom));
        assert_eq!(reached("out_of_memory:at=during,nth=9"), (4, None));
        assert_eq!(reached("out_of_memory:at=after"), (4, None));
    }

    #[test]
    fn points_outside_a_run_and_on_other_threads_belong_to_nobody_unless_taken_along() {
        point(Point::Operation);
        let drill: Drill = "numeric:at=during,nth=1".parse().unwrap();
        let scope = drill.enter("op", "cpu", 0);
        let handle = Handle::current();
        std::thread::scope(|threads| {
            threads.spawn(|| point(Point::Read)).join().unwrap();
            let struck = threads.spawn(move || handle.check(Point::Read)).join().unwrap();
            assert_eq!(struck.unwrap_err().kind, FaultKind::Numeric);
        });
        drop(scope);
        point(Point::Operation);
    }

    #[test]
    fn probability_is_kept_and_repeatable() {
        let run = |seed: u64| {
            let text = format!("numeric:count=9999,probability=0.25,seed={seed}");
            struck_runs(&text.parse().unwrap(), 1000)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!((150..350).contains(&run(1).len()), "{}", run(1).len());
    }

    #[test]
    fn a_wrong_drill_says_what_is_wrong() {
        for (text, why) in [
            ("oom", "'oom'"),
            ("numeric:step", "no '='"),
            ("numeric:when=3", "'when'"),
            ("numeric:probability=2", "0 to 1"),
            ("numeric:step=x", "'x'"),
            ("numeric:at=noon", "between-parts"),
            ("numeric:point=noon", "allocation"),
        ] {
            let message = text.parse::<Drill>().unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_drill_or_an_error(text in ".{0,40}") {
            let _ = text.parse::<Drill>();
        }
    }
}
