//! What `explain` prints for people.

use std::fmt::Write as _;

use surefoot::fault::FaultKind;
use surefoot_explain::guides::Guide;
use surefoot_explain::{Answer, LogAnswer, LogEvent};

/// The most events of one sort that are listed; the others are counted.
const LISTED: usize = 5;

/// The answer to one message. Writing to a String can't fail, so its results are not looked at.
pub(super) fn message(answer: &Answer) -> String {
    let mut text = String::new();
    let found = &answer.explanation;
    let verdict = match (found.recognised(), found.kind) {
        (false, _) => "not_device_related: no known device fault was found in this text".into(),
        (true, FaultKind::NotDeviceRelated) => {
            "not_device_related: this is not a device fault".into()
        }
        (true, kind) => kind.to_string(),
    };
    let _ = writeln!(text, "{verdict}");
    if found.recognised() {
        let _ = writeln!(text, "\n{}\n", found.cause);
        let evidence = found.evidence.replace('\n', "\n              ");
        let _ = writeln!(text, "  evidence    {evidence}");
        if !found.words.is_empty() {
            let _ = writeln!(text, "  words       {} (learned)", found.words.join(", "));
        }
        let _ = writeln!(text, "  confidence  {:.2}", found.confidence);
    }
    if let Some(second) = found.second {
        let _ = writeln!(text, "  or          {} ({:.2})", second.kind, second.probability);
    }
    if found.recognised() {
        if let Some(framework) = found.framework {
            let _ = writeln!(text, "  from        {framework}");
        }
        if let Some(frame) = &answer.frame {
            let code = frame.code.as_ref().map_or(String::new(), |code| format!(": {code}"));
            let place = format!("{}:{}, in {}{code}", frame.file, frame.line, frame.function);
            let _ = writeln!(text, "  your line   {place}");
        }
        for note in &answer.facts.notes {
            let _ = writeln!(text, "  sizes       {note}");
        }
    }
    if let Some(guide) = answer.guide {
        let _ = writeln!(text, "\nLikely causes:");
        for (number, cause) in (1..).zip(guide.causes) {
            let _ = writeln!(text, "  {number}. {cause}");
        }
    }
    let _ = writeln!(text, "\nWhat to change:");
    for line in &found.advice {
        let _ = writeln!(text, "  - {line}");
    }
    if let Some(guide) = answer.guide {
        changes(&mut text, guide);
    }
    if let Some(page) = &answer.page {
        let _ = writeln!(text, "\nMore: {page}");
    }
    text
}

fn changes(text: &mut String, guide: &Guide) {
    for change in guide.changes {
        let _ = writeln!(text, "\n  {}", change.why);
        for line in change.before.lines() {
            let _ = writeln!(text, "    - {line}");
        }
        for line in change.after.lines() {
            let _ = writeln!(text, "    + {line}");
        }
    }
    if !guide.settings.is_empty() {
        let _ = writeln!(text, "\nSettings:");
    }
    for setting in guide.settings {
        let _ = writeln!(text, "  {}: {}; cost: {}", setting.name, setting.effect, setting.cost);
    }
    if !guide.references.is_empty() {
        let _ = writeln!(text, "\nKnown:");
    }
    for reference in guide.references {
        let _ = writeln!(text, "  {}: {}", reference.says, reference.address);
    }
    let _ = writeln!(text, "\nCommands:");
    for command in guide.commands {
        let _ = writeln!(text, "  {}: {}", command.line, command.does);
    }
}

/// The answer to a log.
pub(super) fn log(found: &LogAnswer) -> String {
    let mut text = String::new();
    match &found.first {
        Some(first) => {
            let _ = writeln!(text, "first cause: line {} of {}", first.line, found.lines);
            let _ = writeln!(text, "  {}\n", first.text);
        }
        None => {
            let _ = writeln!(
                text,
                "no known error in {} lines; this is about their end:\n",
                found.lines
            );
        }
    }
    text += &message(&found.answer);
    events(&mut text, "Errors that follow from it", &found.follows);
    events(&mut text, "Errors before it that the program survived", &found.survived);
    text
}

fn events(text: &mut String, title: &str, events: &[LogEvent]) {
    if events.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{title}: {}", events.len());
    for event in events.iter().take(LISTED) {
        let _ = writeln!(text, "  line {}: {} ({})", event.line, event.text, event.kind);
    }
    if events.len() > LISTED {
        let _ = writeln!(
            text,
            "  and {} more, the last in line {}",
            events.len() - LISTED,
            events[events.len() - 1].line
        );
    }
}
