//! Convolutions with kernels of 3 × 3 and a stride of 1 by Winograd's F(4×4, 3×3): 36 multiplications for each 16 outputs and pair
//! of channels instead of 144.
//!
//! The input transform evaluates tiles of 6 × 6 inputs, of which neighbours share two rows or columns, as polynomials at 36 points
//! (`transform`); the weights are evaluated there too. At a point the convolution is a product of matrices over the channels, the tiles
//! times the weights, and the output transform makes pixels of the products. The gradient by the images is
//! a convolution of the output's gradient with the weights turned round, and that by the weights is, at each point, the product of
//! the output's gradient and the tiles.
//!
//! Which convolutions are done so depends on the sizes of a sample alone, and a tile's sums on nothing but the tile, so a sample's result
//! is the same in any batch.
//!
//! All outputs of a tile are made of all its inputs, so rounding errors are relative to a tile's largest numbers: with inputs and weights
//! of about one size, results differ from exact sums by up to 4e-6 of the largest number (seen with up to 512 channels; direct sums by
//! 6e-7). Beside a number that is a million times as large as the others, the 16 outputs of its tiles lose most of their digits, also those
//! that a direct sum would not make of it, and an inf or NaN spreads over the 4 × 4 outputs of each tile that reads it. Other tiles keep
//! their bits.

mod kernels;
mod planes;
mod transform;

use rayon::prelude::*;

use self::kernels::{at_points, from_points};
use self::planes::{Images, InputTransform, OutputTransform, Planes};
use self::transform::{POINTS, REACH, SIDE};
use super::layout::Sizes;
use crate::dense::{Panels, Part, Rows, View};
use crate::processor::arch;

/// Tiles that are worked on at once: so many that reading the weights costs little beside multiplying with them, and whole tiles of
/// a product's rows.
const TILES: usize = 96;
/// With fewer channels the transforms cost about what they save.
const CHANNELS: usize = 32;
/// Above this, the transformed weights (4 × the numbers) no longer fit the cache.
const WEIGHTS: usize = 512 * 512;

/// Whether a convolution is done so.
pub(super) fn suits(sizes: &Sizes) -> bool {
    let [rows, columns] = sizes.out_image();
    let is_3_by_3 = sizes.kernel == [3, 3] && sizes.stride == 1 && sizes.padding <= 2;
    let tiles = rows.div_ceil(SIDE) * columns.div_ceil(SIDE);
    let channels = [sizes.inputs, sizes.outputs];
    // Tiles that reach beyond the image must not cost what others save.
    is_3_by_3
        && channels.iter().all(|channels| *channels >= CHANNELS)
        && channels[0] * channels[1] <= WEIGHTS
        && tiles * SIDE * SIDE <= 2 * rows * columns
}

/// How the work is divided. It depends on the sizes of a sample alone.
#[derive(Clone, Copy)]
struct Division {
    /// Rows of tiles that are worked on at once.
    rows: usize,
    /// Samples of a task.
    samples: usize,
}

fn division([down, across]: [usize; 2]) -> Division {
    let rows = (TILES / across).max(1);
    Division { rows, samples: (rows / down).max(1) }
}

fn tiles_of([rows, columns]: [usize; 2]) -> [usize; 2] {
    [rows.div_ceil(SIDE), columns.div_ceil(SIDE)]
}

/// The result for images `x`, sample by sample.
pub(super) fn forward(sizes: &Sizes, x: &[f32], weight: &[f32]) -> Vec<f32> {
    let points = at_points(weight, sizes.inputs, false);
    let step = POINTS * sizes.inputs;
    let panels = pack(sizes.inputs, sizes.outputs, |point| {
        View::columns(&points[point * sizes.inputs..], step)
    });
    let tiles = tiles_of(sizes.out_image());
    let (channels, padding) = (sizes.inputs, sizes.padding);
    let from = Images { channels, image: sizes.image, padding, tiles };
    let to = Images { channels: sizes.outputs, image: sizes.out_image(), padding: 0, tiles };
    correlate(division(tiles), from, to, x, panels)
}

/// The gradient by the images.
pub(super) fn x_gradient(sizes: &Sizes, weight: &[f32], gradient: &[f32]) -> Vec<f32> {
    let points = at_points(weight, sizes.inputs, true);
    let step = POINTS * sizes.inputs;
    let panels = pack(sizes.outputs, sizes.inputs, |point| {
        View::rows(&points[point * sizes.inputs..], step)
    });
    let tiles = tiles_of(sizes.image);
    let (channels, padding) = (sizes.outputs, 2 - sizes.padding);
    let from = Images { channels, image: sizes.out_image(), padding, tiles };
    let to = Images { channels: sizes.inputs, image: sizes.image, padding: 0, tiles };
    correlate(division(tiles), from, to, gradient, panels)
}

/// Packs the weights of each point.
fn pack<'a>(depth: usize, columns: usize, at: impl Fn(usize) -> View<'a> + Sync) -> Vec<Panels> {
    let pack = |point: usize| {
        let mut panels = Panels::take();
        panels.pack(arch(), at(point), depth, 0..columns, false);
        panels
    };
    (0..POINTS).into_par_iter().map(pack).collect()
}

/// Multiplies tiles with weights at all points, for all samples.
fn correlate(
    division: Division,
    from: Images,
    to: Images,
    numbers: &[f32],
    weights: Vec<Panels>,
) -> Vec<f32> {
    let ([down, across], plane) = (from.tiles, |images: Images| images.image[0] * images.image[1]);
    let (of_input, of_output) = (from.channels * plane(from), to.channels * plane(to));
    let samples = numbers.len() / of_input;
    let mut out = vec![0.0; samples * of_output];
    let most = division.rows.min(division.samples * down) * across;
    let lines = from.lines();
    let scratch =
        || (Planes::new(most, from.channels), Planes::new(most, to.channels), vec![0.0; lines]);
    out.par_chunks_mut(division.samples * of_output)
        .zip(numbers.par_chunks(division.samples * of_input))
        .for_each_init(scratch, |(inputs, outputs, lines), (out, numbers)| {
            let count = out.len() / of_output * down;
            for first in (0..count).step_by(division.rows) {
                let rows = first..(first + division.rows).min(count);
                let tiles = rows.len() * across;
                let (images, planes) = (from, &mut *inputs);
                InputTransform::<REACH> { images, numbers, rows: rows.clone(), lines, planes }
                    .run();
                for (point, panels) in weights.iter().enumerate() {
                    let a = View::rows(inputs.at(point), inputs.pitch);
                    let part = Part { a, first: 0, rows: tiles };
                    let step = outputs.pitch;
                    let out = outputs.at_mut(point);
                    Rows { part, panels, step, column: 0, add: false, out }.fill(arch(), |_, _| ());
                }
                OutputTransform { images: to, planes: outputs, rows, numbers: out }.run();
            }
        });
    weights.into_iter().for_each(Panels::give_back);
    out
}

/// The gradient by the weights.
pub(super) fn weight_gradient(sizes: &Sizes, x: &[f32], gradient: &[f32]) -> Vec<f32> {
    let tiles = tiles_of(sizes.out_image());
    let [down, across] = tiles;
    let division = division(tiles);
    let (channels, padding) = (sizes.inputs, sizes.padding);
    let of_x = Images { channels, image: sizes.image, padding, tiles };
    let of_out = Images { channels: sizes.outputs, image: sizes.out_image(), padding: 0, tiles };
    let (of_input, of_output) =
        (sizes.inputs * sizes.in_plane(), sizes.outputs * sizes.out_plane());
    let most = division.rows.min(division.samples * down) * across;
    let plane = sizes.outputs * sizes.inputs + 16;
    let scratch = || Scratch {
        inputs: Planes::new(most, sizes.inputs),
        gradients: Planes::new(most, sizes.outputs),
        lines: vec![0.0; of_x.lines().max(of_out.lines())],
        points: vec![0.0; POINTS * plane],
        panels: Panels::take(),
    };
    let tasks = sizes.samples.div_ceil(division.samples);
    super::sum_in_groups(tasks, sizes.outputs * sizes.terms(), scratch, |scratch, group| {
        let Scratch { inputs, gradients, lines, points, panels } = scratch;
        let samples = group.start * division.samples..group.end * division.samples;
        let samples = samples.start..samples.end.min(sizes.samples);
        let x =
            x[samples.start * of_input..samples.end * of_input].chunks(division.samples * of_input);
        let gradient = gradient[samples.start * of_output..samples.end * of_output]
            .chunks(division.samples * of_output);
        // A group is added up at the points, and taken back from there once.
        let mut add = false;
        for (x, gradient) in x.zip(gradient) {
            let count = x.len() / of_input * down;
            for first in (0..count).step_by(division.rows) {
                let rows = first..(first + division.rows).min(count);
                let tiles = rows.len() * across;
                let (images, numbers, planes) = (of_x, x, &mut *inputs);
                InputTransform::<REACH> { images, numbers, rows: rows.clone(), lines, planes }
                    .run();
                let (images, numbers, planes) = (of_out, gradient, &mut *gradients);
                InputTransform::<SIDE> { images, numbers, rows, lines, planes }.run();
                for (point, out) in points.chunks_exact_mut(plane).enumerate() {
                    let x = View::rows(inputs.at(point), inputs.pitch);
                    panels.pack(arch(), x, tiles, 0..sizes.inputs, false);
                    let a = View::columns(gradients.at(point), gradients.pitch);
                    let part = Part { a, first: 0, rows: sizes.outputs };
                    let step = sizes.inputs;
                    Rows { part, panels, step, column: 0, add, out }.fill(arch(), |_, _| ());
                }
                add = true;
            }
        }
        from_points(points, plane, sizes.inputs, sizes.outputs)
    })
}

/// What a task works in.
struct Scratch {
    inputs: Planes,
    gradients: Planes,
    lines: Vec<f32>,
    /// The gradient at the points.
    points: Vec<f32>,
    panels: Panels,
}

#[cfg(test)]
mod tests {
    use super::super::tests::{errors, numbers, off, right};
    use super::*;

    /// The largest error that is allowed, relative to the largest number.
    const BOUND: f64 = 5e-6;

    fn sizes(samples: usize, channels: [usize; 2], image: [usize; 2], padding: usize) -> Sizes {
        let ([inputs, outputs], kernel, stride) = (channels, [3, 3], 1);
        Sizes { samples, inputs, outputs, image, kernel, stride, padding }
    }

    #[test]
    fn errors_stay_below_their_bound() {
        // Seen: 1e-6 with 32 channels, 4e-6 with 256, 3e-6 with 512; direct sums are off by up to 6e-7.
        for (samples, channels, image, padding) in [
            (2, [32, 32], [8, 8], 1),
            (3, [32, 48], [32, 32], 1),
            (2, [40, 35], [11, 13], 0),
            (2, [33, 50], [9, 10], 2),
            (1, [256, 256], [8, 8], 1),
            (1, [512, 512], [4, 4], 1),
            (30, [35, 37], [7, 5], 1),
            // Several groups of rows for each sample; rows that are wider than a group.
            (2, [32, 33], [40, 40], 1),
            (1, [33, 32], [7, 401], 1),
        ] {
            let sizes = sizes(samples, channels, image, padding);
            assert!(suits(&sizes), "{sizes:?}");
            let found = errors(&sizes, &numbers(&sizes));
            assert!(found.iter().all(|off| *off < BOUND), "{sizes:?}: {found:?}");
        }
    }

    /// Each sample is a multiple of one, so that the sum is a multiple of that one's.
    #[test]
    fn gradients_of_weights_are_added_up_over_more_tasks_than_sums_are_kept() {
        let one = sizes(1, [32, 33], [28, 28], 1);
        assert_eq!(division(tiles_of(one.out_image())).samples, 1);
        let many = Sizes { samples: 67, ..one };
        let given = numbers(&one);
        let factors = |at: usize| [(at % 7) as f32 - 2.0, (at % 5) as f32 - 1.0];
        let repeated = |numbers: &[f32], side: usize| -> Vec<f32> {
            let of = |at: usize| numbers.iter().map(move |number| number * factors(at)[side]);
            (0..many.samples).flat_map(of).collect()
        };
        let total: f32 = (0..many.samples).map(|at| factors(at).iter().product::<f32>()).sum();
        let expected: Vec<f64> =
            right(&one, &given)[2].iter().map(|right| right * f64::from(total)).collect();
        let [x, _, gradient] = &given;
        let found = weight_gradient(&many, &repeated(x, 0), &repeated(gradient, 1));
        let off = off(&found, &expected);
        assert!(off < BOUND, "{off}");
    }

    #[test]
    fn a_very_large_number_costs_its_own_tiles_their_precision() {
        let sizes = sizes(1, [32, 32], [16, 16], 1);
        let plain = numbers(&sizes);
        // A pixel of the tile of outputs 8..12 × 8..12 alone.
        let pixel = 9 * 16 + 9;
        let in_tile = |at: usize| [at % 256 / 16, at % 16].iter().all(|at| (8..12).contains(at));
        let [x, weight, _] = &plain;
        let before = forward(&sizes, x, weight);
        for large in [1e6, f32::INFINITY, f32::NAN] {
            let mut given = plain.clone();
            given[0][pixel] = large;
            let out = forward(&sizes, &given[0], weight);
            let elsewhere = (0..out.len()).filter(|at| !in_tile(*at));
            elsewhere.for_each(|at| assert!(out[at].to_bits() == before[at].to_bits(), "{at}"));
            if large.is_finite() {
                let found = off(&out, &right(&sizes, &given)[0]);
                assert!(found < BOUND, "{found}");
            } else {
                let tile = (0..out.len()).filter(|at| in_tile(*at));
                tile.for_each(|at| assert!(!out[at].is_finite(), "{at}"));
            }
        }
    }

    #[test]
    fn a_sample_is_the_same_in_any_batch() {
        let whole = sizes(21, [32, 34], [12, 7], 1);
        let [x, weight, gradient] = numbers(&whole);
        let (out, of_x) = (forward(&whole, &x, &weight), x_gradient(&whole, &weight, &gradient));
        let one = Sizes { samples: 1, ..whole };
        let (of_input, of_output) = (x.len() / 21, gradient.len() / 21);
        for sample in [0, 7, 20] {
            let (input, output) = (sample * of_input, sample * of_output);
            let alone = forward(&one, &x[input..][..of_input], &weight);
            assert!(alone == out[output..][..of_output], "sample {sample}");
            let alone = x_gradient(&one, &weight, &gradient[output..][..of_output]);
            assert!(alone == of_x[input..][..of_input], "gradient of sample {sample}");
        }
    }

    #[test]
    fn what_would_not_be_faster_is_left_to_direct_sums() {
        let good = sizes(1, [32, 32], [8, 8], 1);
        assert!(suits(&good));
        assert!(!suits(&Sizes { stride: 2, ..good }));
        assert!(!suits(&Sizes { kernel: [1, 1], padding: 0, ..good }));
        assert!(!suits(&Sizes { kernel: [5, 5], padding: 2, ..good }));
        assert!(!suits(&Sizes { padding: 3, ..good }));
        assert!(!suits(&Sizes { inputs: 3, ..good }));
        assert!(!suits(&Sizes { inputs: 1024, outputs: 1024, ..good }));
        // One tile of 4 × 4 for 2 × 2 pixels.
        assert!(!suits(&Sizes { image: [2, 2], ..good }));
    }
}
