//! Snapshots of what the program prints: explanations, findings of `check`, help and errors, each
//! with its exit code. A change of the wording shows up as a diff in `snapshots/`; accept it with
//! `INSTA_UPDATE=always cargo test --release --workspace --test printed`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use insta::assert_snapshot;

/// Runs the program in `folder` and gives everything it printed.
fn printed_in(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_surefoot"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("an exit code");
    format!(
        "$ surefoot {}\n{}--- stderr\n{}--- exit code {code}\n",
        arguments.join(" "),
        text(&output.stdout),
        text(&output.stderr)
    )
}

fn printed(arguments: &[&str]) -> String {
    printed_in(tempfile::tempdir().expect("a temporary folder").path(), arguments)
}

/// What several command lines print, one below the other.
fn all_printed(folder: &Path, lines: &[&[&str]]) -> String {
    lines.iter().map(|line| printed_in(folder, line)).collect::<Vec<_>>().join("\n")
}

/// One message of every kind of fault.
#[test]
fn explain_prints_kind_cause_evidence_and_advice() {
    let messages = [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "RuntimeError: expected scalar type Half but found Float",
        "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.",
        "NotImplementedError: The operator 'aten::_linalg_svd' is not currently implemented for the MPS device.",
        "RuntimeError: Placeholder storage has not been allocated on MPS device!",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "RuntimeError: Failed to create shader module: compilation failed",
        "Execution of the command buffer was aborted due to an error during execution.",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 4x5)",
        "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error.",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        "KeyError: 'cuda'",
        "the quick brown fox",
    ];
    let lines: Vec<[&str; 2]> = messages.iter().map(|message| ["explain", *message]).collect();
    let lines: Vec<&[&str]> = lines.iter().map(|line| &line[..]).collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert_snapshot!(all_printed(folder.path(), &lines));
}

/// An error, a warning, a hint, and a file that doesn't parse.
#[test]
fn check_prints_findings_with_their_place_and_help() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-torch/tests/cases");
    for (rule, name) in [("SF004", "bad_batch"), ("SF006", "bad_strings"), ("SF029", "bad_item")] {
        let from = cases.join(rule).join(format!("{name}.py"));
        fs::copy(from, folder.path().join(format!("{rule}.py"))).expect("a case");
    }
    fs::write(folder.path().join("broken.py"), "import torch\n\ndef f(:\n    pass\n").expect("it");
    assert_snapshot!(all_printed(
        folder.path(),
        &[
            &["check"],
            &["check", "SF029.py"],
            &["check", "--strict", "-q", "SF029.py"],
            &["check", "--diff", "SF004.py"],
            &["check", "--format", "github", "SF004.py"],
            &["check", "--explain", "SF004"],
        ]
    ));
}

/// The mistakes that a user of the command line makes.
#[test]
fn usage_errors_say_what_is_wrong_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("not-a-journal.txt"), "hello\n").expect("it is written");
    fs::write(folder.path().join("empty.jsonl"), "").expect("it is written");
    assert_snapshot!(all_printed(
        folder.path(),
        &[
            &["explain", " "],
            &["check", "gone.py"],
            &["check", "--select", "XX1"],
            &["check", "--explain", "SF999"],
            &["journal", "gone.jsonl"],
            &["journal", "."],
            &["journal", "not-a-journal.txt"],
            &["journal", "empty.jsonl"],
            &["journal", "empty.jsonl", "--html", "-"],
            &["journal", "empty.jsonl", "--trace", "empty.jsonl"],
            &["bench", "--compare", "gone.json"],
            &["bench", "--precision", "fp8"],
            &["bench", "--device", "cpu", "--workload", "gone.yaml"],
            &["devices", "--journal", "no/such/folder/run.jsonl", "extra"],
            &["doctor", "--device", "cpu", "--journal", "no/such/folder/run.jsonl"],
            &["doctor", "--timeout", "0"],
            &["doctor", "--device", "tpu"],
        ]
    ));
}

/// A folder with a small model, `model`, and one that is none, `empty`.
fn folder_with_a_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures/llama-tiny");
    for name in ["model", "empty"] {
        fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    for file in fs::read_dir(fixture).expect("the fixture") {
        let file = file.expect("a file");
        let to = folder.path().join("model").join(file.file_name());
        fs::copy(file.path(), to).expect("it is copied");
    }
    folder
}

/// The mistakes that a user of the commands for models makes.
#[test]
fn errors_of_the_commands_for_models_say_what_is_wrong_and_what_to_do() {
    let folder = folder_with_a_model();
    assert_snapshot!(all_printed(
        folder.path(),
        &[
            &["plan", "gone"],
            &["plan", "empty"],
            &["plan", "model", "--memory", "much"],
            &["forward", "model", "--tokens", "1,999", "--out", "out.safetensors"],
            &["forward", "model", "--tokens", "1,x", "--out", "out.safetensors"],
            &["forward", "model", "--tokens", "1,2", "--drill", "oom", "--out", "out.safetensors"],
            &["generate", "empty", "--prompt", "hello"],
            &["embed", "model", "gone.txt"],
            &["serve", "empty", "--port", "0"],
            &["serve", "model", "--host", "0.0.0.0", "--port", "0"],
            &["fingerprint", "empty"],
            &["compare", "model", "gone"],
            &["identify", "gone"],
            &["verify", "gone.json"],
        ]
    ));
}

/// The plan of a model. Its numbers depend on the machine, so they are left out.
#[test]
fn plan_prints_what_the_memory_is_for() {
    let folder = folder_with_a_model();
    let text = all_printed(
        folder.path(),
        &[
            &["plan", "model", "--device", "cpu"],
            &["plan", "model", "--device", "cpu", "--memory", "1MiB"],
        ],
    );
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    let line = |line: &str| {
        // What limits the rate depends on the machine too.
        let line = line.split_once(", limited by").map_or(line, |(rate, _)| rate);
        let words = line.split_whitespace();
        let words = words.map(|word| if is_number(word) { "N" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    let text: Vec<String> = text.lines().map(line).collect();
    let text = text.join("\n").replace("N B", "N").replace("N KiB", "N").replace("N MiB", "N");
    assert_snapshot!(text.replace("N GiB", "N"));
}

/// The help of the commands that have no options for devices and recovery.
#[test]
fn help_of_the_program_and_its_small_commands() {
    let commands = ["devices", "doctor", "bench", "explain", "check", "journal"];
    let lines: Vec<[&str; 2]> = commands.iter().map(|command| [*command, "--help"]).collect();
    let mut lines: Vec<&[&str]> = lines.iter().map(|line| &line[..]).collect();
    lines.insert(0, &["--help"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert_snapshot!(all_printed(folder.path(), &lines));
}

#[test]
fn without_a_command_the_help_is_printed_with_exit_code_2() {
    let text = printed(&[]);
    assert!(text.contains("Usage: surefoot") && text.ends_with("--- exit code 2\n"), "{text}");
}
