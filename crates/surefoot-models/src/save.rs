//! Writes results to files that appear complete or not at all.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use safetensors::{Dtype, View};

use crate::error::ModelError;
use crate::run::output::Rows;

struct Tensor<'a> {
    shape: [usize; 2],
    rows: &'a Rows,
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.rows.numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        self.rows.numbers.len() * 4
    }
}

/// Writes named rows of f32 to `path`.
pub fn save(path: &Path, tensors: &[(String, &Rows)]) -> Result<(), ModelError> {
    let unwritable = |error: &dyn std::fmt::Display| {
        ModelError::file(path, format!("can't be written: {error}"))
    };
    let views = tensors.iter().map(|(name, rows)| {
        let shape = [rows.numbers.len() / rows.cols.max(1), rows.cols];
        (name.clone(), Tensor { shape, rows })
    });
    let mut failed = None;
    let written = whole(path, |part| {
        safetensors::serialize_to_file(views, None, part).map_err(|error| {
            failed = Some(unwritable(&error));
            io::ErrorKind::Other.into()
        })
    });
    written.map_err(|error| failed.unwrap_or_else(|| unwritable(&error)))
}

/// Has `make` write a file beside `path` and then renames it, so that a file that is there is
/// whole. What a link points to is replaced, not the link. What is no file, a pipe or a device, is
/// written to.
///
/// Not `tempfile`'s: `make` is given a path and may put another file in its place, as safetensors does,
/// and `NamedTempFile` would then rename the one that it has open.
pub fn whole(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let (target, found) = match fs::canonicalize(path) {
        Ok(target) => (target.clone(), Some(fs::metadata(target)?)),
        Err(_) => (path.to_owned(), None),
    };
    let is_file = found.as_ref().is_none_or(fs::Metadata::is_file);
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = if is_file { target.with_file_name(name) } else { std::env::temp_dir().join(name) };
    let written = || {
        // `make` may put another file in its place, with other rights.
        let rights = File::create(&part)?.metadata()?.permissions();
        make(&part)?;
        if !is_file {
            let mut target = fs::OpenOptions::new().write(true).open(&target)?;
            io::copy(&mut File::open(&part)?, &mut target)?;
            return fs::remove_file(&part);
        }
        fs::set_permissions(&part, found.map_or(rights, |found| found.permissions()))?;
        fs::rename(&part, &target)
    };
    let written = written();
    if written.is_err() {
        // What is left of it is of no use; that it may not be there is fine.
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_rights_and_a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        let say = |text: &'static str| move |part: &Path| fs::write(part, text);
        whole(&file, say("one")).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::{PermissionsExt, symlink};
            fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
            let link = folder.path().join("link");
            symlink(&file, &link).unwrap();
            whole(&link, say("two")).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        }
        #[cfg(not(unix))]
        whole(&file, say("two")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert!(whole(&file, |_| Err(io::ErrorKind::Other.into())).is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "two", "what was there is kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1 + usize::from(cfg!(unix)));
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_is_written_to() {
        use std::os::unix::fs::FileTypeExt;
        whole(Path::new("/dev/null"), |part| fs::write(part, "x")).unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        let folder = tempfile::tempdir().unwrap();
        assert!(whole(folder.path(), |part| fs::write(part, "x")).is_err());
        assert!(folder.path().is_dir());
    }
}
