//! Lengths that are run together. A batch is as wide as its longest sequence, so what is far
//! shorter would mostly compute padding.

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_its_lengths_and_wastes_at_most_a_third(tokens in 1usize..100_000) {
            let width = width(tokens);
            prop_assert!(width >= tokens);
            prop_assert!(width == LEAST || (width - tokens) * 3 <= width, "{tokens} in {width}");
            prop_assert_eq!(super::width(width), width);
        }
    }
}
