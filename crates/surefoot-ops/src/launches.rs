//! Counts the kernels that are launched on devices of CubeCL: what the host pays for, whatever the device does.

use std::collections::BTreeMap;

/// How often each kernel was launched, by its name. Kernels of other threads that are launched meanwhile are counted too.
/// Empty on the processor, which launches none, and in builds without a GPU.
pub type Launches = BTreeMap<String, u64>;

/// Does the work and counts the kernels that are launched meanwhile.
#[cfg(not(any(feature = "gpu", target_os = "macos")))]
pub fn count_launches<T>(work: impl FnOnce() -> T) -> (T, Launches) {
    (work(), Launches::new())
}

/// Does the work and counts the kernels that are launched meanwhile.
#[cfg(any(feature = "gpu", target_os = "macos"))]
pub fn count_launches<T>(work: impl FnOnce() -> T) -> (T, Launches) {
    use std::sync::{Arc, Mutex, PoisonError};

    use burn_cubecl::cubecl::config::TypeNameFormatLevel;
    use burn_cubecl::cubecl::config::type_name_format;
    use burn_cubecl::cubecl::logging::{LaunchObservation, LaunchObserver};

    #[derive(Default)]
    struct Counter(Mutex<BTreeMap<&'static str, u64>>);

    impl LaunchObserver for Counter {
        fn launched(&self, kernel: &'static str) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(kernel).or_default() += 1;
        }
    }

    let counter = Arc::new(Counter::default());
    let observation = LaunchObservation::new(counter.clone());
    let done = work();
    drop(observation);
    let counts = counter.0.lock().unwrap_or_else(PoisonError::into_inner);
    let mut launches = Launches::new();
    for (name, count) in counts.iter() {
        *launches.entry(type_name_format(name, TypeNameFormatLevel::Short)).or_default() += count;
    }
    (done, launches)
}
