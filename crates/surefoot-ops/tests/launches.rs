//! How many launches operations take on a GPU. One test, since launches of all threads are counted.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use burn::tensor::{Device, FloatDType, Tensor};
use surefoot_ops as ops;

fn launches(work: impl FnOnce()) -> ops::Launches {
    ops::count_launches(work).1
}

fn ones<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::ones(shape, device)
}

/// Launches of the gradients by these tensors, given an operation's result.
fn of_gradients<const D: usize>(out: Tensor<D>) -> ops::Launches {
    let mut gradients = None;
    let found = launches(|| gradients = Some(out.backward()));
    drop(gradients);
    found
}

#[test]
fn operations_take_as_few_launches_as_they_should() {
    let Some(gpu) = testkit::gpu() else { return };
    let (plain, learning) = (gpu.burn().clone(), gpu.burn().clone().autodiff());

    // Parts of a packed tensor are views, wherever they end.
    let sizes = [7, 300, 1, 128];
    let tensors: Vec<Tensor<1>> = sizes.iter().map(|size| ones([*size], &plain)).collect();
    let packed = ops::Packed::new(&tensors).unwrap();
    let found = launches(|| assert_eq!(packed.parts().len(), sizes.len()));
    assert_eq!(found.values().sum::<u64>(), 0, "{found:?}");

    // Half precision is rounded to where numbers are read.
    let half = FloatDType::F16;
    if plain.supports_dtype(half) {
        let (x, weight) = (ones([2, 4, 6, 6], &plain), ones([8, 4, 3, 3], &plain));
        let found = launches(|| drop(ops::half_conv2d(x, weight, 1, 1, half)));
        assert_eq!(found.values().sum::<u64>(), 1, "{found:?}");
    }

    // The gradient by x, those by weight and bias in parts, and the sum of these; and what the gradients begin with.
    let x = ones([256, 160], &learning).require_grad();
    let weight = ones([160, 128], &learning).require_grad();
    let bias = ones([128], &learning).require_grad();
    let found = of_gradients(ops::linear(x.clone(), weight, bias.clone(), None));
    assert_eq!(found.values().sum::<u64>(), 4, "{found:?}");

    // The gradient by x, partial sums of those by gamma and beta, and the sums of these.
    let gamma = ones([160], &learning).require_grad();
    let beta = ones([160], &learning).require_grad();
    let found = of_gradients(ops::layer_norm(x, gamma, beta, 1e-5));
    assert_eq!(found.values().sum::<u64>(), 4, "{found:?}");
}
