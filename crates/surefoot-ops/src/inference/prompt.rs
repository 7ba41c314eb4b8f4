//! Attention of many queries of each sequence on devices of CubeCL: those of a prompt, or of a text that is not decoded.

use burn::tensor::Tensor;

/// How queries attend to the keys that are known, their own among them.
#[derive(Clone, Copy, Debug)]
pub struct PromptAttention {
    /// What scores are multiplied with.
    pub scale: f64,
    /// Keys before that of the first query.
    pub past: usize,
    /// Whether a query sees no keys behind its own.
    pub causal: bool,
    /// Keys that a query sees, itself among them, if not all; for causal attention only.
    pub window: Option<usize>,
}

impl PromptAttention {
    /// What `query`, `[batch, heads, width, each]`, gets of keys and values, `[batch, kv_heads, seen, each]`, in the shape of the query.
    /// `pads` are the first keys of each sequence that nobody sees, `[batch]`, where there are some; a query that sees none gets zeros. None on the
    /// processor, under autodiff, and for heads that the kernel does not take or the device has no shared memory for.
    pub fn attend(
        self,
        query: &Tensor<4>,
        keys: &Tensor<4>,
        values: &Tensor<4>,
        pads: Option<&Tensor<1>>,
    ) -> Option<Tensor<4>> {
        #[cfg(any(feature = "gpu", target_os = "macos"))]
        return launched::attend(self, query, keys, values, pads);
        #[cfg(not(any(feature = "gpu", target_os = "macos")))]
        {
            let _ = (query, keys, values, pads);
            None
        }
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
mod launched {
    use burn::backend::Dispatch;
    use burn::tensor::Tensor;
    use surefoot_core::recover::Point;
    use surefoot_core::recover::drill::point;

    use super::PromptAttention;
    use crate::cube::{CubeKernels, LARGEST_PROMPT_HEAD};
    use crate::inference::launched::{attends_to_prompts, is_ours};
    use crate::optional::optional;

    /// The most cubes in the second and third direction of a launch.
    const MOST: usize = 65_535;

    pub(super) fn attend(
        how: PromptAttention,
        query: &Tensor<4>,
        keys: &Tensor<4>,
        values: &Tensor<4>,
        pads: Option<&Tensor<1>>,
    ) -> Option<Tensor<4>> {
        let [batch, heads, width, each] = query.dims();
        let [_, kv_heads, seen, _] = keys.dims();
        let fits = [query, keys, values].into_iter().all(is_ours)
            && keys.dims() == [batch, kv_heads, seen, each]
            && values.dims() == keys.dims()
            && (4..=LARGEST_PROMPT_HEAD).contains(&each)
            && each.is_multiple_of(4)
            && heads.is_multiple_of(kv_heads.max(1))
            && heads.max(batch) <= MOST
            && seen > 0
            && (!how.causal || how.past + width <= seen)
            && how.window.is_none_or(|window| how.causal && window > 0)
            && pads.is_none_or(|pads| is_ours(pads) && pads.dims() == [batch])
            && attends_to_prompts(keys, each);
        fits.then(|| {
            point(Point::Operation);
            let [query, keys, values] =
                [query, keys, values].map(|tensor| tensor.clone().into_dispatch());
            let pads = optional(pads.cloned());
            Tensor::from_dispatch(<Dispatch as CubeKernels>::attend_prompt(
                query, keys, values, pads, how,
            ))
        })
    }
}
