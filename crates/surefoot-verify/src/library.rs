//! A folder of fingerprints, searched by their hypervectors.
//!
//! Ten thousand fingerprints are gigabytes of JSON, so the folder has an index: the vectors one
//! after the other, and of each file its name, size and time. Files that are new or changed are
//! read when the folder is opened, the others are not. The index only says where to look: what
//! is found near is read and compared in full.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::time::{Instant, UNIX_EPOCH};

use rayon::prelude::*;
use serde::Serialize;

use crate::betting::Bets;
use crate::challenge_source::ChallengeOptions;
use crate::compare::{self, Comparison};
use crate::decision::DecisionRule;
use crate::error::VerifyError;
use crate::fingerprint::Fingerprint;
use crate::subject::Subject;
use crate::verifier::{Progress, Verifier};
use crate::{hamming, hex, identity, seal};

const INDEX: &str = ".surefoot-index";
const MAGIC: &[u8; 16] = b"surefoot index 1";
const MAX_INDEX: u64 = 1 << 31;

/// A fingerprint of a library, as the index knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    file: String,
    model: String,
    bytes: u64,
    changed: u64,
    /// The commitment of its challenges.
    commitment: [u8; 32],
    /// The words of its vector, and where it begins among all.
    words: usize,
    start: usize,
}

/// A library that was opened.
#[derive(Debug, Default)]
pub struct Library {
    folder: PathBuf,
    entries: Vec<Entry>,
    vectors: Vec<u64>,
    /// Files that are no fingerprints, with the reason.
    pub refused: Vec<(String, String)>,
}

/// A fingerprint that is near.
#[derive(Clone, Debug, Serialize)]
pub struct Near {
    /// Its file.
    pub file: String,
    /// The model it is of.
    pub model: String,
    /// The share of bits in which the models' vectors differ; a half for models that have
    /// nothing to do with each other.
    pub distance: f64,
}

/// How a model is related to one of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Relation {
    /// It is the same within tolerance.
    Same,
    /// It is another, but not by chance as near as it is: one was made from the other.
    Related,
    /// Nothing shows that they have to do with each other.
    Unrelated,
}

/// A near fingerprint, compared in full.
#[derive(Clone, Debug, Serialize)]
pub struct Match {
    /// Which it is.
    #[serde(flatten)]
    pub near: Near,
    /// How it is related.
    pub relation: Relation,
    /// The evidence against "unrelated", as a natural logarithm.
    pub ln_e_related: f64,
    /// The comparison.
    pub comparison: Comparison,
}

impl Library {
    /// Opens a folder, reading what the index doesn't know yet, and brings the index up to date.
    pub fn open(folder: &Path) -> Result<Self, VerifyError> {
        let (known, files) = rayon::join(|| Self::read_index(folder), || files(folder));
        let (known, files) = (known.unwrap_or_default(), files?);
        let is_known = |((file, bytes, changed), entry): (&(String, u64, u64), &Entry)| {
            (file, bytes, changed) == (&entry.file, &entry.bytes, &entry.changed)
        };
        if files.len() == known.entries.len() && files.iter().zip(&known.entries).all(is_known) {
            return Ok(Self { folder: folder.to_owned(), ..known });
        }
        let by_name: BTreeMap<&str, &Entry> =
            known.entries.iter().map(|entry| (entry.file.as_str(), entry)).collect();
        let mut library = Self { folder: folder.to_owned(), ..Self::default() };
        let mut fresh = false;
        for (file, bytes, changed) in files {
            let entry = by_name.get(file.as_str()).copied();
            if let Some(entry) = entry.filter(|it| it.bytes == bytes && it.changed == changed) {
                let vector = &known.vectors[entry.start..entry.start + entry.words];
                library.add(entry.clone(), vector);
                continue;
            }
            match Fingerprint::read(&folder.join(&file)) {
                Ok(fingerprint) => {
                    fresh = true;
                    library.add_fingerprint(file, bytes, changed, &fingerprint)?;
                }
                Err(error) => library.refused.push((file, error.to_string())),
            }
        }
        if fresh || library.entries.len() != known.entries.len() {
            // Where it can't be written, the next one reads all files again.
            let _ = seal::write(&folder.join(INDEX), &library.index());
        }
        Ok(library)
    }

    /// How many fingerprints it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn add(&mut self, entry: Entry, vector: &[u64]) {
        self.entries.push(Entry { start: self.vectors.len(), ..entry });
        self.vectors.extend_from_slice(vector);
    }

    fn add_fingerprint(
        &mut self,
        file: String,
        bytes: u64,
        changed: u64,
        fingerprint: &Fingerprint,
    ) -> Result<(), VerifyError> {
        let entry = Entry {
            file,
            model: fingerprint.model.name.clone(),
            bytes,
            changed,
            commitment: hex::decode32(&fingerprint.commitment)?,
            words: fingerprint.vector.len(),
            start: 0,
        };
        self.add(entry, &fingerprint.vector);
        Ok(())
    }

    /// The `count` nearest to `fingerprint` among those of the same challenges, and how many
    /// those are.
    pub fn nearest(
        &self,
        fingerprint: &Fingerprint,
        count: usize,
    ) -> Result<(Vec<Near>, usize), VerifyError> {
        let commitment = hex::decode32(&fingerprint.commitment)?;
        let query = &fingerprint.vector;
        let bits = (query.len() * 64) as f64;
        let comparable =
            |entry: &&Entry| entry.commitment == commitment && entry.words == query.len();
        let all_alike = self.entries.iter().all(|entry| entry.words == query.len());
        // One sweep over all of memory where the vectors lie side by side.
        let sweep = if all_alike { hamming::distances(query, &self.vectors) } else { Vec::new() };
        let mut found: Vec<(u32, &Entry)> = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| comparable(entry))
            .map(|(at, entry)| {
                let vector = || &self.vectors[entry.start..entry.start + entry.words];
                let distance = sweep.get(at).copied();
                (distance.unwrap_or_else(|| hamming::distance(query, vector())), entry)
            })
            .collect();
        let of_them = found.len();
        found.sort_unstable_by(|(a, one), (b, other)| (a, &one.file).cmp(&(b, &other.file)));
        found.truncate(count);
        let near = found.into_iter().map(|(distance, entry)| Near {
            file: entry.file.clone(),
            model: entry.model.clone(),
            distance: f64::from(distance) / bits,
        });
        Ok((near.collect(), of_them))
    }

    /// Reads a near one and compares `candidate` with it.
    pub fn compare(
        &self,
        near: Near,
        candidate: &Fingerprint,
        rule: &DecisionRule,
    ) -> Result<Match, VerifyError> {
        let reference = Fingerprint::read(&self.folder.join(&near.file))?;
        let comparison = compare::compare(&reference, candidate, rule)?;
        let ln_e_related = related(&reference, candidate);
        let relation = if comparison.decision.verdict == crate::decision::Verdict::Same {
            Relation::Same
        } else if ln_e_related >= -rule.alpha.ln() {
            Relation::Related
        } else {
            Relation::Unrelated
        };
        Ok(Match { near, relation, ln_e_related, comparison })
    }

    /// The bytes of the index: what it knows of each file, all vectors, a digest.
    fn index(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.entries.len() as u64).to_le_bytes());
        for entry in &self.entries {
            for text in [&entry.file, &entry.model] {
                bytes.extend((text.len() as u64).to_le_bytes());
                bytes.extend(text.as_bytes());
            }
            for number in [entry.bytes, entry.changed, entry.words as u64] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(entry.commitment);
        }
        bytes.extend(self.vectors.iter().flat_map(|word| word.to_le_bytes()));
        let digest = blake3::hash(&bytes);
        bytes.extend(digest.as_bytes());
        bytes
    }

    /// The index of a folder; nothing if there is none or it is damaged.
    fn read_index(folder: &Path) -> Option<Self> {
        let bytes = identity::read_bounded(&folder.join(INDEX), MAX_INDEX).ok()?;
        let (body, digest) = bytes.split_last_chunk::<32>()?;
        let mut hasher = blake3::Hasher::new();
        if hasher.update_rayon(body).finalize().as_bytes() != digest {
            return None;
        }
        let mut rest = Reader(body.strip_prefix(MAGIC.as_slice())?);
        let count = rest.number()?;
        let mut library = Self::default();
        let mut start = 0;
        for _ in 0..count {
            let (file, model) = (rest.text()?, rest.text()?);
            let (bytes, changed) = (rest.number()?, rest.number()?);
            let words = usize::try_from(rest.number()?).ok()?;
            let commitment = *rest.take(32)?.first_chunk()?;
            library.entries.push(Entry { file, model, bytes, changed, commitment, words, start });
            start = start.checked_add(words)?;
        }
        let (words, none) = rest.0.as_chunks::<8>();
        if !none.is_empty() || words.len() != start {
            return None;
        }
        library.vectors = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Some(library)
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take(8)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        String::from_utf8(self.take(length)?.to_vec()).ok()
    }
}

/// Name, size and time of every JSON file, by name.
fn files(folder: &Path) -> Result<Vec<(String, u64, u64)>, VerifyError> {
    let unreadable = |error| VerifyError::file(folder, format!("can't be read: {error}"));
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let entries = entries.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let about = |entry: &DirEntry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.ends_with(".json"))?;
        let about = match entry.metadata() {
            Ok(about) => about,
            Err(error) => return Some(Err(unreadable(error))),
        };
        let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Some(Ok((name, about.len(), changed.map_or(0, |time| time.as_nanos() as u64))))
    };
    let mut files = entries.par_iter().filter_map(about).collect::<Result<Vec<_>, _>>()?;
    files.par_sort_unstable();
    Ok(files)
}

/// The evidence against "unrelated", as a natural logarithm.
///
/// Activations of unrelated models are directions that know nothing of each other: in `d`
/// dimensions they stand at a right angle but for about `1/√d`, so half of the bits differ but
/// for `1/(π√d)`. The hypothesis allows three times that.
fn related(reference: &Fingerprint, candidate: &Fingerprint) -> f64 {
    let (ours, theirs) = (reference.site_list(), candidate.site_list());
    let pairs: Vec<(usize, usize)> = ours
        .iter()
        .enumerate()
        .filter_map(|(at, site)| {
            theirs.iter().position(|other| other == site).map(|other| (at, other))
        })
        .collect();
    let width = reference.model.hidden.min(candidate.model.hidden).max(1) as f64;
    let least = 0.5 - 3.0 / (std::f64::consts::PI * width.sqrt());
    if least <= 0.0 || pairs.is_empty() {
        return 0.0;
    }
    let mut bets = Bets::against_at_least(least);
    for (ours, theirs) in reference.sketches.iter().zip(&candidate.sketches) {
        let apart = pairs.iter().map(|(one, other)| ours[*one].distance(&theirs[*other]).hamming);
        bets.see(apart.sum::<f64>() / pairs.len() as f64);
    }
    bets.ln_e()
}

/// What a library knows of a model.
#[derive(Clone, Debug, Serialize)]
pub struct Identification {
    /// Whether the model is the same as, or related to, one of the library.
    pub known: bool,
    /// The fingerprints of the library.
    pub fingerprints: usize,
    /// Those of the same challenges: only they can be compared.
    pub of_the_same_challenges: usize,
    /// How long the search for the nearest took.
    pub search_seconds: f64,
    /// The nearest, compared in full.
    pub matches: Vec<Match>,
    /// Files that were left out.
    pub refused: Vec<Refused>,
}

/// A file of a library that was left out.
#[derive(Clone, Debug, Serialize)]
pub struct Refused {
    /// The file.
    pub file: String,
    /// Why.
    pub reason: String,
}

impl Verifier<'_> {
    /// Looks a model up in a folder of fingerprints and compares it with the `nearest` in full. A
    /// model folder is run on the challenges that `options` describe; a fingerprint has its own.
    pub fn identify(
        &self,
        subject: Subject,
        library: &Path,
        nearest: usize,
        options: &ChallengeOptions,
    ) -> Result<Identification, VerifyError> {
        let fingerprint = match subject {
            Subject::Fingerprint(fingerprint) => *fingerprint,
            Subject::Folder(folder) => {
                let set = options.set(self.runner(&folder)?.opened())?;
                self.tell(Progress::Challenges(&set));
                self.candidate(&folder, &set, options.policy)?
            }
            Subject::Endpoint(url) => {
                return Err(VerifyError::request(format!(
                    "{url} can't be identified: an endpoint shows too little; use `compare`"
                )));
            }
        };
        let begun = Instant::now();
        let library = Library::open(library)?;
        let (near, of_the_same_challenges) = library.nearest(&fingerprint, nearest)?;
        let search_seconds = begun.elapsed().as_secs_f64();
        let refused = library.refused.iter().cloned();
        let mut refused: Vec<Refused> =
            refused.map(|(file, reason)| Refused { file, reason }).collect();
        let mut matches = Vec::new();
        for near in near {
            let file = near.file.clone();
            match library.compare(near, &fingerprint, &DecisionRule::default()) {
                Ok(found) => matches.push(found),
                // Another tokenizer with as many tokens, say: no reason to stop.
                Err(error) => {
                    let reason = format!("{file}: {error}");
                    refused.push(Refused { file, reason });
                }
            }
        }
        Ok(Identification {
            known: matches.iter().any(|found| found.relation != Relation::Unrelated),
            fingerprints: library.len(),
            of_the_same_challenges,
            search_seconds,
            matches,
            refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library() -> Library {
        let mut library = Library::default();
        for number in 0..5_u64 {
            let entry = Entry {
                file: format!("{number}.json"),
                model: "a model".to_owned(),
                bytes: number,
                changed: 7,
                commitment: [number as u8; 32],
                words: 2,
                start: 0,
            };
            library.add(entry, &[number, !number]);
        }
        library
    }

    #[test]
    fn an_index_comes_back_and_a_damaged_one_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = library().index();
        let path = folder.path().join(INDEX);
        std::fs::write(&path, &bytes).unwrap();
        let back = Library::read_index(folder.path()).unwrap();
        assert_eq!(back.entries, library().entries);
        assert_eq!(back.vectors, library().vectors);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).unwrap();
            assert!(Library::read_index(folder.path()).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for lie in [u64::MAX, 1 << 40, 6] {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(lie.to_le_bytes());
            bytes.extend(lie.to_le_bytes());
            let digest = blake3::hash(&bytes);
            bytes.extend(digest.as_bytes());
            std::fs::write(folder.path().join(INDEX), &bytes).unwrap();
            assert!(Library::read_index(folder.path()).is_none());
        }
    }
}
