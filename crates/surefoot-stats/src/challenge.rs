//! Challenges: what both models are asked.
//!
//! A set follows from a key and a run id alone: keyed BLAKE3 fills templates with ids of the
//! model's vocabulary. It is fixed, and its commitment can be shown, before anything runs. A
//! template is a pattern that attention has to answer to: repetition, look-up, mirroring, runs
//! of neighbours. No tokenizer takes part, so anyone can make the set again from the transcript.
//!
//! A key that others don't know is what keeps a model from being prepared for its challenges;
//! the public key, the default of fingerprints, is what makes fingerprints comparable.

use serde::{Deserialize, Serialize};

use crate::error::StatsError;
use crate::hex;
use crate::keyed_stream::{self, KeyedStream};

/// The most challenges of a set.
pub const MAX_CHALLENGES: usize = 1024;
/// The most tokens of a challenge.
pub const MAX_TOKENS: usize = 2048;
const MAX_VOCAB: usize = 1 << 24;
const MAX_RUN_ID: usize = 200;

/// Where a set comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind", deny_unknown_fields)]
pub enum Origin {
    /// Made from a key and a run id.
    Keyed {
        /// The key.
        #[serde(with = "hex::bytes32")]
        key: [u8; 32],
        /// The run id.
        run_id: String,
        /// The vocabulary that ids are drawn from.
        vocab: usize,
    },
    /// Someone's own prompts.
    Prompts,
}

/// A set of challenges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChallengeSet {
    /// Where it comes from.
    pub origin: Origin,
    /// The token ids of each challenge.
    pub sequences: Vec<Vec<u32>>,
}

/// The key of fingerprints that can be compared with everyone's.
pub fn public_key() -> [u8; 32] {
    keyed_stream::public_key("surefoot public challenges, first edition")
}

/// A key that nobody knows.
pub fn fresh_key() -> Result<[u8; 32], StatsError> {
    let mut key = [0; 32];
    getrandom::fill(&mut key)
        .map_err(|error| StatsError::request(format!("the system gives no randomness: {error}")))?;
    Ok(key)
}

impl ChallengeSet {
    /// Makes `count` challenges of `tokens` ids below `vocab`.
    pub fn keyed(
        key: [u8; 32],
        run_id: &str,
        vocab: usize,
        count: usize,
        tokens: usize,
    ) -> Result<Self, StatsError> {
        if run_id.len() > MAX_RUN_ID {
            return Err(StatsError::request(format!(
                "the run id has {} bytes, {MAX_RUN_ID} are allowed",
                run_id.len()
            )));
        }
        within("challenges", count, MAX_CHALLENGES)?;
        within("tokens a challenge", tokens, MAX_TOKENS)?;
        within("tokens in the vocabulary", vocab, MAX_VOCAB)?;
        let sequences =
            (0..count).map(|number| challenge(&key, run_id, vocab, number, tokens)).collect();
        Ok(Self { origin: Origin::Keyed { key, run_id: run_id.to_owned(), vocab }, sequences })
    }

    /// Takes someone's own prompts.
    pub fn prompts(sequences: Vec<Vec<u32>>) -> Result<Self, StatsError> {
        let set = Self { origin: Origin::Prompts, sequences };
        set.check()?;
        Ok(set)
    }

    /// Whether the set is within bounds, and is the one that its key and run id give.
    pub fn check(&self) -> Result<(), StatsError> {
        within("challenges", self.sequences.len(), MAX_CHALLENGES)?;
        for sequence in &self.sequences {
            within("tokens a challenge", sequence.len(), MAX_TOKENS)?;
        }
        if let Origin::Keyed { key, run_id, vocab } = &self.origin {
            let tokens = self.sequences.first().map_or(0, Vec::len);
            let again = Self::keyed(*key, run_id, *vocab, self.sequences.len(), tokens)?;
            if again.sequences != self.sequences {
                return Err(StatsError::document(
                    "the challenges are not the ones that their key and run id give",
                ));
            }
        }
        Ok(())
    }

    /// A digest of all ids: shown before anything runs, it fixes the set.
    pub fn commitment(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("surefoot 2026-11 challenge set");
        hasher.update(&(self.sequences.len() as u64).to_le_bytes());
        for sequence in &self.sequences {
            hasher.update(&(sequence.len() as u64).to_le_bytes());
            for id in sequence {
                hasher.update(&id.to_le_bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }

    /// The longest challenge.
    pub fn longest(&self) -> usize {
        self.sequences.iter().map(Vec::len).max().unwrap_or(0)
    }
}

fn within(what: &str, count: usize, most: usize) -> Result<(), StatsError> {
    if (1..=most).contains(&count) {
        Ok(())
    } else {
        Err(StatsError::request(format!("{count} {what}: it must be 1 to {most}")))
    }
}

/// Templates in turn, so that every set has all of them.
fn challenge(key: &[u8; 32], run_id: &str, vocab: usize, number: usize, tokens: usize) -> Vec<u32> {
    let words: [&[u8]; 3] = [b"challenge", run_id.as_bytes(), &(number as u64).to_le_bytes()];
    let mut stream = KeyedStream::new(key, &words);
    let vocab = vocab as u64;
    let mut id = move || stream.below(vocab);
    let mut ids: Vec<u64> = match number % 7 {
        // Words that have nothing to do with each other.
        0 => (0..tokens).map(|_| id()).collect(),
        // A phrase, again and again.
        1 => {
            let phrase: Vec<u64> = (0..3 + id() % 6).map(|_| id()).collect();
            phrase.into_iter().cycle().take(tokens).collect()
        }
        // Names and values, then a name whose value is asked for.
        2 => {
            let mut ids: Vec<u64> = (0..tokens).map(|_| id()).collect();
            let names = (tokens as u64 / 2).max(1);
            let asked = ids[(id() % names) as usize * 2 % tokens];
            ids[tokens - 1] = asked;
            ids
        }
        // A phrase and its mirror.
        3 => {
            let half: Vec<u64> = (0..tokens.div_ceil(2)).map(|_| id()).collect();
            half.iter().chain(half.iter().rev()).copied().take(tokens).collect()
        }
        // Runs of neighbours in the vocabulary.
        4 => {
            let mut ids = Vec::with_capacity(tokens);
            while ids.len() < tokens {
                let (start, length) = (id(), 2 + id() % 5);
                ids.extend((0..length).map(|next| (start + next) % vocab));
            }
            ids
        }
        // One word between all others.
        5 => {
            let drum = id();
            (0..tokens).map(|at| if at % 2 == 0 { drum } else { id() }).collect()
        }
        // Frequent words: vocabularies begin with them.
        _ => (0..tokens).map(|_| id() % (vocab / 8).max(1)).collect(),
    };
    ids.truncate(tokens);
    // Below the vocabulary, which is below 2^24.
    ids.into_iter().map(|id| id as u32).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_set_follows_from_key_and_run_id_alone() {
        let set = |key, run| ChallengeSet::keyed([key; 32], run, 256, 32, 24).unwrap();
        assert_eq!(set(1, "a"), set(1, "a"));
        assert_ne!(set(1, "a").commitment(), set(2, "a").commitment());
        assert_ne!(set(1, "a").commitment(), set(1, "b").commitment());
        // Fixed for all time: fingerprints of other machines and versions rest on it.
        let known = ChallengeSet::keyed(public_key(), "library", 256, 4, 6).unwrap();
        assert_eq!(known.commitment(), KNOWN, "{:?}", known.sequences);
    }

    const KNOWN: &str = "dde300d076252c3e181171b6ac1d0915c10c7f5970040e854664a5dacf8610a4";

    #[test]
    fn a_changed_id_is_found() {
        let mut set = ChallengeSet::keyed([7; 32], "run", 100, 8, 12).unwrap();
        set.check().unwrap();
        set.sequences[3][5] ^= 1;
        assert!(set.check().unwrap_err().to_string().contains("not the ones"));
    }

    #[test]
    fn sets_beyond_the_bounds_are_refused() {
        assert!(ChallengeSet::keyed([0; 32], "", 10, 0, 5).is_err());
        assert!(ChallengeSet::keyed([0; 32], "", 10, 5, 0).is_err());
        assert!(ChallengeSet::keyed([0; 32], "", 0, 5, 5).is_err());
        assert!(ChallengeSet::keyed([0; 32], "", 10, MAX_CHALLENGES + 1, 5).is_err());
        assert!(ChallengeSet::keyed([0; 32], &"x".repeat(201), 10, 1, 5).is_err());
        assert!(ChallengeSet::prompts(vec![vec![1], vec![]]).is_err());
    }

    proptest! {
        #[test]
        fn every_challenge_has_its_length_and_ids_of_the_vocabulary(
            vocab in 1_usize..50_000, tokens in 1_usize..70, key: [u8; 32],
        ) {
            let set = ChallengeSet::keyed(key, "p", vocab, 14, tokens).unwrap();
            for sequence in &set.sequences {
                prop_assert_eq!(sequence.len(), tokens);
                prop_assert!(sequence.iter().all(|id| (*id as usize) < vocab));
            }
            set.check().unwrap();
        }
    }
}
