//! Any bytes as a `model.safetensors`: tensors that lie in the file, apart from each other, or an
//! error.
//!
//!     cargo +nightly fuzz run model_header

#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use surefoot_fuzz::folder::mapped::WeightFile;

/// A file of this process, so that several can run side by side.
fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let name = format!("surefoot-fuzz-{}.safetensors", std::process::id());
    FILE.get_or_init(|| std::env::temp_dir().join(name))
}

fuzz_target!(|bytes: &[u8]| {
    std::fs::write(file(), bytes).expect("a temporary file");
    let opened = WeightFile::open(file()).expect("it is there");
    if let Some(mut ranges) = surefoot_fuzz::ranges(&opened) {
        ranges.retain(|range| !range.is_empty());
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.iter().all(|range| range.end <= bytes.len()));
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
});
