//! What will be where, before anything is loaded.
//!
//! The budget is what the whole process may use. What is needed whatever the plan comes first:
//! the process as it stands, norms and biases, the cache, the activations. If all matrices fit
//! into the rest they stay. If not, matrices are cut into pieces of whole rows; some room is
//! kept for pieces that pass through, and the rest of it is filled with pieces that stay,
//! spread evenly over the model so that the disk works while they are computed with.

use std::ops::Range;

use serde::Serialize;

use super::needs::{Needs, Work};
use crate::arch::blueprint::Blueprint;
use crate::error::ModelError;
use crate::weights::binding::{Binding, Matrix};
use crate::weights::format::Format;

/// Pieces that stream are at most this large, and no smaller than [`SMALL_PIECE`] or a row.
const LARGE_PIECE: u64 = 32 << 20;
const SMALL_PIECE: u64 = 512 << 10;
/// Pieces in memory at once: one that is used, one that waits, one that comes in.
const IN_FLIGHT: u64 = 3;

/// A pool was seen to hold this many times what passes through it: memory goes from the stream
/// that used it to the one that uploads only when both are done, and pages are not filled.
const POOL_HOLDS: u64 = 3;

/// The pieces that there must be room for, the copies of the one that comes in among them.
fn in_flight(format: &Format) -> u64 {
    match format.is_on_host() {
        true => IN_FLIGHT,
        false => POOL_HOLDS * IN_FLIGHT + format.copies_on_the_way(),
    }
}

/// Some rows of a matrix, and whether they stay.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) rows: Range<usize>,
    pub(crate) resident: bool,
}

/// Which rows of which matrices stay, and how many bytes of the others may be in memory at once.
#[derive(Clone, Debug)]
pub(crate) struct Residency {
    pub(crate) cuts: Vec<Vec<Cut>>,
    pub(crate) window: u64,
    /// Bytes of copies on the way to the device.
    on_the_way: u64,
}

impl Residency {
    /// Everything stays.
    pub(crate) fn all(matrices: &[Matrix], format: &Format) -> Self {
        let whole = |matrix: &Matrix| vec![Cut { rows: 0..matrix.rows(), resident: true }];
        let on_the_way = all_resident(matrices, format) - total(matrices, format);
        Self { cuts: matrices.iter().map(whole).collect(), window: 0, on_the_way }
    }

    /// Cuts all matrices into pieces of about `piece` bytes and lets `room` bytes of them stay.
    fn within(matrices: &[Matrix], format: &Format, piece: u64, room: u64) -> Self {
        let sizes: Vec<u64> = matrices.iter().map(|matrix| format.row_bytes(matrix)).collect();
        let mut cuts: Vec<Vec<Cut>> =
            matrices.iter().zip(&sizes).map(|(matrix, row)| cut(matrix, *row, piece)).collect();
        let total = total(matrices, format);
        let (mut seen, mut kept) = (0_u64, 0_u64);
        // First evenly: a piece stays if what stays so far lags behind its share.
        for (cuts, row) in cuts.iter_mut().zip(&sizes) {
            for cut in cuts {
                let size = cut.rows.len() as u64 * row;
                seen += size;
                let share = (u128::from(room) * u128::from(seen) / u128::from(total.max(1))) as u64;
                if kept + size <= share.min(room) {
                    cut.resident = true;
                    kept += size;
                }
            }
        }
        // Then whatever still fits.
        for (cuts, row) in cuts.iter_mut().zip(&sizes) {
            for cut in cuts.iter_mut().filter(|cut| !cut.resident) {
                let size = cut.rows.len() as u64 * row;
                if kept + size <= room {
                    cut.resident = true;
                    kept += size;
                }
            }
        }
        // Where pieces are copied on their way, larger ones would need more room for that.
        if format.is_on_host() {
            cuts.iter_mut().for_each(join_residents);
        }
        let on_the_way = (in_flight(format) - IN_FLIGHT) * piece;
        Self { cuts, window: IN_FLIGHT * piece, on_the_way }
    }
}

fn cut(matrix: &Matrix, row: u64, piece: u64) -> Vec<Cut> {
    let rows = matrix.rows();
    let most = usize::try_from((piece / row.max(1)).max(1)).unwrap_or(usize::MAX).min(rows.max(1));
    // Equal cuts: a short rest would cost as much as a whole one.
    let step = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
    (0..rows)
        .step_by(step)
        .map(|start| Cut { rows: start..(start + step).min(rows), resident: false })
        .collect()
}

/// Neighbouring pieces that stay are one piece: fewer, larger products.
fn join_residents(cuts: &mut Vec<Cut>) {
    cuts.dedup_by(|next, first| {
        let join = next.resident && first.resident && first.rows.end == next.rows.start;
        if join {
            first.rows.end = next.rows.end;
        }
        join
    });
}

/// Whether a part of the model stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// All of it stays.
    Resident,
    /// Some of it stays.
    Mixed,
    /// All of it is streamed.
    Streamed,
}

/// A block or the head, and where its matrices will be.
#[derive(Clone, Debug, Serialize)]
pub struct PartPlan {
    /// `block 0` and so on, or `head`.
    pub name: String,
    /// Where it will be.
    pub placement: Placement,
    /// Bytes of its matrices in memory.
    pub bytes: u64,
    /// Those that stay.
    pub resident_bytes: u64,
}

/// What will be where, and what it needs.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Whether the work can be done in the budget.
    pub fits: bool,
    /// `resident`, `mixed` or `streamed`.
    pub mode: Placement,
    /// What the process may use; without a budget everything stays.
    pub budget_bytes: Option<u64>,
    /// The highest number of bytes the process will use.
    pub peak_bytes: u64,
    /// The smallest budget in which the work could be done.
    pub least_bytes: u64,
    /// The smallest budget in which nothing would be streamed.
    pub all_resident_bytes: u64,
    /// What the peak is made of.
    #[serde(flatten)]
    pub needs: Needs,
    /// Bytes of matrices that stay in memory.
    pub resident_bytes: u64,
    /// Bytes of memory for matrices that pass through.
    pub window_bytes: u64,
    /// Bytes that are read from the files in every pass.
    pub streamed_file_bytes: u64,
    /// The parts in order.
    pub parts: Vec<PartPlan>,
    #[serde(skip)]
    pub(crate) residency: Residency,
}

impl Plan {
    /// Plans `work` for a model in `budget` bytes, in a process that holds `baseline` without it.
    pub fn new(
        blueprint: &Blueprint,
        binding: &Binding,
        format: &Format,
        baseline: u64,
        work: &Work,
        budget: Option<u64>,
    ) -> Self {
        let matrices = &binding.matrices;
        let needs = Needs::new(blueprint, binding, format, baseline, work);
        let smallest = smallest_piece(matrices, format);
        let spare = budget.map_or(u64::MAX, |budget| budget.saturating_sub(needs.total()));
        let residency = if spare >= all_resident(matrices, format) {
            Residency::all(matrices, format)
        } else {
            let piece = spare / (4 * in_flight(format));
            let piece = piece.clamp(smallest, LARGE_PIECE.max(smallest));
            let room = spare.saturating_sub(in_flight(format) * piece);
            Residency::within(matrices, format, piece, room)
        };
        Self::of(blueprint, binding, format, needs, budget, residency)
    }

    /// Plans `work` so that a `share` of the matrices stays, from 0 to 1, whatever it needs.
    pub fn with_share(
        blueprint: &Blueprint,
        binding: &Binding,
        format: &Format,
        baseline: u64,
        work: &Work,
        share: f64,
    ) -> Self {
        let matrices = &binding.matrices;
        let needs = Needs::new(blueprint, binding, format, baseline, work);
        let room = (total(matrices, format) as f64 * share) as u64;
        let residency = if share >= 1.0 {
            Residency::all(matrices, format)
        } else {
            let piece = (room / 12).clamp(smallest_piece(matrices, format), LARGE_PIECE);
            Residency::within(matrices, format, piece, room)
        };
        Self::of(blueprint, binding, format, needs, None, residency)
    }

    fn of(
        blueprint: &Blueprint,
        binding: &Binding,
        format: &Format,
        needs: Needs,
        budget: Option<u64>,
        residency: Residency,
    ) -> Self {
        let matrices = &binding.matrices;
        let (all, fixed) = (total(matrices, format), needs.total());
        let all_resident_bytes = fixed + all;
        let least_bytes =
            all_resident_bytes.min(fixed + IN_FLIGHT * smallest_piece(matrices, format));
        let parts = parts(blueprint, matrices, format, &residency);
        let resident_bytes = parts.iter().map(|part| part.resident_bytes).sum();
        let window_bytes = residency.window.min(all - resident_bytes) + residency.on_the_way;
        Self {
            fits: budget.is_none_or(|budget| least_bytes <= budget),
            mode: placement(resident_bytes, all),
            budget_bytes: budget,
            peak_bytes: fixed + resident_bytes + window_bytes,
            least_bytes,
            all_resident_bytes,
            needs,
            resident_bytes,
            window_bytes,
            streamed_file_bytes: streamed_file_bytes(matrices, &residency),
            parts,
            residency,
        }
    }

    /// The plan, or why there is none.
    pub fn checked(self) -> Result<Self, ModelError> {
        match self.budget_bytes {
            Some(allowed) if !self.fits => {
                Err(ModelError::Memory { needed: self.least_bytes, allowed })
            }
            _ => Ok(self),
        }
    }
}

fn total(matrices: &[Matrix], format: &Format) -> u64 {
    matrices.iter().map(|matrix| format.bytes(matrix)).sum()
}

/// The bytes of all matrices where all stay. A device's pool has pages that are not filled.
fn all_resident(matrices: &[Matrix], format: &Format) -> u64 {
    let all = total(matrices, format);
    let unfilled = if format.is_on_host() { 0 } else { all / 4 };
    all + unfilled + on_the_way_of_all(matrices, format)
}

/// The copies of the largest matrix while it comes in whole.
fn on_the_way_of_all(matrices: &[Matrix], format: &Format) -> u64 {
    let largest = matrices.iter().map(|matrix| format.bytes(matrix)).max().unwrap_or(0);
    format.copies_on_the_way() * largest
}

fn smallest_piece(matrices: &[Matrix], format: &Format) -> u64 {
    let row = matrices.iter().map(|matrix| format.row_bytes(matrix)).max().unwrap_or(0);
    let largest = matrices.iter().map(|matrix| format.bytes(matrix)).max().unwrap_or(0);
    SMALL_PIECE.max(row).min(largest)
}

fn placement(resident: u64, all: u64) -> Placement {
    match resident {
        resident if resident == all => Placement::Resident,
        0 => Placement::Streamed,
        _ => Placement::Mixed,
    }
}

fn parts(
    blueprint: &Blueprint,
    matrices: &[Matrix],
    format: &Format,
    residency: &Residency,
) -> Vec<PartPlan> {
    let mut sums = vec![(0_u64, 0_u64); blueprint.blocks.len() + 1];
    for (matrix, cuts) in matrices.iter().zip(&residency.cuts) {
        let (bytes, resident) = &mut sums[matrix.block.unwrap_or(blueprint.blocks.len())];
        let rows: usize = cuts.iter().filter(|cut| cut.resident).map(|cut| cut.rows.len()).sum();
        *bytes += format.bytes(matrix);
        *resident += rows as u64 * format.row_bytes(matrix);
    }
    sums.into_iter()
        .enumerate()
        .filter(|(_, (bytes, _))| *bytes > 0)
        .map(|(number, (bytes, resident_bytes))| PartPlan {
            name: if number < blueprint.blocks.len() {
                format!("block {number}")
            } else {
                "head".to_owned()
            },
            placement: placement(resident_bytes, bytes),
            bytes,
            resident_bytes,
        })
        .collect()
}

fn streamed_file_bytes(matrices: &[Matrix], residency: &Residency) -> u64 {
    let streamed = |(matrix, cuts): (&Matrix, &Vec<Cut>)| -> u64 {
        let rows: usize = cuts.iter().filter(|cut| !cut.resident).map(|cut| cut.rows.len()).sum();
        (rows * matrix.cols() * matrix.dtype.size()) as u64
    };
    matrices.iter().zip(&residency.cuts).map(streamed).sum()
}
