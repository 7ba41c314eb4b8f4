//! Copies batches from the loader to the device, ahead of their step where that helps.
//!
//! Where the device's memory is its own, the next batch is brought there while the device works
//! on a step that has been handed to it: the training thread has nothing else to do until the
//! loss can be read. A batch that isn't loaded yet is not waited for, and one that can't be
//! brought there ahead is brought when its step begins.

use std::cell::RefCell;

use burn::tensor::Device;
use surefoot::device::DeviceName;
use surefoot::fault::catch;

use crate::batch::{Batch, HostBatch};
use crate::loader::{Loaded, Loader};

/// A batch that is on a device already.
#[derive(Clone, Debug)]
pub struct Staged {
    /// Where it is.
    pub device: DeviceName,
    /// The whole batch.
    pub batch: Batch,
}

/// What a step is fed with.
#[derive(Clone, Copy)]
pub struct Feed<'a> {
    /// The batch.
    pub batch: &'a HostBatch,
    /// The stage, which has the batch on the device if it was in time.
    pub(crate) stage: Option<&'a Stage>,
}

impl<'a> From<&'a HostBatch> for Feed<'a> {
    fn from(batch: &'a HostBatch) -> Self {
        Self { batch, stage: None }
    }
}

/// A loader whose next batch is brought to the device ahead of its step.
pub(crate) struct Stage {
    loader: RefCell<Loader>,
    next: RefCell<Option<Loaded>>,
    /// The batch that is trained on, and the next one.
    here: RefCell<Option<Staged>>,
    ahead: RefCell<Option<Staged>>,
    staging: bool,
}

impl Stage {
    pub(crate) fn new(loader: Loader, staging: bool) -> Self {
        Self {
            loader: RefCell::new(loader),
            next: RefCell::default(),
            here: RefCell::default(),
            ahead: RefCell::default(),
            staging,
        }
    }

    /// The next batch; what was brought ahead is ready for its step.
    pub(crate) fn next(&self) -> Option<Loaded> {
        *self.here.borrow_mut() = self.ahead.borrow_mut().take();
        let ready = self.next.borrow_mut().take();
        ready.or_else(|| self.loader.borrow_mut().next())
    }

    pub(crate) fn set_prefetch(&self, prefetch: usize) {
        self.loader.borrow_mut().set_prefetch(prefetch);
    }

    /// The batch that is trained on, if it is on this device. Only once: a step that has failed
    /// with it brings it there anew.
    pub(crate) fn take(&self, device: DeviceName) -> Option<Batch> {
        let staged = self.here.borrow_mut().take()?;
        (staged.device == device).then_some(staged.batch)
    }

    /// Brings the next batch to a device that is at work.
    pub(crate) fn look_ahead(&self, name: DeviceName, device: &Device) {
        let mut ahead = self.ahead.borrow_mut();
        if !self.staging || ahead.is_some() {
            return;
        }
        let mut next = self.next.borrow_mut();
        if next.is_none() {
            *next = self.loader.borrow_mut().next_if_ready();
        }
        if let Some(Ok(batch)) = &*next
            && batch.samples() > 0
            && let Ok(Ok(batch)) = catch(|| batch.on_device(0..batch.samples(), device))
        {
            *ahead = Some(Staged { device: name, batch });
        }
    }
}
