//! The operations that models are made of, against the host.

use burn::tensor::module::{attention as burn_attention, conv2d};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, TensorData};

use super::reference::{Matrix, relative_error, wave};
use crate::device::{Backend, OpenDevice};
use crate::fault::{Fault, FaultKind, from_error};

/// fp32 sums of this length stay well within this.
const TOLERANCE: f64 = 1e-5;
/// Kernels for these may use faster approximations of exp.
const LOOSE_TOLERANCE: f64 = 1e-4;
/// Sums of products whose factors were rounded to TF32, which keeps 10 bits of their fraction.
const TF32_TOLERANCE: f64 = 2e-3;

fn upload<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &OpenDevice) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), device.burn())
}

fn download<const D: usize>(tensor: Tensor<D>, operation: &str) -> Result<Vec<f32>, Fault> {
    let data = tensor.try_into_data().map_err(|error| from_error(operation, error))?;
    data.try_to_vec::<f32>().map_err(|error| from_error(operation, error))
}

/// Compares with what the host computed. Burn's products in fp32 use matrix units where a device `has_tf32`, and are then less exact.
pub(super) fn judge(
    operation: &str,
    has_tf32: bool,
    found: &[f32],
    expected: &[f64],
    allowed: f64,
) -> Result<String, Fault> {
    let error = relative_error(found, expected);
    if error <= allowed {
        return Ok(format!("error {error:.1e}, allowed {allowed:.0e}"));
    }
    let most = if has_tf32 { TF32_TOLERANCE.max(allowed) } else { allowed };
    let figures = format!("error {error:.1e}, allowed {most:.0e}");
    if error <= most {
        Ok(format!("{figures} for products in TF32, which this device takes for fp32"))
    } else {
        Err(Fault::new(FaultKind::Numeric, operation, format!("wrong numbers: {figures}")))
    }
}

/// Whether Burn may multiply in TF32 there.
pub(super) fn has_tf32(device: &OpenDevice) -> bool {
    device.name().backend == Backend::Cuda
}

pub(super) fn matmul(device: &OpenDevice) -> Result<String, Fault> {
    let a = Matrix::new(64, 96, wave(1.0));
    let b = Matrix::new(96, 80, wave(2.0));
    let product = upload(a.f32s(), [64, 96], device).matmul(upload(b.f32s(), [96, 80], device));
    judge("matmul", has_tf32(device), &download(product, "matmul")?, &a.times(&b).values, TOLERANCE)
}

pub(super) fn convolution(device: &OpenDevice) -> Result<String, Fault> {
    const IN: usize = 3;
    const OUT: usize = 8;
    const SIDE: usize = 12;
    let (image, kernel) = (wave(3.0), wave(4.0));
    let x: Vec<f64> = (0..2 * IN * SIDE * SIDE).map(&image).collect();
    let w: Vec<f64> = (0..OUT * IN * 9).map(&kernel).collect();
    let pixel = |n: usize, c: usize, y: isize, x_at: isize| {
        let inside = |v: isize| (0..SIDE as isize).contains(&v);
        if inside(y) && inside(x_at) {
            x[((n * IN + c) * SIDE + y as usize) * SIDE + x_at as usize]
        } else {
            0.0
        }
    };
    let mut expected = Vec::with_capacity(2 * OUT * SIDE * SIDE);
    for (n, o) in (0..2).flat_map(|n| (0..OUT).map(move |o| (n, o))) {
        for at in 0..SIDE * SIDE {
            let (y, x_at) = ((at / SIDE) as isize, (at % SIDE) as isize);
            let sum = (0..IN * 9).map(|k| {
                let (c, ky, kx) = (k / 9, (k % 9 / 3) as isize, (k % 3) as isize);
                pixel(n, c, y + ky - 1, x_at + kx - 1) * w[o * IN * 9 + k]
            });
            expected.push(sum.sum());
        }
    }
    let to_f32 = |values: &[f64]| values.iter().map(|&v| v as f32).collect::<Vec<_>>();
    let result = conv2d(
        upload(to_f32(&x), [2, IN, SIDE, SIDE], device),
        upload(to_f32(&w), [OUT, IN, 3, 3], device),
        None,
        ConvOptions::new([1, 1], [1, 1], [1, 1], 1),
    );
    judge("convolution", has_tf32(device), &download(result, "convolution")?, &expected, TOLERANCE)
}

pub(super) fn attention(device: &OpenDevice) -> Result<String, Fault> {
    const TOKENS: usize = 24;
    const WIDTH: usize = 16;
    let [q, k, v] = [5.0, 6.0, 7.0].map(|seed| Matrix::new(TOKENS, WIDTH, wave(seed)));
    let scale = 1.0 / (WIDTH as f64).sqrt();
    let expected = q.times(&k.transposed()).map(|x| x * scale).softmax_rows().times(&v);
    let [q, k, v] = [q, k, v].map(|m| upload(m.f32s(), [1, 1, TOKENS, WIDTH], device));
    let result = burn_attention(q, k, v, None, None, Default::default());
    judge(
        "attention",
        has_tf32(device),
        &download(result, "attention")?,
        &expected.values,
        LOOSE_TOLERANCE,
    )
}

/// One step of gradient descent on a two-layer network: the updated weights must agree.
pub(super) fn training_step(device: &OpenDevice) -> Result<String, Fault> {
    const BATCH: usize = 16;
    const IN: usize = 12;
    const HIDDEN: usize = 20;
    const OUT: usize = 4;
    const RATE: f64 = 0.1;
    let x = Matrix::new(BATCH, IN, wave(8.0));
    let y = Matrix::new(BATCH, OUT, wave(9.0));
    let w1 = Matrix::new(IN, HIDDEN, wave(10.0));
    let w2 = Matrix::new(HIDDEN, OUT, wave(11.0));

    let before = x.times(&w1);
    let hidden = before.map(|v| v.max(0.0));
    let gap = hidden.times(&w2).zip(&y, |a, b| 2.0 * (a - b) / (BATCH * OUT) as f64);
    let into_hidden =
        gap.times(&w2.transposed()).zip(&before, |g, b| if b > 0.0 { g } else { 0.0 });
    let w2_after = w2.zip(&hidden.transposed().times(&gap), |w, g| w - RATE * g);
    let w1_after = w1.zip(&x.transposed().times(&into_hidden), |w, g| w - RATE * g);

    let ad = device.burn().clone().autodiff();
    let on =
        |m: &Matrix| Tensor::<2>::from_data(TensorData::new(m.f32s(), [m.rows, m.columns]), &ad);
    let (t1, t2) = (on(&w1).require_grad(), on(&w2).require_grad());
    let output = burn::tensor::activation::relu(on(&x).matmul(t1.clone())).matmul(t2.clone());
    let loss = (output - on(&y)).powf_scalar(2.0).mean();
    let gradients = loss.backward();
    let step = |weight: Tensor<2>| {
        let missing = || Fault::new(FaultKind::Numeric, "training step", "a gradient is missing");
        let gradient = weight.grad(&gradients).ok_or_else(missing)?;
        download(weight.inner() - gradient * RATE, "training step")
    };
    let mut found = step(t1)?;
    found.extend(step(t2)?);
    let expected: Vec<f64> = w1_after.values.into_iter().chain(w2_after.values).collect();
    judge("training step", has_tf32(device), &found, &expected, TOLERANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_numbers_and_nan_are_not_let_through() {
        assert!(judge("x", false, &[1.0, 2.0], &[1.0, 2.0], TOLERANCE).is_ok());
        for wrong in [[1.0, 2.001], [f32::NAN, 2.0]] {
            let fault = judge("x", false, &wrong, &[1.0, 2.0], TOLERANCE).unwrap_err();
            assert_eq!(fault.kind, FaultKind::Numeric);
        }
        assert!(judge("x", false, &[1.0], &[1.0, 2.0], TOLERANCE).is_err());
    }

    #[test]
    fn products_in_tf32_are_right_where_the_device_has_them_and_are_told() {
        let told = judge("x", true, &[1.0, 2.0004], &[1.0, 2.0], TOLERANCE).unwrap();
        assert!(told.contains("TF32"), "{told}");
        assert!(!judge("x", true, &[1.0, 2.0], &[1.0, 2.0], TOLERANCE).unwrap().contains("TF32"));
        for wrong in [[1.0, 2.02], [f32::NAN, 2.0]] {
            assert!(judge("x", true, &wrong, &[1.0, 2.0], TOLERANCE).is_err());
        }
    }
}
