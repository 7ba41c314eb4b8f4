//! Engines, suites and models for Surefoot's own tests and benches.
//!
//! [`suite`] and [`matrix`] hold what must be true for every engine on every device; they run on the
//! [`fake`] engine and, with the feature `burn`, on Burn's devices. `conformance` holds what must be
//! true of Burn's devices beyond that. [`workload_matrix`] strikes whole workloads (training, models,
//! serving, verification) with every kind of fault at every moment. `engine_suite!` and `conformance_suite!` make a test of each
//! case.

#[cfg(feature = "burn")]
mod burn_lab;
#[cfg(feature = "burn")]
pub mod conformance;
pub mod fake;
pub mod matrix;
#[cfg(feature = "burn")]
pub mod model_folders;
#[cfg(feature = "burn")]
pub mod networks;
pub mod suite;
pub mod workload_matrix;

#[cfg(feature = "burn")]
pub use burn_lab::{REQUIRE_GPU, SECOND_CPU, chain_under_test, cpu, gpu};

/// One test per case of the conformance suite, for the device that `$open` gives.
#[macro_export]
macro_rules! conformance_suite {
    ($module:ident, $open:expr) => {
        mod $module {
            $crate::conformance_suite!(@cases $open,
                probe_finds_it_healthy,
                inputs_on_another_device_are_brought_here,
                a_guarded_run_ends_when_its_work_is_done,
                a_mix_of_dtypes_is_repaired_before_the_device_sees_it,
                a_dtype_it_cannot_compute_in_is_refused,
                split_gradients_equal_the_whole_batches,
                a_callers_mistake_is_reported_at_once_and_costs_no_health,
                nan_is_a_numeric_fault_where_it_is_asked_for,
                memory_in_use_falls_when_tensors_go,
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
