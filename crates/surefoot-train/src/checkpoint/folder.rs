//! A run's folder of checkpoints: the latest few and the best.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::TEMPORARY;
use super::lock::{Lock, is_taken};
use super::{CheckpointError, Manifest, read_manifest, write};
use crate::parameters::Shape;
use crate::state::Held;

/// A folder that belongs to one run: as long as this or a clone of it is there, no other can be
/// made for the folder, by this process or another.
#[derive(Clone, Debug)]
pub struct CheckpointFolder {
    folder: PathBuf,
    keep: usize,
    _lock: Arc<Lock>,
}

impl CheckpointFolder {
    /// Uses `folder`, made if it isn't there. What a killed process left half written goes.
    pub fn new(folder: &Path, keep: usize) -> Result<Self, CheckpointError> {
        let failed = |source| CheckpointError::Io { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = Lock::take(folder)?;
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let (prefix, suffix) = TEMPORARY;
            if name.is_some_and(|name| name.starts_with(prefix) && name.ends_with(suffix)) {
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
        manifest: &Manifest,
    ) -> Result<PathBuf, CheckpointError> {
        let path = self.path(held.step);
        write(&path, held, shapes, manifest)?;
        let best = manifest.best.as_ref().map(|best| best.step);
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
            match read_manifest(&self.path(step)) {
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
    use crate::config::Entries;
    use crate::data::{DataDescription, Form, Normalisation, Target, Vocabulary};
    use crate::report::EpochReport;
    use crate::scale::LossScale;
    use std::collections::BTreeSet;

    pub(crate) fn manifest(step: u64, best: Option<u64>) -> Manifest {
        Manifest {
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
            config: Entries::from([("seed".into(), "1".into())]),
            flags: Vec::new(),
            data: DataDescription {
                form: Form::Text { vocabulary: 2, length: 2 },
                classes: Vec::new(),
                columns: Vec::new(),
                label: None,
                vocabulary: Some(Vocabulary::Characters("ab".into())),
                normalisation: Normalisation { mean: vec![0.1], scale: vec![1.0 / 3.0] },
                target: None,
            },
            faults: Vec::new(),
            unreadable: BTreeSet::from(["one: why".into()]),
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
        let checkpoints = CheckpointFolder::new(folder.path(), 2).unwrap();
        let (held, shapes) = held(7);
        let path = checkpoints.put(&held, &shapes, &manifest(7, None)).unwrap();
        let (back, read_manifest) = read(&path, &shapes).unwrap();
        assert_eq!(back, held);
        assert_eq!(read_manifest, manifest(7, None));
        assert_eq!(back.values[0][2].to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn a_loss_that_is_no_number_leaves_the_checkpoint_readable() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointFolder::new(folder.path(), 2).unwrap();
        let (held, shapes) = held(7);
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut written = manifest(7, Some(7));
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
            let path = checkpoints.put(&held, &shapes, &written).unwrap();
            let (_, back) = read(&path, &shapes).unwrap();
            assert!(back.epochs[0].test_loss.is_nan() && back.epochs[0].train_loss.is_nan());
            assert_eq!(back.epochs[0].train_accuracy, 0.25);
            assert_eq!(checkpoints.latest().0, Some(path));
        }
    }

    #[test]
    fn classifiers_are_compared_by_accuracy_and_other_models_by_loss() {
        let test = |step, test_accuracy, test_loss| Best { step, test_loss, test_accuracy };
        let target = Target::Classes(2);
        let images = Form::Dense { channels: 1, height: 1, width: 1, target };
        let text = Form::Text { vocabulary: 2, length: 2 };
        let tests = [
            test(1, 0.5, f64::NAN),
            test(2, 0.5, 2.0),
            test(3, 0.6, 3.0),
            test(4, 0.6, 2.5),
            test(5, 0.4, 1.0),
            test(6, 0.9, f64::INFINITY),
        ];
        let best = |form: Form| {
            let best =
                tests.iter().cloned().fold(None, |best, test| Best::or_better(best, test, form));
            best.map(|best| best.step)
        };
        assert_eq!((best(images), best(text)), (Some(4), Some(5)));
        assert_eq!(Best::or_better(None, test(1, 0.5, f64::NAN), text), None);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointFolder::new(folder.path(), 2).unwrap();
        let (held, shapes) = held(7);
        let path = checkpoints.put(&held, &shapes, &manifest(7, None)).unwrap();
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&path, &damaged).unwrap();
            assert!(read(&path, &shapes).is_err(), "byte {at}");
            assert_eq!(checkpoints.latest().0, None, "byte {at}");
        }
        let last = whole.len() - 1;
        let mut damaged = whole.clone();
        damaged[last] ^= 1;
        fs::write(&path, &damaged).unwrap();
        let error = read(&path, &shapes).unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
        fs::write(&path, &whole).unwrap();
        assert!(read(&path, &shapes).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn a_checkpoint_has_the_usual_rights_of_a_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointFolder::new(folder.path(), 2).unwrap();
        let (held, shapes) = held(7);
        let path = checkpoints.put(&held, &shapes, &manifest(7, None)).unwrap();
        let plain = folder.path().join("plain");
        fs::write(&plain, "").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), mode(&plain));
    }

    #[test]
    fn the_latest_and_the_best_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointFolder::new(folder.path(), 2).unwrap();
        for step in 1..=6 {
            let (held, shapes) = held(step);
            checkpoints.put(&held, &shapes, &manifest(step, (step > 1).then_some(2))).unwrap();
        }
        assert_eq!(checkpoints.steps(), [2, 5, 6]);
        assert_eq!(fresh_folder(folder.path()).file_name().unwrap().to_string_lossy(), {
            format!("{}-2", folder.path().file_name().unwrap().to_string_lossy())
        });
    }

    #[test]
    fn a_broken_file_is_passed_over_and_named_and_another_model_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointFolder::new(folder.path(), 9).unwrap();
        let (held, shapes) = held(1);
        let path = checkpoints.put(&held, &shapes, &manifest(1, None)).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in [0, 1, 8, 100, whole.len() - 1] {
            fs::write(checkpoints.path(2), &whole[..cut]).unwrap();
            let (latest, unreadable) = checkpoints.latest();
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
        let first = CheckpointFolder::new(&folder, 1).unwrap();
        let half_written = folder.join(".step-00000001.safetensors.99.tmp");
        fs::write(&half_written, "half").unwrap();
        let error = CheckpointFolder::new(&folder, 1).unwrap_err();
        let process = Some(std::process::id());
        assert!(matches!(&error, CheckpointError::InUse { process: p, .. } if *p == process));
        assert!(error.to_string().contains("another run is at work"), "{error}");
        assert!(half_written.exists(), "it is the other run's");
        let second = CheckpointFolder::fresh(&folder, 1).unwrap();
        assert_eq!(second.folder(), place.path().join("run-2"));
        let (held, shapes) = held(1);
        second.put(&held, &shapes, &manifest(1, None)).unwrap();
        assert_eq!(latest_folder(&folder).as_deref(), Some(second.folder()));
        drop(first);
        assert_eq!(
            CheckpointFolder::fresh(&folder, 1).unwrap().folder(),
            folder,
            "nothing was saved there"
        );
    }

    #[test]
    fn leftovers_of_a_killed_writer_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(".step-00000001.safetensors.99.tmp");
        fs::write(&left, "half").unwrap();
        CheckpointFolder::new(folder.path(), 1).unwrap();
        assert!(!left.exists());
    }
}
