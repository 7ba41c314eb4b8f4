//! The program in a folder, and checkpoints that it trained there.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs the program in `folder`.
pub(crate) fn surefoot(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_surefoot"))
        .current_dir(folder)
        .args(arguments)
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What the program prints; it must succeed.
pub(crate) fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = surefoot(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Trains what a configuration says and gives the last checkpoint.
pub(crate) fn trained(folder: &Path, config: &str) -> String {
    fs::write(folder.join("run.yaml"), config).unwrap();
    let told = good(folder, &["train", "run.yaml", "--json"]);
    let end: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    end["checkpoint"].as_str().unwrap().to_owned()
}
