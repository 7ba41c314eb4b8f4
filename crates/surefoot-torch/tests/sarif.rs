//! The SARIF log against the schema that OASIS publishes (`sarif/README.md` says where it is from).

use std::fs;
use std::path::Path;

use jsonschema::Validator;
use serde_json::{Value, json};
use surefoot_torch::discover::discover;
use surefoot_torch::project::check_files;
use surefoot_torch::report::sarif;
use surefoot_torch::settings::{Overrides, Settings};

fn schema() -> Validator {
    let text = include_str!("sarif/sarif-schema-2.1.0.json");
    // The published pattern of the two language properties has a stray `]`, which strict readers of
    // regular expressions refuse. We write neither property.
    let text = text.replace(r"[a-zA-Z]{2}]?$", r"[a-zA-Z]{2}$");
    let schema: Value = serde_json::from_str(&text).expect("the schema is JSON");
    jsonschema::draft7::options()
        .should_validate_formats(true)
        .build(&schema)
        .expect("the schema is a valid draft 7 schema")
}

fn problems(log: &Value) -> Vec<String> {
    let problem =
        |error: jsonschema::ValidationError<'_>| format!("{}: {error}", error.instance_path());
    schema().iter_errors(log).map(problem).collect()
}

fn settings(folder: &Path) -> Settings {
    Settings::find(folder, &Overrides::default()).expect("settings")
}

/// The log of a project with these files.
fn log(files: &[(&str, &str)]) -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("the file is written");
    }
    let settings = settings(folder.path());
    let found = discover(&[folder.path().to_owned()], &settings);
    let mut report = check_files(&found.files, &settings);
    report.errors.splice(0..0, found.errors);
    sarif::document(&report)
}

#[test]
fn a_project_without_findings_is_valid() {
    let log = log(&[("clean.py", "import torch\n")]);
    assert_eq!(log["runs"][0]["results"], json!([]));
    assert_eq!(problems(&log), [""; 0]);
}

#[test]
fn findings_in_files_and_notebooks_and_files_that_do_not_parse_are_valid() {
    let notebook = r#"{"cells": [{"cell_type": "code", "source": ["import torch\n", "x = torch.zeros(3)\n", "x.half()"]}],
        "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"#;
    let log = log(&[
        ("a name with spaces & é.py", "import torch\nx = torch.zeros(3)\nx.half()\n"),
        ("look.ipynb", notebook),
        ("broken.py", "import torch\ndef f(:\n"),
    ]);
    let run = &log["runs"][0];
    assert_eq!(run["results"].as_array().map(Vec::len), Some(2), "{run}");
    let notes = &run["invocations"][0]["toolExecutionNotifications"];
    assert_eq!(notes.as_array().map(Vec::len), Some(1), "{notes}");
    assert_eq!(problems(&log), [""; 0]);
}

#[test]
fn every_rule_has_a_case_whose_log_is_valid() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let settings = settings(&cases);
    let found = discover(&[cases], &settings);
    let log = sarif::document(&check_files(&found.files, &settings));
    let results = log["runs"][0]["results"].as_array().expect("a list of results");
    for rule in surefoot_torch::rules::ALL {
        assert!(results.iter().any(|result| result["ruleId"] == rule.code), "{}", rule.code);
    }
    assert_eq!(problems(&log), [""; 0]);
}

/// The validator is not blind: what the schema forbids is found.
#[test]
fn a_log_that_the_schema_forbids_is_refused() {
    let whole = log(&[("a.py", "import torch\nx = torch.zeros(3)\nx.half()\n")]);
    let mut level = whole.clone();
    level["runs"][0]["results"][0]["level"] = json!("hint");
    let mut line = whole.clone();
    line["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] =
        json!(0);
    let mut extra = whole.clone();
    extra["runs"][0]["results"][0]["colour"] = json!("red");
    let mut address = whole;
    address["$schema"] = json!("not an address");
    for wrong in [level, line, extra, address] {
        assert_ne!(problems(&wrong), [""; 0]);
    }
}
