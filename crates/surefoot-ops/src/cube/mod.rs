//! Kernels for the devices of CubeCL: CUDA, Vulkan, Metal and WGSL alike.
//!
//! [`CubeKernels`] lists them; each file holds the kernels of one operation and how they are launched. The operations of
//! this crate call them for tensors that [`is_ours`] takes, and check shapes and dtypes before. Kernels take and make tensors in f32. Products also take weights
//! in half precision, and with many tokens these tokens too, which the norm before them then gives in the dtype of the weights.
//!
//! Kernels make new tensors, with these exceptions: [`CubeKernels::pack_into`] writes into a tensor that its
//! caller has just made, [`CubeKernels::attend_and_append`] and [`CubeKernels::attend_and_append_prompts`] into a cache that its caller owns.
//!
//! Kernels are launched with checks of bounds. These keep a buffer's end and no more: an index beyond it is clamped to the last number, so a
//! write that is not guarded would overwrite that, and what is read there is a number that was not asked for. And buffers may be longer than their
//! tensors. So sizes are arguments of a kernel, and each guards its writes by them.
#![allow(
    clippy::too_many_arguments,
    reason = "a kernel's sizes and factors are arguments of their own"
)]
#![allow(
    clippy::collapsible_if,
    clippy::manual_div_ceil,
    clippy::manual_is_multiple_of,
    reason = "kernels are written in the part of Rust that CubeCL translates"
)]

mod append_attention;
mod append_groups;
mod append_prompts;
mod attention;
mod choice;
mod conv;
mod cross_entropy;
mod decode_attention;
mod decode_products;
mod embedding;
mod gated;
mod gelu;
mod group_norm;
mod launch;
mod layer_norm;
mod linear;
mod pack;
mod planes;
mod product;
mod prompt_attention;
mod prompt_products;
mod reduce;
mod rms_norm;
mod rotary;
mod rows;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::cast;
use burn_cubecl::tensor::CubeTensor;

pub(crate) use conv::MOST_TAPS;
pub(crate) use prompt_attention::LARGEST as LARGEST_PROMPT_HEAD;

use crate::conv::Convolution;
use crate::inference::{AppendedAttention, AppendedPrompts, MOST_TOKENS, PromptAttention};
use crate::optional::Optional;
use crate::packed::AT_ONCE;
use crate::update::AdamW;

/// The most dimensions that a head may have where single tokens attend to a cache.
pub(crate) const LARGEST_HEAD: usize = decode_attention::UNITS;

/// Whether the kernels here take it: numbers in f32. Everything else is composed of Burn's own operations.
pub(crate) fn is_ours(tensor: &impl TensorMetadata) -> bool {
    tensor.dtype() == DType::F32
}

/// Whether the device has matrix units for this dtype that add up in f32: without them products in it are no faster.
pub(crate) fn multiplies_in(tensor: &CubeTensor, dtype: DType) -> bool {
    linear::has_matrix_units(tensor, dtype)
}

/// Whether the device has room for attention of prompts with heads of so many dimensions.
pub(crate) fn attends_to_prompts(tensor: &CubeTensor, each: usize) -> bool {
    prompt_attention::has_room(&tensor.client, each)
}

/// Whether convolutions here take numbers in f32 that are rounded to this dtype.
pub(crate) fn convolves_in(tensor: &CubeTensor, dtype: DType) -> bool {
    is_ours(tensor) && conv::round_to(tensor, dtype)
}

/// Whether products of so many tokens are made in parts, which are added up with what is behind them.
pub(crate) fn makes_parts(tokens: usize, outputs: usize, inputs: usize) -> bool {
    tokens > MOST_TOKENS
        && outputs.is_multiple_of(4)
        && product::parts_of_depth(tokens, outputs, inputs) > 1
}

/// Eight tensors.
#[derive(ExtensionType)]
pub(crate) struct Eight<B: Backend> {
    pub(crate) a: FloatTensor<B>,
    pub(crate) b: FloatTensor<B>,
    pub(crate) c: FloatTensor<B>,
    pub(crate) d: FloatTensor<B>,
    pub(crate) e: FloatTensor<B>,
    pub(crate) f: FloatTensor<B>,
    pub(crate) g: FloatTensor<B>,
    pub(crate) h: FloatTensor<B>,
}

/// The kernels. Matrices have a row for each sample or token.
#[backend_extension(Cube)]
pub(crate) trait CubeKernels: Backend {
    /// The normalised rows, and for each row its mean and the inverse of its deviation.
    fn layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradients by x, gamma and beta.
    fn layer_norm_gradient(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        stats: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// Images whose groups of channels are normalised, with a residual and ReLU; and for each group its mean and the inverse of
    /// its deviation.
    fn group_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] around: Optional<Self>,
        groups: usize,
        epsilon: f64,
        relu: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient before ReLU, which is that by the residual.
    fn group_norm_before_relu(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        #[extension_type] around: Optional<Self>,
        stats: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        groups: usize,
    ) -> FloatTensor<Self>;

    /// The gradients by x, gamma and beta, given the one before ReLU.
    fn group_norm_gradient(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        stats: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        groups: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// A convolution without a bias.
    fn convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        of: Convolution,
    ) -> FloatTensor<Self>;

    /// Its gradient by the images.
    fn convolution_x_gradient(
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        of: Convolution,
    ) -> FloatTensor<Self>;

    /// Its gradient by the weights.
    fn convolution_weight_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        of: Convolution,
    ) -> FloatTensor<Self>;

    /// `x · Φ(x)`.
    fn gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The gradient by x.
    fn gelu_gradient(x: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The loss, summed over the rows, and its gradient by the logits.
    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient by the logits, given the one by the loss.
    fn cross_entropy_gradient(
        slopes: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// `x · weight + bias`, with a residual.
    fn linear_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        #[extension_type] around: Optional<Self>,
    ) -> FloatTensor<Self>;

    /// `x · weight + bias`, with a residual, whose product is made of numbers in `compute`.
    fn half_linear_layer(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        #[extension_type] around: Optional<Self>,
        compute: DType,
    ) -> FloatTensor<Self>;

    /// The gradients of that by x, weight and bias.
    fn half_linear_gradient(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        compute: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `left · right`.
    fn product(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `weight · x`, in f32 if `x` has few columns and in the weight's dtype otherwise.
    fn weight_product(weight: FloatTensor<Self>, x: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `xᵀ · gradient`, and the sum of the gradient's rows.
    fn linear_gradient(
        x: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// What each token gets from causal attention, and how much of each other token that is. Factors of products may be rounded
    /// to `compute`.
    fn causal_attention(
        mixed: FloatTensor<Self>,
        heads: usize,
        compute: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// How much each token takes from each other.
    fn attention_shares(
        mixed: FloatTensor<Self>,
        heads: usize,
        compute: DType,
    ) -> FloatTensor<Self>;

    /// The gradient by `mixed`.
    fn attention_gradient(
        mixed: FloatTensor<Self>,
        shares: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        heads: usize,
        compute: DType,
    ) -> FloatTensor<Self>;

    /// Each row of the last dimension over its root mean square, times gamma.
    fn rms_norm(x: FloatTensor<Self>, gamma: FloatTensor<Self>, epsilon: f64) -> FloatTensor<Self>;

    /// Each head's first numbers, turned by angles whose cosines and sines are given.
    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        interleaved: bool,
    ) -> FloatTensor<Self>;

    /// `silu(gate) · value`.
    fn gated_silu(gate: FloatTensor<Self>, value: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Attention of queries that all see all keys.
    fn attend_to_cache(
        query: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        scale: f64,
    ) -> FloatTensor<Self>;

    /// Attention of the queries of prompts.
    fn attend_prompt(
        query: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        #[extension_type] pads: Optional<Self>,
        how: PromptAttention,
    ) -> FloatTensor<Self>;

    /// Products of one to three weights with a few tokens, with a norm before them, and a bias, a residual or a gate behind them. What is gated
    /// may come in the dtype `next` where products with weights in it round it to that.
    fn decode_products(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        #[extension_type] second: Optional<Self>,
        #[extension_type] third: Optional<Self>,
        #[extension_type] gamma: Optional<Self>,
        #[extension_type] bias: Optional<Self>,
        #[extension_type] residual: Optional<Self>,
        epsilon: f64,
        factor: f64,
        gated: bool,
        next: DType,
    ) -> FloatTensor<Self>;

    /// The same without what is behind them, in parts that are to be added up: `[parts · tokens, outputs]`.
    fn decode_products_in_parts(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        #[extension_type] second: Optional<Self>,
        #[extension_type] third: Optional<Self>,
        #[extension_type] gamma: Optional<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    /// Products of one weight with many tokens, with a bias and a residual behind them; and these outputs normalised, for products with other
    /// weights in its dtype.
    fn decode_products_then_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
        residual: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        factor: f64,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Attention of one token of each sequence, whose keys and values are written into the cache, in place.
    fn attend_and_append(
        mixed: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        places: FloatTensor<Self>,
        #[extension_type] cos: Optional<Self>,
        #[extension_type] sin: Optional<Self>,
        #[extension_type] q_gamma: Optional<Self>,
        #[extension_type] k_gamma: Optional<Self>,
        how: AppendedAttention,
    ) -> FloatTensor<Self>;

    /// Attention of the tokens of prompts, whose keys and values are written into the cache, in place.
    fn attend_and_append_prompts(
        mixed: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        #[extension_type] cos: Optional<Self>,
        #[extension_type] sin: Optional<Self>,
        #[extension_type] q_gamma: Optional<Self>,
        #[extension_type] k_gamma: Optional<Self>,
        #[extension_type] pads: Optional<Self>,
        how: AppendedPrompts,
    ) -> FloatTensor<Self>;

    /// The largest number of each part of each row of `logits · factor`, its place, and how many numbers are not finite.
    fn largest_of_rows(logits: FloatTensor<Self>, factor: f64) -> FloatTensor<Self>;

    /// The gradient by a table of `rows` rows, of which `ids` were looked up.
    fn table_gradient(
        ids: IntTensor<Self>,
        gradient: FloatTensor<Self>,
        rows: usize,
    ) -> FloatTensor<Self>;

    /// Writes the first numbers of tensors into the arena from `offset` on, and gives the arena back.
    fn pack_into(
        arena: FloatTensor<Self>,
        #[extension_type] left: Eight<Self>,
        #[extension_type] right: Eight<Self>,
        lengths: [usize; AT_ONCE],
        offset: usize,
        dense: bool,
    ) -> FloatTensor<Self>;

    /// The `length` numbers of the arena from `start` on, as a view where the device allows it.
    fn part_of(arena: FloatTensor<Self>, start: usize, length: usize) -> FloatTensor<Self>;

    /// The sum of all numbers, or of their squares.
    fn sum_of_all(x: FloatTensor<Self>, squared: bool) -> FloatTensor<Self>;

    /// The new values and moments. Gradients, the sum of whose squares is `squares`, are clipped to the length `longest`.
    /// The first `decaying` values decay.
    fn adamw_of_all(
        value: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        squares: FloatTensor<Self>,
        longest: f64,
        step: AdamW,
        decaying: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

impl CubeKernels for CubeBackend {
    fn layer_norm(
        x: CubeTensor,
        gamma: CubeTensor,
        beta: CubeTensor,
        epsilon: f64,
    ) -> (CubeTensor, CubeTensor) {
        layer_norm::forward(x, gamma, beta, epsilon)
    }

    fn layer_norm_gradient(
        x: CubeTensor,
        gamma: CubeTensor,
        stats: CubeTensor,
        gradient: CubeTensor,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        layer_norm::backward(x, gamma, stats, gradient)
    }

    fn group_norm(
        x: CubeTensor,
        gamma: CubeTensor,
        beta: CubeTensor,
        around: Optional<Self>,
        groups: usize,
        epsilon: f64,
        relu: bool,
    ) -> (CubeTensor, CubeTensor) {
        group_norm::forward([x, gamma, beta], around.into_option(), groups, epsilon, relu)
    }

    fn group_norm_before_relu(
        x: CubeTensor,
        gamma: CubeTensor,
        beta: CubeTensor,
        around: Optional<Self>,
        stats: CubeTensor,
        gradient: CubeTensor,
        groups: usize,
    ) -> CubeTensor {
        let around = around.into_option();
        group_norm::before_relu([x, gamma, beta], around, stats, gradient, groups)
    }

    fn group_norm_gradient(
        x: CubeTensor,
        gamma: CubeTensor,
        stats: CubeTensor,
        gradient: CubeTensor,
        groups: usize,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        group_norm::backward(x, gamma, stats, gradient, groups)
    }

    fn convolution(x: CubeTensor, weight: CubeTensor, of: Convolution) -> CubeTensor {
        conv::forward(x, weight, &of)
    }

    fn convolution_x_gradient(
        weight: CubeTensor,
        gradient: CubeTensor,
        of: Convolution,
    ) -> CubeTensor {
        conv::x_gradient(weight, gradient, &of)
    }

    fn convolution_weight_gradient(
        x: CubeTensor,
        gradient: CubeTensor,
        of: Convolution,
    ) -> CubeTensor {
        conv::weight_gradient(x, gradient, &of)
    }

    fn gelu(x: CubeTensor) -> CubeTensor {
        gelu::forward(x)
    }

    fn gelu_gradient(x: CubeTensor, gradient: CubeTensor) -> CubeTensor {
        gelu::backward(x, gradient)
    }

    fn cross_entropy(logits: CubeTensor, targets: CubeTensor) -> (CubeTensor, CubeTensor) {
        cross_entropy::forward(logits, targets)
    }

    fn cross_entropy_gradient(slopes: CubeTensor, gradient: CubeTensor) -> CubeTensor {
        cross_entropy::backward(slopes, gradient)
    }

    fn linear_layer(
        x: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        around: Optional<Self>,
    ) -> CubeTensor {
        linear::forward(x, weight, bias, around.into_option())
    }

    fn half_linear_layer(
        x: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        around: Optional<Self>,
        compute: DType,
    ) -> CubeTensor {
        linear::half_forward(x, weight, bias, around.into_option(), compute)
    }

    fn half_linear_gradient(
        x: CubeTensor,
        weight: CubeTensor,
        gradient: CubeTensor,
        compute: DType,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        linear::half_backward(x, weight, gradient, compute)
    }

    fn product(left: CubeTensor, right: CubeTensor) -> CubeTensor {
        product::product(left, right)
    }

    fn weight_product(weight: CubeTensor, x: CubeTensor) -> CubeTensor {
        let made = decode_products::product(&weight, &x)
            .or_else(|| product::product_in(weight.dtype, [&weight, &x], None, None));
        made.unwrap_or_else(|| {
            let x = if x.dtype == weight.dtype { x } else { cast(x, weight.dtype) };
            product::product(weight, x)
        })
    }

    fn linear_gradient(x: CubeTensor, gradient: CubeTensor) -> (CubeTensor, CubeTensor) {
        linear::gradient(x, gradient)
    }

    fn causal_attention(
        mixed: CubeTensor,
        heads: usize,
        compute: DType,
    ) -> (CubeTensor, CubeTensor) {
        attention::forward(mixed, heads, compute)
    }

    fn attention_shares(mixed: CubeTensor, heads: usize, compute: DType) -> CubeTensor {
        attention::shares(mixed, heads, compute)
    }

    fn attention_gradient(
        mixed: CubeTensor,
        shares: CubeTensor,
        gradient: CubeTensor,
        heads: usize,
        compute: DType,
    ) -> CubeTensor {
        attention::backward(mixed, shares, gradient, heads, compute)
    }

    fn rms_norm(x: CubeTensor, gamma: CubeTensor, epsilon: f64) -> CubeTensor {
        rms_norm::forward(x, gamma, epsilon)
    }

    fn rotate(x: CubeTensor, cos: CubeTensor, sin: CubeTensor, interleaved: bool) -> CubeTensor {
        rotary::forward(x, cos, sin, interleaved)
    }

    fn gated_silu(gate: CubeTensor, value: CubeTensor) -> CubeTensor {
        gated::forward(gate, value)
    }

    fn attend_to_cache(
        query: CubeTensor,
        keys: CubeTensor,
        values: CubeTensor,
        scale: f64,
    ) -> CubeTensor {
        decode_attention::forward(query, keys, values, scale)
    }

    fn attend_prompt(
        query: CubeTensor,
        keys: CubeTensor,
        values: CubeTensor,
        pads: Optional<Self>,
        how: PromptAttention,
    ) -> CubeTensor {
        prompt_attention::forward(query, keys, values, pads.into_option(), how)
    }

    fn decode_products(
        x: CubeTensor,
        first: CubeTensor,
        second: Optional<Self>,
        third: Optional<Self>,
        gamma: Optional<Self>,
        bias: Optional<Self>,
        residual: Optional<Self>,
        epsilon: f64,
        factor: f64,
        gated: bool,
        next: DType,
    ) -> CubeTensor {
        let [second, third, gamma, bias, residual] =
            [second, third, gamma, bias, residual].map(Optional::into_option);
        let given = decode_products::Given {
            norm: gamma.map(|gamma| (gamma, epsilon)),
            weights: std::iter::once(first).chain(second).chain(third).collect(),
            gated,
            bias,
            residual: residual.map(|residual| (residual, factor)),
            next,
        };
        decode_products::forward(x, given)
    }

    fn decode_products_in_parts(
        x: CubeTensor,
        first: CubeTensor,
        second: Optional<Self>,
        third: Optional<Self>,
        gamma: Optional<Self>,
        epsilon: f64,
    ) -> CubeTensor {
        let [second, third, gamma] = [second, third, gamma].map(Optional::into_option);
        let given = decode_products::Given {
            norm: gamma.map(|gamma| (gamma, epsilon)),
            weights: std::iter::once(first).chain(second).chain(third).collect(),
            gated: false,
            bias: None,
            residual: None,
            next: DType::F32,
        };
        decode_products::in_parts(x, given)
    }

    fn decode_products_then_norm(
        x: CubeTensor,
        weight: CubeTensor,
        bias: Optional<Self>,
        residual: CubeTensor,
        gamma: CubeTensor,
        factor: f64,
        epsilon: f64,
    ) -> (CubeTensor, CubeTensor) {
        let given = decode_products::Given {
            norm: None,
            weights: vec![weight],
            gated: false,
            bias: bias.into_option(),
            residual: Some((residual, factor)),
            next: DType::F32,
        };
        decode_products::then_norm(x, given, (gamma, epsilon))
    }

    fn attend_and_append(
        mixed: CubeTensor,
        keys: CubeTensor,
        values: CubeTensor,
        places: CubeTensor,
        cos: Optional<Self>,
        sin: Optional<Self>,
        q_gamma: Optional<Self>,
        k_gamma: Optional<Self>,
        how: AppendedAttention,
    ) -> CubeTensor {
        let [cos, sin, q_gamma, k_gamma] = [cos, sin, q_gamma, k_gamma].map(Optional::into_option);
        let given = append_attention::Given {
            mixed,
            keys,
            values,
            rotation: cos.zip(sin),
            norms: q_gamma.zip(k_gamma),
            places,
        };
        append_attention::forward(given, how)
    }

    fn attend_and_append_prompts(
        mixed: CubeTensor,
        keys: CubeTensor,
        values: CubeTensor,
        cos: Optional<Self>,
        sin: Optional<Self>,
        q_gamma: Optional<Self>,
        k_gamma: Optional<Self>,
        pads: Optional<Self>,
        how: AppendedPrompts,
    ) -> CubeTensor {
        let [cos, sin, q_gamma, k_gamma, pads] =
            [cos, sin, q_gamma, k_gamma, pads].map(Optional::into_option);
        let (rotation, norms) = (cos.zip(sin), q_gamma.zip(k_gamma));
        let given = append_prompts::Given { mixed, keys, values, rotation, norms, pads };
        append_prompts::forward(given, how)
    }

    fn largest_of_rows(logits: CubeTensor, factor: f64) -> CubeTensor {
        choice::forward(logits, factor)
    }

    fn table_gradient(ids: CubeTensor, gradient: CubeTensor, rows: usize) -> CubeTensor {
        embedding::gradient(ids, gradient, rows)
    }

    fn pack_into(
        arena: CubeTensor,
        left: Eight<Self>,
        right: Eight<Self>,
        lengths: [usize; AT_ONCE],
        offset: usize,
        dense: bool,
    ) -> CubeTensor {
        let Eight { a, b, c, d, e, f, g, h } = left;
        let [i, j, k, l, m, n, o, p] =
            [right.a, right.b, right.c, right.d, right.e, right.f, right.g, right.h];
        let inputs = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p];
        pack::pack(arena, inputs, lengths, offset, dense)
    }

    fn part_of(arena: CubeTensor, start: usize, length: usize) -> CubeTensor {
        launch::part(arena, start, length)
    }

    fn sum_of_all(x: CubeTensor, squared: bool) -> CubeTensor {
        pack::sum(x, squared)
    }

    fn adamw_of_all(
        value: CubeTensor,
        gradient: CubeTensor,
        first: CubeTensor,
        second: CubeTensor,
        squares: CubeTensor,
        longest: f64,
        step: AdamW,
        decaying: usize,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        pack::adamw([value, gradient, first, second], squares, longest, step, decaying)
    }
}
