//! Noise: how far the same weights deviate from themselves when they are run in other variants.
//!
//! No tolerance is a constant that someone chose. The reference is run again in other variants, on
//! the same challenges, and the deviations are kept:
//!
//! - *arithmetic* variants leave every number as it is stored: other batches, streamed or resident
//!   weights, other devices. Where no other device is available, another order of summation stands
//!   in for it ([`crate::disturbance::Disturbance::summation_order`]).
//! - *rounding* variants also round to fewer digits: bf16.
//!
//! Two models that store their weights in the same dtypes and are run in the same precision on a
//! device whose noise is known differ only by arithmetic, a millionth or so, and are held to that;
//! it is what makes one step of fine-tuning visible. Else rounding is allowed for: some devices
//! multiply f32 with fewer digits than it has.
//!
//! Tolerances are paired: the tolerance of a challenge at a site follows from the noise of that
//! very challenge at that very site. It is larger by three times the spread of the noise, which
//! is read from variants that were run twice. Where noise doesn't repeat itself (a model in bf16, where
//! most sums come out equal and a few are rounded in the other direction), three times the root mean
//! square over all challenges is the tolerance instead.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::capture::{Captures, NextToken};
use crate::error::StatsError;
use crate::hex;
use crate::sketch::SketchDistance;

/// The smallest relative difference that is above the rounding of f32 numbers.
const RESOLUTION: f64 = 1.0 / (1_u32 << 22) as f64;
/// Tolerances are this many standard deviations above what was seen.
const DEVIATIONS: f64 = 3.0;
/// The likeliest tokens whose log-probabilities are compared.
pub const COMPARED_LOGPROBS: usize = 5;

/// What a variant of a run changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoiseClass {
    /// The order of sums.
    Arithmetic,
    /// Also the digits of numbers.
    Rounding,
}

/// The deviations of one run from the plain one.
#[derive(Clone, Debug, PartialEq)]
pub struct Deviations {
    /// `[challenge][site]`: of the projections, and of the profile.
    sites: Vec<Vec<[f32; 2]>>,
    /// Of the log-probabilities of each challenge.
    next: Vec<f32>,
}

/// What a variant of a run is called, for people and in files: `on gpu` is the run on that device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[non_exhaustive]
pub enum VariantName {
    /// The same run on another device, by its name.
    OnDevice(String),
    /// Any other.
    Other(String),
}

impl From<String> for VariantName {
    fn from(text: String) -> Self {
        match text.strip_prefix("on ") {
            Some(device) => Self::OnDevice(device.to_owned()),
            None => Self::Other(text),
        }
    }
}

impl From<&str> for VariantName {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<VariantName> for String {
    fn from(name: VariantName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for VariantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnDevice(device) => write!(f, "on {device}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// A variant of a run, and its deviations from the plain run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunVariant {
    /// Its name.
    pub name: VariantName,
    /// What it changes.
    pub class: NoiseClass,
    /// Once for each time it was run.
    pub runs: Vec<Deviations>,
}

/// The noise of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// The variants that were run.
    #[serde(rename = "ways")]
    pub variants: Vec<RunVariant>,
}

/// What deviations are measured against.
#[derive(Clone, Debug)]
pub struct Tolerances {
    /// `[challenge][site]`, of the projections.
    pub fine: Vec<Vec<f64>>,
    /// `[site]`, of the profile.
    pub profile: Vec<f64>,
    /// Of log-probabilities.
    pub next: f64,
}

impl Noise {
    /// The noise of all challenges from that of consecutive parts of them, in order. Each part must
    /// have been measured in the same variants.
    pub fn join(parts: Vec<Self>) -> Result<Self, StatsError> {
        let mut parts = parts.into_iter();
        let mut all = parts.next().unwrap_or_default();
        for part in parts {
            if part.variants.len() != all.variants.len() {
                return Err(StatsError::Incomparable("the parts differ in their noise".to_owned()));
            }
            for (whole, more) in all.variants.iter_mut().zip(part.variants) {
                if (&whole.name, whole.runs.len()) != (&more.name, more.runs.len()) {
                    let why = format!("{} was measured, and {}", whole.name, more.name);
                    return Err(StatsError::Incomparable(why));
                }
                for (run, more) in whole.runs.iter_mut().zip(more.runs) {
                    run.sites.extend(more.sites);
                    run.next.extend(more.next);
                }
            }
        }
        Ok(all)
    }
}

impl Deviations {
    /// How far `other` is from `plain`, which saw the same challenges and sites.
    pub fn between(plain: &Captures, other: &Captures) -> Self {
        let sites = plain.sketches.iter().zip(&other.sketches).map(|(plain, other)| {
            let distances = plain.iter().zip(other).map(|(plain, other)| {
                let SketchDistance { fine, profile, .. } = plain.distance(other);
                [fine as f32, profile.min(f64::from(f32::MAX)) as f32]
            });
            distances.collect()
        });
        let logprobs = |next: &[NextToken]| next.iter().map(|t| t.logprob).collect::<Vec<_>>();
        let next = plain.next.iter().zip(&other.next).map(|(plain, other)| {
            let (plain, other) = (logprobs(plain), logprobs(other));
            logprob_distance(plain.into_iter(), other.into_iter()).unwrap_or(0.0) as f32
        });
        Self { sites: sites.collect(), next: next.collect() }
    }

    fn fits(&self, challenges: usize, sites: usize) -> bool {
        self.sites.len() == challenges
            && self.sites.iter().all(|of_challenge| of_challenge.len() == sites)
            && (self.next.is_empty() || self.next.len() == challenges)
    }

    fn select_sites(&mut self, sites: &[usize]) {
        for of_challenge in &mut self.sites {
            *of_challenge = sites.iter().map(|site| of_challenge[*site]).collect();
        }
    }
}

/// The root mean square difference of log-probabilities, the likeliest first, where some of
/// `other` may be left out: they are matched in order to those of `reference` that they are
/// closest to. Nothing if there are none.
pub fn logprob_distance(
    reference: impl Iterator<Item = f32>,
    other: impl Iterator<Item = f32>,
) -> Option<f64> {
    let other: Vec<f64> = other.take(COMPARED_LOGPROBS).map(f64::from).collect();
    // The least sum of squares with the first so many of `other` matched.
    let mut least = vec![f64::INFINITY; other.len() + 1];
    least[0] = 0.0;
    for known in reference.map(f64::from) {
        for at in (0..other.len()).rev() {
            least[at + 1] = least[at + 1].min(least[at] + (other[at] - known).powi(2));
        }
    }
    let sum = least[other.len()];
    (!other.is_empty() && sum.is_finite()).then(|| (sum / other.len() as f64).sqrt())
}

impl Noise {
    /// Whether the model was also run on `device`.
    pub fn covers_device(&self, device: &str) -> bool {
        let is_covering = |name: &VariantName| matches!(name, VariantName::OnDevice(covered) if covered == device);
        self.variants.iter().any(|variant| is_covering(&variant.name))
    }

    /// The tolerances of `class` for so many challenges and sites.
    pub fn tolerances(
        &self,
        class: NoiseClass,
        challenges: usize,
        sites: usize,
    ) -> Result<Tolerances, StatsError> {
        self.check(challenges, sites)?;
        let variants: Vec<&RunVariant> =
            self.variants.iter().filter(|variant| variant.class <= class).collect();
        if !variants.iter().any(|variant| variant.class == class) {
            return Err(StatsError::incomparable(
                "the fingerprint has no calibration for such a comparison: make it again",
            ));
        }
        let margin = (DEVIATIONS * spread(&variants, class)).exp();
        let repeats = margin <= DEVIATIONS;
        let runs = || variants.iter().flat_map(|variant| &variant.runs);
        let most = |of: &dyn Fn(&Deviations) -> f64| runs().map(of).fold(RESOLUTION, f64::max);
        let pooled = |which: usize| -> Vec<f64> {
            let of_site = |site: usize| {
                let of_run = |run: &Deviations| {
                    root_mean_square(run.sites.iter().map(|sites| f64::from(sites[site][which])))
                };
                DEVIATIONS * most(&of_run)
            };
            (0..sites).map(of_site).collect()
        };
        let paired = |challenge: usize| -> Vec<f64> {
            let of_site =
                |site: usize| margin * most(&|run| f64::from(run.sites[challenge][site][0]));
            (0..sites).map(of_site).collect()
        };
        let fine = if repeats {
            (0..challenges).map(paired).collect()
        } else {
            vec![pooled(0); challenges]
        };
        let profile = pooled(1);
        let next =
            DEVIATIONS * most(&|run| root_mean_square(run.next.iter().map(|x| f64::from(*x))));
        Ok(Tolerances { fine, profile, next })
    }

    /// Whether every run has all challenges and sites.
    pub fn check(&self, challenges: usize, sites: usize) -> Result<(), StatsError> {
        let runs = || self.variants.iter().flat_map(|variant| &variant.runs);
        if self.variants.iter().all(|variant| !variant.runs.is_empty())
            && runs().all(|run| run.fits(challenges, sites))
        {
            Ok(())
        } else {
            Err(StatsError::document("the calibration doesn't have all challenges and sites"))
        }
    }

    /// Keeps only these challenges.
    pub fn select_challenges(&mut self, chosen: &[usize]) {
        for run in self.variants.iter_mut().flat_map(|variant| &mut variant.runs) {
            run.sites = chosen.iter().map(|at| run.sites[*at].clone()).collect();
            if !run.next.is_empty() {
                run.next = chosen.iter().map(|at| run.next[*at]).collect();
            }
        }
    }

    /// Keeps only these sites.
    pub fn select_sites(&mut self, sites: &[usize]) {
        for run in self.variants.iter_mut().flat_map(|variant| &mut variant.runs) {
            run.select_sites(sites);
        }
    }
}

/// The standard deviation of the logarithm of the noise, from variants of the class that were run
/// more than once.
fn spread(variants: &[&RunVariant], class: NoiseClass) -> f64 {
    let mut squares = Vec::new();
    for variant in variants.iter().filter(|variant| variant.class == class) {
        for pair in variant.runs.windows(2) {
            for (first, second) in pair[0].sites.iter().zip(&pair[1].sites) {
                for ([first, _], [second, _]) in first.iter().zip(second) {
                    let (first, second) = (f64::from(*first), f64::from(*second));
                    if first.max(second) > RESOLUTION {
                        let ratio = first.max(RESOLUTION) / second.max(RESOLUTION);
                        squares.push(ratio.ln().powi(2) / 2.0);
                    }
                }
            }
        }
    }
    (squares.iter().sum::<f64>() / squares.len().max(1) as f64).sqrt()
}

/// 0 for no numbers.
fn root_mean_square(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = numbers.len().max(1) as f64;
    (numbers.map(|x| x * x).sum::<f64>() / count).sqrt()
}

/// The form in files: hexadecimal texts of little-endian f32, one for each challenge.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    sites: Vec<String>,
    next: String,
}

impl Serialize for Deviations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = |numbers: &mut dyn Iterator<Item = f32>| {
            hex::encode(&numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
        };
        let sites = self.sites.iter().map(|sites| text(&mut sites.iter().flatten().copied()));
        let next = text(&mut self.next.iter().copied());
        Written { sites: sites.collect(), next }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Deviations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        let numbers = |text: &str| -> Result<Vec<f32>, D::Error> {
            let bytes = hex::decode(text).map_err(D::Error::custom)?;
            let (numbers, rest) = bytes.as_chunks::<4>();
            let numbers: Vec<f32> = numbers.iter().map(|x| f32::from_le_bytes(*x)).collect();
            if !rest.is_empty() || numbers.iter().any(|x| !x.is_finite() || *x < 0.0) {
                return Err(D::Error::custom("a deviation is not a finite number of at least 0"));
            }
            Ok(numbers)
        };
        let of_site = |text: &String| {
            let numbers = numbers(text)?;
            let (pairs, rest) = numbers.as_chunks::<2>();
            if rest.is_empty() {
                Ok(pairs.to_vec())
            } else {
                Err(D::Error::custom("a deviation lacks its second number"))
            }
        };
        Ok(Self {
            sites: written.sites.iter().map(of_site).collect::<Result<_, _>>()?,
            next: numbers(&written.next)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(fine: f32) -> Deviations {
        let sites = (0..4).map(|c| vec![[fine * (1 + c) as f32, 1e-3]; 2]).collect();
        Deviations { sites, next: vec![0.01; 4] }
    }

    #[test]
    fn only_a_run_on_a_device_covers_it_and_names_survive_a_file() {
        let named = |name: &str| Noise {
            variants: vec![RunVariant {
                name: name.into(),
                class: NoiseClass::Arithmetic,
                runs: vec![],
            }],
        };
        for (name, covers_gpu) in
            [("on gpu", true), ("on gpu:1", false), ("gpu", false), ("streamed", false)]
        {
            let noise = named(name);
            assert_eq!(noise.covers_device("gpu"), covers_gpu, "{name}");
            let file = serde_json::to_string(&noise).unwrap();
            assert!(file.contains(&format!("\"name\":\"{name}\"")), "{file}");
            assert_eq!(serde_json::from_str::<Noise>(&file).unwrap(), noise);
        }
    }

    fn noise() -> Noise {
        let variant = |name: &str, class, runs| RunVariant { name: name.into(), class, runs };
        Noise {
            variants: vec![
                variant("order", NoiseClass::Arithmetic, vec![run(1e-6), run(1.1e-6)]),
                variant("bf16", NoiseClass::Rounding, vec![run(4e-3), run(3e-3)]),
            ],
        }
    }

    #[test]
    fn tolerances_follow_the_noise_of_their_own_challenge() {
        let tolerances = noise().tolerances(NoiseClass::Arithmetic, 4, 2).unwrap();
        let margin = (3.0 * (1.1_f64).ln() / 2_f64.sqrt()).exp();
        assert!((tolerances.fine[0][0] / (1.1e-6 * margin) - 1.0).abs() < 1e-4);
        assert!((tolerances.fine[3][1] / tolerances.fine[0][1] - 4.0).abs() < 1e-4);
        assert!((tolerances.profile[0] - 3e-3).abs() < 1e-6);
        assert!((tolerances.next - 0.03).abs() < 1e-6);
    }

    #[test]
    fn noise_that_does_not_repeat_itself_is_pooled() {
        let mut noise = noise();
        for (at, sites) in noise.variants[0].runs[1].sites.iter_mut().enumerate() {
            sites.fill(if at % 2 == 0 { [0.0, 0.0] } else { [1e-3, 0.0] });
        }
        let tolerances = noise.tolerances(NoiseClass::Arithmetic, 4, 2).unwrap();
        let expected = 3.0 * (1e-6_f64 / 2.0).sqrt();
        assert!(tolerances.fine.iter().flatten().all(|x| (x / expected - 1.0).abs() < 1e-4));
    }

    #[test]
    fn rounding_is_allowed_for_only_where_it_is_asked_for() {
        let noise = noise();
        let arithmetic = noise.tolerances(NoiseClass::Arithmetic, 4, 2).unwrap();
        let rounding = noise.tolerances(NoiseClass::Rounding, 4, 2).unwrap();
        assert!(rounding.fine[0][0] > 1000.0 * arithmetic.fine[0][0]);
        let mut without = noise;
        without.variants.pop();
        assert!(without.tolerances(NoiseClass::Rounding, 4, 2).is_err());
    }

    #[test]
    fn a_calibration_that_lacks_a_site_is_refused() {
        assert!(noise().tolerances(NoiseClass::Arithmetic, 4, 3).is_err());
        assert!(noise().tolerances(NoiseClass::Arithmetic, 5, 2).is_err());
        let mut noise = noise();
        noise.variants[0].runs.clear();
        assert!(noise.check(4, 2).is_err());
    }

    #[test]
    fn deviations_come_back_from_text() {
        let noise = noise();
        let text = serde_json::to_string(&noise).unwrap();
        assert_eq!(serde_json::from_str::<Noise>(&text).unwrap(), noise);
        let negative = text.replacen("bd378635", "bd3786b5", 1);
        assert_ne!(negative, text);
        assert!(serde_json::from_str::<Noise>(&negative).is_err());
    }

    #[test]
    fn log_probabilities_are_compared_in_order_and_may_lack_some() {
        let distance = |other: &[f32]| {
            let reference = [-0.5, -1.5, -3.0, -5.0];
            logprob_distance(reference.into_iter(), other.iter().copied())
        };
        assert_eq!(distance(&[-0.5, -1.5, -3.0]), Some(0.0));
        assert_eq!(distance(&[-0.5, -3.0]), Some(0.0));
        assert!((distance(&[-0.6, -1.4, -3.1]).unwrap() - 0.1).abs() < 1e-6);
        assert!(distance(&[-3.0, -3.0]).unwrap() > 1.0);
        assert_eq!(distance(&[]), None);
    }
}
