//! The part of a pretrained model that is not trained: shared by all clones of the module, and loaded once for the device
//! that it runs on.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Device, Tensor};
use surefoot::place::Autocast;
use surefoot_models::adapter::Target;
use surefoot_models::folder::header::WeightDtype;
use surefoot_models::stream::needs::Work;
use surefoot_models::{Logits, Want};
use surefoot_models::{Model, ModelError, Opened};

/// A model folder that was opened, and the model if it is loaded.
#[derive(Clone)]
pub struct Frozen(Arc<Inner>);

struct Inner {
    opened: Opened,
    /// The adapted projections, each with the scale of its pair.
    targets: Vec<(Target, f64)>,
    /// The names of the matrices and vectors that are trained themselves.
    matrices: Vec<String>,
    vectors: Vec<String>,
    /// The share of the matrices that stays in memory; the rest is read when it is needed.
    share: f64,
    /// The share of the inputs of low-rank pairs that is dropped in training.
    dropout: f64,
    loaded: Mutex<Option<Arc<Loaded>>>,
}

struct Loaded {
    device: Device,
    compute: WeightDtype,
    model: Model,
}

/// A loaded model, kept alive while it is used.
pub(super) struct InUse(Arc<Loaded>);

impl std::ops::Deref for InUse {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.0.model
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("folder", &self.0.opened.folder).finish_non_exhaustive()
    }
}

impl Frozen {
    pub(super) fn new(
        opened: Opened,
        targets: Vec<(Target, f64)>,
        matrices: Vec<String>,
        vectors: Vec<String>,
        share: f64,
        dropout: f64,
    ) -> Self {
        let loaded = Mutex::default();
        Self(Arc::new(Inner { opened, targets, matrices, vectors, share, dropout, loaded }))
    }

    /// The share of the inputs of low-rank pairs that is dropped in training.
    pub fn dropout(&self) -> f64 {
        self.0.dropout
    }

    /// The opened folder.
    pub fn opened(&self) -> &Opened {
        &self.0.opened
    }

    /// The adapted projections, each with the scale of its pair.
    pub fn targets(&self) -> &[(Target, f64)] {
        &self.0.targets
    }

    /// The names of the matrices that are trained themselves.
    pub fn matrices(&self) -> &[String] {
        &self.0.matrices
    }

    /// The names of the vectors that are trained themselves.
    pub fn vectors(&self) -> &[String] {
        &self.0.vectors
    }

    /// The share of the matrices that stays in memory.
    pub(super) fn share(&self) -> f64 {
        self.0.share
    }

    /// Whether gradients are wanted before the first block.
    pub(super) fn trains_embeddings(&self) -> bool {
        // Of the vectors only the whole model's are trained, the embeddings' norm among them; a tied head is the table.
        let table = &self.0.opened.tensors()[0].name;
        !self.0.vectors.is_empty() || self.0.matrices.contains(table)
    }

    /// The model on `device`, with products in the precision of `cast`. The one before is dropped first if it is another.
    pub(super) fn loaded(&self, device: &Device, cast: Autocast) -> Result<InUse, ModelError> {
        let device = device.clone().without_autodiff();
        let compute = match cast.heavy(Tensor::<1>::zeros([1], &device)).dtype() {
            DType::F16 => WeightDtype::F16,
            DType::BF16 => WeightDtype::Bf16,
            _ => WeightDtype::F32,
        };
        let mut kept = self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = &*kept
            && loaded.device == device
            && loaded.compute == compute
        {
            return Ok(InUse(Arc::clone(loaded)));
        }
        *kept = None;
        let opened = self.0.opened.clone().on(&device, compute);
        let want = Want { logits: Logits::None, hidden: false, last_hidden: false };
        let work = Work { batch: 1, prompt: 1, new_tokens: 0, want };
        let plan = opened.plan_with_share(&work, self.0.share);
        let model = opened.load(&plan, &device, Arc::default())?;
        let loaded = Arc::new(Loaded { device, compute, model });
        *kept = Some(Arc::clone(&loaded));
        Ok(InUse(loaded))
    }
}
