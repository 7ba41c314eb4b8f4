//! Operations of models that are run, on the processor, against what Burn composes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use burn::tensor::{Device, Tensor, TensorData, activation};
use proptest::prelude::*;
use surefoot_ops::{gated_silu, rms_norm, rotate};

fn tensor<const D: usize>(random: &mut fastrand::Rng, shape: [usize; D]) -> Tensor<D> {
    let count = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|_| random.f32() * 8.0 - 4.0).collect();
    Tensor::from_data(TensorData::new(numbers, shape), &Device::flex())
}

fn close<const D: usize>(got: Tensor<D>, expected: Tensor<D>) {
    assert_eq!(got.dims(), expected.dims());
    let [got, expected] =
        [got, expected].map(|tensor| tensor.into_data().try_to_vec::<f32>().unwrap());
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 2e-5 * (1.0 + expected.abs()), "{got} {expected}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn each_gives_what_burn_composes(
        seed in any::<u64>(), rows in 1_usize..90, width in 1_usize..70, many in any::<bool>(),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        // Many rows are shared out.
        let rows = if many { rows * 20 } else { rows };
        let x = tensor(&mut random, [rows, width]);
        let gamma: Tensor<1> = tensor(&mut random, [width]);
        let mean = (x.clone() * x.clone()).mean_dim(1);
        let expected = x.clone() / (mean + 1e-5).sqrt() * gamma.clone().unsqueeze();
        close(rms_norm(&x, &gamma, 1e-5).unwrap(), expected);

        let value = tensor(&mut random, [rows, width]);
        let expected = activation::silu(x.clone()) * value.clone();
        close(gated_silu(&x, &value).unwrap(), expected.clone());
        // Both turned, and one of them.
        let turned = |x: &Tensor<2>| x.clone().transpose();
        close(gated_silu(&turned(&x), &turned(&value)).unwrap(), turned(&expected));
        let copied: Tensor<2> = turned(&value).reshape([width * rows]).reshape([width, rows]);
        close(gated_silu(&turned(&x), &copied).unwrap(), turned(&expected));
    }

    #[test]
    fn rotations_are_those_of_the_pairs(
        seed in any::<u64>(), batch in 1_usize..3, heads in 1_usize..4, width in 1_usize..40,
        half in 1_usize..9, more in 0_usize..5, interleaved in any::<bool>(), alike in any::<bool>(),
        turned in any::<bool>(),
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let each = 2 * half + more;
        let x: Tensor<4> = match turned {
            false => tensor(&mut random, [batch, heads, width, each]),
            true => tensor(&mut random, [batch, width, heads, each]).swap_dims(1, 2),
        };
        let tables = if alike { 1 } else { batch };
        let cos = tensor(&mut random, [tables, 1, width, half]);
        let sin = tensor(&mut random, [tables, 1, width, half]);
        let got = rotate(&x, &cos, &sin, interleaved).unwrap();
        let numbers = |tensor: Tensor<4>| tensor.into_data().try_to_vec::<f32>().unwrap();
        let (x, cos, sin, got) = (numbers(x), numbers(cos), numbers(sin), numbers(got));
        for (row, got) in got.chunks(each).enumerate() {
            let x = &x[row * each..(row + 1) * each];
            let table = row / (width * heads) % tables * width + row % width;
            for pair in 0..half {
                let (a, b) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
                let (cos, sin) = (cos[table * half + pair], sin[table * half + pair]);
                prop_assert!((got[pair] - (x[a] * cos - x[b] * sin)).abs() < 1e-4);
                prop_assert!((got[pair + half] - (x[b] * cos + x[a] * sin)).abs() < 1e-4);
            }
            prop_assert_eq!(&got[2 * half..], &x[2 * half..]);
        }
    }
}

#[test]
fn tensors_with_autodiff_are_left_to_the_caller() {
    let mut random = fastrand::Rng::with_seed(1);
    let [x, y] = [0, 1].map(|_| tensor(&mut random, [3, 8]));
    let gamma: Tensor<1> = tensor(&mut random, [8]);
    assert!(rms_norm(&x, &gamma, 1e-5).is_some() && gated_silu(&x, &y).is_some());
    let learned = x.clone().autodiff();
    assert!(rms_norm(&learned, &gamma.clone().autodiff(), 1e-5).is_none());
    assert!(gated_silu(&learned, &y.autodiff()).is_none());
}
