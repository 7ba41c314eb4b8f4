//! Several ranks, as threads of this process, train one model: the same curve as one rank, whatever
//! fails in one of them.

use std::path::Path;

use surefoot_train::ranks::{Ranks, ThreadRanks};
use surefoot_train::{TrainError, TrainEvent, TrainReport};
use tempfile::TempDir;

use crate::fine_tuning;
use crate::harness::Trial;

/// Sums over ranks are added in another order than within one batch, and nothing else differs. Twelve
/// steps of f32 training on losses of about 2 stay well within this.
const TOLERANCE: f64 = 1e-4;

/// What came of each rank, and the folder of the first one's checkpoints.
struct Job {
    folders: Vec<TempDir>,
    reports: Vec<Result<TrainReport, TrainError>>,
    /// The samples and steps that the first rank saw: the mean loss after each step.
    losses: Vec<f64>,
}

/// Runs `count` ranks; `change` prepares the trial of each.
fn job<'a>(
    count: usize,
    resume: Option<&'a Path>,
    change: impl Fn(usize, Trial<'a>) -> Trial<'a> + Sync,
) -> Job {
    let folders: Vec<TempDir> = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
    let change = &change;
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = ThreadRanks::group(count)
            .into_iter()
            .zip(&folders)
            .map(|(ranks, folder)| {
                scope.spawn(move || {
                    let rank = ranks.rank();
                    // A trial lives as long as what it borrows: this thread's own.
                    let trial = change(rank, Trial::new(Path::new("")));
                    let trial = Trial { folder: folder.path(), resume, ..trial };
                    Trial { ranks: Some(&ranks), ..trial }.run()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut losses = Vec::new();
    if let Ok((_, events)) = &ended[0] {
        losses.extend(events.iter().filter_map(|event| match event {
            TrainEvent::Step { loss, .. } => Some(*loss),
            _ => None,
        }));
    }
    let reports = ended.into_iter().map(|ended| ended.map(|(report, _)| report)).collect();
    Job { folders, reports, losses }
}

fn alone() -> (TrainReport, Vec<f64>) {
    let folder = tempfile::tempdir().unwrap();
    let (report, events) = Trial::new(folder.path()).run().unwrap();
    let loss = |event: &TrainEvent| match event {
        TrainEvent::Step { loss, .. } => Some(*loss),
        _ => None,
    };
    (report, events.iter().filter_map(loss).collect())
}

#[test]
fn the_curve_does_not_depend_on_the_number_of_ranks_and_the_bits_repeat() {
    let (report, losses) = alone();
    for count in [1, 2, 3, 4] {
        let first = job(count, None, |_, trial| trial);
        assert_eq!(first.losses.len(), 12);
        for (own, other) in losses.iter().zip(&first.losses) {
            assert!((own - other).abs() < TOLERANCE, "{count}: {own} and {other}");
        }
        for own in &first.reports {
            let own = own.as_ref().unwrap();
            assert!((own.test_loss - report.test_loss).abs() < TOLERANCE, "{count}");
            assert_eq!((own.steps, own.faults), (12, 0));
            assert_eq!(own.ranks.len(), count);
        }
        let second = job(count, None, |_, trial| trial);
        assert_eq!(first.losses, second.losses, "{count}");
        assert!(numbers(&first) == numbers(&second), "{count}");
    }
}

/// The numbers of the checkpoint of a job: all of the file but its header, which tells times.
fn numbers(job: &Job) -> Vec<u8> {
    let file = std::fs::read(&job.reports[0].as_ref().unwrap().checkpoint).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8 + header..].to_vec()
}

#[test]
fn a_fault_in_one_rank_is_recovered_there_and_changes_nothing() {
    let calm = job(2, None, |_, trial| trial);
    let loss = calm.reports[0].as_ref().unwrap().test_loss;
    for drill in [
        "out_of_memory:step=3,op=train step",
        "out_of_memory:step=3,op=train step,at=during",
        "command_buffer:step=11,op=train step,at=after",
        "out_of_memory:step=5,op=train update",
        "command_buffer:step=0,op=train update,at=after",
        "out_of_memory:op=evaluate",
        // Its state is lost, and given to it by the other rank.
        "state_lost:step=4,op=train step",
        "state_lost:step=4,op=train update",
        "state_lost:op=evaluate",
    ] {
        for hit in [0, 1] {
            let change =
                |rank, trial| Trial { drill: if rank == hit { drill } else { "" }, ..trial };
            let disturbed = job(2, None, change);
            for (rank, report) in disturbed.reports.iter().enumerate() {
                let report = report.as_ref().unwrap_or_else(|error| panic!("{drill}: {error}"));
                let off = (report.test_loss - loss).abs();
                assert!(off < TOLERANCE, "{drill} in {hit}: rank {rank} is off by {off}");
                assert_eq!(report.steps, 12, "{drill}");
            }
            let first = disturbed.reports[0].as_ref().unwrap();
            assert_eq!(first.faults, 1, "{drill} in {hit}: {:?}", first.fault_log);
            let named = first.fault_log[0].rank.unwrap_or(0);
            assert_eq!(named, hit, "{drill}: {:?}", first.fault_log);
        }
    }
}

#[test]
fn a_fault_that_one_rank_cannot_survive_ends_all_with_a_checkpoint() {
    let drill = "model_loading:step=4,op=train step";
    let change = |rank, trial| Trial { drill: if rank == 1 { drill } else { "" }, ..trial };
    let job = job(2, None, change);
    match &job.reports[0] {
        Err(TrainError::Fault { fault, step: 4, saved: Some(saved) }) => {
            assert!(fault.root_cause().starts_with("rank 1 could not go on"), "{fault}");
            assert!(saved.starts_with(job.folders[0].path()) && saved.exists());
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(&job.reports[1], Err(TrainError::OtherRank { rank: 1, .. })));
    let left = std::fs::read_dir(job.folders[1].path()).unwrap();
    assert_eq!(left.filter(|entry| is_checkpoint(entry.as_ref().unwrap())).count(), 0);
}

fn is_checkpoint(entry: &std::fs::DirEntry) -> bool {
    entry.path().extension().is_some_and(|extension| extension == "safetensors")
}

#[test]
fn a_run_is_resumed_with_another_number_of_ranks() {
    let (_, losses) = alone();
    let stopped =
        job(4, None, |rank, trial| Trial { stop_after: (rank == 2).then_some(5), ..trial });
    let report = stopped.reports[0].as_ref().unwrap();
    assert!(report.interrupted);
    let (at, path) = (report.steps as usize, report.checkpoint.clone());
    assert!((5..12).contains(&at), "{at}");
    for count in [1, 2, 3] {
        let again = job(count, Some(&path), |_, trial| trial);
        assert_eq!(again.losses.len(), 12 - at);
        // The means of an epoch contain every step before: a sample that were lost or seen twice would show.
        for (own, other) in losses[at..].iter().zip(&again.losses) {
            assert!((own - other).abs() < TOLERANCE, "{count}: {own} and {other}");
        }
    }
}

#[test]
fn ranks_that_differ_refuse_to_start_and_say_in_what() {
    let configs = [
        (("batch_size", "96"), "batch_size is 96 on rank 1 and 160 on rank 0"),
        (("optimizer.lr", "0.5"), "optimizer.lr is 0.5 on rank 1 and 0.01 on rank 0"),
        (("seed", "7"), "seed is 7 on rank 1"),
    ];
    for ((key, value), expected) in configs {
        let change = |rank, trial: Trial<'static>| match rank {
            1 => trial.set(key, value),
            _ => trial,
        };
        for report in job(2, None, change).reports {
            match report {
                Err(TrainError::RanksDiffer { differences }) => assert!(
                    differences.iter().any(|found| found.starts_with(expected)),
                    "{differences:?}"
                ),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn ranks_with_other_data_refuse_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let table = |name: &str, rows: usize, last: &str| {
        let mut lines = vec!["width,height,kind".to_owned()];
        lines.extend((0..rows).map(|at| format!("{at},{},{}", at % 7, ["a", "b"][at % 2])));
        lines.push(last.to_owned());
        let path = folder.path().join(name);
        std::fs::write(&path, lines.join("\n")).unwrap();
        path.display().to_string()
    };
    let first = table("first.csv", 39, "5,5,b");
    let changed = table("changed.csv", 39, "6,5,b");
    let longer = table("longer.csv", 40, "5,5,b");
    const CONFIG: &str = "\
data: {kind: csv, path: first.csv, test: 0.2}
model: {kind: mlp, hidden: [4]}
batch_size: 8
steps: 2
";
    for (other, expected) in
        [(&changed, "the digest of"), (&longer, "the number of training samples is")]
    {
        let change = |rank, trial: Trial<'static>| {
            let path = if rank == 0 { &first } else { other };
            Trial { config: CONFIG, ..trial }.set("data.path", path)
        };
        for report in job(2, None, change).reports {
            match report {
                Err(TrainError::RanksDiffer { differences }) => assert!(
                    differences
                        .iter()
                        .any(|found| found.starts_with(expected) && found.contains("on rank 1")),
                    "{differences:?}"
                ),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn ranks_that_stream_their_weights_tune_a_model_as_one_process_does_that_holds_them() {
    let folder = tempfile::tempdir().unwrap();
    for tune in ["tune: lora, rank: 2, dropout: 0.1", "tune: head"] {
        let config: &str = fine_tuning::config(folder.path(), tune).leak();
        let own = tempfile::tempdir().unwrap();
        let (alone, _) = Trial { config, ..Trial::new(own.path()) }.run().unwrap();
        for count in [2, 3] {
            let streamed = |_, trial| Trial { config, weight_memory: Some("1MiB"), ..trial };
            for report in job(count, None, streamed).reports {
                let report = report.unwrap();
                let off = (report.test_loss - alone.test_loss).abs();
                assert!(off < TOLERANCE, "{tune}, {count} ranks: off by {off}");
                assert_eq!((report.steps, report.faults), (alone.steps, 0));
            }
        }
    }
}
