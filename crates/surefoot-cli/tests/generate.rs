//! `surefoot generate` as people run it, within the memory it was allowed.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use testkit::model_folders;

mod changed;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures").join(name)
}

fn generate(model: &Path) -> Command {
    let mut command = Command::cargo_bin("surefoot").unwrap();
    command.arg("generate").arg(model);
    command
}

fn stdout(command: &mut Command) -> String {
    String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap()
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&stdout(command.arg("--json"))).unwrap()
}

#[test]
fn streaming_the_text_prints_the_same_text() {
    for name in ["llama-tiny", "gpt2-tiny", "neox-tiny", "qwen2-tiny"] {
        let arguments = ["The tensor", "--max-tokens", "40"];
        let whole = stdout(generate(&fixture(name)).args(arguments));
        assert!(whole.ends_with('\n'));
        assert_eq!(stdout(generate(&fixture(name)).args(arguments).arg("--stream")), whole);
    }
}

#[test]
fn a_gguf_file_gives_the_text_of_its_folder() {
    let file = |name: &str| fixture("../gguf").join(name);
    let arguments = ["The tensor", "--max-tokens", "40"];
    let folder = stdout(generate(&fixture("llama-tiny")).args(arguments));
    assert_eq!(stdout(generate(&file("llama-tiny.F32.gguf")).args(arguments)), folder);
    // Rounded weights may choose other tokens, and end sooner; they choose the same ones each time.
    let rounded = stdout(generate(&file("llama-tiny.Q8_0.gguf")).args(arguments));
    assert!(!rounded.trim().is_empty());
    let streamed = generate(&file("llama-tiny.Q8_0.gguf")).args(arguments).arg("--stream").output();
    assert_eq!(String::from_utf8(streamed.unwrap().stdout).unwrap(), rounded);
    let damaged = file("llama-tiny.F32.gguf").with_file_name("missing.gguf");
    generate(&damaged).arg("a").assert().code(2).stderr(contains("missing.gguf"));
}

#[test]
fn a_batch_gives_what_its_prompts_give_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.txt");
    let prompts = ["The device", "a", "Once upon a time there was a tensor"];
    std::fs::write(&file, prompts.join("\n")).unwrap();
    let model = fixture("gpt2-tiny");
    let sampled = ["--temperature", "0.9", "--top-k", "50", "--top-p", "0.95", "--seed", "11"];
    for options in [&[][..], &sampled[..]] {
        let batch = json(generate(&model).arg("--prompts").arg(&file).args(options));
        for (number, prompt) in prompts.iter().enumerate() {
            let alone = json(generate(&model).arg(prompt).args(options));
            assert_eq!(batch["completions"][number], alone["completions"][0]);
        }
    }
    let lines = stdout(generate(&model).arg("--prompts").arg(&file));
    assert_eq!(lines.lines().count(), 3);
}

#[test]
fn proposals_change_no_text_and_the_accepted_share_is_told() {
    let prompt = "The tensor is on the device. The tensor is";
    let draft = fixture("qwen2-tiny").display().to_string();
    for name in ["llama-tiny", "gpt2-tiny"] {
        let run = |options: &[&str]| {
            let mut command = generate(&fixture(name));
            json(command.arg(prompt).args(["--max-tokens", "60"]).args(options))
        };
        let plain = run(&[]);
        assert_eq!(
            (&plain["accepted_proposals"], &plain["rejected_proposals"]),
            (&0.into(), &0.into())
        );
        for options in [
            &["--speculate", "lookup"][..],
            &["--speculate", "auto"],
            &["--draft", &draft, "--speculate", "draft"],
            &["--draft", &draft],
            &["--speculate", "lookup", "--drill", "out_of_memory:op=generate,at=during,nth=200"],
        ] {
            assert_eq!(run(options)["completions"], plain["completions"], "{name} {options:?}");
        }
        let told = run(&["--speculate", "lookup"]);
        assert!(told["accepted_proposals"].as_u64().unwrap() > 0, "a tiny model repeats itself");
        generate(&fixture(name))
            .args([prompt, "--max-tokens", "60", "--speculate", "lookup"])
            .assert()
            .success()
            .stderr(contains("proposed tokens were accepted"));
    }
}

#[test]
fn a_draft_that_can_not_be_one_is_refused() {
    let model = fixture("llama-tiny");
    let refused = |options: &[&str], why: &str| {
        generate(&model).arg("a").args(options).assert().code(2).stderr(contains(why));
    };
    let encoder = fixture("bert-tiny").display().to_string();
    refused(&["--draft", &encoder], "encoder");
    refused(&["--speculate", "draft"], "--draft MODEL");
    refused(&["--speculate", "lookup", "--draft", &encoder], "no use");
    refused(&["--draft", "missing"], "missing");
}

#[test]
fn a_stop_text_ends_the_text_and_is_not_part_of_it() {
    let model = fixture("gpt2-tiny");
    let free = json(generate(&model).arg("The tensor"));
    let text = free["completions"][0]["text"].as_str().unwrap().to_owned();
    let at = text.char_indices().nth(5).unwrap().0;
    let stop: String = text[at..].chars().take(2).collect();
    let stopped = json(generate(&model).args(["The tensor", "--stop", &stop]));
    let short = stopped["completions"][0]["text"].as_str().unwrap();
    assert_eq!(short, &text[..text.find(&stop).unwrap()]);
    assert_eq!(stopped["completions"][0]["ending"], "stopped");
    let streamed = stdout(generate(&model).args(["The tensor", "--stop", &stop, "--stream"]));
    assert_eq!(streamed, format!("{short}\n"));
}

#[test]
fn seeds_repeat_and_differ() {
    let with = |seed| json(generate(&fixture("gpt2-tiny")).args(["x", "--seed", seed]));
    assert_eq!(with("1")["completions"], with("1")["completions"]);
    assert_ne!(with("1")["completions"], with("2")["completions"]);
}

#[test]
fn numbers_that_mean_nothing_are_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("nan");
    changed::copy(&fixture("llama-tiny"), &model, "model.norm.weight", |_| f32::NAN);
    generate(&model).arg("The").assert().code(3).stderr(contains("NaN or infinite"));
    let embed = |model: &Path| {
        let mut command = Command::cargo_bin("surefoot").unwrap();
        command.arg("embed").arg(model).write_stdin("a text\n").assert()
    };
    embed(&model).code(3).stderr(contains("NaN or infinite"));
    embed(&fixture("llama-tiny")).success();
}

#[test]
fn a_tokenizer_that_is_cut_off_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("cut");
    changed::copy(&fixture("llama-tiny"), &model, "model.norm.weight", |weight| weight);
    let file = model.join("tokenizer.json");
    let whole = std::fs::read(&file).unwrap();
    for part in [0, 1, 3, 10, 100, whole.len() / 500, whole.len() / 2, whole.len() - 2] {
        std::fs::write(&file, &whole[..part]).unwrap();
        let refused = generate(&model).arg("The").assert().code(2);
        refused.stderr(contains("tokenizer.json").and(contains("can't be read")));
    }
    std::fs::write(&file, &whole[..500]).unwrap();
    generate(&model).arg("The").assert().code(2).stderr(contains("panicked").not());
}

#[test]
fn prompts_come_from_stdin_and_a_model_that_is_full_says_so() {
    let mut two = generate(&fixture("gpt2-tiny"));
    let two = two.args(["--prompts", "-", "--max-tokens", "3"]).write_stdin("one\ntwo\n");
    assert_eq!(stdout(two).lines().count(), 2);
    let mut empty = generate(&fixture("gpt2-tiny"));
    let empty = empty.args(["--prompts", "-"]).write_stdin("one\n\n").assert().code(2);
    empty.stderr(contains("line 2 of - is empty"));
    let mut full = generate(&fixture("gpt2-tiny"));
    let full = full.args(["one", "--max-tokens", "1000"]).assert().success();
    full.stderr(contains("stopped at 128 tokens"));
}

#[test]
fn wrong_options_are_refused() {
    let refused = |arguments: &[&str], words: &str| {
        generate(&fixture("gpt2-tiny"))
            .args(arguments)
            .assert()
            .code(2)
            .stdout("")
            .stderr(contains(words.to_owned()));
    };
    refused(&["x", "--temperature", "-1"], "temperature");
    refused(&["x", "--temperature", "NaN"], "temperature");
    refused(&["x", "--top-p", "1.5"], "top-p");
    refused(&["x", "--top-k", "0"], "top-k");
    refused(&["x", "--max-tokens", "0"], "max-tokens");
    refused(&[], "required");
    refused(&[""], "the prompt is empty");
    refused(&["--prompts", "/nowhere/prompts.txt"], "can't be read");
    refused(&["x", "--memory", "lots"], "memory");
    refused(&["x", "--device", "abacus"], "abacus");
    generate(&fixture("bert-tiny")).arg("x").assert().code(2).stderr(contains("is an encoder"));
}

/// Issue 17: 64 prompts that don't fit together were refused.
#[test]
fn prompts_that_do_not_fit_together_run_in_groups() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompts.txt");
    let prompts: Vec<String> = (0..64).map(|number| format!("The tensor {number}")).collect();
    std::fs::write(&file, prompts.join("\n")).unwrap();
    let model = fixture("llama-tiny");
    // 64 sequences need 36 MiB more than one: cache and activations.
    let plan = |batch: &str| {
        let mut command = Command::cargo_bin("surefoot").unwrap();
        let sizes = ["--prompt-tokens", "16", "--max-tokens", "240", "--batch", batch];
        let plan = json(command.arg("plan").arg(&model).args(sizes));
        plan["least_bytes"].as_u64().unwrap()
    };
    let (one, all) = (plan("1"), plan("64"));
    let budget = one + (16 << 20);
    assert!(budget < all, "{budget} of {all} bytes");
    let limited = json(generate(&model).arg("--prompts").arg(&file).args([
        "--max-tokens",
        "2000",
        "--stop",
        " ",
        "--memory",
        &budget.to_string(),
    ]));
    let free = json(generate(&model).arg("--prompts").arg(&file).args([
        "--max-tokens",
        "2000",
        "--stop",
        " ",
    ]));
    assert_eq!(limited["completions"].as_array().unwrap().len(), 64);
    assert_eq!(limited["completions"], free["completions"]);
    assert!(limited["planned_peak_bytes"].as_u64().unwrap() <= budget);
}

/// Issue 17: the text was printed twice, and later the last token.
#[cfg(target_os = "linux")]
#[test]
fn a_streamed_text_goes_on_after_its_process_died() {
    use std::io::Read as _;
    use std::process::Stdio;

    let folder = tempfile::tempdir().unwrap();
    model_folders::llama(folder.path(), 32 << 20, model_folders::FolderDtype::F32);
    let tokenizer = fixture("llama-tiny").join("tokenizer.json");
    std::fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
    let arguments = ["The tensor", "--max-tokens", "150", "--stream", "--temperature", "1"];
    let whole = stdout(generate(folder.path()).args(arguments));
    let program = assert_cmd::cargo::cargo_bin("surefoot");
    let mut parent = std::process::Command::new(program)
        .arg("generate")
        .arg(folder.path())
        .args(arguments)
        .arg("--isolate")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = vec![0; whole.len() / 4];
    let mut out = parent.stdout.take().unwrap();
    out.read_exact(&mut shown).unwrap();
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let child = std::fs::read_to_string(children).unwrap();
    let child = child.split_whitespace().next().expect("the child is still at work").to_owned();
    assert!(std::process::Command::new("kill").args(["-KILL", &child]).status().unwrap().success());
    out.read_to_end(&mut shown).unwrap();
    let ended = parent.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && told.contains("is restarted"), "{told}");
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown, whole);
}

#[test]
fn a_lost_device_costs_a_restart_and_no_text() {
    let model = fixture("llama-tiny");
    let arguments = ["The tensor", "--max-tokens", "30"];
    let whole = stdout(generate(&model).args(arguments));
    // Each child loses its device after some of the text, and the third or fourth one ends it.
    let drill = ["--drill", "device_lost:op=generate,at=during,nth=600,count=1"];
    let alone = generate(&model).args(arguments).args(drill).output().unwrap();
    assert_eq!(alone.status.code(), Some(3));
    let told = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(told.contains("--isolate"), "{told}");
    let output =
        generate(&model).args(arguments).args(drill).args(["--stream", "--isolate"]).output();
    let output = output.unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    assert!((1..=3).contains(&told.matches("is restarted").count()), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), whole);
}

/// The promise: whatever the budget, the process stays within it and the tokens are the same,
/// also where the system allows no more address space than a part of the model.
#[cfg(target_os = "linux")]
#[test]
fn a_model_larger_than_the_memory_allowed_generates_the_same_tokens() {
    for dtype in [model_folders::FolderDtype::F32, model_folders::FolderDtype::Bf16] {
        let folder = tempfile::tempdir().unwrap();
        let size = model_folders::llama(folder.path(), 256 << 20, dtype);
        std::fs::copy(
            fixture("llama-tiny").join("tokenizer.json"),
            folder.path().join("tokenizer.json"),
        )
        .unwrap();
        let arguments = ["The tensor", "--max-tokens", "4"];
        let whole = json(generate(folder.path()).args(arguments));
        assert_eq!(whole["mode"], "resident");
        assert!(whole["peak_bytes"].as_u64().unwrap() > size);
        for percent in [100, 50, 25] {
            let budget = size * percent / 100;
            let part = json(
                generate(folder.path()).args(arguments).args(["--memory", &budget.to_string()]),
            );
            assert_eq!(part["completions"], whole["completions"], "{percent} %");
            assert_eq!(part["mode"], "mixed", "{percent} %");
            let peak = part["peak_bytes"].as_u64().unwrap();
            assert!(peak <= budget, "{peak} of {budget} bytes, {percent} %");
            assert!(peak >= budget * 6 / 10, "only {peak} of {budget} bytes, {percent} %");
        }
        // With 230 MiB to map and allocate in all, the model can't be resident, and is
        // streamed without being asked.
        let program = assert_cmd::cargo::cargo_bin("surefoot");
        let script = "ulimit -v 235520 && exec \"$0\" \"$@\"";
        let mut limited = Command::new("sh");
        limited.args(["-c", script]).arg(program).arg("generate").arg(folder.path());
        let limited = json(limited.args(arguments));
        assert_eq!(limited["mode"], "mixed");
        assert_eq!(limited["completions"], whole["completions"]);
    }
}

#[test]
fn a_chat_answers_each_line_with_all_that_was_said_in_mind() {
    let model = fixture("llama-tiny");
    let options = ["--max-tokens", "12"];
    let chat = |lines: &str| {
        let mut command = generate(&model);
        command.args(options).args(["--chat", "--chat-template", "plain", "--system", "be brief"]);
        stdout(command.write_stdin(lines.to_owned()))
    };
    let alone = |prompt: &str| stdout(generate(&model).args(options).arg(prompt));
    let first = alone("system: be brief\nuser: Hi\nassistant:");
    let text = first.strip_suffix('\n').unwrap();
    let second =
        alone(&format!("system: be brief\nuser: Hi\nassistant: {text}\nuser: And?\nassistant:"));
    assert_eq!(chat("Hi\n\nAnd?\n"), format!("{first}{second}"));
    assert_eq!(chat("Hi\n/reset\n/help\nHi\n/exit\nnever"), format!("{first}{first}"));
    // A chat that the model can't take any more goes on without its oldest messages.
    let mut command = generate(&model);
    command.args(options).args(["--chat", "--chat-template", "plain"]);
    let output = command.write_stdin("The tensor is on the device\n".repeat(14)).output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("oldest messages are left out"));
    generate(&model)
        .args(["--chat"])
        .write_stdin("Hi\n")
        .assert()
        .code(2)
        .stderr(contains("chat template"));
}
