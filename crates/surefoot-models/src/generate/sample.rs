//! From logits to a token.

/// How the next token is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// 0 always takes the most likely token; 1 samples from the model's distribution.
    pub temperature: f32,
    /// Only the so many most likely tokens.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together have this probability.
    pub top_p: Option<f32>,
    /// Where the random numbers start.
    pub seed: u64,
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: None, top_p: None, seed: 0 };
}

/// Chooses the tokens of one sequence. Every sequence has its own random numbers, started from
/// the same seed, so that what it gives doesn't depend on the batch it is in.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    state: u64,
}

impl Sampler {
    /// A sampler at its start.
    pub fn new(sampling: Sampling) -> Self {
        Self { sampling, state: sampling.seed }
    }

    /// The next token. Logits that are not numbers are never chosen.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        if self.sampling.temperature <= 0.0 {
            return most_likely(logits);
        }
        let candidates = self.candidates(logits);
        let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut at = self.uniform() * total;
        for &(token, weight) in &candidates {
            at -= weight;
            if at < 0.0 {
                return token;
            }
        }
        candidates.last().map_or(0, |&(token, _)| token)
    }

    /// Tokens that may be chosen, most likely first, with their weights.
    fn candidates(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let mut order: Vec<u32> =
            (0..logits.len() as u32).filter(|&token| !logits[token as usize].is_nan()).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        order.truncate(self.sampling.top_k.unwrap_or(usize::MAX).max(1));
        let top = order.first().map_or(0.0, |&token| logits[token as usize]);
        let temperature = f64::from(self.sampling.temperature);
        let mut weighted: Vec<(u32, f64)> = order
            .into_iter()
            .map(|token| {
                let below = f64::from(logits[token as usize]) - f64::from(top);
                (token, (below / temperature).exp())
            })
            .collect();
        if let Some(top_p) = self.sampling.top_p {
            let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
            let mut sum = 0.0;
            // The token that reaches the mass belongs to it.
            let kept = weighted
                .iter()
                .position(|(_, weight)| {
                    sum += weight / total;
                    sum >= f64::from(top_p)
                })
                .map_or(weighted.len(), |last| last + 1);
            weighted.truncate(kept);
        }
        weighted
    }

    /// SplitMix64: a number in [0, 1).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The first of the largest.
fn most_likely(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (token as u32, logit);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(sampling: Sampling, logits: &[f32], times: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(sampling);
        let mut counts = vec![0; logits.len()];
        for _ in 0..times {
            counts[sampler.choose(logits) as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(Sampler::new(Sampling::GREEDY).choose(&[0.0, 3.0, f32::NAN, 3.0]), 1);
    }

    #[test]
    fn tokens_come_as_often_as_their_probability() {
        let sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        let counts = drawn(sampling, &[3f32.ln(), 0.0, f32::NEG_INFINITY], 20_000);
        assert!((counts[0] as f64 / 20_000.0 - 0.75).abs() < 0.02, "{counts:?}");
        assert_eq!(counts[2], 0);
    }

    #[test]
    fn top_k_and_top_p_leave_the_rest_out() {
        let logits = [0.0, 2.0, 1.0, -1.0];
        let two = Sampling { temperature: 5.0, top_k: Some(2), ..Sampling::GREEDY };
        let counts = drawn(two, &logits, 2_000);
        assert!(counts[1] > 0 && counts[2] > 0 && counts[0] + counts[3] == 0, "{counts:?}");
        // The first has about 0.64 of the mass, the first two 0.87.
        let most = Sampling { temperature: 1.0, top_p: Some(0.7), ..Sampling::GREEDY };
        let counts = drawn(most, &logits, 2_000);
        assert!(counts[1] > 0 && counts[2] > 0 && counts[0] + counts[3] == 0, "{counts:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens_and_another_gives_others() {
        let with = |seed| {
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::GREEDY });
            (0..32).map(|_| sampler.choose(&[0.0; 100])).collect::<Vec<_>>()
        };
        assert_eq!(with(7), with(7));
        assert_ne!(with(7), with(8));
    }
}
