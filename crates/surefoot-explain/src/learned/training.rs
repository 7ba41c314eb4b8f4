//! Training: multinomial logistic regression over tf-idf features by AdaGrad, seeded.

use surefoot_core::fault::FaultKind;

use super::calibration::Calibration;
use super::features::{BUCKETS, Family, Normalised};
use super::model::{KINDS, Model, ROW, Scores};

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
    /// The first step's size.
    pub rate: f32,
    /// How strongly weights are pulled to zero.
    pub decay: f32,
    /// Random seed for the order of the samples.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epochs: 20, rate: 0.5, decay: 1e-3, seed: 21 }
    }
}

/// Steps of a rarity (inverse document frequency) per unit; the largest is about 9.
const RARITY_STEPS: f32 = 25.0;

/// One text as features with their values; the squares of each family's values sum to one.
type Row = (Vec<(u32, f32)>, usize);

/// A model of the samples, with the default calibration. The same samples in the same order, with
/// the same settings, give the same bytes on every platform.
pub fn train(samples: &[Sample<'_>], settings: &Settings) -> Model {
    let (rows, rarity) = rows_of(samples);
    let mut table = vec![Weights::default(); BUCKETS];
    let mut bias = Weights::default();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let mut random = fastrand::Rng::with_seed(settings.seed);
    for _ in 0..settings.epochs {
        random.shuffle(&mut order);
        for &index in &order {
            let (features, kind) = &rows[index];
            let mut errors = bias.values;
            for &(bucket, value) in features {
                let row = &table[bucket as usize].values;
                for (score, weight) in errors.iter_mut().zip(row) {
                    *score += weight * value;
                }
            }
            softmax(&mut errors);
            if errors[*kind] > KNOWN {
                continue;
            }
            errors[*kind] -= 1.0;
            bias.step(&errors, 1.0, settings.rate, 0.0);
            for &(bucket, value) in features {
                table[bucket as usize].step(&errors, value, settings.rate, settings.decay);
            }
        }
    }
    quantise(&table, &rarity, &bias)
}

/// A sample that is this probable under its own kind teaches nothing more.
const KNOWN: f32 = 0.98;

/// The kinds, and one place that stays unused, so that a row fills whole vector registers.
type Lanes = [f32; KINDS.len() + 1];

/// The weights of one feature, with the sums of squared gradients that AdaGrad divides by.
#[derive(Clone, Default)]
struct Weights {
    values: Lanes,
    squares: Lanes,
}

impl Weights {
    fn step(&mut self, errors: &Lanes, value: f32, rate: f32, decay: f32) {
        for ((weight, squares), error) in self.values.iter_mut().zip(&mut self.squares).zip(errors)
        {
            let gradient = error * value + decay * *weight;
            *squares += gradient * gradient;
            *weight -= rate * gradient / squares.sqrt().max(f32::MIN_POSITIVE);
        }
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

/// The samples as tf-idf rows, and the rarity of each bucket in steps.
fn rows_of(samples: &[Sample<'_>]) -> (Vec<Row>, Vec<u8>) {
    let mut texts = Vec::with_capacity(samples.len());
    let mut frequency = vec![0_u32; BUCKETS];
    for sample in samples {
        let Some(kind) = KINDS.iter().position(|&kind| kind == sample.kind) else { continue };
        let mut buckets = Vec::new();
        Normalised::new(sample.text).features(|family, bucket, _| {
            frequency[bucket] += 1;
            buckets.push((family, bucket as u32));
        });
        texts.push((buckets, kind));
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
        .map(|(buckets, kind)| {
            let value = |bucket: u32| f32::from(rarity[bucket as usize]);
            let mut squares = [0.0_f32; Family::COUNT];
            for &(family, bucket) in &buckets {
                squares[family as usize] += value(bucket) * value(bucket);
            }
            let length = squares.map(|square| square.sqrt().max(1.0));
            let features = buckets
                .iter()
                .map(|&(family, bucket)| (bucket, value(bucket) / length[family as usize]));
            (features.collect(), kind)
        })
        .collect();
    (rows, rarity)
}

/// Weights times rarity in eight bits. The few largest are cut off: they would make all steps
/// coarse.
fn quantise(table: &[Weights], rarity: &[u8], bias: &Weights) -> Model {
    let scaled =
        |bucket: usize, kind: usize| table[bucket].values[kind] * f32::from(rarity[bucket]);
    let mut sizes: Vec<f32> = (0..BUCKETS)
        .filter(|&bucket| rarity[bucket] > 0)
        .flat_map(|bucket| (0..KINDS.len()).map(move |kind| (bucket, kind)))
        .map(|(bucket, kind)| scaled(bucket, kind).abs())
        .collect();
    sizes.sort_by(f32::total_cmp);
    let largest = sizes.get(sizes.len() * 9995 / 10_000).copied().unwrap_or(1.0);
    let scale = largest.max(f32::MIN_POSITIVE) / 127.0;
    let mut rows = vec![0_u8; BUCKETS * ROW];
    for (bucket, row) in rows.chunks_exact_mut(ROW).enumerate() {
        for (kind, byte) in row[..KINDS.len()].iter_mut().enumerate() {
            *byte = (scaled(bucket, kind) / scale).round().clamp(-127.0, 127.0) as i8 as u8;
        }
        row[ROW - 1] = rarity[bucket];
    }
    let bias: Scores = std::array::from_fn(|kind| bias.values[kind]);
    Model { rows: rows.into(), scale, bias, calibration: Calibration::default() }
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
