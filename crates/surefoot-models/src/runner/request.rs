//! What a run is asked to do, apart from its task.

use surefoot::device::DeviceName;

use crate::folder::header::WeightDtype;
use crate::stream::needs::Work;

/// A run: its name, the work that memory is planned for, and how it differs from a plain run.
#[derive(Clone, Debug)]
pub struct RunRequest {
    pub(super) name: &'static str,
    pub(super) work: Work,
    pub(super) passes: usize,
    pub(super) samples: usize,
    pub(super) streamed: bool,
    pub(super) compute: Option<WeightDtype>,
    pub(super) device: Option<DeviceName>,
    pub(super) records_cost: bool,
}

impl RunRequest {
    /// A plain run of one pass over `work`. Faults and journal events carry `name`.
    pub fn new(name: &'static str, work: Work) -> Self {
        Self {
            name,
            work,
            passes: 1,
            samples: 1,
            streamed: false,
            compute: None,
            device: None,
            records_cost: true,
        }
    }

    /// The number of passes over the model, at most: for progress.
    #[must_use]
    pub fn passes(mut self, passes: usize) -> Self {
        self.passes = passes;
        self
    }

    /// The number of samples that the task can take apart, along
    /// [`Attempt::ranges`](super::Attempt::ranges): a lack of memory is then also answered by
    /// smaller parts.
    #[must_use]
    pub fn samples(mut self, samples: usize) -> Self {
        self.samples = samples.max(1);
        self
    }

    /// Streams all weights, even if they would fit.
    #[must_use]
    pub fn streamed(mut self, streamed: bool) -> Self {
        self.streamed = streamed;
        self
    }

    /// Computes products with weights in this dtype, where the device does so correctly, instead of
    /// the footing's precision.
    #[must_use]
    pub fn compute(mut self, dtype: Option<WeightDtype>) -> Self {
        self.compute = dtype;
        self
    }

    /// Starts on this device of the footing's chain, instead of the one that the model is on.
    #[must_use]
    pub fn on(mut self, device: Option<DeviceName>) -> Self {
        self.device = device;
        self
    }

    /// Writes no note about its cost to the journal: for short runs that repeat, as a server's do.
    #[must_use]
    pub fn without_cost_record(mut self) -> Self {
        self.records_cost = false;
        self
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The number of passes, at most.
    pub fn pass_count(&self) -> usize {
        self.passes
    }
}
