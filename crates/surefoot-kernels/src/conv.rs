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

/// Adds up what tasks have found, in the order of the samples, whichever thread was first.
fn sum_of(parts: Vec<Vec<f32>>) -> Vec<f32> {
    let mut parts = parts.into_iter();
    let mut sum = parts.next().unwrap_or_default();
    for part in parts {
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    sum
}
