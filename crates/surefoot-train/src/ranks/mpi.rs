//! Ranks that are processes started by `mpirun` or `srun`, over MPI.
//!
//! MPI is initialised for calls from one thread: only the thread that trains may use this.

use mpi::datatype::{Partition, PartitionMut};
use mpi::environment::{Universe, initialize_with_threading, processor_name};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use mpi::{Count, Threading};
use surefoot::{Fault, FaultKind};

use super::{OPERATION, Ranks, share};

/// Numbers that are exchanged at once: it bounds the memory of the copies that an exchange needs.
const BUCKET: usize = 4 << 20;

/// The ranks of this MPI job.
pub struct MpiRanks {
    world: SimpleCommunicator,
    // Dropping it ends MPI, after everything else of it.
    _universe: Universe,
}

impl MpiRanks {
    /// Joins the job that this process is a rank of; none if it was started alone.
    pub fn join() -> Option<Self> {
        let (universe, _) = initialize_with_threading(Threading::Funneled)?;
        let world = universe.world();
        (world.size() > 1).then_some(Self { world, _universe: universe })
    }

    /// Ends all ranks at once with this exit code: for a rank that can't go on while others wait for it.
    pub fn abort(&self, code: i32) -> ! {
        self.world.abort(code)
    }
}

fn too_long() -> Fault {
    let message = "a message has more elements than MPI can count";
    Fault::new(FaultKind::NotDeviceRelated, OPERATION, message)
}

/// The counts and displacements of MPI for parts of these lengths.
fn layout(lengths: impl Iterator<Item = usize>) -> Result<(Vec<Count>, Vec<Count>), Fault> {
    let lengths: Option<Vec<Count>> = lengths.map(|length| Count::try_from(length).ok()).collect();
    let lengths = lengths.ok_or_else(too_long)?;
    let mut starts = Vec::with_capacity(lengths.len());
    let mut next: Count = 0;
    for length in &lengths {
        starts.push(next);
        next = next.checked_add(*length).ok_or_else(too_long)?;
    }
    Ok((lengths, starts))
}

impl Ranks for MpiRanks {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn count(&self) -> usize {
        self.world.size() as usize
    }

    fn host(&self) -> String {
        processor_name().unwrap_or_else(|_| "unknown".to_owned())
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
        // A byte more, so that no message is empty: the address of an empty slice of bytes is 1, which Open MPI
        // takes for MPI_IN_PLACE.
        let sent = [&[0], bytes].concat();
        let mut lengths = vec![0_u64; self.count()];
        self.world.all_gather_into(&(sent.len() as u64), &mut lengths[..]);
        let (lengths, starts) = layout(lengths.iter().map(|length| *length as usize))?;
        let mut all = vec![0_u8; lengths.iter().map(|length| *length as usize).sum()];
        let mut parts = PartitionMut::new(&mut all[..], &lengths[..], &starts[..]);
        self.world.all_gather_varcount_into(&sent[..], &mut parts);
        let places = starts.iter().zip(&lengths);
        Ok(places.map(|(at, length)| all[*at as usize..][1..*length as usize].to_vec()).collect())
    }

    /// Each rank adds up one part of every bucket, in the order of the ranks, and sends the sum to all:
    /// MPI's own reductions may add in another order each time.
    fn sum(&self, values: &mut [f32]) -> Result<(), Fault> {
        let (rank, count) = (self.rank(), self.count());
        for bucket in values.chunks_mut(BUCKET) {
            let parts = (0..count).map(|rank| share(bucket.len(), rank, count).len());
            let (lengths, starts) = layout(parts)?;
            let own = share(bucket.len(), rank, count);
            let (own_lengths, own_starts) = layout(std::iter::repeat_n(own.len(), count))?;
            let mut theirs = vec![0.0_f32; own.len() * count];
            {
                let sent = Partition::new(&bucket[..], &lengths[..], &starts[..]);
                let mut received =
                    PartitionMut::new(&mut theirs[..], &own_lengths[..], &own_starts[..]);
                self.world.all_to_all_varcount_into(&sent, &mut received);
            }
            let mut sums = vec![0.0_f32; own.len()];
            for part in theirs.chunks_exact(own.len().max(1)) {
                for (sum, value) in sums.iter_mut().zip(part) {
                    *sum += value;
                }
            }
            let mut whole = PartitionMut::new(bucket, &lengths[..], &starts[..]);
            self.world.all_gather_varcount_into(&sums[..], &mut whole);
        }
        Ok(())
    }
}
