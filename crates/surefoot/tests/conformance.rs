//! The conformance suite, instantiated for each device of this build.

testkit::conformance_suite!(cpu, testkit::cpu());

#[cfg(feature = "gpu")]
testkit::conformance_suite!(gpu, testkit::gpu());
