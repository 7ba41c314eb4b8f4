//! Any bytes as a `config.json`: a description or an error, never a panic.
//!
//!     cargo +nightly fuzz run model_config

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use surefoot_fuzz::arch;
use surefoot_fuzz::folder::settings::Settings;

fuzz_target!(|json: &[u8]| {
    if let Ok(settings) = Settings::parse(Path::new("config.json"), json) {
        if let Ok(blueprint) = arch::describe(&settings) {
            assert!(blueprint.heads % blueprint.kv_heads == 0);
            assert!(!blueprint.blocks.is_empty());
        }
    }
});
