//! Chooses the next token from logits: temperature, top-k, top-p and a seed.

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

    /// Whether the most likely token is taken, whatever the other logits are.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }
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
        if self.sampling.is_greedy() {
            return most_likely(logits);
        }
        let draw = self.uniform();
        let mut order = Descending::new(logits);
        let top = order.token(0).map_or(0.0, |token| logits[token as usize]);
        let temperature = f64::from(self.sampling.temperature);
        let weight = |token: u32| {
            let below = f64::from(logits[token as usize]) - f64::from(top);
            (below / temperature).exp()
        };
        // What may be chosen, most likely first: so many tokens, or so much of the mass.
        let count = self.sampling.top_k.unwrap_or(usize::MAX).clamp(1, order.len().max(1));
        let mass = if count < order.len() {
            (0..count).filter_map(|at| order.token(at)).map(weight).sum()
        } else {
            order.tokens().map(weight).sum::<f64>()
        };
        let share = self.sampling.top_p.map_or(1.0, f64::from);
        let kept = if share < 1.0 {
            // The token that reaches the mass belongs to it.
            let mut sum = 0.0;
            let mut at = 0;
            while let Some(token) = order.token(at).filter(|_| at < count) {
                sum += weight(token);
                at += 1;
                if sum / mass >= share {
                    break;
                }
            }
            sum
        } else {
            mass
        };
        let mut left = draw * kept;
        let mut last = 0;
        let mut at = 0;
        while let Some(token) = order.token(at).filter(|_| at < count) {
            left -= weight(token);
            if left < 0.0 {
                return token;
            }
            (last, at) = (token, at + 1);
        }
        last
    }

    /// SplitMix64: a number in [0, 1). Written out here since a seed must give the same text in
    /// every version of the program: a crate's generator may change.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Tokens from the most likely on, sorted only as far as they are looked at: a vocabulary has a
/// hundred thousand, and mostly the first few are enough.
struct Descending<'a> {
    logits: &'a [f32],
    order: Vec<u32>,
    sorted: usize,
}

impl<'a> Descending<'a> {
    /// How many are sorted at first; each time eight times as many.
    const FIRST: usize = 64;

    fn new(logits: &'a [f32]) -> Self {
        let order =
            (0..logits.len() as u32).filter(|&token| !logits[token as usize].is_nan()).collect();
        Self { logits, order, sorted: 0 }
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    /// All of them, in any order.
    fn tokens(&self) -> impl Iterator<Item = u32> {
        self.order.iter().copied()
    }

    /// The token at a place of the order.
    fn token(&mut self, at: usize) -> Option<u32> {
        while at >= self.sorted && self.sorted < self.order.len() {
            let logits = self.logits;
            let by = |a: &u32, b: &u32| {
                logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b))
            };
            let end = (self.sorted * 8).max(Self::FIRST).min(self.order.len());
            let rest = &mut self.order[self.sorted..];
            let count = end - self.sorted;
            if count < rest.len() {
                rest.select_nth_unstable_by(count - 1, by);
            }
            rest[..count].sort_unstable_by(by);
            self.sorted = end;
        }
        self.order.get(at).copied()
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
    fn what_is_sorted_piece_by_piece_is_sorted() {
        let logits: Vec<f32> = (0..5000).map(|at| ((at * 7919) % 1013) as f32).collect();
        let mut whole: Vec<u32> = (0..5000).collect();
        whole.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        let mut pieces = Descending::new(&logits);
        let pieces: Vec<u32> = (0..5000).map_while(|at| pieces.token(at)).collect();
        assert_eq!(pieces, whole);
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
