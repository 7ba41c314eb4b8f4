//! Compiled kernels and results of tuning as one file, to be carried from one machine to another of the same kind.
//!
//! What is in a bundle is found by the version of CubeCL, the device and the kernel, so what belongs to another machine is never used. A build
//! that leaves its kernels to the driver ([`super::kernel_cache`]) has nothing to save.

use std::path::Path;

/// What a bundle brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadedKernels {
    /// Entries that were not known before.
    pub added: usize,
    /// Entries that this machine had already, which stay as they are.
    pub known: usize,
}

/// Why a bundle could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The build has no store.
    #[error(
        "this build leaves compiled kernels to the driver, which keeps them itself: only builds with `vulkan`, `cuda` or `autotune` have some to save"
    )]
    NoStore,
    /// The file, or the store.
    #[error("{path}: {why}")]
    File {
        /// The bundle.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store took only a part.
    #[error("{failed} of {all} kernels could not be written into the store: is its disk full?")]
    Incomplete {
        /// Those that are missing.
        failed: usize,
        /// Those of the bundle.
        all: usize,
    },
}

/// Whether this build keeps compiled kernels, so that there are some to save and to load.
pub fn keeps_kernels() -> bool {
    store::IS_KEPT
}

/// Writes all that was compiled and tuned so far, on this machine by this user, to a file that is replaced at once.
pub fn save_kernels(to: &Path) -> Result<(), BundleError> {
    store::save(to)
}

/// Adds what a bundle has to what this machine knows. Must come before a device is opened.
pub fn load_kernels(from: &Path) -> Result<LoadedKernels, BundleError> {
    store::load(from)
}

#[cfg(any(feature = "vulkan", feature = "cuda", all(feature = "autotune", feature = "gpu")))]
mod store {
    use std::path::Path;

    use burn::cubecl::bundle::{self, BundleFormat};
    use burn::cubecl::environment;

    use super::{BundleError, LoadedKernels};
    use crate::device::kernel_cache::keep_compiled;

    pub(super) const IS_KEPT: bool = true;

    pub(super) fn save(to: &Path) -> Result<(), BundleError> {
        keep_compiled();
        let saved = environment::bundle().save(to, BundleFormat::Sqlite);
        saved.map(drop).map_err(|error| file(to, &error))
    }

    pub(super) fn load(from: &Path) -> Result<LoadedKernels, BundleError> {
        keep_compiled();
        let bundle = bundle::open(from).map_err(|error| file(from, &error))?;
        let report = bundle::import(bundle.as_ref());
        if report.failed > 0 {
            let all = report.failed + report.imported + report.skipped;
            return Err(BundleError::Incomplete { failed: report.failed, all });
        }
        Ok(LoadedKernels { added: report.imported, known: report.skipped })
    }

    fn file(path: &Path, error: &dyn std::error::Error) -> BundleError {
        BundleError::File { path: path.display().to_string(), why: error.to_string() }
    }
}

/// What a build without a store has in its place.
#[cfg(not(any(feature = "vulkan", feature = "cuda", all(feature = "autotune", feature = "gpu"))))]
mod store {
    use std::path::Path;

    use super::{BundleError, LoadedKernels};

    pub(super) const IS_KEPT: bool = false;

    pub(super) fn save(_: &Path) -> Result<(), BundleError> {
        Err(BundleError::NoStore)
    }

    pub(super) fn load(_: &Path) -> Result<LoadedKernels, BundleError> {
        Err(BundleError::NoStore)
    }
}
