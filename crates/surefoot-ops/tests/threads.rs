//! The same inputs give the same bits with any number of threads.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use burn::tensor::{Device, Int, Tensor, TensorData};
use surefoot_ops as ops;

fn tensor<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let mut random = fastrand::Rng::with_seed(seed);
    let numbers: Vec<f32> = (0..shape.iter().product()).map(|_| 2.0 * random.f32() - 1.0).collect();
    Tensor::<D>::from_data(TensorData::new(numbers, shape), device)
}

fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    let numbers = tensor.into_data().try_to_vec::<f32>().unwrap();
    numbers.into_iter().map(f32::to_bits).collect()
}

/// The bits of a network's loss and gradients, with every operation in it once.
fn run() -> Vec<Vec<u32>> {
    let device = Device::flex().autodiff();
    let image = tensor(1, [24, 8, 16, 16], &device).require_grad();
    let kernel = tensor(2, [16, 8, 3, 3], &device).require_grad();
    let [gamma, beta] = [3, 4].map(|seed| tensor(seed, [16], &device).require_grad());
    let norm = ops::GroupNorm { groups: 4, epsilon: 1e-5, relu: true };
    let x = ops::conv2d(image.clone(), kernel.clone(), 1, 1);
    // By Winograd: in 24 tasks forwards, and in as many for the sum of the gradient by the weights.
    let by_winograd = tensor(9, [32, 32, 3, 3], &device).require_grad();
    let folded = x.reshape([12, 32, 16, 16]);
    let x =
        ops::conv2d(folded, by_winograd.clone(), 1, 1).mul_scalar(0.1).reshape([24, 16, 16, 16]);
    let x = ops::group_norm(x, gamma.clone(), beta.clone(), None, norm);
    // 384 rows of 256 numbers.
    let x = x.reshape([24 * 16, 256]);
    let [scale, shift] = [5, 6].map(|seed| tensor(seed, [256], &device).require_grad());
    let x = ops::layer_norm(x, scale.clone(), shift.clone(), 1e-5);
    let weight = tensor(7, [256, 3 * 256], &device).require_grad();
    let bias = tensor(8, [3 * 256], &device).require_grad();
    let mixed = ops::linear(x, weight.clone(), bias.clone(), None).mul_scalar(0.05);
    let x = ops::causal_attention(mixed.reshape([6, 64, 3 * 256]), 4).reshape([384, 256]);
    let targets: Vec<i32> = (0..384).map(|row| row * 7 % 256).collect();
    let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [384]), &device);
    let x = ops::gelu_tanh(ops::gelu(x));
    // Weights that are read in place, with more columns than go side by side, and with few.
    let products: Vec<_> = [40, 3]
        .into_iter()
        .map(|columns| {
            let x = x.clone().inner().narrow(0, 0, columns).transpose();
            bits(ops::product(tensor(10, [4096, 256], &Device::flex()), false, x))
        })
        .collect();
    let loss = ops::cross_entropy(x, targets);
    let gradients = loss.backward();
    let mut all = vec![bits(loss)];
    all.extend(products);
    for tensor in [image, kernel, by_winograd] {
        all.push(bits(tensor.grad(&gradients).unwrap()));
    }
    for tensor in [gamma, beta, scale, shift, bias] {
        all.push(bits(tensor.grad(&gradients).unwrap()));
    }
    all.push(bits(weight.grad(&gradients).unwrap()));
    all
}

#[test]
fn the_number_of_threads_leaves_no_mark() {
    let with = |threads: usize| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
    };
    let alone = with(1);
    assert!(alone.iter().flatten().any(|bits| f32::from_bits(*bits) != 0.0));
    for threads in [2, 3, 8] {
        assert!(with(threads) == alone, "{threads}");
    }
}
