//! Any bytes as a `model.safetensors.index.json`: plain file names or an error.
//!
//!     cargo +nightly fuzz run model_index

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use surefoot_fuzz::folder::index;

fuzz_target!(|json: &[u8]| {
    if let Ok(shards) = index::parse(Path::new("index.json"), json) {
        for shard in shards.values() {
            assert_eq!(Path::new("/folder").join(shard).parent(), Some(Path::new("/folder")));
            assert_ne!(shard, "..");
        }
    }
});
