//! Attention of prompts whose keys and values are written into a cache, on devices of CubeCL: into the rows that the sequences have there,
//! wherever these are, so that nothing is copied when a sequence joins others.

use burn::tensor::{DType, Tensor};

/// How the tokens of prompts attend, each to those of its sequence before it in the cache and to itself.
#[derive(Clone, Copy, Debug)]
pub struct AppendedPrompts {
    /// Heads of queries.
    pub heads: usize,
    /// Columns that a token sees, itself among them, if not all.
    pub window: Option<usize>,
    /// What scores are multiplied with.
    pub scale: f64,
    /// Whether neighbours of a head are turned together. They come out as halves.
    pub interleaved: bool,
    /// What is added to the mean square of a head, where heads are normalised.
    pub epsilon: f64,
    /// Tokens of each sequence.
    pub width: usize,
    /// The row of the cache that the first sequence has. The others have the rows behind it.
    pub first_row: usize,
    /// The first column of these sequences, from which their padding counts.
    pub start: usize,
    /// The column that the first of the tokens is written to. The others are written behind it.
    pub filled: usize,
    /// What queries, keys and values may be rounded to where they are multiplied.
    pub compute: DType,
    /// Numbers of scores that there is room for. With fewer than a long prompt has, its queries are run one part after the other; with none
    /// by a kernel that needs no room for them.
    pub most_scores: usize,
    /// Columns right before `start` that are set to zero in these rows: they hold what other sequences left.
    pub stale: usize,
}

/// The tensors of [`AppendedPrompts::attend`].
#[derive(Clone, Copy, Debug)]
pub struct AppendedPromptTensors<'a> {
    /// Queries, keys and values of the tokens, sequence after sequence: `[sequences · width, (heads + 2 · kv_heads) · each]`.
    pub mixed: &'a Tensor<2>,
    /// The cache, `[rows, kv_heads, capacity, each]`, whose columns are written in place.
    pub keys: &'a Tensor<4>,
    /// The same for values.
    pub values: &'a Tensor<4>,
    /// Cosines and sines, `[sequences or 1, 1, width, pairs]`.
    pub rotation: Option<(&'a Tensor<4>, &'a Tensor<4>)>,
    /// The factors of the norms of queries and keys, `[each]`.
    pub norms: Option<(&'a Tensor<1>, &'a Tensor<1>)>,
    /// The columns of each sequence from `start` on that nobody sees, `[sequences]`, where there are some.
    pub pads: Option<&'a Tensor<1>>,
}

impl AppendedPrompts {
    /// Adds the keys and values of the tokens to the cache, **in place**, and gives what each token gets: `[sequences · width, heads · each]`.
    /// A token that sees none gets zeros. Nobody else may read the cache meanwhile. None where it has no kernel, with nothing written.
    pub fn attend(self, tensors: AppendedPromptTensors<'_>) -> Option<Tensor<2>> {
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
    use burn::tensor::Tensor;
    use surefoot_core::recover::Point;
    use surefoot_core::recover::drill::point;

    use super::{AppendedPromptTensors, AppendedPrompts};
    use crate::cube::{CubeKernels, LARGEST_PROMPT_HEAD};
    use crate::inference::launched::{attends_to_prompts, is_ours};
    use crate::optional::optional;

    /// The most cubes in the second and third direction of a launch.
    const MOST: usize = 65_535;

    pub(super) fn attend(
        how: AppendedPrompts,
        given: AppendedPromptTensors<'_>,
    ) -> Option<Tensor<2>> {
        let AppendedPromptTensors { mixed, keys, values, rotation, norms, pads } = given;
        let [tokens, numbers] = mixed.dims();
        let [rows, kv_heads, capacity, each] = keys.dims();
        let width = how.width.max(1);
        let sequences = tokens / width;
        let fits = [keys, values].into_iter().all(is_ours)
            && is_ours(mixed)
            && values.dims() == keys.dims()
            && (4..=LARGEST_PROMPT_HEAD).contains(&each)
            && each.is_multiple_of(4)
            && numbers == (how.heads + 2 * kv_heads) * each
            && how.heads.is_multiple_of(kv_heads.max(1))
            && how.heads.max(sequences) <= MOST
            && sequences > 0
            && tokens == sequences * width
            && how.first_row + sequences <= rows
            && how.stale <= how.start
            && (how.stale == 0 || how.start == how.filled)
            && how.start <= how.filled
            && how.filled + width <= capacity
            && rotation.is_none_or(|(cos, sin)| {
                let [tables, one, of_table, pairs] = cos.dims();
                [cos, sin].into_iter().all(is_ours)
                    && sin.dims() == cos.dims()
                    && (tables == 1 || tables == sequences)
                    && (one, of_table) == (1, width)
                    && 2 * pairs <= each
            })
            && norms.is_none_or(|(q, k)| [q, k].iter().all(|g| is_ours(g) && g.dims() == [each]))
            && how.window != Some(0)
            && pads.is_none_or(|pads| is_ours(pads) && pads.dims() == [sequences])
            && attends_to_prompts(keys, each);
        if !fits {
            return None;
        }
        point(Point::Operation);
        let (cos, sin) = rotation.map(|(cos, sin)| (cos.clone(), sin.clone())).unzip();
        let (q_gamma, k_gamma) = norms.map(|(q, k)| (q.clone(), k.clone())).unzip();
        let found = <Dispatch as CubeKernels>::attend_and_append_prompts(
            mixed.clone().into_dispatch(),
            keys.clone().into_dispatch(),
            values.clone().into_dispatch(),
            optional(cos),
            optional(sin),
            optional(q_gamma),
            optional(k_gamma),
            optional(pads.cloned()),
            how,
        );
        Some(Tensor::from_dispatch(found))
    }
}
