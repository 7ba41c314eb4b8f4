//! `surefoot train --sweep KEY=V1,V2`: trains every combination of values, one after the other,
//! each in a child process with a folder of its own, and prints one table at the end. A run that
//! fails is listed with its error, and the others go on.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde_json::Value;
use surefoot_train::checkpoint::fresh_folder;

use crate::args::Global;
use crate::child::own_command;
use crate::exit::{Exit, Failure};
use crate::terminal::{Table, Terminal};

/// Set by Ctrl-C: the run that is under way saves a checkpoint and ends, and no other begins.
static STOP: AtomicBool = AtomicBool::new(false);

/// A key and the values that are tried.
type Axis = (String, Vec<String>);

/// One run of a sweep.
#[derive(Serialize)]
struct RunOfSweep {
    /// The keys and values that it differs in.
    set: Vec<(String, String)>,
    folder: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<Value>,
    exit_code: i32,
}

/// What is split off the command line before it is given to a run.
const OWN_OPTIONS: [&str; 3] = ["--sweep", "--folder", "--tensorboard"];

pub(super) fn sweep(
    asked: &[String],
    base: &Path,
    tensorboard: Option<&Path>,
    global: &Global,
    terminal: &Terminal,
) -> Result<Exit, Failure> {
    let axes = asked.iter().map(|text| axis(text)).collect::<Result<Vec<_>, _>>()?;
    let combinations = combinations(&axes);
    let base = fresh_sweep_folder(base);
    ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::usage("Ctrl-C can't be listened for").caused_by(&error))?;
    let mut runs = Vec::new();
    for (number, set) in (1..).zip(&combinations) {
        if STOP.load(Ordering::Relaxed) {
            break;
        }
        let words: Vec<String> = set.iter().map(|(key, value)| format!("{key}={value}")).collect();
        terminal.note(&format!("run {number} of {}: {}", combinations.len(), words.join(", ")));
        let name = format!("{number:03}");
        let logs = tensorboard.map(|folder| folder.join(&name));
        runs.push(one_run(set, base.join(&name), logs.as_deref())?);
    }
    runs.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
    if global.json {
        terminal.json(&runs)?;
    } else {
        terminal.result(&table(&axes, &runs))?;
    }
    let failed = runs.iter().any(|run| run.exit_code != 0);
    Ok(match STOP.load(Ordering::Relaxed) {
        true => Exit::Interrupted,
        false if failed => Exit::No,
        false => Exit::Done,
    })
}

/// `KEY=V1,V2`; commas inside brackets, braces and quotes belong to a value.
fn axis(text: &str) -> Result<Axis, Failure> {
    let wrong = |why: &str| {
        Failure::usage(format!("--sweep {text} {why}")).hint(
            "write it as --sweep optimizer.lr=0.1,0.01 or --sweep 'model.hidden=[32],[64,64]'",
        )
    };
    let (key, values) = text.split_once('=').ok_or_else(|| wrong("has no '='"))?;
    let mut parts = vec![String::new()];
    let (mut depth, mut quote) = (0i32, None);
    for letter in values.chars() {
        match letter {
            '\'' | '"' if quote.is_none() => quote = Some(letter),
            _ if quote == Some(letter) => quote = None,
            '[' | '{' if quote.is_none() => depth += 1,
            ']' | '}' if quote.is_none() => depth -= 1,
            ',' if depth == 0 && quote.is_none() => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = parts.last_mut() {
            last.push(letter);
        }
    }
    let parts: Vec<String> = parts.iter().map(|part| part.trim().to_owned()).collect();
    match parts.iter().any(String::is_empty) || key.trim().is_empty() {
        true => Err(wrong("has an empty key or value")),
        false => Ok((key.trim().to_owned(), parts)),
    }
}

/// Every combination, the last key changing fastest.
fn combinations(axes: &[Axis]) -> Vec<Vec<(String, String)>> {
    axes.iter().fold(vec![Vec::new()], |so_far, (key, values)| {
        let longer = so_far.iter().flat_map(|before| {
            values.iter().map(move |value| {
                let mut next = before.clone();
                next.push((key.clone(), value.clone()));
                next
            })
        });
        longer.collect()
    })
}

/// A folder in which no sweep has been.
fn fresh_sweep_folder(base: &Path) -> PathBuf {
    let mut wanted = base.to_owned();
    let mut number = 1;
    while wanted.join("001").exists() {
        number += 1;
        let mut name = base.file_name().unwrap_or_default().to_owned();
        name.push(format!("-{number}"));
        wanted = base.with_file_name(name);
    }
    fresh_folder(&wanted)
}

/// This command line without what belongs to the sweep.
fn arguments_of_a_run(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut all = all;
    while let Some(argument) = all.next() {
        let text = argument.to_string_lossy();
        if text == "--json" || OWN_OPTIONS.iter().any(|own| text.starts_with(&format!("{own}="))) {
            continue;
        }
        if OWN_OPTIONS.iter().any(|own| text == *own) {
            all.next();
            continue;
        }
        kept.push(argument);
    }
    kept
}

/// Trains one combination; its progress and notes go to the terminal as they come.
fn one_run(
    set: &[(String, String)],
    folder: PathBuf,
    tensorboard: Option<&Path>,
) -> Result<RunOfSweep, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::usage("a run of the sweep could not be started").caused_by(&error)
    };
    let arguments = arguments_of_a_run(std::env::args_os().skip(1));
    let mut command = own_command(arguments).map_err(cannot)?;
    for (key, value) in set {
        command.arg("--set").arg(format!("{key}={value}"));
    }
    command.arg("--folder").arg(&folder).arg("--json").stdout(Stdio::piped());
    if let Some(folder) = tensorboard {
        command.arg("--tensorboard").arg(folder);
    }
    let mut child = command.spawn().map_err(cannot)?;
    let mut report = None;
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            report = serde_json::from_str::<Value>(&line).ok();
        }
    }
    let status = child.wait().map_err(cannot)?;
    let exit_code = status.code().unwrap_or(Exit::Fault as i32);
    let report = report.filter(|report| report.get("test_loss").is_some());
    Ok(RunOfSweep { set: set.to_vec(), folder, report, exit_code })
}

/// Runs that did not end well come last; the others by their best test: the highest accuracy of a
/// classifier, the lowest loss of other models.
fn rank(run: &RunOfSweep) -> f64 {
    let figure = |key: &str| run.report.as_ref()?.get(key)?.as_f64();
    match (run.exit_code, figure("best_test_accuracy")) {
        (0, Some(accuracy)) if accuracy.is_finite() => -accuracy,
        (0, _) => figure("test_loss").unwrap_or(f64::MAX),
        _ => f64::INFINITY,
    }
}

fn table(axes: &[Axis], runs: &[RunOfSweep]) -> String {
    let mut table =
        Table::new(["run", "test loss", "test accuracy", "best", "steps", "seconds", "folder"]);
    for run in runs {
        let words: Vec<String> =
            run.set.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let figure = |key: &str, digits: usize| {
            let number = run.report.as_ref().and_then(|report| report.get(key)?.as_f64());
            number.map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
        };
        let ended = match run.exit_code {
            0 => run.folder.display().to_string(),
            code => format!("{} (exit code {code})", run.folder.display()),
        };
        table.row([
            words.join(" "),
            figure("test_loss", 4),
            figure("test_accuracy", 4),
            figure("best_test_accuracy", 4),
            figure("steps", 0),
            figure("seconds", 1),
            ended,
        ]);
    }
    let keys: Vec<&str> = axes.iter().map(|(key, _)| key.as_str()).collect();
    format!("{} runs over {}, best first\n{table}", runs.len(), keys.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_split_at_commas_outside_of_brackets() {
        let (key, values) = axis("model.hidden=[32],[64, 64]").ok().unwrap();
        assert_eq!(
            (key.as_str(), values.as_slice()),
            ("model.hidden", &["[32]".to_owned(), "[64, 64]".to_owned()][..])
        );
        assert!(axis("optimizer.lr").is_err());
        assert!(axis("optimizer.lr=0.1,").is_err());
    }

    #[test]
    fn every_combination_is_run_once() {
        let axes = [axis("a=1,2").ok().unwrap(), axis("b=x,y,z").ok().unwrap()];
        let all = combinations(&axes);
        assert_eq!(all.len(), 6);
        assert_eq!(all[1], [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "y".to_owned())]);
    }

    #[test]
    fn a_run_does_not_get_the_options_of_the_sweep() {
        let line = [
            "train",
            "c.yaml",
            "--sweep",
            "a=1,2",
            "--json",
            "--folder=x",
            "--epochs",
            "3",
            "--sweep=b=1",
        ];
        let kept = arguments_of_a_run(line.iter().map(OsString::from));
        assert_eq!(kept, ["train", "c.yaml", "--epochs", "3"]);
    }
}
