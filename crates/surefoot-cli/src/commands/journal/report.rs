//! The summary of a journal as text.

use std::fmt::{Display, Write};

use surefoot::journal::{Event, EventKind, Incident, IncidentEnd, Operation, Summary};

use crate::terminal::Table;

const OPERATIONS_SHOWN: usize = 20;
const STORIES_SHOWN: usize = 10;

pub(super) fn text(name: &str, summary: &Summary) -> String {
    let mut out = String::new();
    let runs = if summary.runs == 1 { "run" } else { "runs" };
    let _ = write!(out, "{name}: {} in {} {runs}", events(summary.events), grouped(summary.runs));
    if let (Some(first), Some(last)) = (summary.first_us, summary.last_us) {
        let _ = write!(out, " over {}", time(last.saturating_sub(first).saturating_mul(1000)));
    }
    out.push('\n');
    if summary.events == 0 {
        return out;
    }
    out.push('\n');
    counts(&mut out, "events", summary.kinds.iter());
    counts(&mut out, "devices", summary.devices.iter().map(|(name, n)| (clean(name, 40), n)));
    operations(&mut out, summary);
    faults(&mut out, summary);
    out
}

fn events(count: u64) -> String {
    if count == 1 { "1 event".to_owned() } else { format!("{} events", grouped(count)) }
}

fn counts<'a, N: Display>(
    out: &mut String,
    title: &str,
    counts: impl Iterator<Item = (N, &'a u64)>,
) {
    let parts: Vec<_> = counts.map(|(name, count)| format!("{name} {}", grouped(*count))).collect();
    if !parts.is_empty() {
        let _ = writeln!(out, "{title:<10}{}", parts.join(", "));
    }
}

fn operations(out: &mut String, summary: &Summary) {
    // Faults and recovery steps are listed below, fault by fault.
    let listed =
        |operation: &&Operation| !matches!(operation.kind, EventKind::Fault | EventKind::Rung);
    let all: Vec<_> = summary.operations.iter().filter(listed).collect();
    if all.is_empty() {
        return;
    }
    let shown = &all[..all.len().min(OPERATIONS_SHOWN)];
    let mut table =
        Table::new(["operation", "kind", "count", "mean", "median", "p95", "max", "bytes"])
            .numbers();
    for operation in shown {
        let [mean, median, p95, max] =
            operation.timing.map_or([const { String::new() }; 4], |timing| {
                [timing.mean_ns, timing.median_ns, timing.p95_ns, timing.max_ns].map(time)
            });
        let bytes = if operation.bytes == 0 { String::new() } else { size(operation.bytes) };
        let (name, kind) = (clean(&operation.op, 36), operation.kind.to_string());
        table.row([name, kind, grouped(operation.count), mean, median, p95, max, bytes]);
    }
    let _ = write!(out, "\n{table}");
    if all.len() > shown.len() {
        let _ = writeln!(out, "and {} more, which --json lists", all.len() - shown.len());
    }
}

fn faults(out: &mut String, summary: &Summary) {
    if summary.faults.is_empty() {
        out.push_str("\nno faults\n");
        return;
    }
    out.push('\n');
    counts(out, "faults", summary.faults.iter());
    let outcomes = summary.outcomes;
    let all = outcomes.recovered + outcomes.given_up + outcomes.open;
    let rate = summary.recovery_rate.unwrap_or(0.0) * 100.0;
    let _ = writeln!(
        out,
        "{:<10}{} of {} faulted operations recovered ({rate:.0} %), {} given up, {} without an end",
        "recovery",
        grouped(outcomes.recovered),
        grouped(all),
        grouped(outcomes.given_up),
        grouped(outcomes.open),
    );
    for (number, story) in summary.incidents.iter().take(STORIES_SHOWN).enumerate() {
        history(out, number + 1, story, summary.first_us.unwrap_or(0));
    }
    let shown = summary.incidents.len().min(STORIES_SHOWN) as u64;
    if all > shown {
        let _ = writeln!(
            out,
            "\nand {} more faults; --json has the history of {}",
            grouped(all - shown),
            summary.incidents.len()
        );
    }
}

fn history(out: &mut String, number: usize, story: &Incident, first_us: u64) {
    let device =
        story.device.as_deref().map_or(String::new(), |name| format!(" on {}", clean(name, 40)));
    let _ = writeln!(
        out,
        "\nfault {number}: {} in {}{device}, {} after the first event (process {}, thread {})",
        story.cause.kind,
        clean(&story.op, 60),
        time(story.time_us.saturating_sub(first_us).saturating_mul(1000)),
        story.pid,
        story.thread,
    );
    if !story.cause.message.is_empty() {
        let _ = writeln!(out, "  cause    {}", clean(&story.cause.message, 200));
    }
    for event in &story.before {
        let _ = writeln!(out, "  before   {}", preceding(event, story.time_us));
    }
    for rung in &story.rungs {
        let device =
            rung.device.as_deref().map_or(String::new(), |name| format!(" on {}", clean(name, 40)));
        let then = match &rung.then {
            Some(fault) => format!(", but then {}: {}", fault.kind, clean(&fault.message, 120)),
            None => String::new(),
        };
        let _ = writeln!(out, "  recovery {}{device}{then}", clean(&rung.name, 60));
    }
    // A fault that was recorded with its step has no duration of its own.
    let took = match story.took_us {
        None | Some(0) => String::new(),
        Some(us) => format!(" after {}", time(us.saturating_mul(1000))),
    };
    let outcome = match (story.outcome, &story.recovered_by) {
        (IncidentEnd::Recovered, Some(rung)) => format!("recovered by {}{took}", clean(rung, 60)),
        (IncidentEnd::Recovered, None) => format!("recovered{took}"),
        (IncidentEnd::GivenUp, _) if story.rungs.is_empty() => {
            format!("given up{took}, no recovery step was tried")
        }
        (IncidentEnd::GivenUp, _) => format!("given up{took}"),
        (IncidentEnd::Open, _) => "unknown: the journal ends before it".to_owned(),
    };
    let _ = writeln!(out, "  outcome  {outcome}");
}

fn preceding(event: &Event, until_us: u64) -> String {
    let ago = time(until_us.saturating_sub(event.time_us).saturating_mul(1000));
    let mut line = format!("{ago:>8} earlier: {} {}", event.kind, clean(&event.op, 60));
    if let Some(ns) = event.duration_ns() {
        let _ = write!(line, ", took {}", time(ns));
    }
    if let Some(bytes) = event.bytes {
        let _ = write!(line, ", {}", size(bytes));
    }
    if let Some(dtype) = &event.dtype {
        let _ = write!(line, ", {}", clean(dtype, 20));
    }
    if let Some(fault) = &event.fault {
        let _ = write!(line, ", {}", fault.kind);
    }
    if let Some(recovery) = &event.recovery {
        let _ = write!(line, ", {}", clean(recovery, 40));
    }
    for (key, value) in event.context.iter().take(4) {
        let _ = write!(line, ", {}={}", clean(key, 20), clean(&value.to_string(), 40));
    }
    line
}

/// Text from a file as one line of at most `most` characters, without control characters. By hand,
/// because it removes every control character, not only ANSI sequences, and joins lines.
pub(super) fn clean(text: &str, most: usize) -> String {
    let words = text.split(|c: char| c.is_control() || c.is_whitespace());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A time in the unit that leaves one to three digits before the point.
fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => three_digits(ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => three_digits(ns as f64 / 1e6, "ms"),
        1_000_000_000..120_000_000_000 => three_digits(ns as f64 / 1e9, "s"),
        _ => {
            let seconds = ns / 1_000_000_000;
            match seconds / 3600 {
                0 => format!("{} min {} s", seconds / 60, seconds % 60),
                hours => format!("{} h {} min", grouped(hours), seconds / 60 % 60),
            }
        }
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => three_digits(bytes as f64 / 1024.0, "KiB"),
        1_048_576..1_073_741_824 => three_digits(bytes as f64 / 1_048_576.0, "MiB"),
        _ => three_digits(bytes as f64 / 1_073_741_824.0, "GiB"),
    }
}

fn three_digits(value: f64, unit: &str) -> String {
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {unit}")
}

/// A number with separators between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let times = [0, 999, 1_000, 870_499, 12_340_000, 119_900_000_000, 125_000_000_000];
        let shown = ["0 ns", "999 ns", "1.00 µs", "870 µs", "12.3 ms", "120 s", "2 min 5 s"];
        assert_eq!(times.map(time), shown);
        assert_eq!(time(7_500_000_000_000), "2 h 5 min");
        assert_eq!([9, 2_048, 3 << 30].map(size), ["9 B", "2.00 KiB", "3.00 GiB"]);
    }

    #[test]
    fn text_from_a_file_stays_on_its_line() {
        assert_eq!(clean("a\u{1b}[31m\nb\t c", 20), "a [31m b c");
        assert_eq!(clean("äöüß", 3), "äöü…");
    }
}
