//! Verification in shards: the challenges of one fingerprint or comparison are split over several
//! machines that never talk to each other, and their files are merged.
//!
//! A shard holds the commitment to the whole set of challenges, so that parts of different runs
//! can't be mixed, and its own challenges with their sketches and noise. Merging refuses gaps, overlaps and parts of other runs by
//! name. A merged fingerprint has the bytes of one that was made on one machine: a challenge is always run in the
//! same batch (`verifier.rs`), and a device that gives the same numbers for the same batch is all that takes.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::capture::{Captures, NextToken};
use crate::challenge::{ChallengeSet, Origin};
use crate::challenge_source::ChallengeOptions;
use crate::decision::DecisionRule;
use crate::error::VerifyError;
use crate::fingerprint::{Fingerprint, RunInfo, SketchPolicy, next_tokens};
use crate::identity::Identity;
use crate::noise::{Noise, VariantName};
use crate::recheck;
use crate::seal::{self, SecretKey};
use crate::site::Site;
use crate::sketch::Sketch;
use crate::subject::Subject;
use crate::transcript::Transcript;
use crate::verdict::CompareOptions;
use crate::verifier::{BATCH, Verifier};
use surefoot::device::DeviceName;

/// What the file of a fingerprint's shard says it is.
const FINGERPRINT_FORMAT: &str = "surefoot-shard-of-fingerprint";
/// What the file of a comparison's shard says it is.
const COMPARISON_FORMAT: &str = "surefoot-shard-of-comparison";
/// The version of both formats.
const VERSION: u32 = 1;

/// Which part of the challenges: part `index`, from 1, of `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// Part `index`, from 1, of `count`.
    pub fn new(index: usize, count: usize) -> Result<Self, VerifyError> {
        match (1..=count).contains(&index) {
            true => Ok(Self { index, count }),
            false => Err(VerifyError::request(format!(
                "there is no shard {index} of {count}: shards are counted from 1"
            ))),
        }
    }

    /// The challenges of this part: whole batches, as long as there is one for each part.
    pub fn range(self, challenges: usize) -> Result<Range<usize>, VerifyError> {
        if self.count > challenges {
            return Err(VerifyError::request(format!(
                "{challenges} challenges can't be split into {} shards",
                self.count
            )));
        }
        let unit =
            [BATCH, BATCH / 2, 1].into_iter().find(|unit| challenges.div_ceil(*unit) >= self.count);
        let unit = unit.unwrap_or(1);
        let units = challenges.div_ceil(unit);
        let start = |index: usize| (units * index / self.count * unit).min(challenges);
        Ok(start(self.index - 1)..start(self.index))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = VerifyError;

    fn from_str(text: &str) -> Result<Self, VerifyError> {
        let wrong = || VerifyError::request("a shard is INDEX/COUNT, for example 2/8");
        let (index, count) = text.split_once('/').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        Self::new(number(index)?, number(count)?)
    }
}

/// A part of a fingerprint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FingerprintShard {
    format: String,
    version: u32,
    shard: Shard,
    model: Identity,
    policy: SketchPolicy,
    run: RunInfo,
    /// Where the whole set comes from, how many challenges it has, and its digest.
    origin: Origin,
    all_challenges: usize,
    commitment: String,
    /// The challenges of this part.
    sequences: Vec<Vec<u32>>,
    sites: Vec<Site>,
    #[serde(with = "next_tokens")]
    next: Vec<Vec<NextToken>>,
    noise: Noise,
    sketches: Vec<Vec<Sketch>>,
}

/// The reference of a comparison in shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReferencePart {
    /// A model that was run: the same part of it.
    Shard(Box<FingerprintShard>),
    /// A fingerprint that was given, whole.
    Whole(Box<Fingerprint>),
}

/// A part of a comparison. It has no verdict: that needs all parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComparisonShard {
    format: String,
    version: u32,
    rule: DecisionRule,
    reference: ReferencePart,
    candidate: FingerprintShard,
}

/// What parts are merged to.
#[derive(Debug)]
pub enum Merged {
    /// A fingerprint.
    Fingerprint(Box<Fingerprint>),
    /// A comparison with its verdict.
    Comparison(Box<Transcript>),
}

impl FingerprintShard {
    pub(crate) fn new(
        shard: Shard,
        policy: SketchPolicy,
        set: &ChallengeSet,
        (model, run, captures, noise): (Identity, RunInfo, Captures, Noise),
    ) -> Result<Self, VerifyError> {
        let all_challenges = set.sequences.len();
        let sequences = set.sequences[shard.range(all_challenges)?].to_vec();
        let Captures { sites, sketches, next } = captures;
        Ok(Self {
            format: FINGERPRINT_FORMAT.to_owned(),
            version: VERSION,
            shard,
            model,
            policy,
            run,
            origin: set.origin.clone(),
            all_challenges,
            commitment: set.commitment(),
            sequences,
            sites,
            next,
            noise,
            sketches,
        })
    }

    /// Which part it is.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// The bytes of the file, sealed.
    pub fn seal(&self, key: Option<&SecretKey>) -> Result<Vec<u8>, VerifyError> {
        seal::seal(self, key)
    }

    /// Whether there is a sketch for each of its challenges.
    fn check(&self) -> Result<(), VerifyError> {
        if self.format != FINGERPRINT_FORMAT {
            return Err(VerifyError::document(format!("is not a shard but '{}'", self.format)));
        }
        if self.version != VERSION {
            return Err(VerifyError::document(format!(
                "is a shard of version {}, this program reads version {VERSION}",
                self.version
            )));
        }
        let shard = Shard::new(self.shard.index, self.shard.count)?;
        let expected = shard.range(self.all_challenges)?.len();
        let next = if self.model.head { expected } else { 0 };
        let counts = [self.sequences.len(), self.sketches.len()];
        if counts != [expected; 2] || self.next.len() != next {
            return Err(VerifyError::document("not every challenge has its sketches"));
        }
        Ok(self.noise.check(expected, self.sites.len())?)
    }
}

impl ComparisonShard {
    fn new(rule: DecisionRule, reference: ReferencePart, candidate: FingerprintShard) -> Self {
        let format = COMPARISON_FORMAT.to_owned();
        Self { format, version: VERSION, rule, reference, candidate }
    }

    /// Which part it is.
    pub fn shard(&self) -> Shard {
        self.candidate.shard
    }

    /// The bytes of the file, sealed.
    pub fn seal(&self, key: Option<&SecretKey>) -> Result<Vec<u8>, VerifyError> {
        seal::seal(self, key)
    }
}

impl Verifier<'_> {
    /// Part `shard` of the fingerprint that `options` describe.
    pub fn fingerprint_shard(
        &self,
        folder: &Path,
        options: &ChallengeOptions,
        calibrate_on: Option<DeviceName>,
        shard: Shard,
    ) -> Result<FingerprintShard, VerifyError> {
        let set = options.set(self.runner(folder)?.opened())?;
        self.reference_shard(folder, &set, options.policy, calibrate_on, shard)
    }

    /// Part `shard` of a comparison. The challenges must be the same on all machines: made from a
    /// key that all have, or from a file.
    pub fn compare_shard(
        &self,
        reference: Subject,
        candidate: &Path,
        options: &CompareOptions,
        shard: Shard,
    ) -> Result<ComparisonShard, VerifyError> {
        options.rule.check()?;
        let folder = match reference {
            Subject::Fingerprint(whole) => {
                return self.whole_reference_shard(whole, candidate, options.rule, shard);
            }
            Subject::Folder(folder) => folder,
            Subject::Endpoint(url) => {
                return Err(VerifyError::request(format!("{url} can't be the reference")));
            }
        };
        let ChallengeOptions { policy, .. } = options.challenges;
        let set = options.challenges.set(self.runner(&folder)?.opened())?;
        let ours = self.reference_shard(&folder, &set, policy, options.calibrate_on, shard)?;
        let theirs = self.candidate_shard(candidate, &set, recheck::all_sites(policy), shard)?;
        Ok(ComparisonShard::new(options.rule, ReferencePart::Shard(Box::new(ours)), theirs))
    }

    /// Part `shard` of running all challenges of a fingerprint again on the model in `folder`.
    pub fn recheck_shard(
        &self,
        claimed: &Fingerprint,
        folder: &Path,
        shard: Shard,
    ) -> Result<ComparisonShard, VerifyError> {
        let rule = DecisionRule::default();
        self.whole_reference_shard(Box::new(claimed.clone()), folder, rule, shard)
    }

    fn whole_reference_shard(
        &self,
        reference: Box<Fingerprint>,
        candidate: &Path,
        rule: DecisionRule,
        shard: Shard,
    ) -> Result<ComparisonShard, VerifyError> {
        let policy = recheck::all_sites(reference.policy);
        let theirs = self.candidate_shard(candidate, &reference.challenges, policy, shard)?;
        Ok(ComparisonShard::new(rule, ReferencePart::Whole(reference), theirs))
    }
}

/// A file with a part of something.
enum Part {
    Fingerprint(FingerprintShard),
    Comparison(ComparisonShard),
}

impl Part {
    fn read(path: &Path) -> Result<Self, VerifyError> {
        #[derive(Deserialize)]
        struct Format {
            format: String,
        }
        let bytes = seal::read(path)?;
        let named = |error: VerifyError| error.of_file(path);
        let format = serde_json::from_slice::<Format>(&bytes).map(|start| start.format);
        if format.as_deref().is_ok_and(|format| format == COMPARISON_FORMAT) {
            let (part, _): (ComparisonShard, _) = seal::open(&bytes).map_err(named)?;
            part.candidate.check().map_err(named)?;
            match &part.reference {
                ReferencePart::Shard(reference) => reference.check().map_err(named)?,
                ReferencePart::Whole(reference) => reference.check().map_err(named)?,
            }
            return Ok(Self::Comparison(part));
        }
        let (part, _): (FingerprintShard, _) = seal::open(&bytes).map_err(named)?;
        part.check().map_err(named)?;
        Ok(Self::Fingerprint(part))
    }
}

/// Reads the files of all parts, in any order, and merges them.
pub fn merge(files: &[impl AsRef<Path>]) -> Result<Merged, VerifyError> {
    let mut fingerprints: Vec<Named<FingerprintShard>> = Vec::new();
    let mut comparisons: Vec<Named<ComparisonShard>> = Vec::new();
    for file in files {
        let name = file.as_ref().display().to_string();
        match Part::read(file.as_ref())? {
            Part::Fingerprint(part) => fingerprints.push((name, part)),
            Part::Comparison(part) => comparisons.push((name, part)),
        }
    }
    match (fingerprints.first(), comparisons.first()) {
        (Some((one, _)), Some((other, _))) => Err(VerifyError::incomparable(format!(
            "{one} is a part of a fingerprint, {other} of a comparison"
        ))),
        (Some(_), None) => Ok(Merged::Fingerprint(Box::new(merge_fingerprint(fingerprints)?))),
        (None, _) => Ok(Merged::Comparison(Box::new(merge_comparison(comparisons)?))),
    }
}

/// A part with the name of its file.
type Named<T> = (String, T);

fn merge_comparison(parts: Vec<Named<ComparisonShard>>) -> Result<Transcript, VerifyError> {
    let mut candidates = Vec::with_capacity(parts.len());
    let mut references: Vec<Named<FingerprintShard>> = Vec::new();
    let mut whole: Option<Named<Fingerprint>> = None;
    let mut rule: Option<Named<DecisionRule>> = None;
    for (name, part) in parts {
        match &rule {
            Some((first, rule)) if *rule != part.rule => {
                return Err(differs(first, &name, "other error rates or another delta"));
            }
            _ => rule = Some((name.clone(), part.rule)),
        }
        match part.reference {
            ReferencePart::Shard(reference) => references.push((name.clone(), *reference)),
            ReferencePart::Whole(reference) => match &whole {
                Some((first, known)) if *known != *reference => {
                    return Err(differs(first, &name, "another reference"));
                }
                _ => whole = Some((name.clone(), *reference)),
            },
        }
        candidates.push((name, part.candidate));
    }
    let nothing = || VerifyError::request("there is nothing to merge");
    let (_, rule) = rule.ok_or_else(nothing)?;
    let reference = match (whole, references.first()) {
        (Some((one, _)), Some((other, _))) => {
            return Err(differs(&one, other, "another kind of reference"));
        }
        (Some((_, whole)), None) => whole,
        (None, _) => merge_fingerprint(references)?,
    };
    Transcript::of_models(reference, merge_fingerprint(candidates)?, rule)
}

fn merge_fingerprint(mut parts: Vec<Named<FingerprintShard>>) -> Result<Fingerprint, VerifyError> {
    parts.sort_by_key(|(_, part)| part.shard.index);
    let Some((first_name, first)) = parts.first().cloned() else {
        return Err(VerifyError::request("there is nothing to merge"));
    };
    let count = first.shard.count;
    for (name, part) in &parts {
        if let Some(what) = difference(&first, part) {
            return Err(differs(&first_name, name, what));
        }
    }
    for pair in parts.windows(2) {
        let [(one, a), (other, b)] = pair else { continue };
        if a.shard.index == b.shard.index {
            return Err(VerifyError::incomparable(format!(
                "{one} and {other} are both shard {}",
                a.shard
            )));
        }
    }
    let missing: Vec<String> = (1..=count)
        .filter(|index| !parts.iter().any(|(_, part)| part.shard.index == *index))
        .map(|index| format!("{index}/{count}"))
        .collect();
    if !missing.is_empty() {
        let plural = if missing.len() == 1 { "" } else { "s" };
        return Err(VerifyError::incomparable(format!(
            "shard{plural} {} missing",
            listed(&missing)
        )));
    }
    let mut challenges = ChallengeSet { origin: first.origin, sequences: Vec::new() };
    let mut captures = Captures { sites: first.sites, ..Captures::default() };
    let mut noise = Vec::with_capacity(parts.len());
    for (_, part) in parts {
        challenges.sequences.extend(part.sequences);
        captures.sketches.extend(part.sketches);
        captures.next.extend(part.next);
        noise.push(part.noise);
    }
    if challenges.commitment() != first.commitment {
        return Err(VerifyError::document("the challenges of the parts are not those of the run"));
    }
    let noise = Noise::join(noise)?;
    Fingerprint::new(first.model, first.policy, first.run, challenges, captures, noise)
}

/// The first few of a list, and how many more there are.
fn listed(items: &[String]) -> String {
    const SHOWN: usize = 5;
    let verb = if items.len() == 1 { "is" } else { "are" };
    match items.len() {
        0..=SHOWN => format!("{} {verb}", items.join(", ")),
        all => format!("{} and {} more {verb}", items[..SHOWN].join(", "), all - SHOWN),
    }
}

/// What keeps two parts from belonging to one run.
fn difference(one: &FingerprintShard, other: &FingerprintShard) -> Option<&'static str> {
    let variants = |shard: &FingerprintShard| -> Vec<(VariantName, usize)> {
        let variants = shard.noise.variants.iter();
        variants.map(|variant| (variant.name.clone(), variant.runs.len())).collect()
    };
    let challenges = |shard: &FingerprintShard| (shard.all_challenges, shard.commitment.clone());
    // The folder's name may be another on each machine; its files may not.
    let files = |shard: &FingerprintShard| Identity { name: String::new(), ..shard.model.clone() };
    [
        (one.shard.count == other.shard.count, "another number of shards"),
        (files(one) == files(other), "another model: its files differ"),
        (challenges(one) == challenges(other), "other challenges: another key, run or file"),
        (one.policy == other.policy, "another choice of bits or sites"),
        (one.run == other.run, "another device, precision or placement of the weights"),
        (one.sites == other.sites, "other sites"),
        (variants(one) == variants(other), "other measurements of noise"),
    ]
    .into_iter()
    .find_map(|(same, what)| (!same).then_some(what))
}

fn differs(one: &str, other: &str, what: &str) -> VerifyError {
    VerifyError::incomparable(format!(
        "{one} and {other} are not of one run: the latter has {what}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_shard_is_written_as_index_and_count() {
        assert_eq!("2/8".parse::<Shard>().unwrap(), Shard::new(2, 8).unwrap());
        for wrong in ["0/4", "5/4", "1", "a/b", "1/0", "-1/2", "1/2/3"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
        assert!(Shard::new(1, 33).unwrap().range(32).is_err());
    }

    proptest! {
        #[test]
        fn shards_have_every_challenge_once(challenges in 1_usize..1024, count in 1_usize..1024) {
            prop_assume!(count <= challenges);
            let mut next = 0;
            for index in 1..=count {
                let range = Shard::new(index, count).unwrap().range(challenges).unwrap();
                prop_assert_eq!(range.start, next);
                prop_assert!(!range.is_empty());
                next = range.end;
            }
            prop_assert_eq!(next, challenges);
        }
    }
}
