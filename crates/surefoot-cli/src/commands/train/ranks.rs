//! Training as one of several ranks that `mpirun` or `srun` started.
//!
//! The first rank decides where checkpoints go and which one to resume from, and reports. The
//! others are silent unless they can't go on themselves.

pub(super) mod launch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use surefoot_train::ranks::{Ranks, exchange, send_file};

use super::Train;
use super::job::Job;
use crate::exit::{Exit, Failure};
use crate::terminal::Terminal;

/// The variables in which launchers tell processes how many of them there are.
const COUNTS: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];

/// How long a rank that fails waits before it reports: if the first rank fails for the same
/// reason, its report is enough.
const FIRST_REPORTS: Duration = Duration::from_secs(1);

/// The job that this process is a rank of.
pub(super) struct MpiJob {
    #[cfg(feature = "mpi")]
    ranks: surefoot_train::ranks::mpi::MpiRanks,
    #[cfg(not(feature = "mpi"))]
    never: std::convert::Infallible,
}

/// How many processes a launcher started; none if no launcher did.
fn launched() -> Option<usize> {
    let count = |name: &&str| std::env::var(name).ok()?.parse().ok();
    COUNTS.iter().find_map(count)
}

#[cfg(not(feature = "mpi"))]
fn not_in_this_build(count: usize) -> Failure {
    Failure::usage(format!("this build can't train with {count} ranks"))
        .because("it was built without the feature mpi")
        .hint("build it with --features mpi, which needs an MPI with its headers, and libclang")
}

impl MpiJob {
    /// Joins the job, if this process was started as one of several; `asked` is what `--ranks` says.
    pub(super) fn join(asked: Option<usize>) -> Result<Option<Self>, Failure> {
        let Some(count) = launched() else { return Ok(None) };
        if let Some(asked) = asked.filter(|asked| *asked != count) {
            let what = format!("--ranks says {asked}, and a launcher started {count}");
            return Err(Failure::usage(what).hint("leave out --ranks under mpirun or srun"));
        }
        if count < 2 { Ok(None) } else { Self::join_ranks(count).map(Some) }
    }

    #[cfg(feature = "mpi")]
    fn join_ranks(count: usize) -> Result<Self, Failure> {
        let ranks = surefoot_train::ranks::mpi::MpiRanks::join().ok_or_else(|| {
            let what = format!("a launcher started {count} processes, but MPI sees only one");
            Failure::usage(what).hint(
                "use the mpirun of the MPI that surefoot was built with; under Slurm: srun --mpi=pmix",
            )
        })?;
        let job = Self { ranks };
        job.share_processors()?;
        Ok(job)
    }

    /// Refuses to train several times over what should be trained once.
    #[cfg(not(feature = "mpi"))]
    fn join_ranks(count: usize) -> Result<Self, Failure> {
        Err(not_in_this_build(count))
    }

    /// Gives each rank its part of the processors of its machine, unless the launcher has bound it to
    /// some or RAYON_NUM_THREADS says how many threads to use.
    #[cfg(feature = "mpi")]
    fn share_processors(&self) -> Result<(), Failure> {
        let hosts = exchange(self.ranks(), &self.ranks.host())?;
        let here = hosts.iter().filter(|host| **host == hosts[self.ranks.rank()]).count();
        if std::env::var_os("RAYON_NUM_THREADS").is_some() || is_bound() {
            return Ok(());
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (processors / here).max(1);
        // An error says that the pool runs already, which leaves it as it is.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
        Ok(())
    }

    #[cfg(feature = "mpi")]
    pub(super) fn ranks(&self) -> &dyn Ranks {
        &self.ranks
    }

    #[cfg(not(feature = "mpi"))]
    pub(super) fn ranks(&self) -> &dyn Ranks {
        match self.never {}
    }

    pub(super) fn is_first(&self) -> bool {
        self.ranks().rank() == 0
    }

    /// Ends all ranks after reporting why: the others may be waiting for this one.
    pub(super) fn abort(&self, mut failure: Failure, terminal: &Terminal) -> ! {
        if !self.is_first() {
            std::thread::sleep(FIRST_REPORTS);
            let ranks = self.ranks();
            failure.what = format!("rank {} on {}: {}", ranks.rank(), ranks.host(), failure.what);
        }
        terminal.failure(&failure);
        let code = failure.exit as i32;
        #[cfg(feature = "mpi")]
        self.ranks.abort(code);
        #[cfg(not(feature = "mpi"))]
        std::process::exit(code)
    }

    /// The checkpoint that the first rank resumes from, as a file that this rank can read: the
    /// same path if all can, else a copy in `scratch`.
    fn agree_on_checkpoint(
        &self,
        first: Option<&Path>,
        scratch: &Path,
    ) -> Result<Option<PathBuf>, Failure> {
        let ranks = self.ranks();
        let path = exchange(ranks, &first.map(Path::to_owned))?.swap_remove(0);
        let Some(path) = path else { return Ok(None) };
        let length = |path: &Path| path.metadata().ok().map(|found| found.len());
        let lengths = exchange(ranks, &length(&path))?;
        if lengths.iter().all(|length| *length == lengths[0]) {
            return Ok(Some(path));
        }
        let own = match self.is_first() {
            true => path,
            false => scratch.join(path.file_name().unwrap_or_default()),
        };
        send_file(ranks, &own)?;
        Ok(Some(own))
    }
}

/// Whether the launcher bound this process to some of the processors.
#[cfg(feature = "mpi")]
fn is_bound() -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let online = read("/sys/devices/system/cpu/online");
    allowed.is_some_and(|allowed| allowed.trim() != online.trim())
}

impl Train {
    /// Refuses what several ranks can't do together.
    pub(super) fn check_for_ranks(&self) -> Result<(), Failure> {
        let asked = [
            (self.eval.is_some(), "--eval"),
            (self.find_batch, "--find-batch"),
            (!self.sweep.is_empty(), "--sweep"),
            (self.options.isolate, "--isolate"),
        ];
        match asked.iter().find(|(asked, _)| *asked) {
            None => Ok(()),
            Some((_, flag)) => {
                Err(Failure::usage(format!("{flag} can't be done by several ranks"))
                    .hint("start it without --ranks, mpirun or srun"))
            }
        }
    }

    /// The job as this rank does it. Only the first rank writes checkpoints; `scratch` takes the place
    /// of their folder on the others.
    pub(super) fn job_of_rank(
        &self,
        job: &MpiJob,
        scratch: &Path,
        first: impl FnOnce() -> Result<Job, Failure>,
        other: impl FnOnce(Option<PathBuf>) -> Result<Job, Failure>,
    ) -> Result<Job, Failure> {
        if job.is_first() {
            let own = first()?;
            job.agree_on_checkpoint(own.resume.as_deref(), scratch)?;
            return Ok(own);
        }
        let resume = job.agree_on_checkpoint(None, scratch)?;
        other(resume)
    }
}

/// How a rank that does not report ends.
pub(super) fn silent_end(interrupted: bool) -> Exit {
    if interrupted { Exit::Interrupted } else { Exit::Done }
}
