//! Convolutions as direct sums: a few samples at a time are laid out as `layout` has it, and `kernel` does the sums.
//!
//! Called by [`super`](crate::conv) for what `winograd` does not take. How many samples a task has depends on the sizes alone.

use rayon::prelude::*;

use super::kernel::{Correlate, Products};
use super::layout::{self, InputGradient, Sizes};

/// The result for images `x`, sample by sample.
pub(super) fn forward(sizes: &Sizes, x: &[f32], weight: &[f32]) -> Vec<f32> {
    let terms = sizes.terms();
    let packed = layout::pack(sizes.outputs, terms, |row, term| weight[row * terms + term]);
    let chunk = sizes.chunk();
    let grid = layout::input_grid(sizes, chunk);
    let offsets = layout::input_offsets(sizes, &grid);
    let (of_input, of_output) =
        (chunk * sizes.inputs * sizes.in_plane(), chunk * sizes.outputs * sizes.out_plane());
    let mut out = vec![0.0; sizes.samples * sizes.outputs * sizes.out_plane()];
    let channels = layout::padded_channels(sizes.outputs);
    let scratch = || (vec![0.0; grid.length(sizes.inputs)], vec![0.0; channels * grid.positions()]);
    out.par_chunks_mut(of_output).zip(x.par_chunks(of_input)).for_each_init(
        scratch,
        |(source, rows), (out, x)| {
            layout::place_input(sizes, &grid, x, source);
            let positions = grid.positions();
            Correlate { source, offsets: &offsets, weights: &packed, out: rows, positions }.run();
            let samples = out.len() / (sizes.outputs * sizes.out_plane());
            layout::for_each_out_row(sizes, &grid, samples, |tight, wide| {
                out[tight].copy_from_slice(&rows[wide]);
            });
        },
    );
    out
}

/// The gradient by the images.
pub(super) fn x_gradient(sizes: &Sizes, weight: &[f32], gradient: &[f32]) -> Vec<f32> {
    let chunk = sizes.chunk();
    let plan = InputGradient::new(sizes, chunk, weight);
    let (of_input, of_output) =
        (chunk * sizes.inputs * sizes.in_plane(), chunk * sizes.outputs * sizes.out_plane());
    let mut out = vec![0.0; sizes.samples * sizes.inputs * sizes.in_plane()];
    let positions = plan.grid.positions();
    let channels = layout::padded_channels(sizes.inputs);
    let scratch = || (vec![0.0; plan.grid.length(sizes.outputs)], vec![0.0; channels * positions]);
    out.par_chunks_mut(of_input).zip(gradient.par_chunks(of_output)).for_each_init(
        scratch,
        |(source, rows), (out, gradient)| {
            plan.place(sizes, gradient, source);
            for phase in &plan.phases {
                let (offsets, weights) = (&phase.offsets, &phase.weights);
                Correlate { source, offsets, weights, out: rows, positions }.run();
                plan.take(sizes, phase, rows, out);
            }
        },
    );
    out
}

/// The gradient by the weights.
pub(super) fn weight_gradient(sizes: &Sizes, x: &[f32], gradient: &[f32]) -> Vec<f32> {
    let chunk = sizes.chunk();
    let grid = layout::input_grid(sizes, chunk);
    let offsets = layout::input_offsets(sizes, &grid);
    let (of_input, of_output) =
        (chunk * sizes.inputs * sizes.in_plane(), chunk * sizes.outputs * sizes.out_plane());
    let (terms, positions) = (sizes.terms(), grid.positions());
    let channels = layout::padded_channels(sizes.outputs);
    let scratch = || (vec![0.0; grid.length(sizes.inputs)], vec![0.0; channels * positions]);
    let tasks = sizes.samples.div_ceil(chunk);
    super::sum_in_groups(tasks, sizes.outputs * terms, scratch, |(source, rows), group| {
        let mut sum = Vec::new();
        let x = x[group.start * of_input..].chunks(of_input);
        let gradient = gradient[group.start * of_output..].chunks(of_output);
        for (x, gradient) in x.zip(gradient).take(group.len()) {
            layout::place_input(sizes, &grid, x, source);
            let samples = gradient.len() / (sizes.outputs * sizes.out_plane());
            if samples < chunk {
                // What an earlier, longer chunk has left behind must not count.
                rows.fill(0.0);
            }
            layout::for_each_out_row(sizes, &grid, samples, |tight, wide| {
                rows[wide].copy_from_slice(&gradient[tight]);
            });
            let mut out = vec![0.0; channels * terms];
            let offsets = &offsets;
            Products { source, offsets, grads: rows, positions, out: &mut out }.run();
            out.truncate(sizes.outputs * terms);
            match sum.is_empty() {
                true => sum = out,
                false => super::add(&mut sum, &out),
            }
        }
        sum
    })
}
