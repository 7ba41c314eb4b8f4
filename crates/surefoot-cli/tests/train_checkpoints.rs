//! What checkpoints hold, and what a run that goes on, or a test, makes of it: issue 16.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const TABLE: &str = "\
data: {kind: csv, path: points.csv}
model: {kind: mlp, hidden: [8]}
batch_size: 20
epochs: 4
optimizer: {lr: 0.05}
";

/// A folder with a configuration and two tables in it.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(config: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        place.write("table.yaml", config);
        place.write("points.csv", &points(0.0));
        place.write("others.csv", &points(0.5));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
        command.current_dir(self.folder.path()).arg("train").args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        let told = text(&output.stdout);
        match serde_json::from_str(&told) {
            Ok(document) => document,
            Err(_) => serde_json::from_str(told.lines().last().unwrap()).unwrap(),
        }
    }
}

/// Two classes of points, shifted.
fn points(shift: f64) -> String {
    let mut text = String::from("x,y,kind\n");
    for at in 0..200 {
        let side = f64::from(at % 2) * 4.0 - 2.0 + shift;
        let wave = f64::from(at) * 0.7;
        let kind = ["left", "right"][at as usize % 2];
        let _ = writeln!(text, "{},{},{kind}", side + wave.sin(), wave.cos());
    }
    text
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_printed_command_goes_on_with_the_same_data_and_length() {
    let place = Place::new(TABLE);
    let set = ["table.yaml", "--set", "data.path=others.csv", "--epochs", "6"];
    let expected = place.json(&[&set[..], &["--folder", "whole"]].concat());
    let drill = ["--drill", "device_lost:step=20,op=train step"];
    let stopped = place.run(&[&set[..], &drill].concat());
    assert_eq!(stopped.status.code(), Some(3));
    let told = text(&stopped.stderr);
    let command = told.lines().find_map(|line| line.split("surefoot train ").nth(1)).unwrap();
    let again = place.run(&[command]);
    assert!(again.status.success(), "{command}: {}", text(&again.stderr));
    assert!(
        text(&again.stderr).contains("the configuration is that of"),
        "{}",
        text(&again.stderr)
    );
    let latest = fs::read_dir(place.path("runs/table")).unwrap();
    let steps = latest.filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("step-00000048")
    });
    assert_eq!(steps.count(), 1, "6 epochs of 8 steps");
    let tested = place.json(&["--eval", "runs/table/step-00000048.safetensors"]);
    assert_eq!(tested["test_loss"], expected["test_loss"]);
}

#[test]
fn what_contradicts_a_checkpoint_is_refused_and_what_does_not_is_taken() {
    let place = Place::new(TABLE);
    let first = place.json(&["table.yaml"]);
    let resume = format!("--resume={}", first["checkpoint"].as_str().unwrap());
    for (flag, named) in [
        ("data.path=others.csv", "data.path is \"points.csv\" in the checkpoint"),
        ("optimizer.lr=0.5", "optimizer.lr is 0.05 in the checkpoint and 0.5 here"),
        ("model.hidden=[9]", "model.hidden is [8]"),
    ] {
        for config in [&["table.yaml"][..], &[]] {
            let refused = place.run(&[config, &[&resume, "--set", flag]].concat());
            assert_eq!(refused.status.code(), Some(2), "{flag}");
            let error = text(&refused.stderr);
            assert!(error.contains(named) && error.contains("--override"), "{error}");
        }
    }
    let longer = place.json(&[&resume, "--epochs", "5", "--workers", "1"]);
    assert_eq!(longer["steps"], 40);
    let resume = format!("--resume={}", longer["checkpoint"].as_str().unwrap());
    let slower = ["--set", "optimizer.lr=0.01", "--epochs", "6", "--override"];
    let changed = place.json(&[&[resume.as_str()], &slower[..]].concat());
    assert_eq!(changed["steps"], 48);
    // The file was edited since then.
    place.write("table.yaml", &TABLE.replace("0.05", "0.02"));
    let refused = place.run(&["table.yaml", &resume]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("optimizer.lr"), "{}", text(&refused.stderr));
}

#[test]
fn data_that_changed_under_its_name_is_noticed() {
    let place = Place::new(TABLE);
    let first = place.json(&["table.yaml"]);
    let resume = format!("--resume={}", first["checkpoint"].as_str().unwrap());
    place.write("points.csv", &points(3.0));
    let refused = place.run(&[&resume, "--epochs", "5"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("other data"), "{}", text(&refused.stderr));
    place.json(&[&resume, "--epochs", "5", "--override"]);
}

#[test]
fn a_test_uses_the_classes_columns_and_normalisation_of_training() {
    let place = Place::new(TABLE);
    let first = place.json(&["table.yaml"]);
    let checkpoint = first["checkpoint"].as_str().unwrap();
    let plain = place.json(&["--eval", checkpoint]);
    assert_eq!(plain["test_accuracy"], first["test_accuracy"]);
    // The same points in other columns, with a class missing: normalised by their own means, which
    // are those of one class, they would be told wrong.
    let mut turned = String::from("kind,y,x\n");
    for line in points(0.0).lines().skip(1).filter(|line| line.ends_with("right")) {
        let fields: Vec<&str> = line.split(',').collect();
        let _ = writeln!(turned, "{},{},{}", fields[2], fields[1], fields[0]);
    }
    place.write("turned.csv", &turned);
    let other = place.json(&["--eval", checkpoint, "--set", "data.path=turned.csv"]);
    assert!(other["test_accuracy"].as_f64().unwrap() > 0.95, "{other}");
    for (name, table, why) in [
        (
            "renamed.csv",
            points(0.0).replace("left", "gauche"),
            "'gauche' is not a class of the model",
        ),
        ("fewer.csv", points(0.0).replace("y,kind", "z,kind"), "'y', which the model was trained"),
    ] {
        place.write(name, &table);
        let path = format!("data.path={name}");
        let refused = place.run(&["--eval", checkpoint, "--set", &path]);
        assert_eq!(refused.status.code(), Some(2), "{name}");
        assert!(text(&refused.stderr).contains(why), "{}", text(&refused.stderr));
    }
}

#[test]
fn a_damaged_checkpoint_is_refused_and_passed_over() {
    let place = Place::new(TABLE);
    let first = place.json(&["table.yaml"]);
    let name = first["checkpoint"].as_str().unwrap();
    let mut bytes = fs::read(place.path(name)).unwrap();
    let last = bytes.len() - 3;
    bytes[last] ^= 4;
    fs::write(place.path(name), bytes).unwrap();
    for arguments in [["--eval", name].as_slice(), &[&format!("--resume={name}")]] {
        let refused = place.run(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(text(&refused.stderr).contains("it is damaged"), "{}", text(&refused.stderr));
    }
    let resumed = place.run(&["table.yaml", "--resume"]);
    assert!(resumed.status.success());
    let told = text(&resumed.stderr);
    assert!(told.contains("skipped") && told.contains("continuing from step 24"), "{told}");
}

#[test]
fn a_test_loss_that_is_no_number_is_no_success() {
    let place =
        Place::new(&TABLE.replace("path: points.csv", "path: points.csv, normalise: false"));
    // Finite numbers whose products are not.
    let huge: String = (0..40).map(|at| format!("3e38,{}e38,left\n", at % 3)).collect();
    place.write("points.csv", &(points(0.0) + &huge));
    let output = place.run(&["table.yaml", "--epochs", "1", "--set", "data.test=0.5"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("the test loss is"), "{}", text(&output.stderr));
}

#[test]
fn after_divergence_the_best_checkpoint_is_recommended_and_works() {
    let place = Place::new(&TABLE.replace("epochs: 4", "epochs: 400"));
    let first = place.json(&["table.yaml", "--epochs", "2", "--folder", "runs/table"]);
    let good = first["checkpoint"].as_str().unwrap().to_owned();
    let kind = "optimizer={kind: sgd, lr: 1e30, schedule: constant}";
    let resume = format!("--resume={good}");
    let diverged = place.run(&[
        "table.yaml",
        &resume,
        "--set",
        kind,
        "--override",
        "--epochs",
        "400",
        "--set",
        "checkpoint.every=1",
    ]);
    assert_eq!(diverged.status.code(), Some(3), "{}", text(&diverged.stdout));
    let error = text(&diverged.stderr);
    let hint = error.lines().find(|line| line.contains("tested best")).unwrap();
    assert!(hint.contains(&good) && hint.contains("--override"), "{hint}");
}

#[test]
fn left_out_counts_samples_not_times() {
    let place = Place::new(&TABLE.replace("csv,", "csv, on_bad_sample: skip,"));
    place.write("points.csv", &(points(0.0) + &"1,nothing,left\n".repeat(5)));
    let output = place.run(&["table.yaml"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    assert!(told.contains("left out        5 samples that can't be read"), "{told}");
}

#[test]
fn the_page_and_the_folder_agree_on_the_best() {
    let place = Place::new(TABLE);
    let report = place.json(&["table.yaml"]);
    let page = fs::read_to_string(place.path("runs/table/report.html")).unwrap();
    let best = report["best_step"].as_u64().unwrap();
    assert!(page.contains(&format!("\"best_step\":{best}")), "{best}");
    assert!(page.contains("[\"optimizer.lr\",\"0.05\"]"), "and how it was trained");
    assert!(page.contains("\"name\":\"right\",\"samples\":"), "the classes are on the page");
    let file = format!("step-{best:08}.safetensors");
    assert!(Path::new(report["best_checkpoint"].as_str().unwrap()).ends_with(file));
}
