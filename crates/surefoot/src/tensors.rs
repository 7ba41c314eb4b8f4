//! Burn's tensors in guarded work: confirmed by reading a value, taken apart and joined along their
//! first dimension.
//!
//! Reading means looking at the number: Burn copies it from the device only then, so that data
//! which nobody looks at is there before the work is done.

use std::ops::Range;

use burn::tensor::{Bool, DType, Float, Int, Tensor, TensorData};
use surefoot_core::recover::drill::point;
use surefoot_core::recover::{Confirm, Join, Point, Splittable, relative_gap};

use crate::Burn;
use crate::fault::{Fault, FaultKind, catch, from_error, from_panic};

fn read_one<const D: usize, K: burn::tensor::kind::Basic>(
    tensor: &Tensor<D, K>,
    operation: &str,
) -> Result<(), Fault> {
    if tensor.dims().contains(&0) {
        return Ok(());
    }
    point(Point::Read);
    let one = tensor.clone().slice(std::array::from_fn::<_, D, _>(|_| 0..1));
    let data = one.try_into_data().map_err(|error| from_error(operation, error))?;
    arrived(&data, operation)
}

/// Waits until `data` is on the host, or gives the fault that stopped it.
fn arrived(data: &TensorData, operation: &str) -> Result<(), Fault> {
    match catch(|| std::hint::black_box(data.as_bytes()).len()) {
        Ok(_) => Ok(()),
        Err(record) => Err(from_panic(operation, &record)),
    }
}

fn numbers<const D: usize>(tensor: &Tensor<D>) -> Option<Vec<f64>> {
    tensor.try_to_data().ok()?.try_cast(DType::F64).ok()?.try_to_vec::<f64>().ok()
}

impl<const D: usize> Confirm<Burn> for Tensor<D, Float> {
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
        Some(
            mine.iter()
                .zip(&theirs)
                .fold(0.0, |most, (a, b)| relative_gap(*a, *b, scale).max(most)),
        )
    }
}

macro_rules! confirm_by_reading {
    ($($kind:ty),+) => {$(
        impl<const D: usize> Confirm<Burn> for Tensor<D, $kind> {
            fn confirm(&self, operation: &str) -> Result<(), Fault> {
                read_one(self, operation)
            }
        }
    )+};
}
confirm_by_reading!(Int, Bool);

macro_rules! batch_of_rows {
    ($($kind:ty),+) => {$(
        impl<const D: usize> Splittable<Burn> for Tensor<D, $kind> {
            fn samples(&self) -> usize {
                self.dims()[0]
            }

            fn part(&self, range: Range<usize>) -> Self {
                self.clone().narrow(0, range.start, range.len())
            }
        }

        impl<const D: usize> Join<Burn> for Tensor<D, $kind> {
            fn join(mut parts: Vec<Self>) -> Self {
                if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 0) }
            }
        }
    )+};
}
batch_of_rows!(Float, Int, Bool);

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
        assert!(Confirm::<Burn>::check_finite(&f32::INFINITY, "op").is_err());
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
        let distance = |a: f64, b: f64| Confirm::<Burn>::distance(&a, &b);
        assert_eq!((distance(f64::NAN, 1.0), distance(1.0, f64::NAN)), (far, far));
        assert_eq!(distance(f64::INFINITY, 1.0), far);
        assert_eq!((distance(f64::NAN, f64::NAN), distance(2.0, 2.0)), (Some(0.0), Some(0.0)));
        assert_eq!(Confirm::<Burn>::distance(&vec![1.0, f64::NAN, 1.0], &vec![1.0; 3]), far);
        assert_eq!(Confirm::<Burn>::distance(&(0.0, f32::NAN), &(0.0, 1.0)), far);
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

    #[test]
    fn a_pair_is_taken_apart_alike() {
        let device = Device::flex();
        let x = Tensor::<2>::from_floats([[1.0], [2.0], [3.0]], &device);
        let y = Tensor::<1, Int>::from_data([7, 8, 9], &device);
        let (x, y) = (x, y).part(1..3);
        assert_eq!(x.to_data_as::<f32>().try_to_vec::<f32>().unwrap(), [2.0, 3.0]);
        assert_eq!(y.to_data_as::<i64>().try_to_vec::<i64>().unwrap(), [8, 9]);
    }
}
