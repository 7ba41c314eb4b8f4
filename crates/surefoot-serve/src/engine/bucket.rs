//! Groups of sequence lengths that are run in one batch. A batch is as wide as its longest sequence, so
//! much shorter sequences would mostly compute padding.

use surefoot_models::Rectangle;

/// The least width worth telling apart.
const LEAST: usize = 16;

/// The width of the bucket that a sequence of `tokens` belongs to: a power of two or one and a
/// half times one, so that at most a third of a batch is padding.
pub(crate) fn width(tokens: usize) -> usize {
    if tokens <= LEAST {
        return LEAST;
    }
    let power = tokens.next_power_of_two();
    let between = power / 4 * 3;
    if tokens <= between { between } else { power }
}

/// The size of a pass over `count` sequences of the bucket `width`, so that few sizes are used,
/// if it stays within `tokens` in all.
pub(crate) fn rectangle(count: usize, width: usize, tokens: usize) -> Rectangle {
    let rows = count.next_power_of_two();
    Rectangle { rows: if rows * width <= tokens { rows } else { count }, width }
}

/// The numbers of sequences that passes are made for, up to `most`.
pub(crate) fn sizes(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> =
        std::iter::successors(Some(1), |size| Some(size * 2)).take_while(|s| *s < most).collect();
    sizes.push(most);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_powers_of_two_and_the_most() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(8), [1, 2, 4, 8]);
        assert_eq!(sizes(11), [1, 2, 4, 8, 11]);
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_lengths_and_wastes_at_most_a_third(tokens in 1usize..100_000) {
            let width = width(tokens);
            prop_assert!(width >= tokens);
            prop_assert!(width == LEAST || (width - tokens) * 3 <= width, "{tokens} in {width}");
            prop_assert_eq!(super::width(width), width);
        }

        #[test]
        fn a_rectangle_holds_its_sequences_and_no_more_than_the_tokens(
            count in 1usize..200,
            width in 1usize..500,
            tokens in 1usize..100_000,
        ) {
            let Rectangle { rows, .. } = rectangle(count, width, tokens);
            prop_assert!(rows >= count && rows < 2 * count.max(1));
            prop_assert!(rows == count || (rows.is_power_of_two() && rows * width <= tokens));
        }
    }
}
