//! Training: multinomial logistic regression over tf-idf features by stochastic gradient descent, seeded.

use std::collections::HashMap;

use surefoot_core::fault::FaultKind;

use super::calibration::Calibration;
use super::features::{Family, Normalised};
use super::model::{KINDS, Model, ROW, Scores};
use super::vocabulary::{SLOTS, Vocabulary};

/// A labelled text.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The text.
    pub text: &'a str,
    /// Its kind.
    pub kind: FaultKind,
}

/// How a model is trained.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How often every sample is seen.
    pub epochs: usize,
    /// The first step's size; it falls to zero in a straight line.
    pub rate: f32,
    /// How strongly weights are pulled to zero.
    pub decay: f32,
    /// Random seed for the order of the samples.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epochs: 30, rate: 2.0, decay: 1e-5, seed: 21 }
    }
}

/// Steps of a rarity (inverse document frequency) per unit; the largest is about 9.
const RARITY_STEPS: f32 = 25.0;

/// One text as slots with their values; the squares of each family's values sum to one.
type Row = (Vec<(u32, f32)>, usize);

/// A model of the samples, with the default calibration. The same samples in the same order, with
/// the same settings, give the same bytes on every platform.
pub fn train(samples: &[Sample<'_>], settings: &Settings) -> Model {
    let vocabulary = vocabulary_of(samples);
    let (rows, rarity) = rows_of(samples, &vocabulary);
    let mut table = vec![Lanes::default(); SLOTS];
    let mut bias = Lanes::default();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let mut random = fastrand::Rng::with_seed(settings.seed);
    let steps = (settings.epochs * rows.len()).max(1);
    let mut step = 0;
    for _ in 0..settings.epochs {
        random.shuffle(&mut order);
        for &index in &order {
            let rate = settings.rate * (steps - step) as f32 / steps as f32;
            step += 1;
            let (features, kind) = &rows[index];
            let mut errors = bias;
            for &(slot, value) in features {
                for (score, weight) in errors.iter_mut().zip(&table[slot as usize]) {
                    *score += weight * value;
                }
            }
            softmax(&mut errors);
            errors[*kind] -= 1.0;
            change(&mut bias, &errors, 0.1 * rate, 1.0);
            for &(slot, value) in features {
                change(
                    &mut table[slot as usize],
                    &errors,
                    rate * value,
                    1.0 - rate * settings.decay,
                );
            }
        }
    }
    quantise(vocabulary, &table, &rarity, &bias)
}

/// The kinds, and one place that stays unused, so that a row fills whole vector registers.
type Lanes = [f32; KINDS.len() + 1];

fn change(weights: &mut Lanes, errors: &Lanes, by: f32, keep: f32) {
    for (weight, error) in weights.iter_mut().zip(errors) {
        *weight = *weight * keep - by * error;
    }
}

/// Probabilities of the scores; 0 for the unused place.
fn softmax(scores: &mut Lanes) {
    let kinds = &mut scores[..KINDS.len()];
    let most = kinds.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in kinds.iter_mut() {
        *score = libm::expf(*score - most);
        sum += *score;
    }
    for score in kinds {
        *score /= sum;
    }
}

/// The features of one text, each once, in a fixed order.
fn features_of(text: &str) -> Vec<(u64, Family)> {
    let mut features = Vec::new();
    Normalised::new(text).features(|family, hash, _| features.push((hash, family)));
    features.sort_unstable_by_key(|&(hash, family)| (hash, family as usize));
    features.dedup();
    features
}

/// What occurs in several texts, the most frequent first. What occurs in one or two of thousands says more about those than
/// about a kind.
fn vocabulary_of(samples: &[Sample<'_>]) -> Vocabulary {
    let fewest = (1 + samples.len() / 500).min(3);
    let mut frequency: HashMap<u64, usize> = HashMap::new();
    for sample in samples {
        for (hash, _) in features_of(sample.text) {
            *frequency.entry(hash).or_insert(0) += 1;
        }
    }
    let mut known: Vec<(usize, u64)> = frequency
        .into_iter()
        .filter(|&(_, count)| count >= fewest)
        .map(|(hash, count)| (count, hash))
        .collect();
    known.sort_unstable_by(|a, b| b.cmp(a));
    Vocabulary::new(known.into_iter().map(|(_, hash)| hash))
}

/// The samples as tf-idf rows, and the rarity of each slot in steps.
fn rows_of(samples: &[Sample<'_>], vocabulary: &Vocabulary) -> (Vec<Row>, Vec<u8>) {
    let mut texts = Vec::with_capacity(samples.len());
    let mut frequency = vec![0_u32; SLOTS];
    for sample in samples {
        let Some(kind) = KINDS.iter().position(|&kind| kind == sample.kind) else { continue };
        let known = features_of(sample.text)
            .into_iter()
            .filter_map(|(hash, family)| Some((vocabulary.find(hash)? as u32, family)));
        let mut slots: Vec<(u32, Family)> = known.collect();
        // Two features of a text may be taken for the same one.
        slots.sort_unstable_by_key(|&(slot, _)| slot);
        slots.dedup_by_key(|&mut (slot, _)| slot);
        for &(slot, _) in &slots {
            frequency[slot as usize] += 1;
        }
        texts.push((slots, kind));
    }
    let rarity: Vec<u8> = frequency
        .iter()
        .map(|&count| match count {
            0 => 0,
            count => {
                let share = (1 + texts.len()) as f32 / (1 + count) as f32;
                ((1.0 + libm::logf(share)) * RARITY_STEPS).min(255.0) as u8
            }
        })
        .collect();
    let rows = texts
        .into_iter()
        .map(|(slots, kind)| {
            let value = |slot: u32| f32::from(rarity[slot as usize]);
            let mut squares = [0.0_f32; Family::COUNT];
            for &(slot, family) in &slots {
                squares[family as usize] += value(slot) * value(slot);
            }
            let length = squares.map(|square| square.sqrt().max(1.0));
            let features =
                slots.iter().map(|&(slot, family)| (slot, value(slot) / length[family as usize]));
            (features.collect(), kind)
        })
        .collect();
    (rows, rarity)
}

/// Weights times rarity in eight bits. The few largest are cut off: they would make all steps
/// coarse.
fn quantise(vocabulary: Vocabulary, table: &[Lanes], rarity: &[u8], bias: &Lanes) -> Model {
    let scaled = |slot: usize, kind: usize| table[slot][kind] * f32::from(rarity[slot]);
    let mut sizes: Vec<f32> = (0..SLOTS)
        .filter(|&slot| rarity[slot] > 0)
        .flat_map(|slot| (0..KINDS.len()).map(move |kind| (slot, kind)))
        .map(|(slot, kind)| scaled(slot, kind).abs())
        .collect();
    sizes.sort_by(f32::total_cmp);
    let largest = sizes.get(sizes.len() * 9995 / 10_000).copied().unwrap_or(1.0);
    let scale = largest.max(f32::MIN_POSITIVE) / 127.0;
    let mut rows = vec![0_u8; SLOTS * ROW];
    for (slot, row) in rows.chunks_exact_mut(ROW).enumerate() {
        for (kind, byte) in row[..KINDS.len()].iter_mut().enumerate() {
            *byte = (scaled(slot, kind) / scale).round().clamp(-127.0, 127.0) as i8 as u8;
        }
        row[ROW - 1] = rarity[slot];
    }
    let bias: Scores = std::array::from_fn(|kind| bias[kind]);
    Model { vocabulary, rows: rows.into(), scale, bias, calibration: Calibration::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [Sample<'_>; 4] = [
        Sample { text: "CUDA out of memory", kind: FaultKind::OutOfMemory },
        Sample { text: "the device ran out of memory", kind: FaultKind::OutOfMemory },
        Sample { text: "shapes cannot be multiplied", kind: FaultKind::ShapeMismatch },
        Sample { text: "sizes of tensors must match", kind: FaultKind::ShapeMismatch },
    ];

    fn likeliest(model: &Model, text: &str) -> FaultKind {
        let scores = model.scores(text).expect("known features");
        let best = (0..KINDS.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
        KINDS[best.expect("some kind")]
    }

    #[test]
    fn what_was_taught_is_known_and_carries_over() {
        let model = train(&SAMPLES, &Settings::default());
        for sample in SAMPLES {
            assert_eq!(likeliest(&model, sample.text), sample.kind, "{}", sample.text);
        }
        assert_eq!(likeliest(&model, "no memory left"), FaultKind::OutOfMemory);
        assert_eq!(likeliest(&model, "tensors do not match"), FaultKind::ShapeMismatch);
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let settings = Settings::default();
        assert_eq!(train(&SAMPLES, &settings), train(&SAMPLES, &settings));
        let other = Settings { seed: 22, ..settings };
        assert_ne!(train(&SAMPLES, &settings), train(&SAMPLES, &other));
    }
}
