//! A fingerprint: how a model behaves on a set of challenges, in a file of its own.
//!
//! It holds the challenges, a sketch for each of them at each site, the noise of the model, and
//! what identifies model and run. It commits to itself: the root of a Merkle tree over all sketches, and
//! the seal of the file. Everything in it can be computed again, from itself or from the model.

use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::capture::{Captures, NextToken, TOP};
use crate::challenge::ChallengeSet;
use crate::error::VerifyError;
use crate::identity::{Identity, MAX_BLOCKS};
use crate::noise::Noise;
use crate::seal::{self, Seal, SecretKey};
use crate::site::{self, Site, SiteSelection};
use crate::sketch::{self, Sketch};
use crate::tree::{self, Tree};
use crate::weight_form::WeightForm;
use crate::{hex, hypervector};

/// What a fingerprint's file says it is.
pub const FORMAT: &str = "surefoot-fingerprint";
/// The version of the format, of the challenges and of the projections.
pub const VERSION: u32 = 1;

/// How a fingerprint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SketchPolicy {
    /// Bits of a sketch.
    pub bits: usize,
    /// Which sites are kept.
    pub sites: SiteSelection,
}

/// How the model was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunInfo {
    /// The device, or those that the model's blocks were laid over: `gpu+cpu`.
    pub device: String,
    /// The precision.
    pub precision: String,
    /// `resident`, `mixed` or `streamed`.
    pub placement: String,
    /// The form of the weights, if it is not that of the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightForm>,
}

/// A site that was kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptSite {
    /// The site.
    pub site: Site,
    /// How much the profile changes to it from the site before, in ten-thousandths.
    pub change: u32,
}

/// A fingerprint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// Always [`FORMAT`].
    pub format: String,
    /// Always [`VERSION`].
    pub version: u32,
    /// The version of the program.
    pub made_by: String,
    /// Which model it is of.
    pub model: Identity,
    /// How it was made.
    pub policy: SketchPolicy,
    /// How the model was run.
    pub run: RunInfo,
    /// The digest of the challenges.
    pub commitment: String,
    /// The root of the tree over all sketches.
    pub root: String,
    /// The challenges.
    pub challenges: ChallengeSet,
    /// The sites, by depth.
    pub sites: Vec<KeptSite>,
    /// The model's hypervector.
    #[serde(with = "words")]
    pub vector: Vec<u64>,
    /// The likeliest next tokens of each challenge.
    #[serde(with = "next_tokens")]
    pub next: Vec<Vec<NextToken>>,
    /// How far the same weights deviate from themselves.
    pub noise: Noise,
    /// `[challenge][site]`.
    pub sketches: Vec<Vec<Sketch>>,
}

impl Fingerprint {
    /// Puts a fingerprint together.
    pub fn new(
        model: Identity,
        policy: SketchPolicy,
        run: RunInfo,
        challenges: ChallengeSet,
        captures: Captures,
        mut noise: Noise,
    ) -> Result<Self, VerifyError> {
        let Captures { sites, mut sketches, next } = captures;
        noise.check(sketches.len(), sites.len())?;
        let changes = changes(&sketches, sites.len());
        let kept: Vec<(usize, f64)> = match policy.sites {
            SiteSelection::All => changes.into_iter().enumerate().collect(),
            SiteSelection::Auto => site::most_changing(&changes),
        };
        let places: Vec<usize> = kept.iter().map(|(at, _)| *at).collect();
        for of_challenge in &mut sketches {
            *of_challenge = places.iter().map(|at| of_challenge[*at].clone()).collect();
        }
        noise.select_sites(&places);
        let mut fingerprint = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            made_by: format!("surefoot {}", env!("CARGO_PKG_VERSION")),
            model,
            policy,
            run,
            commitment: challenges.commitment(),
            root: String::new(),
            challenges,
            sites: kept
                .into_iter()
                .map(|(at, change)| KeptSite { site: sites[at], change: (change * 1e4) as u32 })
                .collect(),
            vector: Vec::new(),
            next,
            noise,
            sketches,
        };
        fingerprint.vector = fingerprint.hypervector();
        fingerprint.root = fingerprint.tree().root();
        fingerprint.check()?;
        Ok(fingerprint)
    }

    /// The bytes of the file, sealed.
    pub fn seal(&self, key: Option<&SecretKey>) -> Result<Vec<u8>, VerifyError> {
        seal::seal(self, key)
    }

    /// Reads the bytes of a file and checks all that can be checked without the model.
    pub fn open(bytes: &[u8]) -> Result<(Self, Seal), VerifyError> {
        let (fingerprint, seal): (Self, Seal) = seal::open(bytes)?;
        fingerprint.check()?;
        Ok((fingerprint, seal))
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, VerifyError> {
        let (fingerprint, _) =
            Self::open(&seal::read(path)?).map_err(|error| error.of_file(path))?;
        Ok(fingerprint)
    }

    /// Whether everything in it fits together: version, sizes, challenges, sites, the
    /// hypervector and the root.
    pub fn check(&self) -> Result<(), VerifyError> {
        if self.format != FORMAT {
            return Err(VerifyError::document(format!(
                "is not a fingerprint but '{}'",
                self.format
            )));
        }
        if self.version != VERSION {
            return Err(VerifyError::document(format!(
                "is a fingerprint of version {}, this program reads version {VERSION}",
                self.version
            )));
        }
        sketch::check_bits(self.policy.bits)?;
        self.challenges.check()?;
        if self.commitment != self.challenges.commitment() {
            return Err(VerifyError::document("the commitment doesn't fit the challenges"));
        }
        self.check_sites()?;
        self.check_sizes()?;
        if self.vector != self.hypervector() {
            return Err(VerifyError::document("the model's vector doesn't fit the sketches"));
        }
        if self.root != self.tree().root() {
            return Err(VerifyError::document("the root doesn't fit the sketches"));
        }
        Ok(())
    }

    fn check_sites(&self) -> Result<(), VerifyError> {
        if self.model.blocks > MAX_BLOCKS {
            return Err(VerifyError::document("the model has more blocks than can be"));
        }
        let all = self.model.sites();
        let kept = self.site_list();
        if !kept.is_sorted_by(|a, b| a < b) {
            return Err(VerifyError::document("the sites are not in order"));
        }
        if let Some(stray) = kept.iter().find(|site| !all.contains(site)) {
            return Err(VerifyError::document(format!("the model has no site '{stray}'")));
        }
        let missing = match self.policy.sites {
            SiteSelection::All => all.iter().find(|site| !kept.contains(site)),
            SiteSelection::Auto => {
                all.first().into_iter().chain(all.last()).find(|site| !kept.contains(site))
            }
        };
        match missing {
            Some(site) => Err(VerifyError::document(format!("the site '{site}' is missing"))),
            None => Ok(()),
        }
    }

    fn check_sizes(&self) -> Result<(), VerifyError> {
        let challenges = self.challenges.sequences.len();
        let words = self.policy.bits / 64;
        if self.sketches.len() != challenges {
            return Err(VerifyError::document("not every challenge has its sketches"));
        }
        for (number, of_challenge) in self.sketches.iter().enumerate() {
            if of_challenge.len() != self.sites.len() {
                return Err(VerifyError::document(format!("challenge {number} lacks a site")));
            }
            if of_challenge.iter().any(|sketch| sketch.bits.len() != words) {
                return Err(VerifyError::document(format!(
                    "a sketch of challenge {number} doesn't have {} bits",
                    self.policy.bits
                )));
            }
        }
        let expected = if self.model.head { challenges } else { 0 };
        if self.next.len() != expected || self.next.iter().any(|next| next.len() > TOP) {
            return Err(VerifyError::document("not every challenge has its next tokens"));
        }
        Ok(self.noise.check(challenges, self.sites.len())?)
    }

    /// The sites, by depth.
    pub fn site_list(&self) -> Vec<Site> {
        self.sites.iter().map(|kept| kept.site).collect()
    }

    fn hypervector(&self) -> Vec<u64> {
        let sites: Vec<(Site, Vec<u64>)> =
            (0..self.sites.len()).map(|at| (self.sites[at].site, self.site_vector(at))).collect();
        hypervector::of_model(&sites)
    }

    /// The hypervector of the site at this place of the list.
    pub fn site_vector(&self, at: usize) -> Vec<u64> {
        let sketches = self.sketches.iter().filter_map(|of_challenge| of_challenge.get(at));
        hypervector::of_site(sketches.map(|sketch| sketch.bits.as_slice()))
    }

    fn policy_digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("surefoot 2026-11 policy");
        let choice = match self.policy.sites {
            SiteSelection::All => 0,
            SiteSelection::Auto => 1,
        };
        let numbers = [u64::from(VERSION), self.policy.bits as u64, sketch::FINE as u64, choice];
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(self.commitment.as_bytes());
        *hasher.finalize().as_bytes()
    }

    fn leaf(&self, policy: &[u8; 32], challenge: usize, site: usize) -> Vec<u8> {
        let ids = &self.challenges.sequences[challenge];
        tree::leaf(policy, challenge, ids, self.sites[site].site, &self.sketches[challenge][site])
    }

    /// Leaves are challenge after challenge, each with all its sites.
    fn tree(&self) -> Tree {
        let policy = self.policy_digest();
        let places = (0..self.sketches.len())
            .flat_map(|challenge| (0..self.sites.len()).map(move |site| (challenge, site)));
        Tree::new(places.map(|(challenge, site)| self.leaf(&policy, challenge, site)))
    }

    /// Shows that the sketch of `challenge` at `site` belongs to the root.
    pub fn prove(&self, challenge: usize, site: Site) -> Result<Inclusion, VerifyError> {
        let place = self.site_list().iter().position(|kept| *kept == site);
        let place =
            place.ok_or_else(|| VerifyError::request(format!("there is no site '{site}'")))?;
        if challenge >= self.sketches.len() {
            return Err(VerifyError::request(format!(
                "there is no challenge {challenge}: they are 0 to {}",
                self.sketches.len() - 1
            )));
        }
        let at = challenge * self.sites.len() + place;
        let inclusion = Inclusion {
            challenge,
            site,
            index: at,
            leaves: self.sketches.len() * self.sites.len(),
            leaf: hex::encode(&self.leaf(&self.policy_digest(), challenge, place)),
            path: self.tree().path(at).chunks(32).map(hex::encode).collect(),
            root: self.root.clone(),
        };
        inclusion.check()?;
        Ok(inclusion)
    }
}

/// A leaf with its path to the root: can be checked without the fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inclusion {
    /// The challenge.
    pub challenge: usize,
    /// The site.
    pub site: Site,
    /// The leaf's place.
    pub index: usize,
    /// How many leaves there are.
    pub leaves: usize,
    /// The leaf's bytes.
    pub leaf: String,
    /// The hashes on the way up.
    pub path: Vec<String>,
    /// The root.
    pub root: String,
}

impl Inclusion {
    /// Whether the path leads from the leaf to the root.
    pub fn check(&self) -> Result<(), VerifyError> {
        let path = hex::decode(&self.path.concat())?;
        tree::check_path(&self.root, self.leaves, self.index, &hex::decode(&self.leaf)?, &path)
    }
}

/// How much the profile changes from site to site; nothing at the first.
fn changes(sketches: &[Vec<Sketch>], sites: usize) -> Vec<f64> {
    let profile = |site: usize| -> Vec<f64> {
        let of_challenge = |sketches: &Vec<Sketch>| {
            let sketch = &sketches[site];
            [f64::from(sketch.scale), f64::from(sketch.variance).sqrt()]
        };
        sketches.iter().flat_map(of_challenge).collect()
    };
    site::changes(&(0..sites).map(profile).collect::<Vec<_>>())
}

mod words {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        words: &[u64],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        serializer.serialize_str(&hex::encode(&bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u64>, D::Error> {
        let bytes = hex::decode(&String::deserialize(deserializer)?).map_err(D::Error::custom)?;
        let (words, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(D::Error::custom("a vector doesn't have whole words"));
        }
        Ok(words.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
    }
}

pub(crate) mod next_tokens {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        next: &[Vec<NextToken>],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let text = |next: &Vec<NextToken>| {
            let bytes = next.iter().flat_map(|token| {
                token.id.to_le_bytes().into_iter().chain(token.logprob.to_le_bytes())
            });
            hex::encode(&bytes.collect::<Vec<u8>>())
        };
        serializer.collect_seq(next.iter().map(text))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Vec<NextToken>>, D::Error> {
        let of_challenge = |text: &String| {
            let bytes = hex::decode(text).map_err(D::Error::custom)?;
            let (tokens, rest) = bytes.as_chunks::<8>();
            let tokens: Vec<NextToken> = tokens
                .iter()
                .map(|[a, b, c, d, e, f, g, h]| NextToken {
                    id: u32::from_le_bytes([*a, *b, *c, *d]),
                    logprob: f32::from_le_bytes([*e, *f, *g, *h]),
                })
                .collect();
            if !rest.is_empty() || tokens.iter().any(|token| !token.logprob.is_finite()) {
                return Err(D::Error::custom("a next token is not as it should be"));
            }
            Ok(tokens)
        };
        Vec::<String>::deserialize(deserializer)?.iter().map(of_challenge).collect()
    }
}
