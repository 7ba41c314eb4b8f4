//! What is done to a sample between the file and the model: normalising, and for training
//! flips and shifted crops that depend on the seed, the epoch and the sample alone.

use surefoot::device::supervisor;

use super::{Form, Label, Normalisation, Sample, Source, read_caught};
use crate::random::SeededRandom;

/// Changes that make more of few images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Augment {
    /// Mirror half of the images.
    pub flip: bool,
    /// Shift by up to this many pixels; what comes in is the mean colour.
    pub crop: usize,
}

/// At most this many samples are read to learn the means.
const ENOUGH: usize = 5000;

/// What is done to each sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Transform {
    form: Form,
    normalisation: Normalisation,
    target: Option<Normalisation>,
    augment: Augment,
}

impl Transform {
    /// A transform whose means and deviations are known: those of a checkpoint.
    pub fn known(
        form: Form,
        normalisation: Normalisation,
        target: Option<Normalisation>,
        augment: Augment,
    ) -> Self {
        Self { form, normalisation, target, augment }
    }

    /// Learns each channel's mean and deviation from the samples, if `normalise`, and those of
    /// numbers that are to be predicted in any case. Samples that can't be read are passed over:
    /// they are reported when they are needed.
    pub fn learn(source: &dyn Source, normalise: bool, augment: Augment) -> Self {
        let form = source.form();
        let channels = match form {
            Form::Dense { channels, .. } => channels,
            Form::Text { .. } | Form::Sequences { .. } => 0,
        };
        let mut inputs = vec![Moments::default(); channels];
        let mut targets = Moments::default();
        let regression = form.is_regression();
        if channels > 0 && (normalise || regression) {
            let every = source.len().div_ceil(ENOUGH).max(1);
            let per_channel = form.size() / channels;
            for at in (0..source.len()).step_by(every) {
                // Thousands of images from a slow disk take longer than a supervisor waits.
                supervisor::still_alive();
                let Ok(Sample::Dense { values, label }) = read_caught(source, at) else { continue };
                if values.len() != form.size() {
                    continue;
                }
                for (moments, values) in inputs.iter_mut().zip(values.chunks_exact(per_channel)) {
                    moments.add(values);
                }
                if let Label::Number(number) = label {
                    targets.add(&[number]);
                }
            }
        }
        let normalisation = match normalise {
            true => normalisation_of(&inputs),
            false => Normalisation::identity(channels),
        };
        let target = regression.then(|| normalisation_of(&[targets]));
        Self { form, normalisation, target, augment }
    }

    /// What is applied to the inputs.
    pub fn normalisation(&self) -> &Normalisation {
        &self.normalisation
    }

    /// What is applied to the numbers that are predicted, in regression.
    pub fn target(&self) -> Option<&Normalisation> {
        self.target.as_ref()
    }

    /// The label as the model learns it.
    pub fn apply_to_label(&self, label: Label) -> Label {
        match (label, &self.target) {
            (Label::Number(number), Some(target)) => Label::Number(target.apply(0, number)),
            _ => label,
        }
    }

    /// Normalises, and augments if there is a random generator.
    pub fn apply(&self, values: &mut Vec<f32>, random: Option<SeededRandom>) {
        let Form::Dense { channels, height, width, .. } = self.form else { return };
        let plane = height * width;
        for channel in 0..channels {
            for value in &mut values[channel * plane..(channel + 1) * plane] {
                *value = self.normalisation.apply(channel, *value);
            }
        }
        let Some(mut random) = random else { return };
        if self.augment.flip && random.below(2) == 1 {
            values.chunks_exact_mut(width).for_each(<[f32]>::reverse);
        }
        if self.augment.crop > 0 {
            let reach = self.augment.crop;
            let mut offset = || random.below(2 * reach + 1) as isize - reach as isize;
            let (down, right) = (offset(), offset());
            *values = shifted(values, channels, height, width, down, right);
        }
    }

    /// Whether training samples are changed from epoch to epoch.
    pub fn is_random(&self) -> bool {
        self.augment != Augment::default()
    }
}

/// Sums over the values of a channel.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    sum: f64,
    squares: f64,
    count: usize,
}

impl Moments {
    fn add(&mut self, values: &[f32]) {
        self.sum += values.iter().map(|v| f64::from(*v)).sum::<f64>();
        self.squares += values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        self.count += values.len();
    }
}

fn normalisation_of(channels: &[Moments]) -> Normalisation {
    let of = |moments: &Moments| {
        let count = moments.count.max(1) as f64;
        let mean = moments.sum / count;
        let variance = (moments.squares / count - mean * mean).max(0.0);
        // A channel that never changes says nothing; dividing by 0 would make it NaN.
        let scale = if variance > 1e-12 { (1.0 / variance.sqrt()) as f32 } else { 1.0 };
        (mean as f32, scale)
    };
    let (mean, scale) = channels.iter().map(of).unzip();
    Normalisation { mean, scale }
}

/// The image moved; what comes in from outside is 0, which is the mean once normalised.
fn shifted(
    values: &[f32],
    channels: usize,
    height: usize,
    width: usize,
    down: isize,
    right: isize,
) -> Vec<f32> {
    let mut moved = vec![0.0; values.len()];
    for channel in 0..channels {
        for row in 0..height {
            let Some(from) = row.checked_add_signed(-down).filter(|from| *from < height) else {
                continue;
            };
            for column in 0..width {
                let source = column.checked_add_signed(-right).filter(|from| *from < width);
                if let Some(source) = source {
                    moved[(channel * height + row) * width + column] =
                        values[(channel * height + from) * width + source];
                }
            }
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Target;
    use crate::data::digits::digits;

    #[test]
    fn normalised_values_have_mean_0_and_deviation_1() {
        let source = digits().unwrap();
        let transform = Transform::learn(&source, true, Augment::default());
        let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
        for at in 0..source.len() {
            let Ok(Sample::Dense { mut values, .. }) = source.read(at) else { panic!() };
            transform.apply(&mut values, Some(SeededRandom::of(&[1])));
            sum += values.iter().map(|v| f64::from(*v)).sum::<f64>();
            squares += values.iter().map(|v| f64::from(v * v)).sum::<f64>();
            count += values.len() as f64;
        }
        assert!((sum / count).abs() < 1e-3 && (squares / count - 1.0).abs() < 1e-3);
    }

    /// Three samples, of which the second makes its decoder panic and the third is too long.
    struct Bad;

    impl Source for Bad {
        fn len(&self) -> usize {
            3
        }

        fn form(&self) -> Form {
            Form::Dense { channels: 1, height: 1, width: 2, target: Target::Classes(2) }
        }

        fn read(&self, at: usize) -> Result<Sample, String> {
            match at {
                0 => Ok(Sample::Dense { values: vec![1.0, 3.0], label: Label::Class(0) }),
                1 => panic!("no decoder is perfect"),
                _ => Ok(Sample::Dense { values: vec![9.0; 8], label: Label::Class(0) }),
            }
        }

        fn name(&self, at: usize) -> String {
            at.to_string()
        }
    }

    #[test]
    fn what_cannot_be_read_is_passed_over() {
        let transform = Transform::learn(&Bad, true, Augment::default());
        let learned = transform.normalisation();
        assert_eq!((learned.mean[0], learned.scale[0]), (2.0, 1.0));
    }

    #[test]
    fn a_shift_moves_and_fills_with_the_mean() {
        let moved = shifted(&[1.0, 2.0, 3.0, 4.0], 1, 2, 2, 1, -1);
        assert_eq!(moved, [0.0, 0.0, 2.0, 0.0]);
        assert_eq!(shifted(&[1.0, 2.0], 1, 1, 2, 5, 0), [0.0, 0.0]);
    }

    #[test]
    fn testing_is_never_random_and_training_repeats_with_its_seed() {
        let source = digits().unwrap();
        let transform = Transform::learn(&source, true, Augment { flip: true, crop: 2 });
        let Ok(Sample::Dense { values, .. }) = source.read(5) else { panic!() };
        let run = |random: Option<SeededRandom>| {
            let mut values = values.clone();
            transform.apply(&mut values, random);
            values
        };
        assert_eq!(run(None), run(None));
        assert_eq!(run(Some(SeededRandom::of(&[3]))), run(Some(SeededRandom::of(&[3]))));
        let different =
            (0..20).filter(|seed| run(Some(SeededRandom::of(&[*seed]))) != run(None)).count();
        assert!(different > 10, "{different}");
    }
}
