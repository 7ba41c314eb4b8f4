//! What GPU backends compile and tune, kept on disk for the next process.
//!
//! Burn keeps the results of tuning (feature `autotune`), SPIR-V (`vulkan`) and CUDA's binaries (`cuda`)
//! in a store; by default that is a `target` folder near the working directory, and compiled
//! kernels are not put there at all. Here it is the user's cache, and they are. `SUREFOOT_CACHE`
//! names another folder. Where a `cubecl.toml` or `burn.toml` says where the store is, that holds.
//!
//! WGSL (feature `gpu` alone) and Metal's shaders Burn compiles anew in each process; their drivers
//! keep what they make of them: Mesa, NVIDIA's and Apple's do.

use std::path::{Path, PathBuf};
use std::sync::Once;

use burn::cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use etcetera::BaseStrategy;
use serde_json::json;

const FOLDER: &str = "SUREFOOT_CACHE";

/// Says where the store is. Must come before a device is opened, which reads it once.
pub(super) fn keep_compiled() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let found = CubeClRuntimeConfig::from_current_dir().override_from_env();
        if let Some(config) = folder().and_then(|folder| kept_in(&folder, &found)) {
            // A program that has said so itself keeps its word.
            CubeClRuntimeConfig::try_set(config);
        }
    });
}

/// `found` with the store in `folder`; none, if it has its store somewhere already.
fn kept_in(folder: &Path, found: &CubeClRuntimeConfig) -> Option<CubeClRuntimeConfig> {
    // By way of JSON: which fields there are depends on the features of Burn.
    let mut config = serde_json::to_value(found).ok()?;
    let untouched = serde_json::to_value(CubeClRuntimeConfig::default()).ok()?;
    if config["environment"]["path"] != untouched["environment"]["path"] {
        return None;
    }
    config["environment"]["path"] = json!({ "directory": folder });
    config["compilation"]["cache"] = json!(true);
    serde_json::from_value(config).ok()
}

fn folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER).filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(folder));
    }
    let caches = etcetera::base_strategy::choose_native_strategy().ok()?.cache_dir();
    Some(caches.join("surefoot").join("kernels"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_moves_to_the_folder_and_nothing_else_changes() {
        let mut found = CubeClRuntimeConfig::default();
        found.streaming.max_streams = 7;
        let config = kept_in(Path::new("/somewhere"), &found).unwrap();
        let config = serde_json::to_value(config).unwrap();
        assert_eq!(config["environment"]["path"], json!({ "directory": "/somewhere" }));
        assert_eq!(config["streaming"]["max_streams"], json!(7));
    }

    #[test]
    fn a_store_that_someone_chose_stays() {
        let mut found = serde_json::to_value(CubeClRuntimeConfig::default()).unwrap();
        found["environment"]["path"] = json!("global");
        let found = serde_json::from_value(found).unwrap();
        assert!(kept_in(Path::new("/somewhere"), &found).is_none());
    }
}
