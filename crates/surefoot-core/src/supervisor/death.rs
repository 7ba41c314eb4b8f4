//! The parent's side: waiting for a child, and naming what it died of.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::child::{Heartbeat, Inherited};
use super::{OPERATION, Quote, TextClassifier};
use crate::fault::{Fault, FaultKind};

/// How often a child is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How many of a child's last lines on stderr are kept to say what it died of.
const LAST_WORDS: usize = 100;
/// How long after a child's end its last lines may take to arrive.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);

/// How one child ended.
pub(super) enum Ending {
    Exit(i32),
    Interrupted,
    Death(Fault),
}

/// Runs `command`, passing its output through, until it ends or falls silent.
pub(super) fn watch(
    mut command: Command,
    heartbeat: &Heartbeat,
    silence: Duration,
    interrupted: Option<&AtomicBool>,
    grace: Duration,
    kind_of_text: TextClassifier,
    quote: Quote,
) -> io::Result<Ending> {
    let kills = oom_kills();
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let words = last_words(&mut child, true);
    let mut last = (heartbeat.listen().0, Instant::now());
    let mut asked_to_stop: Option<Instant> = None;
    let (status, silent) = loop {
        if let Some(status) = child.try_wait()? {
            break (status, false);
        }
        let beat = heartbeat.listen().0;
        if beat != last.0 {
            last = (beat, Instant::now());
        }
        if interrupted.is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            if asked_to_stop.is_none() {
                // A child that can't be asked to stop is killed in the end; it must not be left behind.
                let _ = heartbeat.ask_to_stop();
            }
            let since = *asked_to_stop.get_or_insert_with(Instant::now);
            if since.elapsed() >= grace {
                child.kill()?;
            }
        } else if last.1.elapsed() > silence {
            child.kill()?;
            break (child.wait()?, true);
        }
        thread::sleep(LOOK_EVERY);
    };
    let words = collected(words);
    if asked_to_stop.is_some() {
        // What it says of its own end counts; one that was killed says nothing.
        return Ok(status.code().map_or(Ending::Interrupted, Ending::Exit));
    }
    let device = heartbeat.listen().1;
    let fault = if silent {
        let message = format!("no heartbeat for {} s: it was stopped", silence.as_secs());
        Some(Fault::new(FaultKind::DeviceLost, OPERATION, message))
    } else {
        cause_of_death(status, &words, kills, kind_of_text, quote)
    };
    // Whoever kills a process from outside says nothing about its device.
    let killed = !silent && signal_of(status) == Some(SIGKILL);
    Ok(match (fault, device.filter(|_| !killed)) {
        (None, _) => Ending::Exit(status.code().unwrap_or(1)),
        (Some(fault), Some(device)) => Ending::Death(fault.on(device)),
        (Some(fault), None) => Ending::Death(fault),
    })
}

/// Runs `command` to its end and hands each line of its stdout to `on_line`. A crash, a hang
/// beyond `limit` or a failed exit is a fault: the driver's crash costs the caller nothing.
/// `kind_of_text` says what the last lines on stderr mean.
pub fn run_probe(
    mut command: Command,
    limit: Duration,
    kind_of_text: TextClassifier,
    mut on_line: impl FnMut(&str),
) -> Result<(), Fault> {
    let failed = |error: io::Error| {
        let message = format!("no probe ran: {error}");
        Fault::new(FaultKind::NotDeviceRelated, "probe", message).caused_by(Box::new(error))
    };
    let hung = || {
        let message = format!("it did not end within {} s", limit.as_secs());
        Fault::new(FaultKind::DeviceLost, "probe", message)
    };
    Inherited::keep_from(&mut command);
    let kills = oom_kills();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let words = last_words(&mut child, false);
    let stdout = child.stdout.take();
    let (lines, incoming) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for line in stdout.into_iter().flat_map(|out| BufReader::new(out).lines()) {
            let Ok(line) = line else { break };
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + limit;
    loop {
        match incoming.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => on_line(&line),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                child.kill().and_then(|()| child.wait()).map_err(failed)?;
                return Err(hung());
            }
        }
    }
    // A child that closed its output may still not end.
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Err(hung());
        }
        thread::sleep(LOOK_EVERY);
    };
    let words = collected(words);
    match cause_of_death(status, &words, kills, kind_of_text, last_line) {
        Some(fault) => Err(fault.during("probe")),
        None if status.success() => Ok(()),
        None => {
            let said = words.join("\n");
            let message = format!("it ended with {status}: {said}");
            Err(Fault::new(kind_of_text(&said), "probe", message))
        }
    }
}

/// What was collected of a dead child's stderr. A grandchild may hold it open for ever, so this
/// waits only for a moment.
fn collected(words: JoinHandle<Vec<String>>) -> Vec<String> {
    let deadline = Instant::now() + LAST_WORDS_WITHIN;
    while !words.is_finished() && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
    if words.is_finished() { words.join().unwrap_or_default() } else { Vec::new() }
}

/// Collects a child's last lines on stderr, and passes all of them on if asked to.
fn last_words(child: &mut Child, pass_on: bool) -> JoinHandle<Vec<String>> {
    let stderr = child.stderr.take();
    thread::spawn(move || {
        let mut words = VecDeque::with_capacity(LAST_WORDS);
        let Some(stderr) = stderr else { return Vec::new() };
        let mut reader = BufReader::new(stderr);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if pass_on {
                let _ = io::stderr().write_all(&line);
            }
            if words.len() == LAST_WORDS {
                words.pop_front();
            }
            words.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
            line.clear();
        }
        words.into()
    })
}

/// How many processes the kernel has killed for want of memory; it only ever grows.
fn oom_kills() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/vmstat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// The fault behind a death by signal; none if the child ended by itself.
fn cause_of_death(
    status: ExitStatus,
    words: &[String],
    kills: Option<u64>,
    kind_of_text: TextClassifier,
    quote: Quote,
) -> Option<Fault> {
    let signal = signal_of(status)?;
    let killed_for_memory = signal == SIGKILL && kills < oom_kills();
    let said = words.join("\n");
    let kind = if killed_for_memory {
        FaultKind::OutOfMemory
    } else {
        match kind_of_text(&said) {
            // Who aborts has said why on stderr: Rust and libc that memory ran out, Metal which of its
            // assertions failed.
            kind @ (FaultKind::OutOfMemory
            | FaultKind::CommandBuffer
            | FaultKind::KernelCompile)
                if signal == SIGABRT =>
            {
                kind
            }
            _ => FaultKind::DeviceLost,
        }
    };
    let how = match (signal, killed_for_memory) {
        (SIGKILL, true) => "the kernel's OOM killer ended it (SIGKILL)".to_owned(),
        (SIGKILL, false) => "it was killed from outside (SIGKILL)".to_owned(),
        (SIGABRT, _) => "it aborted (SIGABRT)".to_owned(),
        (11, _) => "it crashed (SIGSEGV), most likely in the device's driver".to_owned(),
        (signal, _) => format!("it died by signal {signal}"),
    };
    let mut fault = Fault::new(kind, OPERATION, how);
    fault.chain.extend(quote(words));
    Some(fault)
}

/// The last line that says anything.
pub(super) fn last_line(words: &[String]) -> Option<String> {
    let last = words.iter().rev().find(|line| !line.trim().is_empty())?;
    Some(format!("its last line on stderr: {last}"))
}

const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

#[cfg(unix)]
fn signal_of(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

/// Elsewhere a crash is an exit code with the top bit set, as in 0xC0000005.
#[cfg(not(unix))]
fn signal_of(status: ExitStatus) -> Option<i32> {
    status.code().filter(|code| *code < 0).map(|_| 11)
}

#[cfg(all(test, unix))]
mod tests {
    use super::super::{Ended, Supervisor};
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn words_mean(text: &str) -> FaultKind {
        match text.contains("memory allocation of") {
            true => FaultKind::OutOfMemory,
            false => FaultKind::NotDeviceRelated,
        }
    }

    fn probe(script: &str, limit: Duration) -> Result<(), Fault> {
        run_probe(shell(script), limit, words_mean, |_| ())
    }

    #[test]
    fn a_probe_that_closes_its_output_and_hangs_is_stopped() {
        let started = Instant::now();
        let script = "exec >&- 2>&-; exec sleep 60";
        let fault = probe(script, Duration::from_millis(300)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::DeviceLost);
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_grandchild_that_holds_the_output_does_not_hold_up_a_probe() {
        let started = Instant::now();
        let ended = probe("sleep 60 >/dev/null & exit 0", Duration::from_secs(40));
        assert!(ended.is_ok(), "{ended:?}");
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    }

    #[test]
    fn a_probe_that_crashes_is_a_fault_that_names_the_signal() {
        let mut lines = Vec::new();
        let script = "echo one; kill -SEGV $$";
        let fault = run_probe(shell(script), Duration::from_secs(20), words_mean, |line| {
            lines.push(line.to_owned());
        })
        .unwrap_err();
        assert_eq!(lines, ["one"]);
        assert_eq!(fault.kind, FaultKind::DeviceLost);
        assert!(fault.to_string().contains("SIGSEGV"), "{fault}");
    }

    #[test]
    fn a_probe_that_hangs_is_stopped() {
        let started = Instant::now();
        let fault = probe("exec sleep 60", Duration::from_millis(200)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::DeviceLost);
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_probe_that_fails_says_what_it_said() {
        let script = "echo 'ERROR_DEVICE_LOST somewhere' >&2; exit 3";
        let fault = probe(script, Duration::from_secs(20)).unwrap_err();
        assert!(fault.root_cause().contains("somewhere"), "{fault}");
    }

    #[test]
    fn an_abort_for_want_of_memory_is_told_from_a_crash() {
        let script = "echo 'memory allocation of 99999999999 bytes failed' >&2; kill -ABRT $$";
        let fault = probe(script, Duration::from_secs(20)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::OutOfMemory);
        let fault = probe("kill -ABRT $$", Duration::from_secs(20)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::DeviceLost);
    }

    #[test]
    fn a_death_is_followed_by_a_restart_and_an_exit_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let tally = dir.path().join("tally");
        // Dies twice, then ends by itself with 7.
        let script = format!(
            "echo x >> {0}; [ $(wc -l < {0}) -lt 3 ] && kill -KILL $$; exit 7",
            tally.display()
        );
        let mut deaths = 0;
        let ended = Supervisor::default().run(|| shell(&script), |_| deaths += 1).unwrap();
        assert_eq!(ended, Ended::Exit(7));
        assert_eq!(deaths, 2);
    }

    #[test]
    fn one_exit_code_can_ask_for_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let tally = dir.path().join("tally");
        // Ends with 3 twice, then with 0.
        let script =
            format!("echo x >> {0}; [ $(wc -l < {0}) -lt 3 ] && exit 3; exit 0", tally.display());
        let mut deaths = Vec::new();
        let supervisor = Supervisor::default().restart_on_exit(3);
        let ended = supervisor.run(|| shell(&script), |fault| deaths.push(fault.kind)).unwrap();
        assert_eq!(ended, Ended::Exit(0));
        assert_eq!(deaths, [FaultKind::DeviceLost; 2]);
        let ended = supervisor.run(|| shell("exit 3"), |_| ()).unwrap();
        assert!(matches!(ended, Ended::GaveUp(_)), "{ended:?}");
    }

    #[test]
    fn restarts_are_limited_and_the_story_is_kept() {
        let ended =
            Supervisor::default().restarts(2).run(|| shell("kill -SEGV $$"), |_| ()).unwrap();
        let Ended::GaveUp(fault) = ended else { panic!("{ended:?}") };
        assert_eq!(fault.earlier.len(), 2);
    }

    #[test]
    fn a_child_that_lived_long_begins_a_new_row_of_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let tally = dir.path().join("tally");
        // Dies three times after a while, then ends by itself.
        let script = format!(
            "echo x >> {0}; sleep 0.2; [ $(wc -l < {0}) -lt 4 ] && kill -SEGV $$; exit 7",
            tally.display()
        );
        let run = |healthy_after| {
            std::fs::remove_file(&tally).unwrap_or_default();
            let supervisor = Supervisor::default().restarts(1).healthy_after(healthy_after);
            supervisor.run(|| shell(&script), |_| ()).unwrap()
        };
        assert_eq!(run(Duration::from_millis(100)), Ended::Exit(7));
        assert!(matches!(run(Duration::from_secs(600)), Ended::GaveUp(_)));
    }

    #[test]
    fn a_child_that_worked_begins_a_new_row_of_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let tally = dir.path().join("tally");
        // Dies three times, then ends by itself.
        let run = |second_line: &str| {
            let script = format!(
                "heartbeat=$(echo \"$SUREFOOT_SUPERVISED\" | sed 's/.*\"heartbeat\":\"\\([^\"]*\\)\".*/\\1/'); \
                 printf '1 gpu\\n{second_line}' > \"$heartbeat\"; echo x >> {0}; \
                 [ $(wc -l < {0}) -lt 4 ] && kill -SEGV $$; exit 7",
                tally.display()
            );
            std::fs::remove_file(&tally).unwrap_or_default();
            Supervisor::default().restarts(1).run(|| shell(&script), |_| ()).unwrap()
        };
        assert_eq!(run("worked"), Ended::Exit(7));
        assert!(matches!(run(""), Ended::GaveUp(_)));
    }

    #[test]
    fn who_is_killed_from_outside_blames_no_device() {
        let blamed = |signal: &str| {
            let script = format!(
                "heartbeat=$(echo \"$SUREFOOT_SUPERVISED\" | sed 's/.*\"heartbeat\":\"\\([^\"]*\\)\".*/\\1/'); \
                 echo '1 gpu' > \"$heartbeat\"; kill -{signal} $$"
            );
            let ended = Supervisor::default().restarts(0).run(|| shell(&script), |_| ()).unwrap();
            let Ended::GaveUp(fault) = ended else { panic!("{ended:?}") };
            fault.device
        };
        assert_eq!(blamed("SEGV").as_deref(), Some("gpu"));
        assert_eq!(blamed("KILL"), None);
    }

    #[test]
    fn a_silent_child_is_taken_for_hung() {
        let supervisor = Supervisor::default().restarts(0).silence(Duration::from_millis(300));
        let ended = supervisor.run(|| shell("exec sleep 60"), |_| ()).unwrap();
        let Ended::GaveUp(fault) = ended else { panic!("{ended:?}") };
        assert!(fault.to_string().contains("no heartbeat"), "{fault}");
    }

    #[test]
    fn an_interrupted_child_is_not_restarted() {
        let flag = AtomicBool::new(true);
        let supervisor = Supervisor::default().interrupted_by(&flag);
        let ended = supervisor.run(|| shell("sleep 0.1; kill -KILL $$"), |_| ()).unwrap();
        assert_eq!(ended, Ended::Interrupted);
    }

    #[test]
    fn a_child_that_is_asked_to_end_has_the_last_word() {
        let flag = AtomicBool::new(true);
        let supervisor = Supervisor::default().interrupted_by(&flag);
        let script = r#"
            sign=$(echo "$SUREFOOT_SUPERVISED" | sed 's/.*"heartbeat":"\([^"]*\)beat".*/\1stop/')
            while [ ! -e "$sign" ]; do sleep 0.02; done; exit 5"#;
        assert_eq!(supervisor.run(|| shell(script), |_| ()).unwrap(), Ended::Exit(5));
    }

    #[test]
    fn a_child_that_does_not_end_in_time_is_killed() {
        let flag = AtomicBool::new(true);
        let supervisor = Supervisor::default().interrupted_by(&flag).grace(Duration::ZERO);
        let started = Instant::now();
        let ended = supervisor.run(|| shell("exec sleep 60"), |_| ()).unwrap();
        assert_eq!(ended, Ended::Interrupted);
        assert!(started.elapsed() < Duration::from_secs(30));
    }
}
