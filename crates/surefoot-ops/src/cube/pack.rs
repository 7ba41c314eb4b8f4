//! Many tensors in one on Cube devices, and AdamW over all of them in one launch.

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty};
use super::reduce::sum_of_units;
use crate::packed::{AT_ONCE, padded};
use crate::update::AdamW;

/// Writes the inputs one after another from `offset` on, each padded with zeros.
#[cube(launch)]
fn pack_kernel(
    inputs: Sequence<Box<[f32]>>,
    starts: Sequence<u32>,
    lengths: Sequence<u32>,
    arena: &mut [f32],
    offset: u32,
    count: u32,
) {
    if ABSOLUTE_POS < count as usize {
        let mut found = 0.0f32;
        #[unroll]
        for at in 0..inputs.len() {
            let start = starts[at] as usize;
            if ABSOLUTE_POS >= start && ABSOLUTE_POS < start + lengths[at] as usize {
                found = inputs[at][ABSOLUTE_POS - start];
            }
        }
        arena[offset as usize + ABSOLUTE_POS] = found;
    }
}

#[cube(launch)]
fn partial_sums(
    x: &[f32],
    partial: &mut [f32],
    #[comptime] squared: bool,
    #[comptime] units: usize,
) {
    let mut sum = 0.0f32;
    let mut at = CUBE_POS * units + UNIT_POS as usize;
    let step = partial.len() * units;
    while at < x.len() {
        let number = x[at];
        if squared {
            sum += number * number;
        } else {
            sum += number;
        }
        at += step;
    }
    let sum = sum_of_units(sum, units);
    if UNIT_POS == 0 {
        partial[CUBE_POS] = sum;
    }
}

#[cube(launch)]
fn adamw_kernel(
    value: &[f32],
    gradient: &[f32],
    first: &[f32],
    second: &[f32],
    to_value: &mut [f32],
    to_first: &mut [f32],
    to_second: &mut [f32],
    squares: &[f32],
    unscale: f32,
    longest: f32,
    beta1: f32,
    beta2: f32,
    fresh1: f32,
    fresh2: f32,
    inverse: f32,
    epsilon: f32,
    keep: f32,
    rate: f32,
    decaying: u32,
) {
    if ABSOLUTE_POS < to_value.len() {
        // The length of all gradients together, as they are without the loss scale.
        let length = squares[0].sqrt() * unscale;
        let mut factor = unscale;
        if length > longest {
            factor = unscale * longest / length;
        }
        let gradient = gradient[ABSOLUTE_POS] * factor;
        let first = first[ABSOLUTE_POS] * beta1 + gradient * fresh1;
        let second = second[ABSOLUTE_POS] * beta2 + gradient * gradient * fresh2;
        let change = first / (second.sqrt() * inverse + epsilon) * rate;
        let mut value = value[ABSOLUTE_POS];
        if ABSOLUTE_POS < decaying as usize {
            value *= keep;
        }
        to_value[ABSOLUTE_POS] = value - change;
        to_first[ABSOLUTE_POS] = first;
        to_second[ABSOLUTE_POS] = second;
    }
}

/// Writes the first numbers of tensors, as many as `lengths` says, into `arena` from `offset` on; nobody else may hold the
/// arena. Each is padded, unless they are to be dense.
pub(super) fn pack(
    arena: CubeTensor,
    inputs: [CubeTensor; AT_ONCE],
    lengths: [usize; AT_ONCE],
    offset: usize,
    dense: bool,
) -> CubeTensor {
    let client = arena.client.clone();
    // Some devices have few bindings: the arena and the kernel's scalars take two.
    let bindings = client.properties().hardware.max_bindings as usize;
    let at_once = bindings.saturating_sub(2).clamp(1, AT_ONCE);
    let mut offset = offset;
    for (inputs, lengths) in inputs.chunks(at_once).zip(lengths.chunks(at_once)) {
        let mut tensors = SequenceArg::<Box<[f32]>>::new();
        let (mut starts, mut counts) = (SequenceArg::<u32>::new(), SequenceArg::<u32>::new());
        let mut end = 0;
        for (input, length) in inputs.iter().zip(lengths) {
            tensors.push(into_contiguous(input.clone()).into_buffer_arg());
            starts.push(end as u32);
            counts.push(*length as u32);
            end += if dense { *length } else { padded(*length) };
        }
        let (count, dim) = elements(&client, end);
        let to = arena.clone().into_buffer_arg();
        let (from, room) = (offset as u32, end as u32);
        pack_kernel::launch(&client, count, dim, tensors, starts, counts, to, from, room);
        offset += end;
    }
    arena
}

/// The sum of all numbers, or of their squares.
pub(super) fn sum(x: CubeTensor, squared: bool) -> CubeTensor {
    const UNITS: usize = 256;
    let x = into_contiguous(x);
    let client = x.client.clone();
    let cubes = x.meta.num_elements().div_ceil(UNITS * 16).clamp(1, 1024);
    let dim = CubeDim::new_1d(UNITS as u32);
    let partial = empty(&x, Shape::new([cubes]));
    let total = empty(&x, Shape::new([1]));
    let (from, to) = (x.into_buffer_arg(), partial.clone().into_buffer_arg());
    let count = CubeCount::Static(cubes as u32, 1, 1);
    partial_sums::launch(&client, count, dim, from, to, squared, UNITS);
    let (from, to) = (partial.into_buffer_arg(), total.clone().into_buffer_arg());
    partial_sums::launch(&client, CubeCount::Static(1, 1, 1), dim, from, to, false, UNITS);
    total
}

/// The new values and moments. `squares` is the sum of the squares of all gradients, by which they are clipped to be no
/// longer than `longest` once they are taken times the step's factor. The first `decaying` values decay.
pub(super) fn adamw(
    inputs: [CubeTensor; 4],
    squares: CubeTensor,
    longest: f64,
    step: AdamW,
    decaying: usize,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let inputs = inputs.map(into_contiguous);
    let shape = inputs[0].meta.shape().clone();
    let out = [(); 3].map(|()| empty(&inputs[0], shape.clone()));
    let client = inputs[0].client.clone();
    let (count, dim) = elements(&client, out[0].meta.num_elements());
    let [value, gradient, first, second] = inputs.map(CubeTensor::into_buffer_arg);
    let [to_value, to_first, to_second] = out.clone().map(CubeTensor::into_buffer_arg);
    adamw_kernel::launch(
        &client,
        count,
        dim,
        value,
        gradient,
        first,
        second,
        to_value,
        to_first,
        to_second,
        into_contiguous(squares).into_buffer_arg(),
        step.factor as f32,
        longest.min(f64::from(f32::MAX)) as f32,
        step.beta1 as f32,
        step.beta2 as f32,
        (1.0 - step.beta1) as f32,
        (1.0 - step.beta2) as f32,
        (1.0 / step.start.sqrt()) as f32,
        step.epsilon as f32,
        step.keep as f32,
        step.rate as f32,
        decaying as u32,
    );
    let [value, first, second] = out;
    (value, first, second)
}
