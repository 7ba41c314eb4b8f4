use super::*;
use crate::fault::catch;
use proptest::prelude::*;

/// The runs of "op" on "cpu" that are struck before they start, of `runs` with one try each.
fn struck_runs(drill: &Drill, runs: u64) -> Vec<u64> {
    (0..runs)
        .filter(|_| {
            let run = drill.start_run("op");
            drill.enter("op", "cpu", run).strike(Moment::Before).is_err()
        })
        .collect()
}

#[test]
fn a_drill_strikes_where_and_as_often_as_it_says() {
    let drill: Drill = "out_of_memory:step=2,count=3".parse().unwrap();
    assert_eq!(struck_runs(&drill, 10), [2, 3, 4]);
    assert_eq!(drill.strikes()[0].struck, 3);
    assert_eq!(struck_runs(&Drill::once(FaultKind::Numeric, 1), 4), [1]);
    let elsewhere: Drill = "out_of_memory:device=gpu".parse().unwrap();
    assert!(struck_runs(&elsewhere, 5).is_empty());
    let other: Drill = "out_of_memory:op=backward".parse().unwrap();
    assert!(struck_runs(&other, 5).is_empty());
    assert_eq!(other.strikes()[0].struck, 0);
}

#[test]
fn steps_are_counted_for_each_operation_and_tries_are_not_steps() {
    let drill: Drill = "out_of_memory:step=1,count=2".parse().unwrap();
    let try_once =
        |operation: &str, run| drill.enter(operation, "cpu", run).strike(Moment::Before).is_err();
    let (first, other) = (drill.start_run("step"), drill.start_run("evaluate"));
    assert_eq!((first, other), (0, 0));
    assert!(!try_once("step", first) && !try_once("evaluate", other));
    let second = drill.start_run("step");
    let tries: Vec<_> = (0..3).map(|_| try_once("step", second)).collect();
    assert_eq!(tries, [true, true, false], "two tries of one run are struck");
}

#[test]
fn a_strike_during_work_comes_at_the_point_it_names() {
    let reached = |drill: &str| {
        let drill: Drill = drill.parse().unwrap();
        let _scope = drill.enter("op", "cpu", drill.start_run("op"));
        let mut reached = Vec::new();
        let caught = catch(|| {
            for at in [Point::Allocation, Point::Operation, Point::Read, Point::Operation] {
                point(at);
                reached.push(at);
            }
        });
        (reached.len(), caught.err().and_then(|record| record.fault().map(|f| f.kind)))
    };
    let oom = Some(FaultKind::OutOfMemory);
    assert_eq!(reached("out_of_memory:at=during"), (0, oom));
    assert_eq!(reached("out_of_memory:at=during,nth=3"), (2, oom));
    assert_eq!(reached("out_of_memory:at=during,point=operation,nth=2"), (3, oom));
    assert_eq!(reached("out_of_memory:at=during,point=read"), (2, oom));
    assert_eq!(reached("out_of_memory:at=during,nth=9"), (4, None));
    assert_eq!(reached("out_of_memory:at=after"), (4, None));
}

#[test]
fn points_outside_a_run_and_on_other_threads_belong_to_nobody_unless_taken_along() {
    point(Point::Operation);
    let drill: Drill = "numeric:at=during,nth=1".parse().unwrap();
    let scope = drill.enter("op", "cpu", 0);
    let handle = Handle::current();
    std::thread::scope(|threads| {
        threads.spawn(|| point(Point::Read)).join().unwrap();
        let struck = threads.spawn(move || handle.check(Point::Read)).join().unwrap();
        assert_eq!(struck.unwrap_err().kind, FaultKind::Numeric);
    });
    drop(scope);
    point(Point::Operation);
}

#[test]
fn a_part_is_struck_by_faults_of_its_name_and_its_points_are_also_those_of_the_whole() {
    // (drill, the operation whose fault ends it, and how many points were passed before)
    for (drill, ended) in [
        ("numeric:op=block 1", Some(("block 1", 2))),
        ("numeric:op=block 1,at=during,nth=2", Some(("block 1", 3))),
        ("numeric:op=block 1,at=after", Some(("block 1", 4))),
        ("numeric:op=block 1,at=during,step=1", None),
        ("numeric:op=forward,at=during,nth=4", Some(("forward", 3))),
        ("numeric:op=block 1,at=after;numeric:op=forward,at=during,nth=4", Some(("forward", 3))),
        ("numeric:at=during,nth=3", Some(("forward", 2))),
        ("numeric:at=after", None),
        ("numeric:op=block 2", None),
    ] {
        let drill: Drill = drill.parse().unwrap();
        let _scope = drill.enter("forward", "cpu", drill.start_run("forward"));
        let mut passed = 0;
        let mut block = |name: &str| {
            drill.part(name, "cpu", || {
                for _ in 0..2 {
                    Handle::current().check(Point::Operation)?;
                    passed += 1;
                }
                Ok::<_, Fault>(())
            })
        };
        let result = block("block 0").and_then(|()| block("block 1"));
        let got = result.err().map(|fault| fault.operation.to_string());
        let ended = ended.map(|(operation, points)| (operation.to_owned(), points));
        assert_eq!(got.map(|operation| (operation, passed)), ended, "{drill:?}");
    }
}

#[test]
fn probability_is_kept_and_repeatable() {
    let run = |seed: u64| {
        let text = format!("numeric:count=9999,probability=0.25,seed={seed}");
        struck_runs(&text.parse().unwrap(), 1000)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!((150..350).contains(&run(1).len()), "{}", run(1).len());
}

#[test]
fn a_wrong_drill_says_what_is_wrong() {
    for (text, why) in [
        ("oom", "'oom'"),
        ("numeric:step", "no '='"),
        ("numeric:when=3", "'when'"),
        ("numeric:probability=2", "0 to 1"),
        ("numeric:step=x", "'x'"),
        ("numeric:at=noon", "between-parts"),
        ("numeric:point=noon", "allocation"),
    ] {
        let message = text.parse::<Drill>().unwrap_err().to_string();
        assert!(message.contains(why), "{message}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_drill_or_an_error(text in ".{0,40}") {
        let _ = text.parse::<Drill>();
    }
}
