//! How likely tokens were.

/// How likely a token was.
#[derive(Clone, Debug)]
pub struct Logprobs {
    /// The natural logarithm of its probability.
    pub chosen: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<TokenLogprob>,
}

/// A token, and how likely it was.
#[derive(Clone, Copy, Debug)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// How likely `chosen` is by the logits, and the `top` most likely tokens.
pub(super) fn logprobs(logits: &[f32], chosen: u32, top: usize) -> Logprobs {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    let norm = f64::from(most) + sum.ln();
    let of = |id: u32| (f64::from(logits[id as usize]) - norm) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(order.len());
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, by);
    }
    order.truncate(top);
    order.sort_by(by);
    let top = order.into_iter().map(|id| TokenLogprob { id, logprob: of(id) }).collect();
    Logprobs { chosen: of(chosen), top }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_the_logarithms_of_probabilities_that_sum_to_one() {
        let logits = [0.5, -1.0, 3.0, 2.0];
        let all = logprobs(&logits, 1, 4);
        let sum: f32 = all.top.iter().map(|likely| likely.logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5);
        let order: Vec<u32> = all.top.iter().map(|likely| likely.id).collect();
        assert_eq!(order, [2, 3, 0, 1]);
        assert_eq!(all.chosen, all.top[3].logprob);
        assert_eq!(logprobs(&logits, 0, 2).top.len(), 2);
        assert!(logprobs(&logits, 0, 0).top.is_empty());
    }
}
