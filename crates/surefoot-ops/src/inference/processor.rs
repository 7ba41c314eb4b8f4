//! Operations of models that are run, on the processor: each reads its inputs once and writes its output once, where Burn's
//! composition makes a tensor for every step.
//!
//! Rows are shared out among threads where there are many; each row is computed by itself, so their number changes nothing.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Device, Tensor};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use surefoot_kernels::math::{TASK, change, each, exp, fast, rows_at_once, sums};
use surefoot_kernels::processor::has_vectors;

use crate::flat;

/// The processor's side.
#[backend_extension(Flex)]
pub(crate) trait ProcessorKernels: Backend {
    fn rms_normed(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    fn rotated(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        interleaved: bool,
    ) -> FloatTensor<Self>;

    fn gated(gate: FloatTensor<Self>, value: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// Whether the kernels here take it: numbers in f32 on the processor, without autodiff, and vector instructions to compute with.
fn is_ours<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.dtype() == DType::F32
        && !tensor.is_autodiff()
        && tensor.device() == Device::flex()
        && has_vectors()
}

/// See [`super::rms_norm`].
pub(super) fn rms_norm<const D: usize>(
    x: &Tensor<D>,
    gamma: &Tensor<1>,
    epsilon: f64,
) -> Option<Tensor<D>> {
    (is_ours(x) && is_ours(gamma)).then(|| {
        let (x, gamma) = (x.clone().into_dispatch(), gamma.clone().into_dispatch());
        Tensor::from_dispatch(<Dispatch as ProcessorKernels>::rms_normed(x, gamma, epsilon))
    })
}

/// See [`super::rotate`].
pub(super) fn rotate(
    x: &Tensor<4>,
    cos: &Tensor<4>,
    sin: &Tensor<4>,
    interleaved: bool,
) -> Option<Tensor<4>> {
    [x, cos, sin].into_iter().all(is_ours).then(|| {
        let [x, cos, sin] = [x, cos, sin].map(|tensor| tensor.clone().into_dispatch());
        Tensor::from_dispatch(<Dispatch as ProcessorKernels>::rotated(x, cos, sin, interleaved))
    })
}

/// See [`super::gated_silu`].
pub(super) fn gated_silu(gate: &Tensor<2>, value: &Tensor<2>) -> Option<Tensor<2>> {
    (is_ours(gate) && is_ours(value) && gate.dims() == value.dims()).then(|| {
        let (gate, value) = (gate.clone().into_dispatch(), value.clone().into_dispatch());
        Tensor::from_dispatch(<Dispatch as ProcessorKernels>::gated(gate, value))
    })
}

/// Fills `out`, rows of `width` numbers, by `row`, which is told the number of each.
fn fill_rows(out: &mut [f32], width: usize, row: impl Fn(usize, &mut [f32]) + Sync) {
    let at_once = rows_at_once(width);
    let some = |(part, out): (usize, &mut [f32])| {
        fast(
            #[inline(always)]
            || {
                for (at, out) in out.chunks_exact_mut(width).enumerate() {
                    row(part * at_once + at, out);
                }
            },
        );
    };
    match out.len() <= 2 * TASK {
        true => out.chunks_mut(at_once * width).enumerate().for_each(some),
        false => out.par_chunks_mut(at_once * width).enumerate().for_each(some),
    }
}

impl ProcessorKernels for Flex {
    fn rms_normed(x: FlexTensor, gamma: FlexTensor, epsilon: f64) -> FlexTensor {
        let (x, gamma) = (flat::contiguous(x), flat::contiguous(gamma));
        let (numbers, gamma) = (flat::numbers(&x), flat::numbers(&gamma));
        let width = gamma.len();
        if width == 0 || numbers.is_empty() {
            return x;
        }
        let mut out = vec![0.0; numbers.len()];
        fill_rows(
            &mut out,
            width,
            #[inline(always)]
            |row, out| {
                let numbers = &numbers[row * width..(row + 1) * width];
                let [squares] = sums([numbers], |[number]| [number * number]);
                let inverse = 1.0 / (squares / width as f32 + epsilon as f32).sqrt();
                out.copy_from_slice(numbers);
                change(out, [gamma], |number, [gamma]| number * inverse * gamma);
            },
        );
        flat::shaped(out, x.layout().shape().clone())
    }

    fn rotated(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, interleaved: bool) -> FlexTensor {
        let [batch, heads, width, each] = flat::dims(&x);
        let [tables, _, _, half] = flat::dims(&cos);
        // Numbers of a head lie side by side, or are brought there.
        let x = if x.layout().strides()[3] == 1 { x } else { x.to_contiguous() };
        let (cos, sin) = (flat::contiguous(cos), flat::contiguous(sin));
        let (cos, sin) = (flat::numbers(&cos), flat::numbers(&sin));
        let (steps, start) = (x.layout().strides(), x.layout().start_offset() as isize);
        let numbers = x.storage::<f32>();
        let mut out = vec![0.0; batch * heads * width * each];
        if out.is_empty() {
            return flat::tensor(out, [batch, heads, width, each]);
        }
        fill_rows(
            &mut out,
            each,
            #[inline(always)]
            |row, out| {
                let (token, head) = (row % width, row / width % heads);
                let sample = row / (width * heads);
                let from = start
                    + sample as isize * steps[0]
                    + head as isize * steps[1]
                    + token as isize * steps[2];
                let x = &numbers[from as usize..from as usize + each];
                let table = (sample % tables.max(1) * width + token) * half;
                let (cos, sin) = (&cos[table..table + half], &sin[table..table + half]);
                let (turned, rest) = out.split_at_mut(2 * half);
                let (first, second) = turned.split_at_mut(half);
                for pair in 0..half {
                    let (a, b) = match interleaved {
                        true => (x[2 * pair], x[2 * pair + 1]),
                        false => (x[pair], x[pair + half]),
                    };
                    first[pair] = a * cos[pair] - b * sin[pair];
                    second[pair] = b * cos[pair] + a * sin[pair];
                }
                rest.copy_from_slice(&x[2 * half..]);
            },
        );
        flat::tensor(out, [batch, heads, width, each])
    }

    fn gated(gate: FlexTensor, value: FlexTensor) -> FlexTensor {
        // Products give columns one after the other, or rows: what both have is kept.
        let turned = !gate.is_contiguous() && gate.transpose(0, 1).is_contiguous();
        let arranged = |tensor: FlexTensor| match turned {
            true => flat::contiguous(tensor.transpose(0, 1)),
            false => flat::contiguous(tensor),
        };
        let (gate, value) = (arranged(gate), arranged(value));
        let (gates, values) = (flat::numbers(&gate), flat::numbers(&value));
        let mut out = vec![0.0; gates.len()];
        let some = |(part, out): (usize, &mut [f32])| {
            let of = part * TASK..part * TASK + out.len();
            let (gates, values) = (&gates[of.clone()], &values[of]);
            fast(
                #[inline(always)]
                || {
                    each(out, [gates, values], |[gate, value]| gate / (1.0 + exp(-gate)) * value);
                },
            );
        };
        match out.len() <= 2 * TASK {
            true => out.chunks_mut(TASK).enumerate().for_each(some),
            false => out.par_chunks_mut(TASK).enumerate().for_each(some),
        }
        let result = flat::tensor(out, flat::dims::<2>(&gate));
        if turned { result.transpose(0, 1) } else { result }
    }
}
