//! The Python files and notebooks under the paths given, as `.gitignore` and the settings leave them.

use std::path::{Path, PathBuf};

use ignore::WalkBuilder;

use crate::requirements::is_requirements_file;
use crate::settings::Settings;
use crate::source::FileError;

/// Folders that hold other people's code or copies.
const SKIPPED: [&str; 6] =
    ["__pycache__", "node_modules", "site-packages", "venv", "env", ".ipynb_checkpoints"];

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// Files to check, in order, each once.
    pub files: Vec<PathBuf>,
    /// Files in the folders that may name the version of torch.
    pub requirements: Vec<PathBuf>,
    /// Paths that are missing or can't be entered.
    pub errors: Vec<FileError>,
}

/// Looks through the paths. A file named outright is taken whatever it is called or ignored by.
pub fn discover(paths: &[PathBuf], settings: &Settings) -> Found {
    let mut found = Found::default();
    for path in paths {
        if path.is_file() {
            let named =
                if is_requirements_file(path) { &mut found.requirements } else { &mut found.files };
            named.push(path.clone());
        } else if path.is_dir() {
            walk(path, settings, &mut found);
        } else {
            found.errors.push(FileError {
                path: path.display().to_string(),
                place: None,
                message: "no such file or folder".to_owned(),
            });
        }
    }
    let mut seen = std::collections::HashSet::new();
    found.files.retain(|file| seen.insert(file.clone()));
    found
}

fn walk(path: &Path, settings: &Settings, found: &mut Found) {
    let walker = WalkBuilder::new(path)
        .require_git(false)
        .follow_links(false)
        .sort_by_file_name(std::ffi::OsStr::cmp)
        .filter_entry(|entry| {
            entry.depth() == 0 || !SKIPPED.iter().any(|name| entry.file_name() == *name)
        })
        .build();
    for entry in walker {
        match entry {
            Ok(entry) => {
                let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
                let path = entry.path();
                if is_file && is_python(path) && !settings.excludes(path, false) {
                    found.files.push(clean(path));
                } else if is_file && is_requirements_file(path) && !settings.excludes(path, false) {
                    found.requirements.push(clean(path));
                }
            }
            Err(error) => found.errors.push(FileError {
                path: path.display().to_string(),
                place: None,
                message: error.to_string(),
            }),
        }
    }
}

fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py" || extension == "ipynb")
}

/// `./train.py` is shown as `train.py`.
fn clean(path: &Path) -> PathBuf {
    path.strip_prefix("./").unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Overrides;
    use std::fs;

    #[test]
    fn ignored_and_foreign_files_are_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for name in [
            "a.py",
            "b.ipynb",
            "c.txt",
            "skip.py",
            "venv/x.py",
            ".hidden/y.py",
            "sub/d.py",
            "requirements.txt",
            "venv/requirements.txt",
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, "").expect("written");
        }
        fs::write(root.join(".gitignore"), "skip.py\n").expect("written");
        let settings = Settings::find(root, &Overrides::default()).expect("settings");
        let found = discover(&[root.to_owned()], &settings);
        let names: Vec<_> = found
            .files
            .iter()
            .map(|file| file.strip_prefix(root).expect("inside").to_owned())
            .collect();
        assert_eq!(names, ["a.py", "b.ipynb", "sub/d.py"].map(PathBuf::from));
        assert_eq!(found.requirements, [root.join("requirements.txt")]);
        let named = discover(&[root.join("skip.py"), root.join("gone.py")], &settings);
        assert_eq!((named.files.len(), named.errors.len()), (1, 1));
    }
}
