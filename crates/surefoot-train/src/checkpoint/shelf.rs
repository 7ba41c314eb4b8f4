//! A run's folder of checkpoints: the latest few and the best.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::lock::{Lock, is_taken};
use super::{CheckpointError, Story, read_story, write};
use crate::parameters::Shape;
use crate::state::Held;

/// A folder that belongs to one run: as long as a shelf or a clone of it is there, no other can be
/// made for the folder, by this process or another.
#[derive(Clone, Debug)]
pub struct Shelf {
    folder: PathBuf,
    keep: usize,
    _lock: Arc<Lock>,
}

impl Shelf {
    /// Uses `folder`, made if it isn't there. What a killed process left half written goes.
    pub fn new(folder: &Path, keep: usize) -> Result<Self, CheckpointError> {
        let failed = |source| CheckpointError::Io { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = Lock::take(folder)?;
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            if name.is_some_and(|name| name.starts_with(".step-") && name.ends_with(".tmp")) {
                let _ = fs::remove_file(path);
            }
        }
        Ok(Self { folder: folder.to_owned(), keep, _lock: Arc::new(lock) })
    }

    /// Uses the first folder of [`fresh_folder`] that no run took in the meantime.
    pub fn fresh(wanted: &Path, keep: usize) -> Result<Self, CheckpointError> {
        loop {
            match Self::new(&fresh_folder(wanted), keep) {
                Err(CheckpointError::InUse { folder, .. }) if is_taken(&folder) => {}
                other => return other,
            }
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the checkpoint of a step is, or would be.
    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step:08}.safetensors"))
    }

    /// The steps that have a checkpoint, oldest first.
    pub fn steps(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let mut steps: Vec<u64> =
            entries.filter_map(|entry| step_of(&entry.ok()?.path())).collect();
        steps.sort_unstable();
        steps
    }

    /// Writes a checkpoint, then removes those that are neither among the latest nor the best.
    pub fn put(
        &self,
        held: &Held,
        shapes: &[Shape],
        story: &Story,
    ) -> Result<PathBuf, CheckpointError> {
        let path = self.path(held.step);
        write(&path, held, shapes, story)?;
        let best = story.best.as_ref().map(|best| best.step);
        // A run that was started again from further back leaves later steps of its past.
        let steps: Vec<u64> = self.steps().into_iter().filter(|step| *step <= held.step).collect();
        let latest = steps.len().saturating_sub(self.keep);
        for step in &steps[..latest] {
            if Some(*step) != best {
                let _ = fs::remove_file(self.path(*step));
            }
        }
        Ok(path)
    }

    /// Moves the checkpoints after `step` into a folder of their own, and says which: a run that
    /// goes on from `step` leaves them behind, and would be taken up at them the next time.
    pub fn set_aside_after(&self, step: u64) -> Result<Option<PathBuf>, CheckpointError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| CheckpointError::Io { path, source }
        };
        let later: Vec<u64> = self.steps().into_iter().filter(|other| *other > step).collect();
        if later.is_empty() {
            return Ok(None);
        }
        let wanted = self.folder.join(format!("abandoned-after-step-{step:08}"));
        let mut folders = (1..10_000).map(|number| numbered(&wanted, number));
        let aside = folders.find(|folder| !folder.exists()).unwrap_or(wanted);
        fs::create_dir_all(&aside).map_err(failed(&aside))?;
        for step in later {
            let path = self.path(step);
            let name = path.file_name().unwrap_or_default();
            fs::rename(&path, aside.join(name)).map_err(failed(&path))?;
        }
        Ok(Some(aside))
    }

    /// The latest checkpoint that can be read; those that can't are named.
    pub fn latest(&self) -> (Option<PathBuf>, Vec<CheckpointError>) {
        let mut unreadable = Vec::new();
        for step in self.steps().into_iter().rev() {
            match read_story(&self.path(step)) {
                Ok(_) => return (Some(self.path(step)), unreadable),
                Err(error) => unreadable.push(error),
            }
        }
        (None, unreadable)
    }
}

fn step_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok()
}

/// `wanted`, or `wanted-2` and so on if a run is there already.
pub fn fresh_folder(wanted: &Path) -> PathBuf {
    let folders = (1..10_000).map(|number| numbered(wanted, number));
    folders
        .into_iter()
        .find(|folder| !has_run(folder) && !is_taken(folder))
        .unwrap_or_else(|| wanted.to_owned())
}

/// The last folder that [`fresh_folder`] gave out for `wanted` and that has a run in it.
pub fn latest_folder(wanted: &Path) -> Option<PathBuf> {
    let folders = (1..10_000).map(|number| numbered(wanted, number));
    // One in between may have been stopped before its first checkpoint.
    folders.take_while(|folder| folder.is_dir()).filter(|folder| has_run(folder)).last()
}

/// Whether a folder has a checkpoint.
pub fn has_run(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| step_of(&entry.path()).is_some()))
    })
}

fn numbered(wanted: &Path, number: usize) -> PathBuf {
    if number == 1 {
        return wanted.to_owned();
    }
    let mut name = wanted.file_name().unwrap_or_default().to_owned();
    name.push(format!("-{number}"));
    wanted.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Best, Order, Running, VERSION, read};
    use crate::report::EpochReport;
    use crate::scale::LossScale;

    pub(crate) fn story(step: u64, best: Option<u64>) -> Story {
        Story {
            version: VERSION,
            step,
            updates: step,
            scale: LossScale::default(),
            order: Order { seed: 1, batch: 2, samples: 3 },
            bad_in_a_row: 3,
            running: Running { loss: 0.1 + 0.2, ..Running::default() },
            epochs: Vec::new(),
            best: best.map(|step| Best { step, test_loss: 1.0, test_accuracy: 0.5 }),
            fitted: None,
            seconds: 1.5,
            config: "x: 1\n".into(),
            flags: Vec::new(),
        }
    }

    fn held(step: u64) -> (Held, Vec<Shape>) {
        let held = Held {
            values: vec![vec![1.0, f32::MIN_POSITIVE, -0.0, 3.5]],
            first: vec![Some(vec![1e-30; 4])],
            second: vec![None],
            updates: step,
            scale: LossScale::default(),
            step,
        };
        (held, vec![Shape { name: "a.weight".into(), dims: vec![2, 2] }])
    }

    #[test]
    fn what_is_written_is_read_back_to_the_bit() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(folder.path(), 2).unwrap();
        let (held, shapes) = held(7);
        let path = shelf.put(&held, &shapes, &story(7, None)).unwrap();
        let (back, tale) = read(&path, &shapes).unwrap();
        assert_eq!(back, held);
        assert_eq!(tale, story(7, None));
        assert_eq!(back.values[0][2].to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn a_loss_that_is_no_number_leaves_the_checkpoint_readable() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(folder.path(), 2).unwrap();
        let (held, shapes) = held(7);
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut written = story(7, Some(7));
            written.epochs = vec![EpochReport {
                epoch: 1,
                step: 7,
                train_loss: bad,
                train_accuracy: 0.25,
                test_loss: bad,
                test_accuracy: bad,
                samples_per_second: bad,
                memory: 1,
                device: "cpu".into(),
            }];
            written.best = Some(Best { step: 7, test_loss: bad, test_accuracy: 0.5 });
            let path = shelf.put(&held, &shapes, &written).unwrap();
            let (_, back) = read(&path, &shapes).unwrap();
            assert!(back.epochs[0].test_loss.is_nan() && back.epochs[0].train_loss.is_nan());
            assert_eq!(back.epochs[0].train_accuracy, 0.25);
            let best = back.best.unwrap();
            assert!(best.test_loss.is_nan() && best.is_beaten_by(0.5, 3.0), "{bad}");
            assert!(!best.is_beaten_by(0.5, f64::NAN) && !best.is_beaten_by(0.4, 3.0), "{bad}");
            assert_eq!(shelf.latest().0, Some(path));
        }
    }

    #[test]
    fn the_latest_and_the_best_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(folder.path(), 2).unwrap();
        for step in 1..=6 {
            let (held, shapes) = held(step);
            shelf.put(&held, &shapes, &story(step, (step > 1).then_some(2))).unwrap();
        }
        assert_eq!(shelf.steps(), [2, 5, 6]);
        assert_eq!(fresh_folder(folder.path()).file_name().unwrap().to_string_lossy(), {
            format!("{}-2", folder.path().file_name().unwrap().to_string_lossy())
        });
    }

    #[test]
    fn a_broken_file_is_passed_over_and_named_and_another_model_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(folder.path(), 9).unwrap();
        let (held, shapes) = held(1);
        let path = shelf.put(&held, &shapes, &story(1, None)).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in [0, 1, 8, 100, whole.len() - 1] {
            fs::write(shelf.path(2), &whole[..cut]).unwrap();
            let (latest, unreadable) = shelf.latest();
            assert_eq!(latest, Some(path.clone()), "{cut}");
            assert!(unreadable[0].to_string().contains("step-00000002"), "{cut}");
        }
        let other = vec![Shape { name: "a.weight".into(), dims: vec![4, 1] }];
        assert!(read(&path, &other).unwrap_err().to_string().contains("[4, 1]"));
        let more = vec![shapes[0].clone(), Shape { name: "b".into(), dims: vec![1] }];
        assert!(read(&path, &more).unwrap_err().to_string().contains("no model.b"));
    }

    #[test]
    fn a_folder_is_for_one_run_at_a_time() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let first = Shelf::new(&folder, 1).unwrap();
        let half_written = folder.join(".step-00000001.safetensors.99.tmp");
        fs::write(&half_written, "half").unwrap();
        let error = Shelf::new(&folder, 1).unwrap_err();
        let process = Some(std::process::id());
        assert!(matches!(&error, CheckpointError::InUse { process: p, .. } if *p == process));
        assert!(error.to_string().contains("another run is at work"), "{error}");
        assert!(half_written.exists(), "it is the other run's");
        let second = Shelf::fresh(&folder, 1).unwrap();
        assert_eq!(second.folder(), place.path().join("run-2"));
        let (held, shapes) = held(1);
        second.put(&held, &shapes, &story(1, None)).unwrap();
        assert_eq!(latest_folder(&folder).as_deref(), Some(second.folder()));
        drop(first);
        assert_eq!(Shelf::fresh(&folder, 1).unwrap().folder(), folder, "nothing was saved there");
    }

    #[test]
    fn leftovers_of_a_killed_writer_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(".step-00000001.safetensors.99.tmp");
        fs::write(&left, "half").unwrap();
        Shelf::new(folder.path(), 1).unwrap();
        assert!(!left.exists());
    }
}
