//! What is kept of one challenge at one site.
//!
//! - `bits`: the signs of the projections. Their Hamming distance follows the angle between two
//!   models' activations. It is what the library is searched by.
//! - `fine`: some of the projections as they are. Rounding weights to eight bits turns an
//!   activation by a hundredth: that is forty of 8,192 signs, give or take six, but it can be
//!   read off a hundred projections to a tenth of itself.
//! - the profile: the scale of the activations and their variance, which the projections, being
//!   of normalised rows, don't see.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::error::StatsError;
use crate::hamming;
use crate::hex;
use crate::projection::Projector;

/// The projections that are kept as they are.
pub const FINE: usize = 128;
/// The bits of a sketch by default.
pub const BITS: usize = 8192;
/// The least and the most bits of a sketch.
pub const BITS_RANGE: std::ops::RangeInclusive<usize> = 1024..=65_536;

/// What is kept of one challenge at one site.
#[derive(Clone, Debug, PartialEq)]
pub struct Sketch {
    /// The signs of the projections.
    pub bits: Vec<u64>,
    /// Some of the projections.
    pub fine: Vec<f32>,
    /// The scale of the activations.
    pub scale: f32,
    /// The variance of the activations.
    pub variance: f32,
}

/// Whether `bits` is a number of bits that sketches can have.
pub fn check_bits(bits: usize) -> Result<(), StatsError> {
    if bits.is_power_of_two() && BITS_RANGE.contains(&bits) {
        Ok(())
    } else {
        Err(StatsError::request(format!(
            "sketches of {bits} bits: it must be a power of two from {} to {}",
            BITS_RANGE.start(),
            BITS_RANGE.end()
        )))
    }
}

/// How far two sketches are apart, in three ways; 0 where they are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SketchDistance {
    /// The distance of the projections as a share of their length.
    pub fine: f64,
    /// The change of scale and spread, in natural logarithms.
    pub profile: f64,
    /// The share of bits that differ.
    pub hamming: f64,
}

impl Sketch {
    /// The sketch of `rows`; nothing if a number is not finite.
    pub fn of(rows: &[f32], projector: &Projector) -> Option<Self> {
        let (projected, level) = projector.project(rows)?;
        let bits = projected
            .chunks_exact(64)
            .map(|some| {
                let bit = |(at, x): (usize, &f32)| u64::from(*x > 0.0) << at;
                some.iter().enumerate().map(bit).fold(0, |word, bit| word | bit)
            })
            .collect();
        let fine = projector.some(&projected, FINE);
        Some(Self { bits, fine, scale: level.scale, variance: level.variance })
    }

    /// How far `other` is from this one.
    pub fn distance(&self, other: &Self) -> SketchDistance {
        let square = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>();
        let wide = |fine: &[f32]| square(&mut fine.iter().map(|x| f64::from(*x)));
        let difference = square(
            &mut self.fine.iter().zip(&other.fine).map(|(a, b)| f64::from(*a) - f64::from(*b)),
        );
        let length = f64::midpoint(wide(&self.fine), wide(&other.fine));
        let ratio = |a: f32, b: f32| match (f64::from(a), f64::from(b)) {
            (a, b) if a > 0.0 && b > 0.0 => (a / b).ln().abs(),
            (a, b) if a == b => 0.0,
            // From nothing to something is as far as can be.
            _ => f64::MAX,
        };
        let bits = self.bits.len() * 64;
        SketchDistance {
            fine: if length > 0.0 { (difference / length).sqrt() } else { 0.0 },
            profile: ratio(self.scale, other.scale).max(ratio(self.variance, other.variance) / 2.0),
            hamming: f64::from(hamming::distance(&self.bits, &other.bits)) / bits.max(1) as f64,
        }
    }

    /// Bits, projections, scale and variance, one after the other.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bits.len() * 8 + self.fine.len() * 4 + 8);
        bytes.extend(self.bits.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(self.fine.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(self.scale.to_le_bytes());
        bytes.extend(self.variance.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, StatsError> {
        let short = || StatsError::document("a sketch has the wrong length");
        let numbers = FINE * 4 + 8;
        let (bits, rest) =
            bytes.split_at_checked(bytes.len().wrapping_sub(numbers)).ok_or_else(short)?;
        check_bits(bits.len() * 8).map_err(|_| short())?;
        let (words, _) = bits.as_chunks::<8>();
        let (floats, _) = rest.as_chunks::<4>();
        let floats: Vec<f32> = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if floats.iter().any(|number| !number.is_finite()) {
            return Err(StatsError::document("a sketch has a number that is not finite"));
        }
        Ok(Self {
            bits: words.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect(),
            fine: floats[..FINE].to_vec(),
            scale: floats[FINE],
            variance: floats[FINE + 1],
        })
    }
}

impl Serialize for Sketch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(&self.to_bytes()))
    }
}

impl<'de> Deserialize<'de> for Sketch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        hex::decode(&text).and_then(|bytes| Self::from_bytes(&bytes)).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wave(seed: f32, count: usize) -> Vec<f32> {
        (0..count).map(|x| (x as f32 * seed).sin()).collect()
    }

    #[test]
    fn the_hamming_distance_follows_the_angle() {
        let projector = Projector::new(BITS, 512, 1);
        let (a, b) = (wave(0.37, 512), wave(0.91, 512));
        let one = Sketch::of(&a, &projector).unwrap();
        let other = |angle: f32| {
            let turned: Vec<f32> =
                a.iter().zip(&b).map(|(a, b)| a * angle.cos() + b * angle.sin()).collect();
            one.distance(&Sketch::of(&turned, &projector).unwrap()).hamming
        };
        assert_eq!(other(0.0), 0.0);
        for angle in [0.1_f32, 0.4, 0.8] {
            let expected = f64::from(angle) / std::f64::consts::PI;
            let found = other(angle);
            assert!((found / expected - 1.0).abs() < 0.15, "{angle}: {found} for {expected}");
        }
        assert!((other(std::f32::consts::FRAC_PI_2) - 0.5).abs() < 0.05);
    }

    #[test]
    fn a_change_of_scale_is_seen_in_the_profile_alone() {
        let projector = Projector::new(1024, 64, 2);
        let a = wave(0.37, 128);
        let larger: Vec<f32> = a.iter().map(|x| x * 1.5).collect();
        let apart =
            Sketch::of(&a, &projector).unwrap().distance(&Sketch::of(&larger, &projector).unwrap());
        assert!(apart.fine < 1e-6 && apart.hamming == 0.0);
        assert!((apart.profile - 1.5_f64.ln()).abs() < 1e-5);
    }

    #[test]
    fn sketches_do_not_depend_on_the_number_of_threads() {
        let projector = Projector::new(1024, 96, 3);
        let rows: Vec<f32> = (0..288).map(|x| ((x * 37 + 11) % 97) as f32 / 48.5 - 1.0).collect();
        let here = Sketch::of(&rows, &projector).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(7).build().unwrap();
        assert_eq!(pool.install(|| Sketch::of(&rows, &projector)), Some(here.clone()));
        // Fixed for all time and all machines.
        let digest = blake3::hash(&here.to_bytes()).to_hex().to_string();
        assert_eq!(&digest[..16], KNOWN);
    }

    const KNOWN: &str = "fce9061353314b50";

    #[test]
    fn bits_out_of_range_are_refused() {
        assert!(check_bits(1024).is_ok() && check_bits(65_536).is_ok());
        assert!(check_bits(512).is_err() && check_bits(131_072).is_err());
        assert!(check_bits(5000).is_err());
    }

    proptest! {
        #[test]
        fn sketches_come_back_from_text(seed in 0.1_f32..3.0) {
            let sketch = Sketch::of(&wave(seed, 64), &Projector::new(1024, 64, 1)).unwrap();
            let text = serde_json::to_string(&sketch).unwrap();
            prop_assert_eq!(serde_json::from_str::<Sketch>(&text).unwrap(), sketch);
        }

        #[test]
        fn any_text_is_a_sketch_or_an_error(text in "[0-9a-f]{0,1400}") {
            let _ = serde_json::from_str::<Sketch>(&format!("\"{text}\""));
        }
    }
}
