//! The prefetcher: a thread that reads, converts and uploads the pieces that stream, in the
//! order in which a pass uses them, while earlier ones are being used.
//!
//! It runs ahead as far as the gate has room, over the end of a pass into the next one. A piece
//! holds its place in the gate until its tensor is gone, and the user of the feed holds no
//! piece while it waits for the next, so the two can't wait for each other.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use burn::tensor::{Device, Tensor};

use super::meter::Meter;
use crate::error::ModelError;
use crate::weights::gate::Gate;
use crate::weights::piece::Piece;

type Delivery = Result<(usize, Range<usize>, Tensor<2>), ModelError>;

/// How many pieces ahead of the one being read the disk is told of.
const AHEAD: usize = 3;

/// A running prefetcher. Dropping it stops the thread.
pub(crate) struct Feed {
    deliveries: Option<Receiver<Delivery>>,
    gate: Arc<Gate>,
    thread: Option<JoinHandle<()>>,
    meter: Arc<Meter>,
}

impl Feed {
    pub(crate) fn start(
        pieces: Arc<[Piece]>,
        passes: usize,
        window: u64,
        device: Device,
        meter: Arc<Meter>,
    ) -> Self {
        let gate = Gate::new(window);
        let (sender, deliveries) = channel();
        let thread = {
            let (gate, meter) = (Arc::clone(&gate), Arc::clone(&meter));
            std::thread::spawn(move || {
                let order = (0..passes).flat_map(|_| 0..pieces.len());
                for at in order {
                    let piece = &pieces[at];
                    for next in 1..=AHEAD.min(pieces.len() - 1) {
                        pieces[(at + next) % pieces.len()].announce();
                    }
                    let Some(permit) = gate.enter(piece.f32_bytes()) else { return };
                    let delivery = piece.load(&device, Some(permit)).map(|(tensor, cost)| {
                        meter.loaded(piece, cost);
                        (piece.matrix, piece.rows.clone(), tensor)
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
    ) -> Result<Tensor<2>, ModelError> {
        let start = Instant::now();
        let delivery = self.deliveries.as_ref().and_then(|deliveries| deliveries.recv().ok());
        self.meter.waited(start.elapsed());
        match delivery {
            Some(Ok((number, part, tensor))) if number == matrix && part == *rows => Ok(tensor),
            Some(Ok((number, ..))) => Err(ModelError::Device {
                at: format!("matrix {matrix}"),
                message: format!("matrix {number} was delivered instead"),
            }),
            Some(Err(error)) => Err(error),
            None => Err(ModelError::Device {
                at: format!("matrix {matrix}"),
                message: "the prefetcher stopped".to_owned(),
            }),
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.gate.close();
        drop(self.deliveries.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it was already seen as a missing delivery.
            let _ = thread.join();
        }
    }
}
