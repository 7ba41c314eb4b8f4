//! The matrices of a model at run time: those that stay, and those that pass through.
//!
//! Weights follow their block: a product on another device than the weights are on brings them
//! there from their file, and those that stay then stay there.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, Tensor};
use surefoot::recover::Point;
use surefoot::recover::drill::{Handle, point};

use super::expert_cache::ExpertCache;
use super::meter::Meter;
use super::plan::Residency;
use super::prefetch::{BlockDevice, BlockDevices, Prefetcher};
use crate::arch::blueprint::Layout;
use crate::error::ModelError;
use crate::folder::header::WeightDtype;
use crate::run::part_devices::PartDevices;
use crate::run::tuning::Tuning;
use crate::weights::binding::Matrix;
use crate::weights::constant_piece::ConstantPiece;
use crate::weights::format::{Format, is_host};
use crate::weights::piece::Piece;
use crate::weights::weight::{StreamedWeight, Weight};

/// A piece: held, or the number of its turn among those that pass through.
#[expect(clippy::large_enum_variant, reason = "a handful a matrix; a box would cost every product")]
enum Slot {
    Resident(Mutex<Weight>),
    Streamed(usize),
    /// An expert's, loaded when a token needs it.
    OnDemand,
}

struct StoredPiece {
    piece: Piece,
    slot: Slot,
}

struct StoredMatrix {
    name: String,
    layout: Layout,
    parts: Vec<StoredPiece>,
}

/// All matrices, in the order in which a pass uses them.
pub(crate) struct Store {
    matrices: Vec<StoredMatrix>,
    /// The pieces that pass through, in the same order.
    passing: Arc<[Piece]>,
    window: u64,
    experts: ExpertCache,
    devices: BlockDevices,
    pub(crate) compute: WeightDtype,
    pub(crate) meter: Arc<Meter>,
}

impl Store {
    /// Loads what stays, each part on its device.
    pub(crate) fn load(
        matrices: &[Matrix],
        residency: &Residency,
        parts_on: &PartDevices,
        compute: WeightDtype,
        meter: Arc<Meter>,
    ) -> Result<Self, ModelError> {
        let mut kept = Vec::with_capacity(matrices.len());
        let mut passing = Vec::new();
        let mut rooms: Vec<PoolRoom<'_>> = Vec::new();
        let drill = Handle::current();
        for (number, (matrix, cuts)) in matrices.iter().zip(&residency.cuts).enumerate() {
            let mut parts = Vec::with_capacity(cuts.len());
            let part = matrix.block.unwrap_or(usize::MAX);
            let device = parts_on.of(part);
            let known = rooms.iter().position(|room| room.device == device);
            let at = known.unwrap_or_else(|| {
                rooms.push(PoolRoom::new(device, compute, matrices, residency, parts_on));
                rooms.len() - 1
            });
            let room = &rooms[at];
            for cut in cuts {
                let piece = Piece::new(number, matrix, cut.rows.clone());
                let slot = if cut.on_demand {
                    Slot::OnDemand
                } else if cut.resident && room.has(&piece) {
                    let (loaded, cost) = parts_on.attributed(part, "loading weights", || {
                        piece.load(device, compute, None, &drill)
                    })?;
                    meter.loaded(&piece, cost);
                    Slot::Resident(Mutex::new(loaded.weight))
                } else {
                    passing.push(piece.clone());
                    Slot::Streamed(passing.len() - 1)
                };
                parts.push(StoredPiece { piece, slot });
            }
            let name = matrix.stored.name.clone();
            kept.push(StoredMatrix { name, layout: matrix.layout, parts });
        }
        let blocks = matrices.iter().filter_map(|matrix| matrix.block).max().map_or(0, |b| b + 1);
        Ok(Self {
            matrices: kept,
            passing: passing.into(),
            window: residency.window,
            experts: ExpertCache::new(residency.expert_cache),
            devices: (0..blocks)
                .chain([usize::MAX])
                .map(|part| BlockDevice::new(parts_on.of(part)))
                .collect(),
            compute,
            meter,
        })
    }

    /// Opens the matrices for `passes` passes; what streams starts coming in.
    pub(crate) fn open(&self, passes: usize) -> Session<'_> {
        let ahead = (!self.passing.is_empty())
            .then(|| ReadAhead { prefetcher: Some(self.prefetch(passes)), passes_left: passes });
        Session { store: self, ahead, turn: 0, adapters: Vec::new() }
    }

    fn prefetch(&self, passes: usize) -> Prefetcher {
        Prefetcher::start(
            Arc::clone(&self.passing),
            passes,
            self.window,
            Arc::clone(&self.devices),
            self.compute,
            Arc::clone(&self.meter),
        )
    }

    /// Opens the matrices for passes that use them in any order, forwards and backwards: what streams is
    /// brought in when it is needed, and let go after each product.
    pub(crate) fn open_on_demand(&self) -> Session<'_> {
        Session { store: self, ahead: None, turn: 0, adapters: Vec::new() }
    }

    /// Brings in all that passes through, `passes` times, and lets it go.
    pub(crate) fn read_through(&self, passes: usize) -> Result<(), ModelError> {
        let mut session = self.open(passes);
        for _ in 0..passes {
            session.begin_pass();
            for (turn, piece) in self.passing.iter().enumerate() {
                session.take(piece.matrix, &piece.rows, turn)?;
            }
        }
        Ok(())
    }

    /// Brings a piece in out of its turn.
    fn fetch(&self, piece: &Piece, device: &Device) -> Result<Weight, ModelError> {
        let (loaded, cost) = piece.load(device, self.compute, None, &Handle::current())?;
        self.meter.loaded(piece, cost);
        Ok(loaded.weight)
    }
}

/// Room for what stays on a device. A pool takes more than what is put into it, so when some is
/// streamed anyway it is measured, and what no longer fits is streamed too.
struct PoolRoom<'d> {
    device: &'d Device,
    format: Format,
    before: u64,
    /// None where nothing has to be measured.
    limit: Option<u64>,
}

impl<'d> PoolRoom<'d> {
    fn new(
        device: &'d Device,
        compute: WeightDtype,
        all: &[Matrix],
        residency: &Residency,
        parts_on: &PartDevices,
    ) -> Self {
        let format = Format::new(device, compute);
        let is_here = |matrix: &Matrix| parts_on.of(matrix.block.unwrap_or(usize::MAX)) == device;
        let here = all.iter().zip(&residency.cuts).filter(|(matrix, _)| is_here(matrix));
        let resident = here.map(|(matrix, cuts)| {
            let rows: usize =
                cuts.iter().filter(|cut| cut.resident).map(|cut| cut.rows.len()).sum();
            rows as u64 * format.row_bytes(matrix)
        });
        let measured = !format.is_on_host() && residency.window > 0;
        let limit = measured.then(|| resident.sum());
        Self { device, format, before: held(device), limit }
    }

    fn has(&self, piece: &Piece) -> bool {
        let Some(limit) = self.limit else { return true };
        let used = held(self.device).saturating_sub(self.before);
        used + piece.kept_bytes(&self.format) <= limit
    }
}

/// What a device's pool holds.
fn held(device: &Device) -> u64 {
    device.memory_pool_usage().map_or(0, |usage| usage.bytes_reserved)
}

/// What a session knows of the thread that reads ahead for it.
struct ReadAhead {
    /// None after a piece could not be read: the rest of that pass is read as it is needed.
    prefetcher: Option<Prefetcher>,
    /// The passes that were announced and have not taken all of their pieces.
    passes_left: usize,
}

/// The matrices during some passes. They must be applied in order; those of a block may be
/// applied again if the block has to be run again.
pub(crate) struct Session<'a> {
    store: &'a Store,
    /// None where nothing streams, or where pieces are read as they are needed.
    ahead: Option<ReadAhead>,
    /// How many of the pieces that pass through were taken in this pass.
    turn: usize,
    /// The adapters of the first rows of each pass.
    adapters: Vec<Option<usize>>,
}

impl Session<'_> {
    /// The numbers of the adapters that the first rows of each pass run with; the other rows run without one.
    pub(crate) fn adapters(&self) -> &[Option<usize>] {
        &self.adapters
    }

    pub(crate) fn set_adapters(&mut self, rows: Vec<Option<usize>>) {
        self.adapters = rows;
    }

    /// The next matrix is the first one again. A pass that a fault ended half-way has left the
    /// prefetcher in the middle of the order of pieces, so that is started anew; so is one that has
    /// failed, or that has delivered all the passes it was started for.
    pub(crate) fn begin_pass(&mut self) {
        let Some(ahead) = &mut self.ahead else { return };
        let is_whole = self.turn == self.store.passing.len();
        if is_whole {
            ahead.passes_left = ahead.passes_left.saturating_sub(1);
        }
        let in_step = self.turn == 0 || (is_whole && ahead.passes_left > 0);
        if !in_step || ahead.prefetcher.is_none() {
            // The old one's places in memory are given back first.
            ahead.prefetcher = None;
            ahead.passes_left = ahead.passes_left.max(1);
            ahead.prefetcher = Some(self.store.prefetch(ahead.passes_left));
        }
        self.turn = 0;
    }

    fn prefetcher(&mut self) -> Option<&mut Prefetcher> {
        self.ahead.as_mut()?.prefetcher.as_mut()
    }

    /// A matrix that is on `device` in one piece, as a tensor whose rows are outputs.
    pub(crate) fn resident(&self, matrix: usize, device: &Device) -> Option<Tensor<2>> {
        let StoredMatrix { layout: Layout::OutIn, parts, .. } = &self.store.matrices[matrix] else {
            return None;
        };
        let [StoredPiece { slot: Slot::Resident(weight), .. }] = &parts[..] else { return None };
        match &*weight.lock().unwrap_or_else(PoisonError::into_inner) {
            Weight::Tensor(tensor) if tensor.device() == *device => Some(tensor.clone()),
            _ => None,
        }
    }

    /// All matrices, if each is on `device` in one piece.
    pub(crate) fn all_resident(&self, device: &Device) -> Option<Vec<Tensor<2>>> {
        (0..self.store.matrices.len()).map(|matrix| self.resident(matrix, device)).collect()
    }

    /// [`Self::apply`] with what `tuning` adds or puts in the matrix's place.
    pub(crate) fn apply_tuned(
        &mut self,
        matrix: usize,
        tuning: Option<&Tuning>,
        x: Tensor<2>,
    ) -> Result<Tensor<2>, ModelError> {
        let Some(tuning) = tuning else { return self.apply(matrix, x) };
        let StoredMatrix { name, layout, .. } = &self.store.matrices[matrix];
        if let Some(y) = tuning.projection(name, *layout, &x) {
            return Ok(y);
        }
        let addition = tuning.addition(name, &x);
        let y = self.apply(matrix, x)?;
        Ok(match addition {
            Some(addition) => y + addition,
            None => y,
        })
    }

    /// `[inputs, columns]` → `[outputs, columns]`.
    pub(crate) fn apply(&mut self, matrix: usize, x: Tensor<2>) -> Result<Tensor<2>, ModelError> {
        let mut outputs = Vec::new();
        let mut sum: Option<Tensor<2>> = None;
        self.apply_parts(matrix, x, |layout, _, y| {
            match layout {
                Layout::OutIn => outputs.push(y),
                Layout::InOut => {
                    sum = Some(match sum.take() {
                        Some(sum) => sum + y,
                        None => y,
                    });
                }
            }
            Ok(())
        })?;
        match (sum, outputs.pop()) {
            (Some(sum), _) => Ok(sum),
            (None, Some(only)) if outputs.is_empty() => Ok(only),
            (None, Some(last)) => {
                outputs.push(last);
                Ok(Tensor::cat(outputs, 0))
            }
            (None, None) => Err(ModelError::request("the model has an empty matrix")),
        }
    }

    /// Gives the result of each part with the rows of the matrix that made it: to be put side
    /// by side, or summed where the rows are inputs.
    pub(crate) fn apply_parts(
        &mut self,
        matrix: usize,
        x: Tensor<2>,
        mut each: impl FnMut(Layout, &Range<usize>, Tensor<2>) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let kept = &self.store.matrices[matrix];
        let device = x.device().without_autodiff();
        // Products whose gradients are wanted keep what they need for them themselves.
        let constant = x.is_autodiff() && is_host(&device);
        let format = Format::new(&device, self.store.compute);
        let x = format.operand(x);
        for StoredPiece { piece, slot } in &kept.parts {
            point(Point::Operation);
            let x = match kept.layout {
                Layout::OutIn => x.clone(),
                Layout::InOut => x.clone().narrow(0, piece.rows.start, piece.rows.len()),
            };
            let y = match slot {
                Slot::Resident(weight) => {
                    let mut held = weight.lock().unwrap_or_else(PoisonError::into_inner);
                    if held.device() != device {
                        *held = self.store.fetch(piece, &device)?;
                    }
                    let weight = held.clone();
                    drop(held);
                    match constant {
                        true => ConstantPiece::resident(weight, kept.layout).product(x),
                        false => weight.times(kept.layout, x),
                    }
                }
                Slot::Streamed(_) if constant => {
                    let compute = self.store.compute;
                    ConstantPiece::streamed(piece.clone(), compute, kept.layout).product(x)
                }
                Slot::OnDemand => {
                    let store = self.store;
                    let bytes = piece.kept_bytes(&format);
                    let load = || store.fetch(piece, &device);
                    let weight = store.experts.get(matrix, &device, bytes, &store.meter, load)?;
                    weight.times(kept.layout, x)
                }
                // It has passed already, or the thread that reads ahead has failed.
                Slot::Streamed(turn) if *turn < self.turn || self.prefetcher().is_none() => {
                    self.store.fetch(piece, &device)?.times(kept.layout, x)
                }
                Slot::Streamed(turn) => {
                    let mut passing = self.take(matrix, &piece.rows, *turn)?;
                    if passing.weight.device() != device {
                        // Next time it comes to where it is used.
                        let devices = &self.store.devices;
                        devices[piece.block.unwrap_or(devices.len() - 1)].set(&device);
                        passing.weight = self.store.fetch(piece, &device)?;
                    }
                    passing.weight.times(kept.layout, x)
                }
            };
            each(kept.layout, &piece.rows, format.result(y))?;
        }
        Ok(())
    }

    /// Takes the next piece from the prefetcher.
    fn take(
        &mut self,
        matrix: usize,
        rows: &Range<usize>,
        turn: usize,
    ) -> Result<StreamedWeight, ModelError> {
        let Some(prefetcher) = self.prefetcher() else {
            let name = &self.store.matrices[matrix].name;
            return Err(ModelError::request(format!("'{name}' is not being fed")));
        };
        let delivered = prefetcher.next(matrix, rows);
        if delivered.is_err() {
            // If this is tried again, pieces are read as they are needed.
            self.ahead = self.ahead.take().map(|ahead| ReadAhead { prefetcher: None, ..ahead });
        }
        let passing = delivered?;
        self.turn = turn + 1;
        Ok(passing)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use burn::tensor::TensorData;

    use super::*;
    use crate::Opened;
    use crate::generate::tokens;
    use crate::stream::needs::Work;

    /// Runs `passes` with a session for two passes in which everything streams; the check that it is given
    /// applies a matrix and compares the result with what a model gives that is all in memory.
    fn with_streamed(
        passes: impl FnOnce(&mut Session<'_>, usize, &mut dyn FnMut(&mut Session<'_>, usize)),
    ) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
        let opened = Opened::new(&folder).unwrap();
        let work = Work { batch: 1, prompt: 4, new_tokens: 0, want: tokens::WANT };
        let load = |share| {
            let plan = opened.plan_with_share(&work, share);
            let matrices = &opened.binding.matrices;
            let parts = PartDevices::single(&Device::flex(), opened.blueprint.blocks.len());
            Store::load(matrices, &plan.residency, &parts, WeightDtype::F32, Arc::default())
                .unwrap()
        };
        let (resident, streamed) = (load(1.0), load(0.0));
        let (mut plain, mut session) = (resident.open(1), streamed.open(2));
        let mut same = |session: &mut Session<'_>, matrix: usize| {
            let inputs = opened.binding.matrices[matrix].cols();
            let numbers: Vec<f32> = (0..inputs).map(|at| at as f32 * 0.01 - 0.3).collect();
            let x = Tensor::<2>::from_data(TensorData::new(numbers, [inputs, 1]), &Device::flex());
            let expected = plain.apply(matrix, x.clone()).unwrap().into_data();
            assert_eq!(session.apply(matrix, x).unwrap().into_data(), expected, "{matrix}");
        };
        passes(&mut session, opened.binding.matrices.len(), &mut same);
    }

    /// A block that fails half-way is run again from its start, but the prefetcher has gone on.
    #[test]
    fn matrices_that_already_passed_can_be_applied_again() {
        with_streamed(|session, matrices, same| {
            for _ in 0..2 {
                session.begin_pass();
                for matrix in (0..3).chain(0..matrices) {
                    same(session, matrix);
                }
                // Even the last one.
                same(session, matrices - 1);
            }
        });
    }

    /// A pass that a fault ends is run again from its start, as often as it takes: neither a prefetcher in
    /// the middle of the order nor one that has delivered all its passes fails the next attempt.
    #[test]
    fn a_pass_that_was_not_ended_can_be_begun_again() {
        with_streamed(|session, matrices, same| {
            for taken in [3, matrices - 1, 0, matrices, 1, matrices, matrices, matrices] {
                session.begin_pass();
                for matrix in 0..taken {
                    same(session, matrix);
                }
            }
            assert!(session.prefetcher().is_some(), "the passes were not read ahead");
        });
    }
}
