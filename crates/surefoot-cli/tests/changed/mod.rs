//! Fixtures and changed copies of them, and the program on them.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]
#![allow(dead_code, reason = "each test uses its part of it")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures").join(name)
}

pub(crate) fn surefoot(command: &str) -> Command {
    let mut program = Command::cargo_bin("surefoot").unwrap();
    program.arg(command).env_remove("OPENAI_API_KEY");
    program
}

/// What the program says on stdout.
pub(crate) fn json(assert: assert_cmd::assert::Assert) -> Value {
    serde_json::from_slice(&assert.get_output().stdout).unwrap()
}

/// A fingerprint of `model` in `file`.
pub(crate) fn fingerprint(model: &Path, file: &Path, options: &[&str]) {
    surefoot("fingerprint").arg(model).arg("--out").arg(file).args(options).assert().success();
}

/// A copy of `model` where the numbers of `tensor` are changed.
pub(crate) fn copy(model: &Path, to: &Path, tensor: &str, change: impl Fn(f32) -> f32) {
    std::fs::create_dir_all(to).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        if model.join(name).exists() {
            std::fs::copy(model.join(name), to.join(name)).unwrap();
        }
    }
    let mut bytes = std::fs::read(model.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let place =
        |at: usize| header[tensor]["data_offsets"][at].as_u64().unwrap() as usize + 8 + length;
    for number in bytes[place(0)..place(1)].chunks_exact_mut(4) {
        let changed = change(f32::from_le_bytes(number.try_into().unwrap()));
        number.copy_from_slice(&changed.to_le_bytes());
    }
    std::fs::write(to.join("model.safetensors"), bytes).unwrap();
}
