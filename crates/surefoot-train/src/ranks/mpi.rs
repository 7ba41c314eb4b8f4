//! Ranks that are processes started by `mpirun` or `srun`, over MPI.
//!
//! MPI is initialised for calls from one thread: only the thread that trains may use this.

use mpi::datatype::PartitionMut;
use mpi::environment::{Universe, initialize_with_threading, processor_name};
use mpi::point_to_point::send_receive_into;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use mpi::{Count, Rank, Threading};
use surefoot::{Fault, FaultKind};

use super::pairwise::{add_in_order, partners};
use super::{OPERATION, Ranks, share};

/// Numbers that are exchanged at once: it bounds the memory of the copies that an exchange needs.
const BUCKET: usize = 4 << 20;

/// Bytes of a message that are sent beside its length, so that a short one is a single exchange.
const SHORT: usize = 56;

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

    /// The first bytes of all messages go with their lengths; the rest follows if there is any.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
        let (short, rest) = bytes.split_at(bytes.len().min(SHORT));
        let mut head = (bytes.len() as u64).to_le_bytes().to_vec();
        head.extend(short);
        head.resize(8 + SHORT, 0);
        let mut heads = vec![0_u8; head.len() * self.count()];
        self.world.all_gather_into(&head[..], &mut heads[..]);
        let mut lengths = Vec::with_capacity(self.count());
        let mut all = Vec::with_capacity(self.count());
        for head in heads.chunks_exact(head.len()) {
            let length = head.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
            let length = usize::try_from(length).map_err(|_| too_long())?;
            lengths.push(length.saturating_sub(SHORT));
            all.push(head[8..8 + length.min(SHORT)].to_vec());
        }
        if lengths.iter().any(|length| *length > 0) {
            // A byte more, so that no message is empty: the address of an empty slice of bytes is 1, which Open MPI
            // takes for MPI_IN_PLACE.
            let sent = [&[0], rest].concat();
            let (lengths, starts) = layout(lengths.iter().map(|length| length + 1))?;
            let mut rests = vec![0_u8; lengths.iter().map(|length| *length as usize).sum()];
            let mut parts = PartitionMut::new(&mut rests[..], &lengths[..], &starts[..]);
            self.world.all_gather_varcount_into(&sent[..], &mut parts);
            for (message, (at, length)) in all.iter_mut().zip(starts.iter().zip(&lengths)) {
                message.extend(&rests[*at as usize..][1..*length as usize]);
            }
        }
        Ok(all)
    }

    /// Each rank adds up one part of every bucket, in the order of the ranks, and sends the sum to all: MPI's own
    /// reductions may add in another order each time. Parts go directly from rank to rank, in pairs, since collectives of
    /// variable lengths also copy what stays on a rank: with two ranks on one host they take four times as long.
    fn sum(&self, values: &mut [f32]) -> Result<(), Fault> {
        let (rank, count) = (self.rank(), self.count());
        let process = |rank: usize| self.world.process_at_rank(rank as Rank);
        let mut received = Vec::new();
        for bucket in values.chunks_mut(BUCKET) {
            let length = bucket.len();
            let part = |rank: usize| share(length, rank, count);
            let own = part(rank);
            received.resize(own.len() * (count - 1), 0.0);
            for (to, from) in partners(rank, count) {
                let place = own.len() * (if from < rank { from } else { from - 1 });
                let place = &mut received[place..][..own.len()];
                send_receive_into(&bucket[part(to)], &process(to), place, &process(from));
            }
            add_in_order(&mut bucket[own.clone()], &mut received, rank);
            for (to, from) in partners(rank, count) {
                let both = bucket.get_disjoint_mut([own.clone(), part(from)]);
                let [sum, theirs] = both.map_err(|error| overlapping(&error))?;
                send_receive_into(&*sum, &process(to), theirs, &process(from));
            }
        }
        Ok(())
    }
}

fn overlapping(error: &dyn std::fmt::Display) -> Fault {
    let message = format!("the parts of two ranks overlap: {error}");
    Fault::new(FaultKind::NotDeviceRelated, OPERATION, message)
}
