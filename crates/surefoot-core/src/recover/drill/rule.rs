//! One rule of a drill: what strikes, where, when and how often; and how it is written.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Attempt, Moment, Point};
use crate::fault::{Fault, FaultKind};

/// What strikes, where, when and how often.
#[derive(Debug)]
pub(super) struct DrillRule {
    pub(super) kind: FaultKind,
    pub(super) device: Option<String>,
    pub(super) operation: Option<String>,
    pub(super) at: Moment,
    pub(super) point: Option<Point>,
    pub(super) nth: u64,
    pub(super) step: u64,
    pub(super) count: u64,
    pub(super) probability: f64,
    pub(super) seed: u64,
    pub(super) considered: AtomicU64,
    pub(super) struck: AtomicU64,
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

impl DrillRule {
    pub(super) fn new(kind: FaultKind) -> Self {
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
    pub(super) fn copy(&self) -> Self {
        Self {
            device: self.device.clone(),
            operation: self.operation.clone(),
            considered: AtomicU64::new(0),
            struck: AtomicU64::new(0),
            ..*self
        }
    }

    pub(super) fn strikes(&self, attempt: &Attempt) -> bool {
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

    pub(super) fn fault(&self, attempt: &Attempt) -> Fault {
        let message = format!("injected fault: {} (drill, at={})", self.kind, self.at.as_str());
        Fault::new(self.kind, attempt.operation.as_str(), message).on(&attempt.device)
    }
}

impl fmt::Display for DrillRule {
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

/// Reads one rule, as `--drill` has it.
pub(super) fn parse(text: &str) -> Result<DrillRule, DrillError> {
    let wrong = |why: String| DrillError { text: text.to_owned(), why };
    let (kind, settings) = text.split_once(':').unwrap_or((text, ""));
    let mut rule = DrillRule::new(
        kind.parse().map_err(|error: crate::fault::UnknownKind| wrong(error.to_string()))?,
    );
    for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| wrong(format!("'{setting}' has no '='")))?;
        let number =
            || value.parse::<u64>().map_err(|_| wrong(format!("'{value}' is not a whole number")));
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
