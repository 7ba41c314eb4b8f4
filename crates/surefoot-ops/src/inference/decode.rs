//! The operations of a block that decodes a token of each of a few sequences, in as few launches as they allow: the norm, the products
//! of several weights, bias and residual in one; rotation, cache and attention in another.
//!
//! They are for devices of CubeCL, where the host's work for a launch takes longer than the launch: each gives none on the processor,
//! under autodiff, for more than [`MOST_DECODED`] tokens and for tensors that its kernel does not take.

use burn::tensor::Tensor;

#[cfg(any(feature = "gpu", target_os = "macos"))]
/// Tokens for which all of [`DecodeProducts`] is one launch. With more, each weight is a product of its own.
pub(crate) const MOST_TOKENS: usize = 8;
/// Tokens that [`DecodeProducts`] take at once.
pub const MOST_DECODED: usize = 8192;

/// Products of weights `[outputs, inputs]` with tokens, and what is before and behind them.
#[derive(Clone, Debug, Default)]
pub struct DecodeProducts<'a> {
    /// The tokens are over their root mean square, times these factors; and what is added to the mean square.
    pub norm: Option<(&'a Tensor<1>, f64)>,
    /// One to three weights of one dtype, whose outputs come one after another.
    pub weights: Vec<&'a Tensor<2>>,
    /// Of two weights, the first gates the second: `silu(a) · b`.
    pub gated: bool,
    /// Added to the outputs; not where one weight gates another.
    pub bias: Option<&'a Tensor<1>>,
    /// `[tokens, outputs]`, to which so many times the outputs are added; not where one weight gates another.
    pub residual: Option<(&'a Tensor<2>, f64)>,
    /// The weight that gated outputs are multiplied with next, if by nothing else: they may come in its dtype, to which that product rounds them.
    pub next: Option<&'a Tensor<2>>,
}

impl DecodeProducts<'_> {
    /// The outputs for `x`, `[tokens, inputs]`: `[tokens, outputs]`. Tokens without a norm may be what [`Self::then_norm`] gave, or products
    /// whose [`Self::next`] is the weight.
    pub fn of(&self, x: &Tensor<2>) -> Option<Tensor<2>> {
        #[cfg(any(feature = "gpu", target_os = "macos"))]
        return launched::products(self, x);
        #[cfg(not(any(feature = "gpu", target_os = "macos")))]
        {
            let _ = x;
            None
        }
    }

    /// The outputs, and what the norm `next`, of these factors and what is added to the mean square, gives of them: for products with weights
    /// in the same dtype, which it may be rounded to. None unless many tokens have a residual and both are made in one launch.
    pub fn then_norm(
        &self,
        x: &Tensor<2>,
        next: (&Tensor<1>, f64),
    ) -> Option<(Tensor<2>, Tensor<2>)> {
        #[cfg(any(feature = "gpu", target_os = "macos"))]
        return launched::then_norm(self, x, next);
        #[cfg(not(any(feature = "gpu", target_os = "macos")))]
        {
            let _ = (x, next);
            None
        }
    }

    /// The outputs in parts that are to be added up, `[parts · tokens, outputs]`, and how many parts. None where they are made at once, or something is
    /// behind them.
    pub fn in_parts(&self, x: &Tensor<2>) -> Option<(Tensor<2>, usize)> {
        #[cfg(any(feature = "gpu", target_os = "macos"))]
        return launched::in_parts(self, x);
        #[cfg(not(any(feature = "gpu", target_os = "macos")))]
        {
            let _ = x;
            None
        }
    }
}

/// How tokens attend, one of each sequence, each to those before it in the cache and to itself.
#[derive(Clone, Copy, Debug)]
pub struct AppendedAttention {
    /// Heads of queries.
    pub heads: usize,
    /// Columns that a token sees, itself among them, if not all.
    pub window: Option<usize>,
    /// The column that the new keys and values are written to. Kernels read it from [`AppendedTensors::places`].
    pub filled: usize,
    /// What scores are multiplied with.
    pub scale: f64,
    /// Whether neighbours of a head are turned together. They come out as halves.
    pub interleaved: bool,
    /// What is added to the mean square of a head, where heads are normalised.
    pub epsilon: f64,
    /// How many parts [`AppendedTensors::mixed`] is the sum of.
    pub parts: usize,
}

/// The tensors of [`AppendedAttention::attend`].
#[derive(Clone, Copy, Debug)]
pub struct AppendedTensors<'a> {
    /// Queries, keys and values of the tokens, in parts that are to be added up: `[parts · sequences, (heads + 2 · kv_heads) · each]`.
    pub mixed: &'a Tensor<2>,
    /// The cache, `[rows, kv_heads, capacity, each]`, whose column is written in place.
    pub keys: &'a Tensor<4>,
    /// The same for values.
    pub values: &'a Tensor<4>,
    /// Cosines and sines, `[sequences or 1, 1, 1, pairs]`.
    pub rotation: Option<(&'a Tensor<4>, &'a Tensor<4>)>,
    /// The factors of the norms of queries and keys, `[each]`.
    pub norms: Option<(&'a Tensor<1>, &'a Tensor<1>)>,
    /// [`AppendedAttention::filled`]; the first column that any sequence sees; and where sequences differ the first column of each. They are
    /// in a tensor, so that a launch that is recorded can be repeated for the next token.
    pub places: &'a Tensor<1>,
}

impl AppendedAttention {
    /// Adds the keys and values of the tokens to the cache, **in place**, and gives what each token gets:
    /// `[sequences, heads · each]`. Nobody else may read the cache meanwhile.
    pub fn attend(self, tensors: AppendedTensors<'_>) -> Option<Tensor<2>> {
        #[cfg(any(feature = "gpu", target_os = "macos"))]
        return launched::attend(self, tensors);
        #[cfg(not(any(feature = "gpu", target_os = "macos")))]
        {
            let _ = tensors;
            None
        }
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
mod launched {
    use burn::backend::Dispatch;
    use burn::tensor::{DType, Tensor};
    use surefoot_core::recover::Point;
    use surefoot_core::recover::drill::point;

    use super::{AppendedAttention, AppendedTensors, DecodeProducts, MOST_DECODED, MOST_TOKENS};
    use crate::cube::{CubeKernels, LARGEST_HEAD, makes_parts};
    use crate::inference::launched::{is_device, is_ours};
    use crate::optional::optional;

    /// Whether the kernels take the tokens and what is multiplied with them.
    fn fit(how: &DecodeProducts<'_>, x: &Tensor<2>) -> bool {
        let [tokens, inputs] = x.dims();
        let [first, more @ ..] = &how.weights[..] else { return false };
        let outputs: usize = how.weights.iter().map(|weight| weight.dims()[0]).sum();
        let is_normed = how.norm.is_none() && tokens > MOST_TOKENS && x.dtype() == first.dtype();
        let fits = (1..=MOST_DECODED).contains(&tokens)
            && inputs.is_multiple_of(4)
            && more.len() <= 2
            && (is_ours(x) || (is_normed && is_device(x)))
            && how.weights.iter().all(|weight| {
                weight.dims()[1] == inputs && weight.dtype() == first.dtype() && is_device(weight)
            })
            && how.norm.is_none_or(|(gamma, _)| is_ours(gamma) && gamma.dims() == [inputs])
            && how.bias.is_none_or(|bias| is_ours(bias) && bias.dims() == [outputs])
            && how.residual.is_none_or(|(to, _)| is_ours(to) && to.dims() == [tokens, outputs]);
        let gates = !how.gated
            || (more.len() == 1
                && how.bias.is_none()
                && how.residual.is_none()
                && more[0].dims() == first.dims());
        fits && gates
    }

    pub(super) fn products(how: &DecodeProducts<'_>, x: &Tensor<2>) -> Option<Tensor<2>> {
        let [first, more @ ..] = &how.weights[..] else { return None };
        if !fit(how, x) {
            return None;
        }
        point(Point::Operation);
        let found = <Dispatch as CubeKernels>::decode_products(
            x.clone().into_dispatch(),
            (*first).clone().into_dispatch(),
            optional(more.first().map(|weight| (*weight).clone())),
            optional(more.get(1).map(|weight| (*weight).clone())),
            optional(how.norm.map(|(gamma, _)| gamma.clone())),
            optional(how.bias.cloned()),
            optional(how.residual.map(|(residual, _)| residual.clone())),
            how.norm.map_or(0.0, |(_, epsilon)| epsilon),
            how.residual.map_or(1.0, |(_, factor)| factor),
            how.gated,
            how.next.map_or(DType::F32, Tensor::dtype),
        );
        Some(Tensor::from_dispatch(found))
    }

    pub(super) fn then_norm(
        how: &DecodeProducts<'_>,
        x: &Tensor<2>,
        (gamma, epsilon): (&Tensor<1>, f64),
    ) -> Option<(Tensor<2>, Tensor<2>)> {
        let ([weight], Some((residual, factor))) = (&how.weights[..], how.residual) else {
            return None;
        };
        let ([tokens, inputs], outputs) = (x.dims(), weight.dims()[0]);
        let fits = fit(how, x)
            && how.norm.is_none()
            && is_ours(gamma)
            && gamma.dims() == [outputs]
            && makes_parts(tokens, outputs, inputs);
        fits.then(|| {
            point(Point::Operation);
            let (out, normed) = <Dispatch as CubeKernels>::decode_products_then_norm(
                x.clone().into_dispatch(),
                (*weight).clone().into_dispatch(),
                optional(how.bias.cloned()),
                residual.clone().into_dispatch(),
                gamma.clone().into_dispatch(),
                factor,
                epsilon,
            );
            (Tensor::from_dispatch(out), Tensor::from_dispatch(normed))
        })
    }

    pub(super) fn in_parts(how: &DecodeProducts<'_>, x: &Tensor<2>) -> Option<(Tensor<2>, usize)> {
        let [first, more @ ..] = &how.weights[..] else { return None };
        let [tokens, inputs] = x.dims();
        let outputs: usize = how.weights.iter().map(|weight| weight.dims()[0]).sum();
        let is_plain = !how.gated && how.bias.is_none() && how.residual.is_none();
        if !(is_plain && fit(how, x) && makes_parts(tokens, outputs, inputs)) {
            return None;
        }
        point(Point::Operation);
        let found: Tensor<2> =
            Tensor::from_dispatch(<Dispatch as CubeKernels>::decode_products_in_parts(
                x.clone().into_dispatch(),
                (*first).clone().into_dispatch(),
                optional(more.first().map(|weight| (*weight).clone())),
                optional(more.get(1).map(|weight| (*weight).clone())),
                optional(how.norm.map(|(gamma, _)| gamma.clone())),
                how.norm.map_or(0.0, |(_, epsilon)| epsilon),
            ));
        let parts = found.dims()[0] / tokens;
        Some((found, parts))
    }

    pub(super) fn attend(how: AppendedAttention, given: AppendedTensors<'_>) -> Option<Tensor<2>> {
        let AppendedTensors { mixed, keys, values, rotation, norms, places } = given;
        let [of_parts, width] = mixed.dims();
        let sequences = of_parts / how.parts.max(1);
        let [rows, kv_heads, capacity, each] = keys.dims();
        let fits = is_ours(mixed)
            && how.parts > 0
            && of_parts == sequences * how.parts
            && [keys, values].into_iter().all(is_ours)
            && values.dims() == keys.dims()
            && (4..=LARGEST_HEAD).contains(&each)
            && each.is_multiple_of(4)
            && width == (how.heads + 2 * kv_heads) * each
            && how.heads.is_multiple_of(kv_heads.max(1))
            && (1..=rows).contains(&sequences)
            && how.filled < capacity
            && rotation.is_none_or(|(cos, sin)| {
                let [tables, _, width, pairs] = cos.dims();
                [cos, sin].into_iter().all(is_ours)
                    && sin.dims() == cos.dims()
                    && (tables == 1 || tables == sequences)
                    && width == 1
                    && 2 * pairs <= each
            })
            && norms.is_none_or(|(q, k)| [q, k].iter().all(|g| is_ours(g) && g.dims() == [each]))
            && how.window != Some(0)
            && is_ours(places)
            && (places.dims() == [2] || places.dims() == [2 + sequences]);
        if !fits {
            return None;
        }
        point(Point::Operation);
        let (cos, sin) = rotation.map(|(cos, sin)| (cos.clone(), sin.clone())).unzip();
        let (q_gamma, k_gamma) = norms.map(|(q, k)| (q.clone(), k.clone())).unzip();
        let found = <Dispatch as CubeKernels>::attend_and_append(
            mixed.clone().into_dispatch(),
            keys.clone().into_dispatch(),
            values.clone().into_dispatch(),
            places.clone().into_dispatch(),
            optional(cos),
            optional(sin),
            optional(q_gamma),
            optional(k_gamma),
            how,
        );
        Some(Tensor::from_dispatch(found))
    }
}
