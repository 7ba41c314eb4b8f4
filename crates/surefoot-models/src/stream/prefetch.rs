//! The prefetcher: a thread that reads, converts and uploads the pieces that stream, in the
//! order in which a pass uses them, while earlier ones are being used.
//!
//! It runs ahead as far as the gate has room, over the end of a pass into the next one. A piece
//! holds its place in the gate until its tensor is gone, and the user of the prefetcher holds no
//! piece while it waits for the next, so the two can't wait for each other.

use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use burn::tensor::Device;
use surefoot::fault::{catch, from_panic};
use surefoot::recover::drill::Handle;
use surefoot::{Fault, FaultKind};

use super::meter::Meter;
use crate::error::ModelError;
use crate::folder::header::WeightDtype;
use crate::weights::format::Format;
use crate::weights::gate::Gate;
use crate::weights::piece::Piece;
use crate::weights::weight::StreamedWeight;

type Delivery = Result<(usize, Range<usize>, StreamedWeight), ModelError>;

/// How many pieces ahead of the one being read the disk is told of.
const AHEAD: usize = 3;

/// Where the pieces of a block go; the last one is the head's.
pub(crate) type BlockDevices = Arc<[BlockDevice]>;

/// The device that a block runs on.
#[derive(Debug)]
pub(crate) struct BlockDevice(Mutex<Device>);

impl BlockDevice {
    pub(crate) fn new(device: &Device) -> Self {
        Self(Mutex::new(device.clone()))
    }

    pub(crate) fn get(&self) -> Device {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, device: &Device) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = device.clone();
    }
}

/// A running prefetcher. Dropping it stops the thread.
pub(crate) struct Prefetcher {
    deliveries: Option<Receiver<Delivery>>,
    gate: Arc<Gate>,
    thread: Option<JoinHandle<()>>,
    meter: Arc<Meter>,
}

impl Prefetcher {
    pub(crate) fn start(
        pieces: Arc<[Piece]>,
        passes: usize,
        window: u64,
        devices: BlockDevices,
        compute: WeightDtype,
        meter: Arc<Meter>,
    ) -> Self {
        let gate = Gate::new(window);
        let (sender, deliveries) = channel();
        let thread = {
            let (gate, meter) = (Arc::clone(&gate), Arc::clone(&meter));
            // What this thread reads, it reads for the work that started it.
            let drill = Handle::current();
            std::thread::spawn(move || {
                for first in pieces.iter().skip(1).take(AHEAD - 1) {
                    first.announce();
                }
                let order = (0..passes).flat_map(|_| 0..pieces.len());
                for at in order {
                    let piece = &pieces[at];
                    pieces[(at + AHEAD) % pieces.len()].announce();
                    let device_of_block = &devices[piece.block.unwrap_or(devices.len() - 1)];
                    let device = device_of_block.get();
                    let bytes = piece.kept_bytes(&Format::new(&device, compute));
                    let Some(permit) = gate.enter(bytes) else { return };
                    let loaded = catch(|| piece.load(&device, compute, Some(permit), &drill));
                    // A device that panics says why; that is what the pass fails of.
                    let loaded = loaded.unwrap_or_else(|panic| {
                        let at = format!("loading matrix {}", piece.matrix);
                        Err(from_panic(&at, &panic).into())
                    });
                    let delivery = loaded.map(|(weight, cost)| {
                        meter.loaded(piece, cost);
                        (piece.matrix, piece.rows.clone(), weight)
                    });
                    if sender.send(delivery).is_err() {
                        return;
                    }
                }
            })
        };
        Self { deliveries: Some(deliveries), gate, thread: Some(thread), meter }
    }

    /// The piece that comes next, which must be the one asked for.
    pub(crate) fn next(
        &mut self,
        matrix: usize,
        rows: &Range<usize>,
    ) -> Result<StreamedWeight, ModelError> {
        let start = Instant::now();
        let delivery = self.deliveries.as_ref().and_then(|deliveries| deliveries.recv().ok());
        self.meter.waited(start.elapsed());
        match delivery {
            Some(Ok((number, part, weight))) if number == matrix && part == *rows => Ok(weight),
            Some(Ok((number, ..))) => {
                Err(undelivered(matrix, format!("matrix {number} was delivered instead")))
            }
            Some(Err(error)) => Err(error),
            None => Err(undelivered(matrix, "the thread that reads ahead has ended".to_owned())),
        }
    }
}

/// A defect of the program, not of a device.
fn undelivered(matrix: usize, why: String) -> ModelError {
    Fault::new(FaultKind::NotDeviceRelated, format!("loading matrix {matrix}"), why).into()
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.gate.close();
        drop(self.deliveries.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it was already seen as a missing delivery.
            let _ = thread.join();
        }
    }
}
