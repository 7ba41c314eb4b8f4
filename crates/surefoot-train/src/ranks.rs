//! Data-parallel training by several processes ("ranks"): what they need of each other.
//!
//! Every rank holds the whole state and takes its share of each batch; gradients are summed over all
//! ranks. [`Ranks`] is what this needs of a message-passing library: MPI in builds with
//! the feature `mpi` (`mpi::MpiRanks`), and threads of one process ([`ThreadRanks`]) for tests.
//!
//! Invariants: all ranks call the same operations in the same order; sums are added in the order of the
//! ranks, so their bits do not depend on timing; a rank that fails says so in its next
//! operation instead of leaving the others waiting.

#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(any(feature = "mpi", test))]
mod pairwise;
mod threads;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use surefoot::{Fault, FaultKind};

pub use threads::ThreadRanks;

/// The name of operations between ranks in faults.
pub const OPERATION: &str = "exchange between ranks";

/// Bytes of a file or a state that are sent at once.
const CHUNK: usize = 16 << 20;

/// The operations that one rank can do with the others. All ranks must call them in the same order.
pub trait Ranks {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn count(&self) -> usize;

    /// The name of the machine that this rank runs on.
    fn host(&self) -> String;

    /// Gives the bytes of every rank to every rank, in the order of the ranks.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Fault>;

    /// Sums the numbers of all ranks element by element, added in the order of the ranks. All ranks get
    /// the same bits.
    fn sum(&self, values: &mut [f32]) -> Result<(), Fault>;
}

/// A rank as the report of a run shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankReport {
    /// Its number.
    pub rank: usize,
    /// The machine that it ran on.
    pub host: String,
    /// The device at the end.
    pub device: String,
    /// The most bytes that were in use on its device.
    pub peak_memory: u64,
    /// How many faults it met.
    pub faults: usize,
    /// Seconds it spent in forward and backward passes.
    pub computing_seconds: f64,
    /// Seconds it spent in agreements, most of them waiting for slower ranks.
    pub agreeing_seconds: f64,
    /// Seconds it spent in sums of gradients.
    pub summing_seconds: f64,
    /// Seconds it spent in changing weights by the summed gradients.
    pub updating_seconds: f64,
}

/// What the steps of a rank have spent their time on, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepTime {
    pub(crate) computing: f64,
    pub(crate) agreeing: f64,
    pub(crate) summing: f64,
    pub(crate) updating: f64,
}

/// The part of `length` things that belongs to one rank.
pub fn share(length: usize, rank: usize, count: usize) -> Range<usize> {
    length * rank / count..length * (rank + 1) / count
}

/// Gives a message of every rank to every rank, in the order of the ranks.
pub fn exchange<T: Serialize + DeserializeOwned>(
    ranks: &dyn Ranks,
    message: &T,
) -> Result<Vec<T>, Fault> {
    let bytes = serde_json::to_vec(message).map_err(|error| unreadable(&error))?;
    let all = ranks.gather(&bytes)?;
    let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(|error| unreadable(&error));
    all.iter().map(read).collect()
}

/// What differs on a rank from the first one, in words: `facts` are named values that must be the same
/// on all ranks.
pub fn differences(
    ranks: &dyn Ranks,
    facts: &BTreeMap<String, String>,
) -> Result<Vec<String>, Fault> {
    let all = exchange(ranks, facts)?;
    let mut found = Vec::new();
    for (rank, theirs) in all.iter().enumerate().skip(1) {
        let names: BTreeSet<&String> = all[0].keys().chain(theirs.keys()).collect();
        for name in names {
            let (first, other) = (all[0].get(name), theirs.get(name));
            if first != other {
                let shown =
                    |value: Option<&String>| value.map_or("not set", String::as_str).to_owned();
                let (other, first) = (shown(other), shown(first));
                found.push(format!("{name} is {other} on rank {rank} and {first} on rank 0"));
            }
        }
    }
    Ok(found)
}

/// Gives bytes of the rank `from` to all ranks.
pub(crate) fn broadcast(ranks: &dyn Ranks, from: usize, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    let is_sender = ranks.rank() == from;
    let length = exchange(ranks, &(bytes.len() as u64))?[from] as usize;
    let mut received = Vec::with_capacity(length);
    while received.len() < length {
        let part = received.len()..length.min(received.len() + CHUNK);
        let mut all = ranks.gather(if is_sender { &bytes[part] } else { &[] })?;
        received.append(&mut all[from]);
    }
    Ok(received)
}

/// Copies a file of the first rank to all others: rank 0 gives the file's path, the others where it
/// should go.
pub fn send_file(ranks: &dyn Ranks, path: &Path) -> Result<(), Fault> {
    let failed = |error: std::io::Error| {
        let message = format!("{}: {error}", path.display());
        Fault::new(FaultKind::DataLoading, OPERATION, message)
    };
    let is_first = ranks.rank() == 0;
    let mut file = if is_first { File::open(path) } else { File::create(path) }.map_err(failed)?;
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        if is_first {
            (&mut file).take(CHUNK as u64).read_to_end(&mut buffer).map_err(failed)?;
        }
        let part = ranks.gather(&buffer)?.swap_remove(0);
        if part.is_empty() {
            return file.flush().map_err(failed);
        }
        if !is_first {
            file.write_all(&part).map_err(failed)?;
        }
    }
}

pub(crate) fn unreadable(why: &dyn std::fmt::Display) -> Fault {
    let message = format!("the message of another rank can't be read: {why}");
    Fault::new(FaultKind::NotDeviceRelated, OPERATION, message)
        .advise("all ranks have to run the same version of surefoot")
}

/// Numbers as their bits: JSON has no infinity, and reading decimals may round.
pub(crate) mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.to_bits())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::threads::on_all;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_differs_is_named_with_its_rank() {
        on_all(2, |ranks| {
            let value = if ranks.rank() == 0 { "32" } else { "64" };
            let mut facts = BTreeMap::from([("seed".to_owned(), "1".to_owned())]);
            facts.insert("batch_size".to_owned(), value.to_owned());
            let found = differences(ranks, &facts).unwrap();
            assert_eq!(found, ["batch_size is 64 on rank 1 and 32 on rank 0"]);
        });
    }

    #[test]
    fn a_file_of_the_first_rank_reaches_the_others_whole() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..CHUNK + 1000).map(|at| (at % 251) as u8).collect();
        std::fs::write(folder.path().join("0"), &bytes).unwrap();
        on_all(3, |ranks| {
            let path = folder.path().join(ranks.rank().to_string());
            send_file(ranks, &path).unwrap();
            assert!(std::fs::read(path).unwrap() == bytes);
            let sent = if ranks.rank() == 1 { &bytes[..] } else { &[] };
            assert!(broadcast(ranks, 1, sent).unwrap() == bytes);
        });
    }

    proptest! {
        #[test]
        fn shares_cover_everything_once_and_differ_by_one_at_most(length in 0usize..1000, count in 1usize..20) {
            let mut next = 0;
            for rank in 0..count {
                let part = share(length, rank, count);
                prop_assert_eq!(part.start, next);
                prop_assert!(part.len() <= length.div_ceil(count) && part.len() >= length / count);
                next = part.end;
            }
            prop_assert_eq!(next, length);
        }
    }
}
