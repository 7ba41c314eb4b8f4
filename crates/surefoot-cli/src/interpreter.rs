//! The Python interpreter of the user's PyTorch: for `run`, and for `doctor` and `bench` with `--torch`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use surefoot::device::supervisor;

use crate::exit::{Exit, Failure};

/// Runs a module of the Python package `surefoot` in the user's Python and hands on each JSON line that it prints; other
/// lines, which drivers and libraries print, are passed over.
pub(crate) fn run_module(
    python: &Path,
    module: &str,
    arguments: &[String],
    limit: Duration,
    mut on_line: impl FnMut(serde_json::Value),
) -> Result<(), Failure> {
    let mut command = Command::new(python);
    command.args(["-m", module]).args(arguments);
    supervisor::run_probe(command, limit, |line| {
        if let Ok(value) = serde_json::from_str(line) {
            on_line(value);
        }
    })
    .map_err(|fault| {
        let what = format!("{} could not run {module}", python.display());
        let mut failure = Failure::new(Exit::Usage, what);
        failure.because.clone_from(&fault.chain);
        failure.hint(format!(
            "PyTorch and this package have to be installed there: {} -m pip install torch surefoot; another \
             interpreter is named with --python PATH",
            python.display()
        ))
    })
}

/// The interpreter to start: the one that was named, that of the active virtual environment, the one that this program
/// was installed next to, or the first on the search path.
pub(crate) fn chosen(named: Option<&Path>) -> PathBuf {
    let active = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let own = std::env::current_exe().ok();
    let folder = own.as_deref().and_then(Path::parent);
    choose(named, active.as_deref(), folder)
}

fn choose(named: Option<&Path>, active: Option<&Path>, folder: Option<&Path>) -> PathBuf {
    let (scripts, program) =
        if cfg!(windows) { ("Scripts", "python.exe") } else { ("bin", "python") };
    let in_environment = active.map(|environment| environment.join(scripts).join(program));
    let beside = folder.map(|folder| folder.join(program));
    named
        .map(Path::to_owned)
        .or_else(|| [in_environment, beside].into_iter().flatten().find(|path| path.is_file()))
        .unwrap_or_else(|| PathBuf::from(if cfg!(windows) { "python" } else { "python3" }))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_named_interpreter_comes_before_the_environments_and_that_before_the_neighbour() {
        let folder = tempfile::tempdir().unwrap();
        let environment = folder.path().join("venv");
        let beside = folder.path().join("tools");
        for bin in [environment.join("bin"), beside.clone()] {
            std::fs::create_dir_all(&bin).unwrap();
            std::fs::write(bin.join("python"), "").unwrap();
        }
        let named = Path::new("/opt/python3.12");
        let (active, folder) = (Some(environment.as_path()), Some(beside.as_path()));
        assert_eq!(choose(Some(named), active, folder), named);
        assert_eq!(choose(None, active, folder), environment.join("bin/python"));
        assert_eq!(choose(None, None, folder), beside.join("python"));
        assert_eq!(choose(None, Some(&beside), None), Path::new("python3"), "no such environment");
    }
}
