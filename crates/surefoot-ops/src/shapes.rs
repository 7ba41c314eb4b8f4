//! Checks of shapes before tensors reach kernels, which take sizes from one side and would read what the other one has not got.
//!
//! The texts have the form of Burn's own checks, so that they are classified as its are.

use burn::tensor::Tensor;

/// Panics if `left · right` can't be multiplied.
#[track_caller]
pub(crate) fn assert_product(operation: &str, left: [usize; 2], right: [usize; 2]) {
    if left[1] != right[0] {
        fail(
            operation,
            &format!("the inner dimensions of a product differ: {left:?} times {right:?}"),
        );
    }
}

/// Panics if the tensors are not those of a linear layer.
#[track_caller]
pub(crate) fn assert_linear(
    operation: &str,
    x: &Tensor<2>,
    weight: &Tensor<2>,
    bias: &Tensor<1>,
    residual: Option<&Tensor<2>>,
) {
    assert_product(operation, x.dims(), weight.dims());
    let out = [x.dims()[0], weight.dims()[1]];
    if bias.dims() != [out[1]] {
        fail(operation, &format!("the bias is {:?}, but the result is {out:?}", bias.dims()));
    }
    if let Some(residual) = residual.filter(|residual| residual.dims() != out) {
        fail(
            operation,
            &format!("the residual is {:?}, but the result is {out:?}", residual.dims()),
        );
    }
}

#[track_caller]
fn fail(operation: &str, reason: &str) -> ! {
    panic!(
        "=== Tensor Operation Error ===\n  Operation: '{operation}'\n  Reason:\n    1. {reason}\n"
    )
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType, Tensor};
    use surefoot::FaultKind;
    use surefoot::fault::{catch, from_panic};

    use crate::{half_linear, linear, product};

    fn of(shape: [usize; 2]) -> Tensor<2> {
        Tensor::ones(shape, &Device::flex())
    }

    fn bias(length: usize) -> Tensor<1> {
        Tensor::ones([length], &Device::flex())
    }

    fn refused(text: &str, run: impl FnOnce() -> Tensor<2>) {
        let record = catch(run).unwrap_err();
        let fault = from_panic("op", &record);
        assert_eq!(fault.kind, FaultKind::ShapeMismatch, "{fault}");
        assert!(record.message.contains(text), "{}", record.message);
    }

    #[test]
    fn shapes_that_do_not_fit_are_named_and_classified() {
        refused("[2, 3] times [4, 5]", || linear(of([2, 3]), of([4, 5]), bias(5), None));
        refused("[2, 5] times [4, 5]", || linear(of([2, 5]), of([4, 5]), bias(5), None));
        refused("the bias is [3]", || linear(of([2, 4]), of([4, 5]), bias(3), None));
        refused("the residual is [1, 5]", || {
            linear(of([2, 4]), of([4, 5]), bias(5), Some(of([1, 5])))
        });
        refused("[2, 3] times [4, 5]", || {
            half_linear(of([2, 3]), of([4, 5]), bias(5), None, FloatDType::F32)
        });
        refused("[4, 5] times [3, 2]", || product(of([4, 5]), false, of([3, 2])));
        refused("[5, 4] times [5, 2]", || product(of([4, 5]), true, of([5, 2])));
        refused("[4, 5] times [3, 40]", || product(of([4, 5]), false, of([3, 40])));
    }
}
