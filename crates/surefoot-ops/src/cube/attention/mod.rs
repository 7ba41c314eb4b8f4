//! Causal attention on Cube devices: products, and scale, mask and softmax in one launch.

mod copied;
mod in_place;
mod softmax;

use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

/// The sizes of one attention.
#[derive(Clone, Copy)]
struct Sizes {
    samples: usize,
    tokens: usize,
    heads: usize,
    each: usize,
    /// What factors of products may be rounded to.
    compute: DType,
}

impl Sizes {
    /// Of `[samples, tokens, 3 · heads · each]`.
    fn of(mixed: &CubeTensor, heads: usize, compute: DType) -> Self {
        let shape = mixed.meta.shape();
        Self { samples: shape[0], tokens: shape[1], heads, each: shape[2] / 3 / heads, compute }
    }

    fn scale(self) -> f32 {
        1.0 / (self.each as f32).sqrt()
    }

    fn rows(self) -> usize {
        self.samples * self.heads * self.tokens
    }
}

/// How much each token takes from each other: `[samples, heads, tokens, tokens]`.
pub(super) fn shares(mixed: CubeTensor, heads: usize, compute: DType) -> CubeTensor {
    let sizes = Sizes::of(&mixed, heads, compute);
    let mixed = into_contiguous(mixed);
    match in_place::fits(sizes) {
        true => in_place::shares(sizes, &mixed),
        false => copied::shares(sizes, mixed),
    }
}

/// What each token gets, and how much of each other token that is.
pub(super) fn forward(mixed: CubeTensor, heads: usize, compute: DType) -> (CubeTensor, CubeTensor) {
    let sizes = Sizes::of(&mixed, heads, compute);
    let mixed = into_contiguous(mixed);
    let shares = shares(mixed.clone(), heads, compute);
    let out = match in_place::fits(sizes) {
        true => in_place::gathered(sizes, &mixed, &shares),
        false => copied::gathered(sizes, mixed, shares.clone()),
    };
    (out, shares)
}

/// The gradient by `mixed`.
pub(super) fn backward(
    mixed: CubeTensor,
    shares: CubeTensor,
    gradient: CubeTensor,
    heads: usize,
    compute: DType,
) -> CubeTensor {
    let sizes = Sizes::of(&mixed, heads, compute);
    let [mixed, shares, gradient] = [mixed, shares, gradient].map(into_contiguous);
    match in_place::fits(sizes) {
        true => in_place::backward(sizes, &mixed, shares, &gradient),
        false => copied::backward(sizes, mixed, shares, gradient),
    }
}
