//! Any bytes as a fingerprint or a transcript, with a seal that fits: a document or an error.
//!
//!     cargo +nightly fuzz run fingerprint

#![no_main]

use libfuzzer_sys::fuzz_target;
use surefoot_verify::fingerprint::Fingerprint;
use surefoot_verify::seal;
use surefoot_verify::transcript::Transcript;

fuzz_target!(|bytes: &[u8]| {
    let _ = Fingerprint::open(bytes);
    let _ = Transcript::open(bytes);
    // Behind a good seal, so that the contents are reached.
    if let Ok(json) = serde_json::from_slice::<serde_json::Value>(bytes)
        && json.is_object()
        && let Ok(sealed) = seal::seal(&json, None)
    {
        let _ = Fingerprint::open(&sealed);
        let _ = Transcript::open(&sealed);
    }
});
