//! A prompt that is run alone and in parts, between which others can be decoded, and that can begin with
//! the keys and values of an earlier prompt that began alike.
//!
//! A [`Prefill`] joins a [`Decoding`] when all its tokens are run. After an error it must be dropped.

use burn::tensor::Tensor;

use super::session::{Decoding, Passes};
use super::tokens::WANT;
use crate::error::ModelError;
use crate::run::batch::TokenBatch;
use crate::run::cache::{Cache, moved_to};
use crate::run::model::Model;
use crate::run::output::{Logits, Rows, Want};

/// A prompt that is being run.
#[derive(Debug)]
pub struct Prefill {
    tokens: Vec<u32>,
    batch: TokenBatch,
    pub(super) cache: Cache,
}

/// The keys and values of tokens that were run.
#[derive(Debug)]
pub struct KnownPrefix {
    tokens: Vec<u32>,
    layers: Vec<(Tensor<4>, Tensor<4>)>,
}

impl Prefill {
    /// A prompt of which the first `count` tokens are those of `known`, if there is one; at least one
    /// token is left to run.
    pub fn new(
        model: &Model,
        tokens: &[u32],
        known: Option<(&KnownPrefix, usize)>,
    ) -> Result<Self, ModelError> {
        let batch = TokenBatch::new(&[tokens.to_vec()], model.blueprint.vocab)?;
        let mut cache = Cache::new(&model.blueprint, 1, batch.width, &model.device);
        if let Some((known, count)) = known {
            let count = count.min(tokens.len() - 1);
            for (layer, (keys, values)) in cache.layers.iter_mut().zip(&known.layers) {
                let Some((own_keys, own_values)) = layer.take() else { continue };
                let [_, heads, _, dim] = keys.dims();
                let place = [0..1, 0..heads, 0..count, 0..dim];
                let part = |all: &Tensor<4>| all.clone().slice(place.clone());
                *layer = Some((
                    moved_to(keys, own_keys).slice_assign(place.clone(), part(keys)),
                    moved_to(values, own_values).slice_assign(place.clone(), part(values)),
                ));
            }
            cache.filled = count;
        }
        Ok(Self { tokens: tokens.to_vec(), batch, cache })
    }

    /// The prompt.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of its tokens are run.
    pub fn done(&self) -> usize {
        self.cache.filled
    }

    /// Runs up to `count` tokens more; gives the logits behind the last one of all.
    pub fn advance(
        &mut self,
        passes: &mut Passes<'_>,
        count: usize,
    ) -> Result<Option<Rows>, ModelError> {
        let start = self.done();
        let end = start.saturating_add(count.max(1)).min(self.batch.width);
        let is_last = end == self.batch.width;
        let logits = if is_last { Logits::Last } else { Logits::None };
        let columns = self.batch.columns(start..end);
        let want = Want { logits, ..WANT };
        let output =
            passes.model.pass(&columns, want, &mut passes.session, Some(&mut self.cache))?;
        match output.logits {
            None if is_last => Err(ModelError::request("the pass gave no logits")),
            logits => Ok(logits),
        }
    }

    /// What was run, for prompts that begin alike.
    pub fn known(&self) -> KnownPrefix {
        let count = self.done();
        // Numbers of their own: while a view of the cache is there, Burn copies it for an assignment.
        let own = |all: &Tensor<4>| {
            let [_, heads, _, dim] = all.dims();
            all.clone().slice([0..1, 0..heads, 0..count, 0..dim]).mul_scalar(1.0)
        };
        let layers = self.cache.layers.iter().flatten();
        KnownPrefix {
            tokens: self.tokens[..count].to_vec(),
            layers: layers.map(|(keys, values)| (own(keys), own(values))).collect(),
        }
    }
}

impl KnownPrefix {
    /// The tokens that were run.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl Decoding {
    /// Adds a sequence whose tokens are all run behind those that are there.
    pub fn join_prefill(
        &mut self,
        passes: &Passes<'_>,
        prefill: Prefill,
    ) -> Result<(), ModelError> {
        let length = prefill.tokens.len();
        self.check_room(1, length)?;
        if prefill.done() < length {
            return Err(ModelError::request("a prompt joins when all its tokens are run"));
        }
        self.take_over(passes.model, prefill.cache, &[length], length);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::session::tests::{alone, choose, limits, opened, prompt};
    use crate::run::batch::Rectangle;

    #[test]
    fn prompts_in_parts_and_behind_known_beginnings_give_the_tokens_they_give_alone() {
        for name in ["gpt2-tiny", "llama-tiny", "neox-tiny", "mistral-window"] {
            let model = opened(name, 1.0);
            let mut passes = model.passes();
            let mut decoding = Decoding::new(&model, limits(8, 100));
            // One that is there already, and goes on between the parts.
            let other = prompt(1, 9);
            let logits = decoding
                .join(&mut passes, std::slice::from_ref(&other), Rectangle::default())
                .unwrap();
            let mut said = vec![choose(logits.row(0))];
            let first = prompt(2, 40);
            let mut second = first.clone();
            second.truncate(30);
            second.extend([5, 6, 7]);
            let mut known: Option<KnownPrefix> = None;
            for whole in [&first, &second] {
                let common = known.as_ref().map(|known| (known, 30));
                let mut prefill = Prefill::new(&model, whole, common).unwrap();
                assert_eq!(prefill.done(), if known.is_some() { 30 } else { 0 });
                let logits = loop {
                    if let Some(logits) = prefill.advance(&mut passes, 7).unwrap() {
                        break logits;
                    }
                    let rows = decoding.step(&mut passes, &[said[said.len() - 1]], 0).unwrap();
                    said.push(choose(rows.row(0)));
                };
                known = Some(prefill.known());
                decoding.join_prefill(&passes, prefill).unwrap();
                let mut tokens = vec![choose(logits.row(0))];
                for _ in 0..10 {
                    let last = [said[said.len() - 1], tokens[tokens.len() - 1]];
                    let rows = decoding.step(&mut passes, &last, 0).unwrap();
                    said.push(choose(rows.row(0)));
                    tokens.push(choose(rows.row(1)));
                }
                assert_eq!(tokens, alone(&model, whole, tokens.len()), "{name}");
                decoding.leave(1);
            }
            assert_eq!(said, alone(&model, &other, said.len()), "{name}");
        }
    }
}
