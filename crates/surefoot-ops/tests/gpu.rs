//! The operations mean the same on a GPU, where they are composed, as on the processor, where
//! they are kernels: values and gradients.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use burn::tensor::{Device, Int, Tensor, TensorData};
use surefoot_ops as ops;

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| 2.0 * random.f32() - 1.0).collect()
}

type Operation = Box<dyn Fn(&[Tensor<1>]) -> Tensor<1>>;

/// The name, the sizes of the inputs, and the operation on them.
fn operations() -> Vec<(&'static str, Vec<usize>, Operation)> {
    let norm = ops::GroupNorm { groups: 2, epsilon: 1e-5, relu: true };
    let image = [2, 4, 5, 5];
    vec![
        (
            "conv2d",
            vec![200, 6 * 4 * 9],
            Box::new(move |t| {
                let weight = t[1].clone().reshape([6, 4, 3, 3]);
                ops::conv2d(t[0].clone().reshape(image), weight, 2, 1).flatten(0, 3)
            }),
        ),
        (
            "group_norm",
            vec![200, 4, 4, 200],
            Box::new(move |t| {
                let [x, around] = [0, 3].map(|at| t[at].clone().reshape(image));
                ops::group_norm(x, t[1].clone(), t[2].clone(), Some(around), norm).flatten(0, 3)
            }),
        ),
        (
            "layer_norm",
            vec![60, 12, 12],
            Box::new(|t| {
                let x = t[0].clone().reshape([5, 12]);
                ops::layer_norm(x, t[1].clone(), t[2].clone(), 1e-5).flatten(0, 1)
            }),
        ),
        (
            "linear",
            vec![60, 12 * 7, 7, 35],
            Box::new(|t| {
                let (x, weight) = (t[0].clone().reshape([5, 12]), t[1].clone().reshape([12, 7]));
                let around = t[3].clone().reshape([5, 7]);
                ops::linear(x, weight, t[2].clone(), Some(around)).flatten(0, 1)
            }),
        ),
        ("gelu", vec![50], Box::new(|t| ops::gelu(t[0].clone().mul_scalar(3.0)))),
        (
            "causal_attention",
            vec![2 * 6 * 24],
            Box::new(|t| ops::causal_attention(t[0].clone().reshape([2, 6, 24]), 2).flatten(0, 2)),
        ),
        (
            "cross_entropy",
            vec![35],
            Box::new(|t| {
                let targets = Tensor::<1, Int>::from_data([0, 6, 3, 3, 1], &t[0].device());
                ops::cross_entropy(t[0].clone().reshape([5, 7]), targets)
            }),
        ),
    ]
}

fn run(operation: &Operation, sizes: &[usize], device: &Device) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let tensor = |seed: u64, size: usize| {
        Tensor::<1>::from_data(TensorData::new(numbers(seed, size), [size]), &device)
    };
    let inputs: Vec<Tensor<1>> =
        (0u64..).zip(sizes).map(|(seed, size)| tensor(seed, *size).require_grad()).collect();
    let out = operation(&inputs);
    let gradients = (out.clone() * tensor(9, out.dims()[0])).sum().backward();
    let of_inputs = inputs.iter().map(|input| input.grad(&gradients).unwrap());
    let read = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
    std::iter::once(read(out)).chain(of_inputs.map(read)).collect()
}

fn close(name: &str, is: &[Vec<f32>], should: &[Vec<f32>]) {
    assert_eq!(is.len(), should.len());
    for (at, (is, should)) in is.iter().zip(should).enumerate() {
        assert_eq!(is.len(), should.len(), "{name}: {at}");
        let size = should.iter().fold(1e-3f32, |size, value| size.max(value.abs()));
        for (is, should) in is.iter().zip(should) {
            assert!((is - should).abs() <= 1e-4 * size, "{name}: {at}: {is}, not {should}");
        }
    }
}

#[test]
fn every_operation_gives_the_processors_values_and_gradients() {
    let Some(gpu) = testkit::gpu() else { return };
    for (name, sizes, operation) in operations() {
        let should = run(&operation, &sizes, &Device::flex());
        close(name, &run(&operation, &sizes, gpu.burn()), &should);
    }
}

#[test]
fn an_update_is_the_processors() {
    let Some(gpu) = testkit::gpu() else { return };
    let updated = |device: &Device| {
        let tensor = |seed: u64| {
            let numbers = numbers(seed, 40).into_iter().map(f32::abs).collect::<Vec<_>>();
            Tensor::<1>::from_data(TensorData::new(numbers, [40]), device)
        };
        let step = ops::AdamW {
            factor: 0.5,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            keep: 0.99,
            rate: 0.1,
            start: 0.4,
        };
        let (value, first, second) = ops::adamw(tensor(1), tensor(2), tensor(3), tensor(4), step);
        let step = ops::Sgd { factor: 0.5, momentum: 0.9, decay: 0.1, rate: 0.2 };
        let (moved, speed) = ops::sgd(tensor(1), tensor(2), tensor(3), step);
        [value, first, second, moved, speed]
            .map(|tensor| tensor.into_data().try_to_vec::<f32>().unwrap())
    };
    close("update", &updated(gpu.burn()), &updated(&Device::flex()));
}
