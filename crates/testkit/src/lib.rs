//! Fault injection, the conformance suite and made-up models, for Surefoot's own tests and benches.
//!
//! Each case of the [`conformance`] suite takes a device and panics if the device, or Surefoot
//! on it, doesn't do as it should. `conformance_suite!` makes a test of each case for one device.

pub mod conformance;
pub mod drills;
pub mod made;
pub mod networks;

use std::sync::Arc;

use surefoot::device::{Backend, DeviceName, OpenDevice, open};

/// Set in CI's GPU lane: a GPU that isn't there is a failure, not a skip.
pub const REQUIRE_GPU: &str = "SUREFOOT_REQUIRE_GPU";

/// The processor under a second name, for tests that need two devices.
pub const SECOND_CPU: DeviceName = DeviceName { backend: Backend::Cpu, index: 1 };

/// The processor.
pub fn cpu() -> Option<Arc<OpenDevice>> {
    Some(open(DeviceName::CPU).expect("the CPU opens"))
}

/// The first GPU of this build; without one the caller skips, or fails if [`REQUIRE_GPU`] is
/// set.
pub fn gpu() -> Option<Arc<OpenDevice>> {
    let opened = "gpu"
        .parse::<DeviceName>()
        .map_err(|e| e.to_string())
        .and_then(|name| open(name).map_err(|fault| fault.to_string()));
    match opened {
        Ok(device) => Some(device),
        Err(why) if std::env::var_os(REQUIRE_GPU).is_some() => panic!("a GPU is required: {why}"),
        Err(why) => {
            eprintln!("skipped, no GPU: {why}");
            None
        }
    }
}

/// One test per case of the conformance suite, for the device that `$open` gives.
#[macro_export]
macro_rules! conformance_suite {
    ($module:ident, $open:expr) => {
        mod $module {
            $crate::conformance_suite!(@cases $open,
                probe_finds_it_healthy,
                a_guarded_run_gives_what_burn_gives,
                a_guarded_run_ends_when_its_work_is_done,
                inputs_on_another_device_are_brought_here,
                a_mix_of_dtypes_is_repaired_before_the_device_sees_it,
                a_dtype_it_cannot_compute_in_is_refused,
                a_split_batch_gives_the_whole_batches_result,
                split_gradients_equal_the_whole_batches,
                a_segment_it_cannot_run_runs_on_the_cpu_once_and_is_remembered,
                a_callers_mistake_is_reported_at_once_and_costs_no_health,
                nan_is_a_numeric_fault_where_it_is_asked_for,
                memory_in_use_falls_when_tensors_go,
                every_fault_is_survived_or_reported,
                threads_share_a_footing,
                a_failed_host_allocation_is_recovered_by_splitting,
                a_buffer_over_the_limit_is_recovered_by_splitting,
            );
        }
    };
    (@cases $open:expr, $($case:ident,)+) => {
        $(#[test]
        fn $case() {
            if let Some(device) = $open {
                $crate::conformance::$case(&device);
            }
        })+
    };
}
