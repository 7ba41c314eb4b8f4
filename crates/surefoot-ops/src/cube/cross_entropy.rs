//! Cross entropy on Cube devices: a cube for each row makes its loss and the gradient by its logits in one launch.

use burn::tensor::Shape;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::launch::{elements, empty, row_cubes};
use super::rows::{maximum_of_row, powers_of_row, sum_of_row};

#[cube(launch)]
fn entropy_of_rows(
    logits: &[f32],
    targets: &[i32],
    losses: &mut [f32],
    slopes: &mut [f32],
    rows: u32,
    width: u32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    let width = width as usize;
    if row >= rows as usize {
        terminate!();
    }
    let first = row * width;
    let most = maximum_of_row(logits, first, width, units);
    let sum = powers_of_row(logits, first, width, most, 1.0f32, units);
    let target = targets[row] as usize;
    let mut at = UNIT_POS as usize;
    while at < width {
        let mut slope = (logits[first + at] - most).exp() / sum;
        if at == target {
            slope -= 1.0f32;
        }
        slopes[first + at] = slope;
        at += units;
    }
    if UNIT_POS == 0 {
        // A class that does not exist makes the loss no number: `sum` is at least 1 where logits are numbers.
        let mut loss = (0.0f32 - sum).sqrt();
        if target < width {
            loss = sum.ln() - (logits[first + target] - most);
        }
        losses[row] = loss;
    }
}

/// All losses, added up by one cube.
#[cube(launch)]
fn sum_of_losses(losses: &[f32], total: &mut [f32], rows: u32, #[comptime] units: usize) {
    let sum = sum_of_row(losses, 0usize, rows as usize, units);
    if UNIT_POS == 0 {
        total[0] = sum;
    }
}

#[cube(launch)]
fn scale_by(slopes: &[f32], factor: &[f32], out: &mut [f32]) {
    if ABSOLUTE_POS < out.len() {
        out[ABSOLUTE_POS] = slopes[ABSOLUTE_POS] * factor[0];
    }
}

/// The loss, summed over the rows, and its gradient by the logits.
pub(super) fn forward(logits: CubeTensor, targets: CubeTensor) -> (CubeTensor, CubeTensor) {
    let (logits, targets) = (into_contiguous(logits), into_contiguous(targets));
    let (rows, width) = (logits.meta.shape()[0], logits.meta.shape()[1]);
    let losses = empty(&logits, Shape::new([rows]));
    let slopes = empty(&logits, Shape::new([rows, width]));
    let loss = empty(&logits, Shape::new([1]));
    let client = logits.client.clone();
    let (count, dim, units) = row_cubes(&client, rows, width);
    entropy_of_rows::launch(
        &client,
        count,
        dim,
        logits.into_buffer_arg(),
        targets.into_buffer_arg(),
        losses.clone().into_buffer_arg(),
        slopes.clone().into_buffer_arg(),
        rows as u32,
        width as u32,
        units,
    );
    let (_, dim, units) = row_cubes(&client, 1, rows);
    let args = (losses.into_buffer_arg(), loss.clone().into_buffer_arg());
    sum_of_losses::launch(
        &client,
        CubeCount::Static(1, 1, 1),
        dim,
        args.0,
        args.1,
        rows as u32,
        units,
    );
    (loss, slopes)
}

/// The gradient by the logits, given the one by the loss.
pub(super) fn backward(slopes: CubeTensor, gradient: CubeTensor) -> CubeTensor {
    let (slopes, gradient) = (into_contiguous(slopes), into_contiguous(gradient));
    let out = empty(&slopes, slopes.meta.shape().clone());
    let client = slopes.client.clone();
    let (count, dim) = elements(&client, out.meta.num_elements());
    let args = (slopes.into_buffer_arg(), gradient.into_buffer_arg());
    scale_by::launch(&client, count, dim, args.0, args.1, out.clone().into_buffer_arg());
    out
}
