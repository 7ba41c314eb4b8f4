//! Attention whose heads are multiplied where they lie in `mixed`, and whose results are written to where they belong: nothing is
//! brought together or apart.

use burn::tensor::Shape;
use burn_cubecl::tensor::CubeTensor;

use super::{Sizes, softmax};
use crate::cube::launch::empty;
use crate::cube::product::{self, Causal, Operand, product_into};

/// Whether the kernel of products takes all six of an attention of these sizes.
pub(super) fn fits(sizes: Sizes) -> bool {
    let Sizes { samples, tokens, heads, each, .. } = sizes;
    let product = |rows, columns, depth| {
        product::Sizes { rows, columns, depth, outer: samples, inner: heads }.fit(false)
    };
    product(tokens, tokens, each) && product(tokens, each, tokens)
}

/// One of the parts that lie side by side in a tensor `[samples, tokens, parts · heads · each]`, as matrices of the heads with a
/// line for each token.
fn part(sizes: Sizes, tensor: &CubeTensor, at: usize, along: bool) -> Operand {
    let width = sizes.heads * sizes.each;
    let line = tensor.meta.shape()[2];
    Operand {
        tensor: tensor.clone(),
        first: at * width,
        line,
        outer: sizes.tokens * line,
        inner: sizes.each,
        along,
    }
}

/// A tensor `[samples, heads, tokens, tokens]`, as matrices with a line for each token that takes.
fn of_pairs(sizes: Sizes, tensor: &CubeTensor, along: bool) -> Operand {
    let matrix = sizes.tokens * sizes.tokens;
    Operand {
        tensor: tensor.clone(),
        first: 0,
        line: sizes.tokens,
        outer: sizes.heads * matrix,
        inner: matrix,
        along,
    }
}

/// Products that give a number for each pair of tokens, of which the first takes from the second: where that comes later, any number.
fn into_pairs(sizes: Sizes, left: Operand, right: Operand) -> CubeTensor {
    let Sizes { samples, tokens, heads, each, .. } = sizes;
    let out = empty(&left.tensor, Shape::new([samples, heads, tokens, tokens]));
    let product =
        product::Sizes { rows: tokens, columns: tokens, depth: each, outer: samples, inner: heads };
    let pairs = of_pairs(sizes, &out, true);
    product_into(left, right, pairs, product, sizes.compute, Causal::ColumnsBehind);
    out
}

/// Products that give each token a vector for each head, written to part `at` of `out`. The left side has a number for each pair of
/// tokens, as it is or turned.
fn into_part(sizes: Sizes, left: Operand, right: Operand, out: &CubeTensor, at: usize) {
    let Sizes { samples, tokens, heads, each, .. } = sizes;
    let product =
        product::Sizes { rows: tokens, columns: each, depth: tokens, outer: samples, inner: heads };
    // No token takes from one behind it.
    let causal = if left.along { Causal::DepthBehind } else { Causal::DepthBefore };
    product_into(left, right, part(sizes, out, at, true), product, sizes.compute, causal);
}

/// See [`super::shares`].
pub(super) fn shares(sizes: Sizes, mixed: &CubeTensor) -> CubeTensor {
    let [query, key] = [0, 1].map(|at| part(sizes, mixed, at, true));
    softmax::forward(into_pairs(sizes, query, key), sizes)
}

/// What each token gets, given the shares.
pub(super) fn gathered(sizes: Sizes, mixed: &CubeTensor, shares: &CubeTensor) -> CubeTensor {
    let Sizes { samples, tokens, heads, each, .. } = sizes;
    let out = empty(mixed, Shape::new([samples, tokens, heads * each]));
    into_part(sizes, of_pairs(sizes, shares, true), part(sizes, mixed, 2, false), &out, 0);
    out
}

/// See [`super::backward`].
pub(super) fn backward(
    sizes: Sizes,
    mixed: &CubeTensor,
    shares: CubeTensor,
    gradient: &CubeTensor,
) -> CubeTensor {
    let out = empty(mixed, mixed.meta.shape().clone());
    let [query, key] = [0, 1].map(|at| part(sizes, mixed, at, false));
    let value = part(sizes, mixed, 2, true);
    into_part(sizes, of_pairs(sizes, &shares, false), part(sizes, gradient, 0, false), &out, 2);
    let of_shares = into_pairs(sizes, part(sizes, gradient, 0, true), value);
    let of_scores = softmax::backward(shares, of_shares, sizes);
    into_part(sizes, of_pairs(sizes, &of_scores, true), key, &out, 0);
    into_part(sizes, of_pairs(sizes, &of_scores, false), query, &out, 1);
    out
}
