//! Settings to use on a device, each with its reason.

use std::time::{Duration, Instant};

use burn::tensor::{Distribution, Tensor};
use serde::{Deserialize, Serialize};

use crate::device::OpenDevice;
use crate::fault::{Fault, catch};
use crate::place::{Precision, settle};
use crate::recover::Confirm;

/// What to use, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The precision of heavy operations: `--precision`.
    pub precision: Advice<String>,
    /// Threads that load data beside the training step.
    pub loader_workers: Advice<usize>,
    /// Whether batches are copied to the device ahead of the step.
    pub staging: Advice<bool>,
    /// The batch size to start from.
    pub batch: Advice<usize>,
}

/// A value and its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice<T> {
    /// What to use.
    pub value: T,
    /// Why.
    pub because: String,
}

impl<T> Advice<T> {
    fn new(value: T, because: impl Into<String>) -> Self {
        Self { value, because: because.into() }
    }
}

pub(super) fn suggest(device: &OpenDevice) -> Settings {
    let precision = match settle(device, Precision::Auto) {
        Ok(resolved) => Advice::new(resolved.compute.to_string(), resolved.reason),
        Err(fault) => Advice::new("fp32".to_owned(), fault.root_cause().to_owned()),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let loader_workers = match cores {
        1 => Advice::new(0, "there is one core, which the step needs"),
        _ => Advice::new((cores - 1).min(8), format!("{cores} cores, one for the step")),
    };
    let staging = match device.info.unified_memory {
        true => Advice::new(false, "the device shares the CPU's memory"),
        false => Advice::new(true, "copies to the device's own memory overlap the step"),
    };
    let batch = match catch(|| best_batch(device)) {
        Ok(Ok(batch)) => batch,
        Ok(Err(fault)) => Advice::new(1, fault.to_string()),
        Err(record) => Advice::new(1, record.message),
    };
    Settings { precision, loader_workers, staging, batch }
}

const BATCHES: [usize; 5] = [1, 4, 16, 64, 256];

/// The smallest batch that reaches four fifths of the best rate, on a small network.
fn best_batch(device: &OpenDevice) -> Result<Advice<usize>, Fault> {
    let weights = || Tensor::<2>::random([256, 256], Distribution::Default, device.burn());
    let layers = [weights(), weights()];
    let mut rates = Vec::new();
    for batch in BATCHES {
        let forward = || {
            let x = Tensor::<2>::ones([batch, 256], device.burn());
            let y = layers.iter().fold(x, |x, w| x.matmul(w.clone()));
            y.sum().confirm("batch")
        };
        forward()?;
        let (mut runs, started) = (0u32, Instant::now());
        while runs < 3 || (started.elapsed() < Duration::from_millis(40) && runs < 200) {
            forward()?;
            runs += 1;
        }
        rates.push(batch as f64 * f64::from(runs) / started.elapsed().as_secs_f64());
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    let at = rates.iter().position(|rate| *rate >= 0.8 * best).unwrap_or(0);
    let because = match at {
        0 => {
            format!("a small network does {:.0} samples/s one by one; batches add little", rates[0])
        }
        at => format!(
            "a small network does {:.0} samples/s in batches of {}, {:.0} one by one",
            rates[at], BATCHES[at], rates[0]
        ),
    };
    Ok(Advice::new(BATCHES[at], because))
}
