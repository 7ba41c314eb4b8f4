//! The suites, instantiated for each of Burn's devices in this build.

use testkit::SECOND_CPU;
use testkit::suite::Devices;

use surefoot::device::DeviceName;

const CPU: Devices = Devices { first: SECOND_CPU, second: DeviceName::CPU };

testkit::engine_suite!(cpu, surefoot::Burn, Some(crate::CPU));
testkit::conformance_suite!(cpu_conformance, testkit::cpu());

#[cfg(feature = "gpu")]
testkit::engine_suite!(gpu, surefoot::Burn, crate::gpu());
#[cfg(feature = "gpu")]
testkit::conformance_suite!(gpu_conformance, testkit::gpu());

#[cfg(feature = "gpu")]
fn gpu() -> Option<Devices> {
    testkit::gpu().map(|device| Devices { first: device.name(), second: DeviceName::CPU })
}
