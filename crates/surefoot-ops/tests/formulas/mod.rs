//! What the tests of kernels share: numbers, tensors, and formulas that are written out number by number.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use burn::tensor::{Device, Tensor, TensorData};

/// What tests add to a mean square.
pub(crate) const EPSILON: f64 = 1e-3;

pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| 2.0 * random.f32() - 1.0).collect()
}

pub(crate) fn tensor<const D: usize>(
    numbers: &[f32],
    shape: [usize; D],
    device: &Device,
) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers.to_vec(), shape), device)
}

/// A cache `[rows, heads, columns, each]`, whose columns are so many numbers further apart than they have to be: a multiple of 128, since views
/// begin and end at whole lines of memory.
pub(crate) fn pitched(
    numbers: &[f32],
    shape: [usize; 4],
    pitch: usize,
    device: &Device,
) -> Tensor<4> {
    let plain = tensor(numbers, shape, device);
    if pitch == 0 {
        return plain;
    }
    let [rows, heads, columns, each] = shape;
    // What lies between the columns must have no effect.
    let between = Tensor::full([rows, heads, columns, pitch], f32::NAN, device);
    let whole = Tensor::cat(vec![plain, between], 3);
    let view = whole.clone().narrow(3, 0, each);
    assert_eq!(surefoot_ops::buffer_of(&view), surefoot_ops::buffer_of(&whole), "a view");
    view
}

pub(crate) fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().unwrap()
}

pub(crate) fn close(name: &str, is: &[f32], should: &[f64], tolerance: f64) {
    assert_eq!(is.len(), should.len(), "{name}");
    let size = should.iter().fold(1e-3f64, |size, value| size.max(value.abs()));
    for (at, (is, should)) in is.iter().zip(should).enumerate() {
        let off = (f64::from(*is) - should).abs();
        assert!(off <= tolerance * size, "{name}: {at}: {is}, not {should}");
    }
}

/// Rows over their root mean square, times gamma.
pub(crate) fn normed(x: &[f32], gamma: &[f32], epsilon: f64) -> Vec<f32> {
    x.chunks(gamma.len())
        .flat_map(|row| {
            let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
            let root = (squares / row.len() as f64 + epsilon).sqrt();
            row.iter().zip(gamma).map(move |(x, gamma)| (f64::from(x * gamma) / root) as f32)
        })
        .collect()
}
