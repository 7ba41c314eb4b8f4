//! The search of a library: Hamming distances against the speed of memory, as a ratio in one run,
//! and a folder of ten thousand fingerprints.
//!
//!     cargo bench --workspace --bench search -- [--vectors 100000] [--files 10000]

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;
use surefoot_verify::challenge::{ChallengeSet, public_key};
use surefoot_verify::fingerprint::Fingerprint;
use surefoot_verify::library::Library;
use surefoot_verify::{hamming, seal};

#[path = "../tests/lab/mod.rs"]
mod lab;

const WORDS: usize = 8192 / 64;
const ROUNDS: usize = 40;

fn main() {
    let value = |name: &str, usual: usize| {
        let mut arguments = std::env::args().skip_while(move |argument| argument != name);
        arguments.nth(1).map_or(usual, |text| text.parse().expect("a number"))
    };
    popcount(value("--vectors", 100_000));
    folder(value("--files", 10_000));
}

fn popcount(vectors: usize) {
    let mut random = lab::SeededRandom::new(1);
    let library: Vec<u64> = (0..vectors * WORDS).map(|_| random.next()).collect();
    let query: Vec<u64> = (0..WORDS).map(|_| random.next()).collect();
    let bytes = (library.len() * 8) as f64;
    let (mut reading, mut counting) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // The least that reads all of it: one sum, by all threads.
        let start = Instant::now();
        let share = |some: &[u64]| some.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word));
        let sum: u64 = library.par_chunks(WORDS * 512).map(share).reduce(|| 0, u64::wrapping_add);
        black_box(sum);
        reading.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        black_box(hamming::distances(&query, &library));
        counting.push(start.elapsed().as_secs_f64());
    }
    // The best of each: others on the machine only ever take time away.
    let (reading, counting) = (best(reading), best(counting));
    println!(
        "{vectors} vectors of 8192 bits: {:.1} GB/s counted, {:.1} GB/s read, ratio {:.2} (at least 0.8)",
        bytes / counting / 1e9,
        bytes / reading / 1e9,
        reading / counting
    );
}

/// Small fingerprints that differ in their run id, as a folder with its index.
fn folder(files: usize) {
    let shelf = lab::TestModels::new();
    let set = ChallengeSet::keyed(public_key(), "search", lab::VOCAB, 1, 4).expect("challenges");
    let options = lab::Options::candidate();
    let fingerprint = lab::fingerprint(&shelf.reference, &set, options);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sealed = fingerprint.seal(None).expect("a file");
    for number in 0..files {
        seal::write(&folder.path().join(format!("{number:05}.json")), &sealed).expect("a file");
    }
    let start = Instant::now();
    Library::open(folder.path()).expect("a library");
    println!("{files} files read and indexed in {:.2} s", start.elapsed().as_secs_f64());
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(answer(folder.path(), &fingerprint, files));
    }
    println!("{files} files answered in {:.1} ms (at most 50)", best(times) * 1e3);
}

fn answer(folder: &std::path::Path, fingerprint: &Fingerprint, files: usize) -> f64 {
    let start = Instant::now();
    let library = Library::open(folder).expect("a library");
    let (near, all) = library.nearest(fingerprint, 5).expect("an answer");
    let time = start.elapsed().as_secs_f64();
    assert!(all == files && near.len() == 5.min(files) && near[0].distance == 0.0);
    time
}

fn best(numbers: Vec<f64>) -> f64 {
    numbers.into_iter().fold(f64::INFINITY, f64::min)
}
