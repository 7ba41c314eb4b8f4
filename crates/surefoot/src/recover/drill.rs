//! Fire drills: faults on purpose, to see that recovery works before it is needed.
//!
//! A drill is written as `KIND` or `KIND:step=3,count=2,device=gpu,op=forward,probability=0.5,seed=7`:
//! the fault strikes guarded tries that fit, from the `step`-th on, `count` times at most, each
//! with the given probability. Several drills are separated by `;`.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::{Fault, FaultKind};

/// Faults that strike on purpose.
#[derive(Debug, Default)]
pub struct Drill {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    kind: FaultKind,
    device: Option<String>,
    operation: Option<String>,
    step: u64,
    count: u64,
    probability: f64,
    seed: u64,
    seen: AtomicU64,
    struck: AtomicU64,
}

/// A drill that can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a drill: {why}; write KIND:step=3,count=2,device=gpu,op=forward,probability=0.5,seed=7, all but the kind optional"
)]
pub struct DrillError {
    text: String,
    why: String,
}

impl Drill {
    /// A drill that strikes every fitting try once: the `step`-th one, counted from 0.
    pub fn once(kind: FaultKind, step: u64) -> Self {
        Self { rules: vec![Rule { step, ..Rule::new(kind) }] }
    }

    /// A drill that strikes `count` tries in a row, from the first.
    pub fn times(kind: FaultKind, count: u64) -> Self {
        Self { rules: vec![Rule { count, ..Rule::new(kind) }] }
    }

    /// Adds the faults of `other`.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self
    }

    /// Limits the last fault added to one device.
    #[must_use]
    pub fn on(mut self, device: &str) -> Self {
        if let Some(rule) = self.rules.last_mut() {
            rule.device = Some(device.to_owned());
        }
        self
    }

    /// The fault that strikes this try, if one does. Counts the try.
    pub(crate) fn strike(&self, operation: &str, device: &str) -> Option<Fault> {
        self.rules.iter().find(|rule| rule.strikes(operation, device)).map(|rule| {
            Fault::new(rule.kind, operation, format!("a drill: {} on purpose", rule.kind))
                .on(device)
        })
    }
}

impl Rule {
    fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            device: None,
            operation: None,
            step: 0,
            count: 1,
            probability: 1.0,
            seed: 0,
            seen: AtomicU64::new(0),
            struck: AtomicU64::new(0),
        }
    }

    fn strikes(&self, operation: &str, device: &str) -> bool {
        let fits = self.device.as_deref().is_none_or(|wanted| wanted == device)
            && self.operation.as_deref().is_none_or(|wanted| wanted == operation);
        if !fits {
            return false;
        }
        let now = self.seen.fetch_add(1, Ordering::Relaxed);
        if now < self.step || chance(self.seed, now) >= self.probability {
            return false;
        }
        self.struck
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |struck| {
                (struck < self.count).then_some(struck + 1)
            })
            .is_ok()
    }
}

/// A number in 0..1 that depends on nothing but its arguments (the finaliser of SplitMix64).
fn chance(seed: u64, step: u64) -> f64 {
    let mut x = seed.wrapping_add(step.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

impl FromStr for Drill {
    type Err = DrillError;

    fn from_str(text: &str) -> Result<Self, DrillError> {
        let rules = text.split(';').map(|rule| parse(rule.trim())).collect::<Result<_, _>>()?;
        Ok(Self { rules })
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
            "device" => rule.device = Some(value.to_owned()),
            "op" => rule.operation = Some(value.to_owned()),
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
    use proptest::prelude::*;

    fn strikes(drill: &Drill, tries: u64) -> Vec<u64> {
        (0..tries).filter(|_| drill.strike("op", "cpu").is_some()).collect()
    }

    #[test]
    fn a_drill_strikes_where_and_as_often_as_it_says() {
        let drill: Drill = "out_of_memory:step=2,count=3".parse().unwrap();
        assert_eq!(strikes(&drill, 10), [2, 3, 4]);
        assert_eq!(strikes(&Drill::once(FaultKind::Numeric, 1), 4), [1]);
        let elsewhere: Drill = "out_of_memory:device=gpu".parse().unwrap();
        assert!(strikes(&elsewhere, 5).is_empty());
        let other: Drill = "out_of_memory:op=backward".parse().unwrap();
        assert!(strikes(&other, 5).is_empty());
    }

    #[test]
    fn probability_is_kept_and_repeatable() {
        let run = |seed: u64| {
            let text = format!("numeric:count=9999,probability=0.25,seed={seed}");
            strikes(&text.parse().unwrap(), 1000)
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
