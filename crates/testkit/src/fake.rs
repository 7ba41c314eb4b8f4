//! An engine of plain vectors, without any tensor library: proof that the core knows no tensors,
//! and quick enough to try every fault at every moment.
//!
//! It has three devices: `gpu`, whose work is asynchronous and whose failures taint a result until
//! it is read, `cpu`, and `cpu:1` as a spare. Bytes in use are counted when a vector is made and
//! when it is dropped.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use surefoot_core::device::{Backend, DeviceName, NameError};
use surefoot_core::engine::{Candidate, Engine, Failure};
use surefoot_core::fault::{Fault, FaultKind, classify, kind_of_std};
use surefoot_core::place::{Place, Spot, Target};
use surefoot_core::precision::{Dtype, Precision, Resolved};
use surefoot_core::recover::{Confirm, Join, Splittable, Step};

use crate::suite::Lab;

/// The device of this engine that works asynchronously.
pub const GPU: DeviceName = DeviceName { backend: Backend::Gpu, index: 0 };

/// Bytes that each device has.
pub const MEMORY: u64 = 1 << 20;

/// Bytes in use on each device.
type Ledger = Arc<Mutex<HashMap<DeviceName, u64>>>;

/// The engine.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    ledger: Ledger,
}

/// An open device.
#[derive(Clone, Debug)]
pub struct FakeDevice {
    name: DeviceName,
    ledger: Ledger,
}

impl PartialEq for FakeDevice {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Memory of one vector; given back when dropped.
#[derive(Debug)]
struct Allocation {
    device: FakeDevice,
    bytes: u64,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut ledger = self.device.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        *ledger.entry(self.device.name).or_default() -= self.bytes;
    }
}

/// A vector on a device. One number is one sample.
#[derive(Clone)]
pub struct Vector {
    values: Arc<Vec<f32>>,
    allocation: Arc<Allocation>,
    tainted: Option<FaultKind>,
}

impl fmt::Debug for Vector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {}", self.values, self.allocation.device.name)
    }
}

impl Vector {
    /// A vector on `device`.
    pub fn new(values: Vec<f32>, device: &FakeDevice) -> Self {
        let bytes = 4 * values.len() as u64;
        let mut ledger = device.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        *ledger.entry(device.name).or_default() += bytes;
        drop(ledger);
        let allocation = Arc::new(Allocation { device: device.clone(), bytes });
        Self { values: Arc::new(values), allocation, tainted: None }
    }

    /// The same vector, whose computation failed with `kind`: that shows when it is read.
    #[must_use]
    pub fn tainted(mut self, kind: FaultKind) -> Self {
        self.tainted = Some(kind);
        self
    }

    /// Its numbers.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The device it is on.
    pub fn device(&self) -> &FakeDevice {
        &self.allocation.device
    }

    /// Each number times `factor`.
    #[must_use]
    pub fn scaled(&self, factor: f32) -> Self {
        Self::new(self.values.iter().map(|value| value * factor).collect(), self.device())
    }
}

impl Engine for Fake {
    type Device = FakeDevice;
    type Handle = FakeDevice;
    type ElementType = Dtype;

    fn candidates(&self) -> Vec<Candidate> {
        [GPU, DeviceName::CPU].map(|name| Candidate { name, passed_over: None }).into()
    }

    fn resolve(&self, name: DeviceName) -> Result<DeviceName, NameError> {
        match name.backend {
            Backend::Gpu | Backend::Cpu => Ok(name),
            _ => Err(NameError::NotInBuild {
                name: name.to_string(),
                available: "gpu, cpu".to_owned(),
                remedy: "the fake engine has no others".to_owned(),
            }),
        }
    }

    fn open(&self, name: DeviceName) -> Result<Arc<FakeDevice>, Fault> {
        Ok(Arc::new(FakeDevice { name, ledger: Arc::clone(&self.ledger) }))
    }

    fn probe(&self, device: &FakeDevice) -> Result<(), Fault> {
        let sum: f32 = Vector::new(vec![1.0, 2.0], device).scaled(2.0).values().iter().sum();
        match sum == 6.0 {
            true => Ok(()),
            false => Err(Fault::new(FaultKind::DriverOrInit, "probe", format!("{sum} for 6"))),
        }
    }

    fn name(&self, device: &FakeDevice) -> DeviceName {
        device.name
    }

    fn hardware(&self, _device: &FakeDevice) -> String {
        "plain vectors".to_owned()
    }

    fn handle<'d>(&self, device: &'d FakeDevice) -> &'d FakeDevice {
        device
    }

    fn is_asynchronous(&self, device: &FakeDevice) -> bool {
        device.name == GPU
    }

    fn settle_precision(&self, _: &FakeDevice, wanted: Precision) -> Result<Resolved, Fault> {
        match wanted {
            Precision::Auto | Precision::Fp32 => {
                Ok(Resolved { compute: Dtype::F32, reason: "all that there is".to_owned() })
            }
            other => Err(Fault::new(FaultKind::UnsupportedDtype, "precision", other.to_string())),
        }
    }

    fn computes_in(&self, _: &FakeDevice, dtype: Dtype) -> bool {
        dtype == Dtype::F32
    }

    fn memory_in_use(&self, device: &FakeDevice) -> u64 {
        let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.get(&device.name).copied().unwrap_or_default()
    }

    fn memory_peak(&self, device: &FakeDevice) -> u64 {
        self.memory_in_use(device)
    }

    fn memory_total(&self, _: &FakeDevice) -> Option<u64> {
        Some(MEMORY)
    }

    fn memory_available(&self, device: &FakeDevice) -> Option<u64> {
        Some(MEMORY.saturating_sub(self.memory_in_use(device)))
    }

    fn shares_host_memory(&self, device: &FakeDevice) -> bool {
        device.name != GPU
    }

    fn reclaim(&self, _: &FakeDevice) -> u64 {
        0
    }

    fn is_misplaced(&self, spot: &Spot<Self>, target: &Target<Self>) -> Result<bool, Fault> {
        Ok(spot.device != target.device)
    }

    fn classify(&self, operation: &str, failure: Failure) -> Fault {
        match failure {
            Failure::Error(error) => classify(operation, error, kind_of_std, |_| unknown()),
            Failure::Panic(record) => Fault::new(unknown(), operation, record.message),
        }
    }
}

fn unknown() -> FaultKind {
    FaultKind::NotDeviceRelated
}

impl Place<Fake> for Vector {
    fn survey(&self, visit: &mut dyn FnMut(Spot<Fake>)) {
        visit(Spot::input(self.device().clone(), Dtype::F32, vec![self.values.len()]));
    }

    fn place(self, target: &Target<Fake>) -> Self {
        let moved = Self::new(self.values.to_vec(), &target.device);
        Self { tainted: self.tainted, ..moved }
    }
}

impl Confirm<Fake> for Vector {
    fn confirm(&self, operation: &str) -> Result<(), Fault> {
        match self.tainted {
            Some(kind) => Err(Fault::new(kind, operation, "the result is tainted")),
            None => Ok(()),
        }
    }

    fn check_finite(&self, operation: &str) -> Result<(), Fault> {
        match self.values.iter().all(|value| value.is_finite()) {
            true => Ok(()),
            false => Err(Fault::new(FaultKind::Numeric, operation, "a number is not finite")),
        }
    }

    fn distance(&self, reference: &Self) -> Option<f64> {
        Confirm::<Fake>::distance(&*self.values, &*reference.values)
    }
}

impl Splittable<Fake> for Vector {
    fn samples(&self) -> usize {
        self.values.len()
    }

    fn part(&self, range: Range<usize>) -> Self {
        Self::new(self.values[range].to_vec(), self.device())
    }
}

impl Join<Fake> for Vector {
    fn join(parts: Vec<Self>) -> Self {
        let device = parts[0].device().clone();
        Self::new(parts.iter().flat_map(|part| part.values.iter().copied()).collect(), &device)
    }
}

impl Lab for Fake {
    type Numbers = Vector;

    fn on_host(values: &[f32]) -> Vector {
        // A host of its own, so that the test's inputs are on no engine's books.
        let host = FakeDevice { name: DeviceName::CPU, ledger: Ledger::default() };
        Vector::new(values.to_vec(), &host)
    }

    fn on_device(step: &Step<'_, Self>, values: &[f32]) -> Vector {
        Vector::new(values.to_vec(), step.device())
    }

    fn scaled(numbers: Vector, factor: f32) -> Vector {
        numbers.scaled(factor)
    }

    fn read(numbers: &Vector) -> Vec<f32> {
        numbers.values().to_vec()
    }

    fn is_on(step: &Step<'_, Self>, numbers: &Vector) -> bool {
        numbers.device() == step.device()
    }
}
