//! The memory plan: decides before loading which weights stay in memory and which are streamed.
//!
//! What is needed in any case comes first: the process as it stands, norms and biases, the cache,
//! the activations. If all matrices fit into the rest they stay. If not, matrices are cut into pieces
//! of whole rows; some room is kept for pieces that pass through, and the rest of it is filled with
//! pieces that stay, spread evenly over the model so that the disk works while they are computed with.
//!
//! On a device that shares the host's memory all of it counts together. On a device with memory of
//! its own the process and the copies of pieces on their way there are the host's, the rest is the
//! device's, and each has its own limit ([`MemoryLimits`]).

use std::ops::Range;

use serde::Serialize;

use super::device_map::DevicePlan;
use super::limits::{DeviceMemory, MemoryLimits};
use super::needs::{Needs, Work};
use crate::arch::blueprint::Blueprint;
use crate::error::ModelError;
use crate::weights::binding::{Binding, Matrix};
use crate::weights::format::{Format, bytes_of};

/// Pieces that stream are at most this large, and no smaller than [`SMALL_PIECE`] or a row.
const LARGE_PIECE: u64 = 32 << 20;
const SMALL_PIECE: u64 = 512 << 10;
/// Where little of the model has to stream, pieces are smaller, so that they take little room from what stays: all of
/// them at once take half of what does not fit, but pieces of this size are read as fast as larger ones.
const HANDY_PIECE: u64 = 4 << 20;
/// Pieces in memory at once: one that is used, one that waits, one that comes in.
const IN_FLIGHT: u64 = 3;

/// A pool was seen to hold this many times what passes through it: memory goes from the stream
/// that used it to the one that uploads only when both are done, and pages are not filled.
const POOL_HOLDS: u64 = 3;

/// The pieces that the device's memory must have room for.
fn pieces_on_device(format: &Format) -> u64 {
    if format.is_on_host() { IN_FLIGHT } else { POOL_HOLDS * IN_FLIGHT }
}

/// Some rows of a matrix, and whether they stay.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) rows: Range<usize>,
    pub(crate) resident: bool,
    /// An expert's matrix that is loaded when a token needs it.
    pub(crate) on_demand: bool,
}

/// Which rows of which matrices stay, and how many bytes of the others may be in memory at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Residency {
    pub(crate) cuts: Vec<Vec<Cut>>,
    pub(crate) window: u64,
    /// Bytes of experts' matrices that are kept for as long as there is no need for others.
    pub(crate) expert_cache: u64,
    /// Bytes of the expert's matrix that is used, beside those.
    expert_in_use: u64,
    /// Bytes that the device's pool holds beyond the pieces themselves.
    pool: u64,
    /// Bytes of copies in host memory on the way to the device.
    staging: u64,
}

impl Residency {
    /// Counts what another device's part needs as well; its cuts are not taken over.
    pub(super) fn add(&mut self, other: &Self) {
        self.window = self.window.max(other.window);
        self.expert_cache += other.expert_cache;
        self.expert_in_use = self.expert_in_use.max(other.expert_in_use);
        self.pool += other.pool;
        self.staging += other.staging;
    }

    /// Everything stays.
    pub(crate) fn all(matrices: &[Matrix], format: &Format) -> Self {
        let whole = |matrix: &Matrix| {
            vec![Cut { rows: 0..matrix.rows(), resident: true, on_demand: false }]
        };
        let (pool, staging) = (unfilled(matrices, format), staging_of_all(matrices, format));
        let cuts = matrices.iter().map(whole).collect();
        Self { cuts, window: 0, expert_cache: 0, expert_in_use: 0, pool, staging }
    }

    /// Cuts all matrices into pieces of about `piece` bytes and lets `room` bytes of them stay. Experts, of which a
    /// token needs only some, get what the others leave: as a cache.
    fn within(matrices: &[Matrix], format: &Format, piece: u64, room: u64) -> Self {
        let sizes: Vec<u64> = matrices.iter().map(|matrix| format.row_bytes(matrix)).collect();
        let mut cuts: Vec<Vec<Cut>> =
            matrices.iter().zip(&sizes).map(|(matrix, row)| cut(matrix, *row, piece)).collect();
        let experts: u64 = experts(matrices).map(|matrix| format.bytes(matrix)).sum();
        let total = total(matrices, format) - experts;
        let (mut seen, mut kept) = (0_u64, 0_u64);
        // First evenly: a piece stays if what stays so far lags behind its share.
        for (cuts, row) in cuts.iter_mut().zip(&sizes) {
            for cut in cuts.iter_mut().filter(|cut| !cut.on_demand) {
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
            for cut in cuts.iter_mut().filter(|cut| !cut.resident && !cut.on_demand) {
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
        let expert_in_use = largest_expert(matrices, format);
        Self {
            cuts,
            expert_cache: (room - kept).min(experts),
            expert_in_use,
            window: IN_FLIGHT * piece,
            pool: (pieces_on_device(format) - IN_FLIGHT) * piece,
            staging: format.copies_on_the_way() * piece.max(expert_in_use),
        }
    }
}

fn cut(matrix: &Matrix, row: u64, piece: u64) -> Vec<Cut> {
    let rows = matrix.rows();
    if matrix.is_expert() {
        return vec![Cut { rows: 0..rows, resident: false, on_demand: true }];
    }
    let unit = matrix.row_step();
    let (units, unit_bytes) = (rows.div_ceil(unit), row * unit as u64);
    let most = usize::try_from(piece / unit_bytes.max(1)).unwrap_or(usize::MAX);
    let most = most.max(1).min(units.max(1));
    // Equal cuts: a short rest would cost as much as a whole one.
    let step = units.div_ceil(units.div_ceil(most).max(1)).max(1) * unit;
    (0..rows)
        .step_by(step)
        .map(|start| Cut {
            rows: start..(start + step).min(rows),
            resident: false,
            on_demand: false,
        })
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
    /// What may be used: of host and device memory together where they are one, else of each.
    /// Without a limit everything stays.
    pub budget_bytes: Option<u64>,
    /// The highest number of bytes in use: of both memories where they are one, else of the one
    /// that holds more.
    pub peak_bytes: u64,
    /// The highest number of bytes of host memory.
    pub host_bytes: u64,
    /// The highest number of bytes of the device's own memory; none where it shares the host's.
    pub device_bytes: Option<u64>,
    /// The smallest budget in which the work could be done.
    pub least_bytes: u64,
    /// The smallest budget in which nothing would be streamed.
    pub all_resident_bytes: u64,
    /// What the peak is made of.
    #[serde(flatten)]
    pub needs: Needs,
    /// Bytes of matrices that stay in memory.
    pub resident_bytes: u64,
    /// Bytes of experts that are kept for as long as there is no need for others; 0 where all experts stay, or there are
    /// none.
    pub expert_cache_bytes: u64,
    /// Bytes of all experts.
    pub expert_bytes: u64,
    /// Bytes of memory for matrices that pass through.
    pub window_bytes: u64,
    /// Bytes that are read from the files in every pass of one token. Of experts that do not all fit, as many as
    /// would be if all were chosen alike.
    pub streamed_file_bytes: u64,
    /// The parts in order.
    pub parts: Vec<PartPlan>,
    /// What each device has, in the order in which a pass goes through them; empty where only one device was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_map: Vec<DevicePlan>,
    #[serde(skip)]
    pub(crate) residency: Residency,
}

impl Plan {
    /// Plans `work` for a model within `limits`, in a process that holds `baseline` without it.
    pub fn new(
        blueprint: &Blueprint,
        binding: &Binding,
        format: &Format,
        baseline: u64,
        work: &Work,
        limits: &MemoryLimits,
    ) -> Self {
        let matrices = &binding.matrices;
        let needs = Needs::new(blueprint, binding, format, baseline, work);
        let smallest = smallest_piece(matrices, format);
        let rest = |limit: Option<u64>, used: u64| {
            limit.map_or(u64::MAX, |limit| limit.saturating_sub(used))
        };
        let (on_device, copies) = (pieces_on_device(format), format.copies_on_the_way());
        let all = total(matrices, format) + unfilled(matrices, format);
        let staging = staging_of_all(matrices, format);
        // Room for matrices, whether all of them fit, and the size of pieces if they don't.
        let (spare, all_fit, piece, per_piece) = match limits.device {
            DeviceMemory::Shared => {
                let spare = rest(limits.host, needs.total());
                let pieces = on_device + copies;
                (spare, spare >= all + staging, spare / (4 * pieces), pieces)
            }
            DeviceMemory::Own { limit } => {
                let spare = rest(limit, needs.on_device());
                let host = rest(limits.host, needs.baseline_bytes);
                let piece = (spare / (4 * on_device)).min(host / copies.max(1));
                (spare, spare >= all && host >= staging, piece, on_device)
            }
        };
        let residency = if all_fit {
            Residency::all(matrices, format)
        } else {
            let handy = (all.saturating_sub(spare) / (2 * per_piece)).max(HANDY_PIECE);
            let piece = piece.min(handy).clamp(smallest, LARGE_PIECE.max(smallest));
            let room = spare.saturating_sub(per_piece * piece + largest_expert(matrices, format));
            Residency::within(matrices, format, piece, room)
        };
        Self::of(blueprint, binding, format, needs, limits, residency)
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
        Self::of(blueprint, binding, format, needs, &MemoryLimits::shared(None), residency)
    }

    fn of(
        blueprint: &Blueprint,
        binding: &Binding,
        format: &Format,
        needs: Needs,
        limits: &MemoryLimits,
        residency: Residency,
    ) -> Self {
        let matrices = &binding.matrices;
        let (all, smallest) = (total(matrices, format), smallest_piece(matrices, format));
        let parts = parts(blueprint, matrices, format, &residency);
        let resident_bytes: u64 = parts.iter().map(|part| part.resident_bytes).sum();
        let expert_bytes: u64 = experts(matrices).map(|matrix| format.bytes(matrix)).sum();
        let on_demand = residency.expert_cache + residency.expert_in_use;
        let streamed = all - resident_bytes - if on_demand > 0 { expert_bytes } else { 0 };
        let passing = residency.window.min(streamed) + residency.pool + on_demand;
        let smallest_expert = largest_expert(matrices, format);
        let within = |bytes: u64, limit: Option<u64>| limit.is_none_or(|limit| bytes <= limit);
        let memory = match limits.device {
            DeviceMemory::Shared => {
                let fixed = needs.total();
                let pieces = IN_FLIGHT * smallest + smallest_expert;
                let least = (fixed + all).min(fixed + pieces);
                let peak = fixed + resident_bytes + passing + residency.staging;
                Totals {
                    fits: within(least, limits.host),
                    budget: limits.host,
                    peak,
                    host: peak,
                    device: None,
                    least,
                    all_resident: fixed + all,
                }
            }
            DeviceMemory::Own { limit } => {
                let (host_fixed, fixed) = (needs.baseline_bytes, needs.on_device());
                let copied = smallest.max(smallest_expert);
                let least_host = host_fixed + format.copies_on_the_way() * copied;
                let pieces = pieces_on_device(format) * smallest + smallest_expert;
                let least = (fixed + all).min(fixed + pieces);
                let host = host_fixed + residency.staging;
                let device = fixed + resident_bytes + passing;
                let fits_host = within(least_host, limits.host);
                Totals {
                    fits: fits_host && within(least, limit),
                    // The one that is short is the one to name.
                    budget: if fits_host { limit.or(limits.host) } else { limits.host },
                    peak: host.max(device),
                    host,
                    device: Some(device),
                    least: least_host.max(least),
                    all_resident: (fixed + all + unfilled(matrices, format)).max(host_fixed),
                }
            }
        };
        Self {
            fits: memory.fits,
            mode: placement(resident_bytes, all),
            budget_bytes: memory.budget,
            peak_bytes: memory.peak,
            host_bytes: memory.host,
            device_bytes: memory.device,
            least_bytes: memory.least,
            all_resident_bytes: memory.all_resident,
            needs,
            resident_bytes,
            expert_cache_bytes: residency.expert_cache,
            expert_bytes,
            window_bytes: passing + residency.staging,
            streamed_file_bytes: streamed_file_bytes(matrices, format, &residency),
            parts,
            device_map: Vec::new(),
            residency,
        }
    }

    /// Which parts are on which device, in words; empty where only one device was asked for.
    pub fn told_devices(&self) -> String {
        let told = |share: &DevicePlan| format!("{} on {}", share.parts(), share.device);
        self.device_map.iter().map(told).collect::<Vec<_>>().join(", ")
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

fn experts(matrices: &[Matrix]) -> impl Iterator<Item = &Matrix> {
    matrices.iter().filter(|matrix| matrix.is_expert())
}

/// An expert's matrix is loaded whole.
fn largest_expert(matrices: &[Matrix], format: &Format) -> u64 {
    experts(matrices).map(|matrix| format.bytes(matrix)).max().unwrap_or(0)
}

fn total(matrices: &[Matrix], format: &Format) -> u64 {
    matrices.iter().map(|matrix| format.bytes(matrix)).sum()
}

/// What a plan comes to in each memory.
struct Totals {
    fits: bool,
    budget: Option<u64>,
    peak: u64,
    host: u64,
    device: Option<u64>,
    least: u64,
    all_resident: u64,
}

/// Pages of a device's pool that are not filled where all matrices stay.
fn unfilled(matrices: &[Matrix], format: &Format) -> u64 {
    if format.is_on_host() { 0 } else { total(matrices, format) / 4 }
}

/// The copies of the largest matrix while it comes in whole.
fn staging_of_all(matrices: &[Matrix], format: &Format) -> u64 {
    let largest = matrices.iter().map(|matrix| format.bytes(matrix)).max().unwrap_or(0);
    format.copies_on_the_way() * largest
}

fn smallest_piece(matrices: &[Matrix], format: &Format) -> u64 {
    let matrices = || matrices.iter().filter(|matrix| !matrix.is_expert());
    let least = |matrix: &Matrix| format.row_bytes(matrix) * matrix.row_step() as u64;
    let row = matrices().map(least).max().unwrap_or(0);
    let largest = matrices().map(|matrix| format.bytes(matrix)).max().unwrap_or(0);
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

fn streamed_file_bytes(matrices: &[Matrix], format: &Format, residency: &Residency) -> u64 {
    let experts: u64 = experts(matrices).map(|matrix| format.bytes(matrix)).sum();
    let missed = 1.0 - residency.expert_cache as f64 / experts.max(1) as f64;
    let streamed = |(matrix, cuts): (&Matrix, &Vec<Cut>)| -> u64 {
        let rows: usize = cuts.iter().filter(|cut| !cut.resident).map(|cut| cut.rows.len()).sum();
        let bytes = bytes_of(matrix.format, rows * matrix.cols()) as u64;
        match matrix.is_expert() {
            true => (bytes as f64 * matrix.used() * missed) as u64,
            false => bytes,
        }
    };
    matrices.iter().zip(&residency.cuts).map(streamed).sum()
}
