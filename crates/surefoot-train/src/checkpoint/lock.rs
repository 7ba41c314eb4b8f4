//! One run at a time in a folder.
//!
//! The system lets go of a lock when its process ends, however it ends: a run that was killed
//! leaves none behind, and can be resumed at once.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use super::CheckpointError;

const NAME: &str = ".lock";
/// Another process that only looks whether the folder is in use has it for a moment.
const TRIES: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(20);

/// A folder that no other run can use until this is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub(super) fn take(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(NAME);
        let failed = |source: io::Error| CheckpointError::Io { path: path.clone(), source };
        let mut options = File::options();
        let mut file =
            options.create(true).write(true).truncate(false).open(&path).map_err(failed)?;
        for left in (0..TRIES).rev() {
            match file.try_lock() {
                Ok(()) => {
                    // For the error of another run; the lock itself doesn't need it.
                    let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
                    break;
                }
                Err(TryLockError::WouldBlock) if left == 0 => {
                    let process = fs::read_to_string(&path).ok();
                    let process = process.and_then(|text| text.trim().parse().ok());
                    return Err(CheckpointError::InUse { folder: folder.to_owned(), process });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN),
                // A file system without locks can't tell; better to train than not to.
                Err(TryLockError::Error(_)) => break,
            }
        }
        Ok(Self { _file: file })
    }
}

/// Whether a run is at work in a folder now.
pub(super) fn is_taken(folder: &Path) -> bool {
    File::open(folder.join(NAME))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
