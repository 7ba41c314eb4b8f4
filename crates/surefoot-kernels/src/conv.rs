//! Convolutions of images without a copy of each window.
//!
//! A kernel's tap is a shift of the padded image, and what is worked on stays in the cache; see `direct`. Where it saves time, 3×3
//! kernels are done by `winograd`, with fewer multiplications. Which of the two it is depends on the sizes alone.
//!
//! Images lie sample by sample, channel by channel and row by row. Callers know that there are vectors
//! ([`has_vectors`](crate::processor::has_vectors)) and that slices are as long as the [`Sizes`] say.

mod direct;
mod kernel;
mod layout;
mod winograd;

use std::ops::Range;

use rayon::prelude::*;

pub use self::layout::Sizes;

/// The result for images `x`: `[samples, outputs, rows, columns]`.
pub fn forward(sizes: &Sizes, x: &[f32], weight: &[f32]) -> Vec<f32> {
    match winograd::suits(sizes) {
        true => winograd::forward(sizes, x, weight),
        false => direct::forward(sizes, x, weight),
    }
}

/// The gradient by the images, from that by the result.
pub fn x_gradient(sizes: &Sizes, weight: &[f32], gradient: &[f32]) -> Vec<f32> {
    match winograd::suits(sizes) {
        true => winograd::x_gradient(sizes, weight, gradient),
        false => direct::x_gradient(sizes, weight, gradient),
    }
}

/// The gradient by the weights, `[outputs, inputs, rows, columns]`.
pub fn weight_gradient(sizes: &Sizes, x: &[f32], gradient: &[f32]) -> Vec<f32> {
    match winograd::suits(sizes) {
        true => winograd::weight_gradient(sizes, x, gradient),
        false => direct::weight_gradient(sizes, x, gradient),
    }
}

/// Numbers of sums that are kept at once while a gradient by the weights is added up: 64 MiB.
const SUMS: usize = 16 << 20;
/// As many sums at least are made side by side, so that as many cores have work.
const LEAST_GROUPS: usize = 16;
const MOST_GROUPS: usize = 64;

/// Adds up what `tasks` tasks find, in groups of neighbours: a group has one sum of `numbers` numbers, which `sum` makes. Groups depend on
/// the sizes alone and are added in their order, whichever thread was first.
fn sum_in_groups<T>(
    tasks: usize,
    numbers: usize,
    scratch: impl Fn() -> T + Sync + Send,
    sum: impl Fn(&mut T, Range<usize>) -> Vec<f32> + Sync + Send,
) -> Vec<f32> {
    let groups = (SUMS / numbers.max(1)).clamp(LEAST_GROUPS, MOST_GROUPS).min(tasks);
    let parts: Vec<Vec<f32>> = (0..groups)
        .into_par_iter()
        .map_init(scratch, |scratch, group| {
            sum(scratch, group * tasks / groups..(group + 1) * tasks / groups)
        })
        .collect();
    let mut parts = parts.into_iter();
    let mut total = parts.next().unwrap_or_default();
    parts.for_each(|part| add(&mut total, &part));
    total
}

fn add(sum: &mut [f32], part: &[f32]) {
    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images, weights and an output's gradient between -1 and 1.
    pub(super) fn numbers(sizes: &Sizes) -> [Vec<f32>; 3] {
        let mut random = fastrand::Rng::with_seed(3);
        let [x, y] = [sizes.in_plane() * sizes.inputs, sizes.out_plane() * sizes.outputs];
        [sizes.samples * x, sizes.outputs * sizes.terms(), sizes.samples * y]
            .map(|count| (0..count).map(|_| 2.0 * random.f32() - 1.0).collect())
    }

    /// The output, the gradient by the images and that by the weights, added up one by one in f64.
    pub(super) fn right(sizes: &Sizes, [x, weight, gradient]: &[Vec<f32>; 3]) -> [Vec<f64>; 3] {
        let ([height, width], [rows, columns]) = (sizes.image, sizes.out_image());
        let [down, across] = sizes.kernel;
        let mut right = [gradient.len(), x.len(), weight.len()].map(|count| vec![0.0; count]);
        let times = |a: f32, b: f32| f64::from(a) * f64::from(b);
        for at in 0..gradient.len() {
            let (plane, pixel) = (at / (rows * columns), at % (rows * columns));
            let (sample, output) = (plane / sizes.outputs, plane % sizes.outputs);
            for tap in 0..down * across {
                let y = pixel / columns * sizes.stride + tap / across;
                let x_at = pixel % columns * sizes.stride + tap % across;
                let inside =
                    |at: usize, size: usize| (sizes.padding..size + sizes.padding).contains(&at);
                if !inside(y, height) || !inside(x_at, width) {
                    continue;
                }
                let from = (y - sizes.padding) * width + x_at - sizes.padding;
                for input in 0..sizes.inputs {
                    let of_x = (sample * sizes.inputs + input) * height * width + from;
                    let of_weight = (output * sizes.inputs + input) * down * across + tap;
                    right[0][at] += times(x[of_x], weight[of_weight]);
                    right[1][of_x] += times(gradient[at], weight[of_weight]);
                    right[2][of_weight] += times(gradient[at], x[of_x]);
                }
            }
        }
        right
    }

    /// The largest error, relative to the largest number.
    pub(super) fn off(is: &[f32], right: &[f64]) -> f64 {
        assert_eq!(is.len(), right.len());
        let largest = right.iter().fold(0.0_f64, |most, right| most.max(right.abs()));
        is.iter()
            .zip(right)
            .fold(0.0_f64, |most, (is, right)| most.max((f64::from(*is) - right).abs()))
            / largest
    }

    /// The errors of the output and both gradients.
    pub(super) fn errors(sizes: &Sizes, given: &[Vec<f32>; 3]) -> [f64; 3] {
        let [x, weight, gradient] = given;
        let [out, of_x, of_weight] = right(sizes, given);
        [
            off(&forward(sizes, x, weight), &out),
            off(&x_gradient(sizes, weight, gradient), &of_x),
            off(&weight_gradient(sizes, x, gradient), &of_weight),
        ]
    }

    #[test]
    fn direct_sums_are_right() {
        // Seen: 6e-7.
        const BOUND: f64 = 1e-6;
        for (samples, [inputs, outputs], image, kernel, stride, padding) in [
            (1, [3, 5], [6, 7], [1, 1], 1, 0),
            (2, [16, 24], [14, 9], [5, 5], 1, 2),
            (2, [3, 20], [21, 30], [7, 7], 2, 3),
            (1, [8, 8], [12, 13], [7, 7], 1, 3),
            (2, [64, 72], [14, 14], [3, 3], 2, 1),
            (2, [64, 40], [13, 11], [1, 1], 2, 0),
            (3, [20, 17], [19, 8], [5, 5], 3, 0),
            (2, [16, 16], [12, 17], [1, 5], 1, 0),
            (2, [16, 16], [9, 31], [5, 2], 2, 1),
            // More chunks of samples than sums are kept, and a last one that is shorter.
            (1100, [2, 3], [6, 5], [3, 3], 1, 1),
        ] {
            let sizes = Sizes { samples, inputs, outputs, image, kernel, stride, padding };
            assert!(!winograd::suits(&sizes), "{sizes:?}");
            let found = errors(&sizes, &numbers(&sizes));
            assert!(found.iter().all(|off| *off < BOUND), "{sizes:?}: {found:?}");
        }
    }

    #[test]
    fn sums_are_kept_in_a_bounded_number_of_groups_whatever_the_threads() {
        let run = |threads: usize, tasks: usize, numbers: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let groups = std::sync::Mutex::new(Vec::new());
            pool.install(|| {
                sum_in_groups(
                    tasks,
                    numbers,
                    || (),
                    |(), range| {
                        groups.lock().unwrap().push((range.start, range.end));
                        Vec::new()
                    },
                )
            });
            let mut groups = groups.into_inner().unwrap();
            groups.sort_unstable();
            groups
        };
        for (tasks, numbers, expected) in [
            (5, 1000, 5),
            (1000, 1000, MOST_GROUPS),
            (1000, 512 * 512 * 9, LEAST_GROUPS),
            (1000, SUMS / 40, 40),
        ] {
            let groups = run(1, tasks, numbers);
            assert_eq!(groups.len(), expected, "{tasks} {numbers}");
            assert_eq!((groups[0].0, groups[expected - 1].1), (0, tasks));
            assert!(groups.is_sorted_by(|one, next| one.1 == next.0), "{groups:?}");
            assert_eq!(run(3, tasks, numbers), groups);
        }
    }
}
