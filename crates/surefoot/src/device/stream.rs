//! A queue of work on a device that is nobody's thread.
//!
//! Burn's GPU backends give each thread a queue of its own, with memory of its own. A [`Stream`] is
//! such a queue that any thread can work on, one at a time: work on it runs in order, beside that
//! of other streams, and reading a result waits for this stream only. The CPU computes on the
//! calling thread, and a stream changes nothing there.

use burn::tensor::StreamId;

/// A queue of work. Whoever shares one between threads sees to it that they take turns.
#[derive(Debug)]
pub struct Stream(StreamId);

impl Stream {
    /// A queue that no thread has.
    #[expect(clippy::new_without_default, reason = "each one is another queue")]
    pub fn new() -> Self {
        Self(StreamId::allocate())
    }

    /// Does `work` on this queue; afterwards, in a panic too, the thread is on its own again.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.executes(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::catch;

    #[test]
    fn work_runs_on_the_stream_and_the_thread_is_itself_again_after() {
        let (one, two) = (Stream::new(), Stream::new());
        let own = StreamId::current();
        let inside = |stream: &Stream| stream.run(StreamId::current);
        assert_ne!(inside(&one), inside(&two));
        assert_eq!(inside(&one), std::thread::scope(|s| s.spawn(|| inside(&one)).join().unwrap()));
        assert!(catch(|| one.run(|| panic!("on purpose"))).is_err());
        assert_eq!(StreamId::current(), own);
    }
}
