//! Ranks that are threads of one process: for tests of everything but MPI itself.

use std::sync::{Arc, Barrier, Mutex, PoisonError};

use surefoot::Fault;

use super::Ranks;

/// What the threads share.
struct Exchange {
    barrier: Barrier,
    bytes: Mutex<Vec<Vec<u8>>>,
}

/// One of several ranks that are threads of this process.
pub struct ThreadRanks {
    rank: usize,
    count: usize,
    exchange: Arc<Exchange>,
}

impl ThreadRanks {
    /// A group of `count` ranks; each must be used by a thread of its own.
    pub fn group(count: usize) -> Vec<Self> {
        let exchange = Arc::new(Exchange {
            barrier: Barrier::new(count),
            bytes: Mutex::new(vec![Vec::new(); count]),
        });
        (0..count).map(|rank| Self { rank, count, exchange: Arc::clone(&exchange) }).collect()
    }
}

impl Ranks for ThreadRanks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    fn host(&self) -> String {
        "this process".to_owned()
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
        let all = || self.exchange.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        all()[self.rank] = bytes.to_vec();
        self.exchange.barrier.wait();
        let gathered = all().clone();
        // Nobody may write the next message before all have read this one.
        self.exchange.barrier.wait();
        Ok(gathered)
    }

    fn sum(&self, values: &mut [f32]) -> Result<(), Fault> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let all = self.gather(&bytes)?;
        values.fill(0.0);
        for bytes in all {
            for (sum, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *sum += f32::from_le_bytes(*bytes);
            }
        }
        Ok(())
    }
}

/// Runs `work` as each of so many ranks at once.
#[cfg(test)]
pub(crate) fn on_all<T: Send>(count: usize, work: impl Fn(&ThreadRanks) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ThreadRanks::group(count)
            .into_iter()
            .map(|ranks| scope.spawn(move || work(&ranks)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_messages_reach_all_ranks_in_their_order() {
        on_all(3, |ranks| {
            let own = ranks.rank() as f32;
            let mut values = [own, 1e8, 0.5];
            ranks.sum(&mut values).unwrap();
            assert_eq!(values, [3.0, 3e8, 1.5]);
            let all = ranks.gather(&vec![7; ranks.rank()]).unwrap();
            assert_eq!(all, [vec![], vec![7], vec![7, 7]]);
        });
    }
}
