//! Knowing that a result is real.
//!
//! A GPU's errors show only when a result is read: a failed allocation taints its buffer and
//! what depends on it, while a sync says that all is well. So a guarded run reads one value of
//! each tensor that it returns before it calls the work done.
//!
//! An engine implements [`Confirm`] for its tensors; values that are on the host already, and
//! vectors, options and tuples of confirmed values, follow.

use crate::engine::Engine;
use crate::fault::{Fault, FaultKind};

/// A result that can be confirmed.
pub trait Confirm<E: Engine> {
    /// Reads a value that depends on all of the result, or gives the fault that stopped it.
    fn confirm(&self, operation: &str) -> Result<(), Fault>;

    /// Checks that all numbers are finite.
    fn check_finite(&self, _operation: &str) -> Result<(), Fault> {
        Ok(())
    }

    /// How far this result is from `reference`, relative to the largest number in it; none if
    /// results of this type can't be compared.
    fn distance(&self, _reference: &Self) -> Option<f64> {
        None
    }
}

/// Values that are on the host already: having them is proof enough.
macro_rules! confirmed_by_being_here {
    ($($value:ty),+) => {$(
        impl<E: Engine> Confirm<E> for $value {
            fn confirm(&self, _operation: &str) -> Result<(), Fault> {
                Ok(())
            }

            fn distance(&self, reference: &Self) -> Option<f64> {
                Some(if self == reference { 0.0 } else { f64::INFINITY })
            }
        }
    )+};
}
confirmed_by_being_here!((), bool, u32, u64, usize, i32, i64, String);

macro_rules! confirmed_floats {
    ($($value:ty),+) => {$(
        impl<E: Engine> Confirm<E> for $value {
            fn confirm(&self, _operation: &str) -> Result<(), Fault> {
                Ok(())
            }

            fn check_finite(&self, operation: &str) -> Result<(), Fault> {
                if self.is_finite() {
                    return Ok(());
                }
                let message = format!("the result is {self}");
                Err(Fault::new(FaultKind::Numeric, operation, message))
            }

            fn distance(&self, reference: &Self) -> Option<f64> {
                let (number, reference) = (f64::from(*self), f64::from(*reference));
                let size = Some(reference.abs()).filter(|size| size.is_finite());
                Some(relative_gap(number, reference, size.unwrap_or_default().max(1e-6)))
            }
        }
    )+};
}
confirmed_floats!(f32, f64);

/// How far a number is from another, in units of `scale`. NaN or infinity on one side alone is as
/// far as can be: `max` and `>` would pass over a NaN. For engines that compare their tensors.
pub fn relative_gap(number: f64, reference: f64, scale: f64) -> f64 {
    if number == reference || (number.is_nan() && reference.is_nan()) {
        return 0.0;
    }
    let gap = (number - reference).abs() / scale;
    if gap.is_nan() { f64::INFINITY } else { gap }
}

/// The largest distance of several parts, where NaN is the largest of all; not comparable if one
/// part isn't.
fn farthest(distances: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    distances.into_iter().try_fold(0.0f64, |most, distance| {
        let distance = distance?;
        Some(if distance.is_nan() { f64::INFINITY } else { most.max(distance) })
    })
}

impl<E: Engine, T: Confirm<E>> Confirm<E> for Vec<T> {
    fn confirm(&self, operation: &str) -> Result<(), Fault> {
        self.iter().try_for_each(|item| item.confirm(operation))
    }

    fn check_finite(&self, operation: &str) -> Result<(), Fault> {
        self.iter().try_for_each(|item| item.check_finite(operation))
    }

    fn distance(&self, reference: &Self) -> Option<f64> {
        if self.len() != reference.len() {
            return Some(f64::INFINITY);
        }
        farthest(self.iter().zip(reference).map(|(a, b)| a.distance(b)))
    }
}

impl<E: Engine, T: Confirm<E>> Confirm<E> for Option<T> {
    fn confirm(&self, operation: &str) -> Result<(), Fault> {
        self.iter().try_for_each(|item| item.confirm(operation))
    }

    fn check_finite(&self, operation: &str) -> Result<(), Fault> {
        self.iter().try_for_each(|item| item.check_finite(operation))
    }

    fn distance(&self, reference: &Self) -> Option<f64> {
        match (self, reference) {
            (Some(a), Some(b)) => a.distance(b),
            (None, None) => Some(0.0),
            _ => Some(f64::INFINITY),
        }
    }
}

macro_rules! confirm_all_of {
    ($($field:ident $at:tt),+) => {
        impl<Eng: Engine, $($field: Confirm<Eng>),+> Confirm<Eng> for ($($field,)+) {
            fn confirm(&self, operation: &str) -> Result<(), Fault> {
                $(self.$at.confirm(operation)?;)+
                Ok(())
            }

            fn check_finite(&self, operation: &str) -> Result<(), Fault> {
                $(self.$at.check_finite(operation)?;)+
                Ok(())
            }

            fn distance(&self, reference: &Self) -> Option<f64> {
                farthest([$(self.$at.distance(&reference.$at)),+])
            }
        }
    };
}
confirm_all_of!(A 0, B 1);
confirm_all_of!(A 0, B 1, C 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_infinitely_far_from_any_number() {
        assert_eq!(relative_gap(f64::NAN, 1.0, 1.0), f64::INFINITY);
        assert_eq!(relative_gap(f64::INFINITY, 1.0, 1.0), f64::INFINITY);
        assert_eq!(relative_gap(f64::NAN, f64::NAN, 1.0), 0.0);
        assert_eq!(relative_gap(3.0, 1.0, 2.0), 1.0);
        assert_eq!(farthest([Some(f64::NAN), Some(1.0)]), Some(f64::INFINITY));
        assert_eq!(farthest([Some(2.0), None]), None);
    }
}
