//! Knowing that a result is real.
//!
//! A GPU's errors show only when a result is read: a failed allocation taints its buffer and
//! what depends on it, while a sync says that all is well. So a guarded run reads one value of
//! each tensor that it returns before it calls the work done.
//!
//! Reading means looking at the number: Burn copies it from the device only then, so that data
//! which nobody looks at is there before the work is done.

use burn::tensor::{Bool, DType, Float, Int, Tensor, TensorData};

use crate::fault::{Fault, FaultKind, catch};

/// A result that can be confirmed.
pub trait Confirm {
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

fn read_one<const D: usize, K: burn::tensor::kind::Basic>(
    tensor: &Tensor<D, K>,
    operation: &str,
) -> Result<(), Fault> {
    if tensor.dims().contains(&0) {
        return Ok(());
    }
    let one = tensor.clone().slice(std::array::from_fn::<_, D, _>(|_| 0..1));
    let data = one.try_into_data().map_err(|error| Fault::from_error(operation, &error))?;
    arrived(&data, operation)
}

/// Waits until `data` is on the host, or gives the fault that stopped it.
fn arrived(data: &TensorData, operation: &str) -> Result<(), Fault> {
    match catch(|| std::hint::black_box(data.as_bytes()).len()) {
        Ok(_) => Ok(()),
        Err(record) => Err(Fault::from_panic(operation, &record)),
    }
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Option<Vec<f64>> {
    tensor.try_to_data().ok()?.try_cast(DType::F64).ok()?.try_to_vec::<f64>().ok()
}

impl<const D: usize> Confirm for Tensor<D, Float> {
    fn confirm(&self, operation: &str) -> Result<(), Fault> {
        read_one(self, operation)
    }

    fn check_finite(&self, operation: &str) -> Result<(), Fault> {
        let Some(numbers) = numbers(self) else { return self.confirm(operation) };
        match numbers.iter().position(|number| !number.is_finite()) {
            None => Ok(()),
            Some(at) => Err(Fault::new(
                FaultKind::Numeric,
                operation,
                format!("element {at} of a {:?} result is {}", self.dims(), numbers[at]),
            )),
        }
    }

    fn distance(&self, reference: &Self) -> Option<f64> {
        if self.dims() != reference.dims() {
            return Some(f64::INFINITY);
        }
        let (mine, theirs) = (numbers(self)?, numbers(reference)?);
        let sizes = theirs.iter().map(|number| number.abs()).filter(|size| size.is_finite());
        let scale = sizes.fold(1e-6f64, f64::max);
        Some(mine.iter().zip(&theirs).fold(0.0, |most, (a, b)| gap(*a, *b, scale).max(most)))
    }
}

macro_rules! confirm_by_reading {
    ($($kind:ty),+) => {$(
        impl<const D: usize> Confirm for Tensor<D, $kind> {
            fn confirm(&self, operation: &str) -> Result<(), Fault> {
                read_one(self, operation)
            }
        }
    )+};
}
confirm_by_reading!(Int, Bool);

/// Values that are on the host already: having them is proof enough.
macro_rules! confirmed_by_being_here {
    ($($value:ty),+) => {$(
        impl Confirm for $value {
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
        impl Confirm for $value {
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
                Some(gap(number, reference, size.unwrap_or_default().max(1e-6)))
            }
        }
    )+};
}
confirmed_floats!(f32, f64);

/// How far a number is from another. NaN or infinity on one side alone is as far as can be: `max`
/// and `>` would pass over a NaN.
fn gap(number: f64, reference: f64, scale: f64) -> f64 {
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

impl<T: Confirm> Confirm for Vec<T> {
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

impl<T: Confirm> Confirm for Option<T> {
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
        impl<$($field: Confirm),+> Confirm for ($($field,)+) {
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
    use burn::tensor::Device;

    #[test]
    fn a_nan_is_found_and_named() {
        let x = Tensor::<1>::from_floats([1.0, f32::NAN], &Device::flex());
        assert!(x.confirm("op").is_ok());
        let fault = x.check_finite("op").unwrap_err();
        assert_eq!(fault.kind, FaultKind::Numeric);
        assert!(fault.root_cause().contains("element 1"), "{fault}");
        assert!(f32::INFINITY.check_finite("op").is_err());
    }

    #[test]
    fn distance_is_relative_and_sees_nan_and_shape() {
        let device = Device::flex();
        let a = Tensor::<1>::from_floats([100.0, 50.0], &device);
        let b = Tensor::<1>::from_floats([101.0, 50.0], &device);
        let near = b.distance(&a).unwrap();
        assert!((near - 0.01).abs() < 1e-6, "{near}");
        let nan = Tensor::<1>::from_floats([f32::NAN, 50.0], &device);
        assert_eq!(nan.distance(&a), Some(f64::INFINITY));
        assert_eq!(Tensor::<1>::ones([3], &device).distance(&a), Some(f64::INFINITY));
    }

    #[test]
    fn nan_is_infinitely_far_from_any_number() {
        let far = Some(f64::INFINITY);
        assert_eq!((f32::NAN.distance(&1.0), 1.0f64.distance(&f64::NAN)), (far, far));
        assert_eq!(f64::INFINITY.distance(&1.0), far);
        assert_eq!((f64::NAN.distance(&f64::NAN), 2.0f64.distance(&2.0)), (Some(0.0), Some(0.0)));
        assert_eq!(vec![1.0, f64::NAN, 1.0].distance(&vec![1.0; 3]), far);
        assert_eq!((0.0, f32::NAN).distance(&(0.0, 1.0)), far);
        assert_eq!(farthest([Some(f64::NAN), Some(1.0)]), far, "of a type of one's own");
        let device = Device::flex();
        // One infinity must not make everything else look near.
        let a = Tensor::<1>::from_floats([f32::INFINITY, 1.0], &device);
        let b = Tensor::<1>::from_floats([f32::INFINITY, 2.0], &device);
        assert_eq!(b.distance(&a), Some(1.0));
    }

    #[test]
    fn an_empty_tensor_needs_no_reading() {
        assert!(Tensor::<2>::zeros([0, 4], &Device::flex()).confirm("op").is_ok());
    }
}
