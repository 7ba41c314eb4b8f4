//! `surefoot run`, through the program, with whatever Python 3 the machine has.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use assert_cmd::Command;
use predicates::prelude::*;

fn surefoot() -> Command {
    let mut command = Command::cargo_bin("surefoot").expect("the program is built");
    command.env_remove("VIRTUAL_ENV").env("NO_COLOR", "1");
    command
}

/// A folder with the script `script.py`.
fn folder(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("script.py"), script).expect("a script");
    folder
}

#[test]
fn a_script_that_ends_by_itself_keeps_its_output_arguments_and_exit_code() {
    let folder = folder("import sys\nprint(sys.argv[1:])\nsys.exit(42)\n");
    surefoot()
        .current_dir(&folder)
        .args(["run", "--restarts", "2", "script.py", "--epochs", "3", "--json"])
        .assert()
        .code(42)
        .stdout("['--epochs', '3', '--json']\n");
}

#[test]
fn a_crash_is_named_with_the_line_of_python_and_ends_with_3() {
    let folder = folder("import os\ndef work():\n    os.abort()\nwork()\n");
    surefoot().current_dir(&folder).args(["run", "script.py"]).assert().code(3).stderr(
        predicate::str::contains("it aborted (SIGABRT)")
            .and(predicate::str::contains("script.py\", line 3 in work"))
            .and(predicate::str::contains("--restarts 3")),
    );
}

#[test]
fn a_script_that_was_killed_is_started_again_and_the_journal_tells() {
    let folder = folder(
        "import os, signal\n\
         open('tally', 'a').write('x')\n\
         assert os.environ['SUREFOOT_JOURNAL'].endswith('run.jsonl')\n\
         if len(open('tally').read()) < 3: os.kill(os.getpid(), signal.SIGKILL)\n\
         print('done')\n",
    );
    surefoot()
        .current_dir(&folder)
        .args(["--journal", "run.jsonl", "run", "--restarts", "3", "script.py"])
        .assert()
        .code(0)
        .stdout("done\n")
        .stderr(
            predicate::str::contains("killed from outside (SIGKILL)")
                .and(predicate::str::contains("started again (2 of 3)")),
        );
    let journal = std::fs::read_to_string(folder.path().join("run.jsonl")).unwrap();
    assert_eq!(journal.matches("\"restart\"").count(), 2, "{journal}");
}

#[test]
fn an_interpreter_that_is_not_there_is_bad_usage() {
    surefoot()
        .args(["run", "--python", "/no/such/python", "script.py"])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("/no/such/python could not be started"));
}
