//! The model, wherever it is: loaded once for each place it has to be in, and moved when the
//! guard says that work goes on elsewhere.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use surefoot::device::DeviceName;
use surefoot::recover::{Rung, Step, Task};
use surefoot::{BoxError, Footing};
use surefoot_lanes::OnceMap;
use surefoot_models::{Model, ModelError, Opened, Rectangle};

use super::bucket;
use super::error::EngineError;
use super::shape::Shape;

/// Where a model is, and whether its weights stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    device: DeviceName,
    streaming: bool,
}

/// A model in a place.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) place: Place,
    /// Whether the device works behind the caller's back.
    pub(crate) asynchronous: bool,
}

impl Loaded {
    /// The least size of a pass over `count` sequences of `width` tokens. Where kernels are made
    /// for a shape, the same few are used again and again.
    pub(crate) fn least(&self, count: usize, width: usize, shape: &Shape) -> Rectangle {
        match self.asynchronous {
            true => bucket::rectangle(count, width, shape.pass_tokens.max(shape.sequences)),
            false => Rectangle::default(),
        }
    }
}

/// The model of one folder.
pub(crate) struct Resident {
    folder: PathBuf,
    shape: Shape,
    budget: Option<u64>,
    footing: Arc<Footing>,
    loaded: OnceMap<Place, Arc<Loaded>>,
    /// The place it was last asked for in: where the next work starts.
    place: Mutex<Option<Place>>,
}

impl Resident {
    pub(crate) fn new(
        folder: &Path,
        shape: Shape,
        budget: Option<u64>,
        footing: Arc<Footing>,
    ) -> Self {
        let folder = folder.to_owned();
        Self { folder, shape, budget, footing, loaded: OnceMap::new(), place: Mutex::new(None) }
    }

    /// Describes work with the model, which starts where the model is.
    pub(crate) fn task(&self, name: &'static str) -> Task<'_> {
        let task = self.footing.task(name).can(Rung::Stream);
        match self.device() {
            Some(device) => task.starting_on(device),
            None => task,
        }
    }

    /// The device it was last used on.
    pub(crate) fn device(&self) -> Option<DeviceName> {
        self.place().map(|place| place.device)
    }

    fn place(&self) -> Option<Place> {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads it ahead of the first request and does `work` with it.
    pub(crate) fn ahead(
        &self,
        name: &'static str,
        work: impl Fn(&Loaded) -> Result<(), ModelError>,
    ) -> Result<(), EngineError> {
        let mistake = Mutex::new(None);
        self.task(name).run(|step| {
            match self.on(step).and_then(|loaded| Ok(work(&loaded)?)) {
                Ok(()) => {}
                Err(NotLoaded::Model(error)) => {
                    *mistake.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
                Err(NotLoaded::Device(error)) => return Err(error),
            }
            Ok(())
        })?;
        match mistake.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// The model for one try of guarded work.
    pub(crate) fn on(&self, step: &Step<'_>) -> Result<Arc<Loaded>, NotLoaded> {
        let place = self.go_to(step.device_name(), step.is_streaming());
        // Gone before the next is loaded: both may not fit.
        self.loaded.forget_others(&place);
        let loaded = self.loaded.get_or_try_make(&place, || self.load_in(place, step))?;
        if self.place() == Some(place) {
            // Another thread may have loaded it where it was, while this one took it elsewhere.
            self.loaded.forget_others(&place);
        }
        Ok(loaded)
    }

    /// Where it is to be from now on, which other threads see at once: they should not load it
    /// again where it was.
    fn go_to(&self, device: DeviceName, streaming: bool) -> Place {
        let mut here = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        // Once streaming was needed on a device it stays needed.
        let streams = here.is_some_and(|place| place.device == device && place.streaming);
        *here.insert(Place { device, streaming: streaming || streams })
    }

    fn load_in(&self, place: Place, step: &Step<'_>) -> Result<Arc<Loaded>, NotLoaded> {
        let opened = Opened::new(&self.folder)?.on(step.device(), step.compute().into());
        let plan = if place.streaming {
            opened.plan_with_share(&self.shape.work(opened.blueprint.blocks.len()), 0.0)
        } else {
            self.shape.plan(&opened, self.budget)
        };
        let model = opened.load(&plan, step.device(), Arc::default())?;
        let asynchronous = place.device != DeviceName::CPU;
        Ok(Arc::new(Loaded { model, place, asynchronous }))
    }
}

/// Why there is no model to work with.
#[derive(Debug)]
pub(crate) enum NotLoaded {
    /// The folder is not as it should be.
    Model(ModelError),
    /// The device could not take it.
    Device(BoxError),
}

impl From<ModelError> for NotLoaded {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Device { .. } => Self::Device(device_error(error)),
            other => Self::Model(other),
        }
    }
}

impl From<NotLoaded> for BoxError {
    fn from(error: NotLoaded) -> Self {
        match error {
            NotLoaded::Model(error) => error.to_string().into(),
            NotLoaded::Device(error) => error,
        }
    }
}

/// The device's own words first, so that they are classified.
pub(crate) fn device_error(error: ModelError) -> BoxError {
    match error {
        ModelError::Device { at, message } => format!("{at}: {message}").into(),
        other => other.to_string().into(),
    }
}
