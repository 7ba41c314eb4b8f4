//! `surefoot check` as people and their tools call it.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use serde_json::Value;
use tempfile::TempDir;

const CLEAN: &str =
    "import torch\n\ndevice = torch.device(\"cuda\" if torch.cuda.is_available() else \"cpu\")\n";
const BAD: &str = "import torch\n\nx = torch.zeros(3)\nx.half()\n";
const BROKEN: &str = "import torch\n\ndef f(:\n    pass\n";

fn surefoot(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
    command.current_dir(folder).arg("check").env_remove("NO_COLOR");
    command
}

fn project(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    }
    folder
}

fn json(output: &[u8]) -> Value {
    serde_json::from_slice(output).expect("one JSON document")
}

#[test]
fn a_clean_project_exits_0() {
    let folder = project(&[("a.py", CLEAN), ("b.py", "print(1)\n")]);
    surefoot(folder.path()).assert().code(0).stdout("");
}

#[test]
fn findings_exit_1_and_show_the_line_with_a_caret() {
    let folder = project(&[("a.py", BAD)]);
    let shown = "error[SF004]: `.half()` returns a new tensor, and it is dropped: this one stays as it is\n \
                 --> a.py:4:1\n  |\n4 | x.half()\n  | ^^^^^^^^\n  = help: assign the result\n";
    surefoot(folder.path()).assert().code(1).stdout(predicate::str::contains(shown));
}

/// SF029 (`.item()` in every step of a training loop) is a hint.
#[test]
fn hints_alone_exit_0_and_with_strict_1() {
    let hint = include_str!("../../surefoot-torch/tests/cases/SF029/bad_item.py");
    let folder = project(&[("a.py", hint)]);
    let found = predicate::str::contains("hint[SF029]");
    surefoot(folder.path()).assert().code(0).stdout(found.clone());
    surefoot(folder.path()).arg("--strict").assert().code(1).stdout(found);
    let folder = project(&[("a.py", hint), ("b.py", BAD)]);
    surefoot(folder.path()).assert().code(1);
}

#[test]
fn a_file_that_does_not_parse_exits_2_is_named_and_the_others_are_checked() {
    let folder = project(&[("bad.py", BAD), ("broken.py", BROKEN), ("latin.py", "")]);
    fs::write(folder.path().join("latin.py"), b"import torch\nx = '\xe9'\n").expect("written");
    surefoot(folder.path())
        .assert()
        .code(2)
        .stdout(predicate::str::contains("--> broken.py:3:7"))
        .stdout(predicate::str::contains("--> latin.py:2:6"))
        .stdout(predicate::str::contains("SF004"));
}

#[test]
fn a_missing_path_exits_2_and_an_empty_folder_says_so() {
    let folder = project(&[("notes.txt", "")]);
    surefoot(folder.path())
        .arg("gone.py")
        .assert()
        .code(2)
        .stdout(predicate::str::contains("gone.py"));
    surefoot(folder.path()).assert().code(0).stderr(predicate::str::contains("no Python files"));
}

#[test]
fn json_has_places_and_fixes() {
    let folder = project(&[("a.py", BAD), ("broken.py", BROKEN)]);
    let output = surefoot(folder.path()).args(["--format", "json"]).output().expect("it runs");
    let document = json(&output.stdout);
    let finding = &document["findings"][0];
    assert_eq!(finding["code"], "SF004");
    assert_eq!((&finding["line"], &finding["column"]), (&4.into(), &1.into()));
    assert_eq!(finding["fix"]["edits"][0]["text"], "x = ");
    assert_eq!(document["errors"][0]["path"], "broken.py");
    assert_eq!(document["errors"][0]["place"]["line"], 3);
    let global = surefoot(folder.path()).arg("--json").output().expect("it runs");
    assert_eq!(json(&global.stdout), document);
}

#[test]
fn sarif_has_the_shape_that_scanners_read() {
    let folder = project(&[("a b.py", BAD)]);
    let output = surefoot(folder.path()).args(["--format", "sarif"]).output().expect("it runs");
    let log = json(&output.stdout);
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let result = &run["results"][0];
    let index = result["ruleIndex"].as_u64().expect("an index") as usize;
    assert_eq!(run["tool"]["driver"]["rules"][index]["id"], result["ruleId"]);
    let physical = &result["locations"][0]["physicalLocation"];
    assert_eq!(physical["artifactLocation"]["uri"], "a%20b.py");
    assert_eq!(physical["region"]["startLine"], 4);
}

#[test]
fn github_annotations_are_one_line_each() {
    let folder = project(&[("a.py", BAD)]);
    surefoot(folder.path()).args(["--format", "github"]).assert().code(1).stdout(
        predicate::str::starts_with(
            "::error file=a.py,line=4,endLine=4,col=1,endColumn=9,title=SF004::",
        ),
    );
}

#[test]
fn fix_writes_and_diff_only_shows() {
    let folder = project(&[("a.py", BAD)]);
    let path = folder.path().join("a.py");
    surefoot(folder.path())
        .arg("--diff")
        .assert()
        .code(1)
        .stdout(predicate::str::contains("-x.half()\n+x = x.half()\n"));
    assert_eq!(fs::read_to_string(&path).expect("read"), BAD);
    surefoot(folder.path())
        .arg("--fix")
        .assert()
        .code(0)
        .stderr(predicate::str::contains("1 finding fixed"));
    let once = fs::read_to_string(&path).expect("read");
    assert!(once.ends_with("x = x.half()\n"));
    surefoot(folder.path()).arg("--fix").assert().code(0);
    assert_eq!(fs::read_to_string(&path).expect("read"), once);
}

#[test]
fn noqa_silences_by_code_and_altogether() {
    for (comment, code) in
        [("# noqa: SF004", 0), ("# noqa", 0), ("# noqa: E501", 1), ("# noqa: SF001", 1)]
    {
        let folder =
            project(&[("a.py", &BAD.replace("x.half()", &format!("x.half()  {comment}")))]);
        surefoot(folder.path()).assert().code(code);
    }
}

#[test]
fn pyproject_selects_ignores_and_excludes() {
    let settings = "[tool.surefoot]\nexclude = [\"old/\"]\n\n[tool.surefoot.per-file-ignores]\n\"tests/*\" = [\"SF004\"]\n";
    let folder = project(&[("pyproject.toml", settings), ("old/a.py", BAD), ("tests/b.py", BAD)]);
    surefoot(folder.path()).assert().code(0);
    let folder =
        project(&[("pyproject.toml", "[tool.surefoot]\nselect = [\"SF01\"]\n"), ("a.py", BAD)]);
    surefoot(folder.path()).assert().code(0);
    surefoot(folder.path()).args(["--select", "SF00"]).assert().code(1);
    surefoot(folder.path()).args(["--select", "SF00", "--ignore", "SF004"]).assert().code(0);
    let folder = project(&[("pyproject.toml", "[tool.surefoot]\nselecct = []\n"), ("a.py", BAD)]);
    surefoot(folder.path()).assert().code(2).stderr(predicate::str::contains("selecct"));
}

#[test]
fn an_unknown_rule_exits_2() {
    let folder = project(&[("a.py", BAD)]);
    surefoot(folder.path())
        .args(["--select", "XX1"])
        .assert()
        .code(2)
        .stderr(predicate::str::contains("XX1"));
    surefoot(folder.path()).args(["--explain", "SF999"]).assert().code(2);
}

#[test]
fn gitignored_files_are_left_alone_unless_named() {
    let folder = project(&[(".gitignore", "generated.py\n"), ("generated.py", BAD)]);
    surefoot(folder.path()).assert().code(0);
    surefoot(folder.path()).arg("generated.py").assert().code(1);
}

#[test]
fn stdin_is_checked_and_fixed_under_the_name_given() {
    let folder = project(&[]);
    surefoot(folder.path())
        .args(["-", "--stdin-filename", "editor.py"])
        .write_stdin(BAD)
        .assert()
        .code(1)
        .stdout(predicate::str::contains("--> editor.py:4:1"));
    surefoot(folder.path())
        .args(["-", "--fix"])
        .write_stdin(BAD)
        .assert()
        .code(0)
        .stdout(BAD.replace("x.half()", "x = x.half()"));
    surefoot(folder.path()).arg("-").write_stdin(BROKEN).assert().code(2);
}

#[test]
fn the_torch_of_a_project_that_runs_on_mps_is_looked_up() {
    let python = "import torch\n\ndevice = torch.device(\"mps\")\n";
    let pins = "numpy\ntorch==2.8.0\n";
    let folder = project(&[("a.py", python), ("requirements.txt", pins)]);
    surefoot(folder.path())
        .assert()
        .code(1)
        .stdout(predicate::str::contains("--> requirements.txt:2:1"))
        .stdout(predicate::str::contains("https://github.com/pytorch/pytorch/issues/162730"));
    surefoot(folder.path()).args(["--ignore", "SF033"]).assert().code(0);
    surefoot(folder.path()).arg("--fix").assert().code(1);
    let left = fs::read_to_string(folder.path().join("requirements.txt")).expect("read");
    assert_eq!(left, pins);
    // Without MPS the bugs don't matter.
    let folder = project(&[("a.py", CLEAN), ("requirements.txt", pins)]);
    surefoot(folder.path()).assert().code(0);
}

#[test]
fn a_file_with_a_coding_cookie_is_checked() {
    let folder = project(&[]);
    let text = b"# -*- coding: latin-1 -*-\nimport torch\n# \xe9\nx = torch.zeros(3)\nx.half()\n";
    fs::write(folder.path().join("a.py"), text).expect("written");
    surefoot(folder.path()).assert().code(1).stdout(predicate::str::contains("--> a.py:5:1"));
    surefoot(folder.path()).arg("--fix").assert().code(0);
    assert!(fs::read(folder.path().join("a.py")).expect("read").contains(&0xe9));
}

#[test]
fn notebooks_name_the_cell() {
    let notebook = r#"{"cells": [
        {"cell_type": "markdown", "source": ["title"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "import torch\n", "x = torch.zeros(3)"]},
        {"cell_type": "code", "source": ["!nvidia-smi\n", "x.half()"]}
    ], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"#;
    let folder = project(&[("n.ipynb", notebook)]);
    surefoot(folder.path())
        .assert()
        .code(1)
        .stdout(predicate::str::contains("--> n.ipynb:cell 3:2:1"));
    surefoot(folder.path()).arg("--fix").assert().code(0);
    let fixed = fs::read_to_string(folder.path().join("n.ipynb")).expect("read");
    assert_eq!(json(fixed.as_bytes())["cells"][2]["source"][1], "x = x.half()");
    surefoot(folder.path()).assert().code(0);
}

#[test]
fn every_rule_is_explained_and_listed() {
    let folder = project(&[]);
    let listed = surefoot(folder.path()).arg("--explain").output().expect("it runs");
    let listed = String::from_utf8(listed.stdout).expect("UTF-8");
    assert!(listed.lines().count() >= 29);
    for line in listed.lines() {
        let code = line.split_whitespace().next().expect("a code");
        surefoot(folder.path())
            .args(["--explain", code])
            .assert()
            .code(0)
            .stdout(predicate::str::contains("## When to ignore"));
    }
}

#[test]
fn the_plan_tells_the_story_in_markdown() {
    let train = "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n\n\
        device = torch.device(\"cuda\" if torch.cuda.is_available() else \"cpu\")\n\
        model = nn.Linear(3, 3).to(device)\n\
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n\
        loader = DataLoader([], persistent_workers=True)\n\
        x = torch.zeros(3)\nx.half()\n";
    let folder = project(&[("train.py", train)]);
    surefoot(folder.path())
        .arg("--plan")
        .assert()
        .code(1)
        .stdout(predicate::str::contains("| `device` | train.py:5 | cuda, cpu |"))
        .stdout(predicate::str::contains("| `model` | `torch.nn.Linear` | train.py:6 | `device` |"))
        .stdout(predicate::str::contains("with its model: `device`"))
        .stdout(predicate::str::contains("### 1. Put everything where it belongs (1 finding)"))
        .stdout(predicate::str::contains("### 2. Feed it (1 finding)"))
        .stdout(predicate::str::contains("```mermaid\nflowchart LR\n"))
        .stdout(predicate::str::contains("-->|trains|"));
}
