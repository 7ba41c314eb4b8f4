//! Which events of a stream a client has got, so that a stream which breaks goes on where it broke.
//!
//! The stream that another process begins has the same events, in the same order for each choice; those of different
//! choices may come in another order. What has been sent is skipped, and compared by a hash of what is said in it: how likely its
//! tokens were is no part of that, since the last digit of a probability may differ between two processes (on GPUs).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::error::{DEVICE_FAULT, INTERNAL_ERROR, SHUTTING_DOWN};

/// Errors for which another process may give the answer: a device or a thread is lost, or the process ends.
const PASSING: [&str; 3] = [DEVICE_FAULT, SHUTTING_DOWN, INTERNAL_ERROR];

/// Whether an error with this code may not come again from another process.
pub(super) fn is_passing(code: &str) -> bool {
    PASSING.contains(&code)
}

/// The code of an error, if a whole answer is one.
pub(super) fn error_code(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<EventHead<'_>>(body).ok()?.error?.code
}

/// Splits a body into events.
#[derive(Default)]
pub(super) struct EventSplitter(Vec<u8>);

impl EventSplitter {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next event that has come whole, with the empty line that ends it.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        let end = self.0.windows(2).position(|pair| pair == b"\n\n")? + 2;
        let rest = self.0.split_off(end);
        Some(std::mem::replace(&mut self.0, rest))
    }

    /// What came behind the last whole event.
    pub(super) fn rest(self) -> Vec<u8> {
        self.0
    }
}

/// What is to be done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventUse {
    /// The client gets it.
    Send,
    /// The client has it.
    Skip,
    /// The client has something else in its place.
    Differs,
    /// It is an error that another process may not have.
    Failed,
}

/// What events have in common, in all that a server sends.
#[derive(Deserialize)]
struct EventHead<'e> {
    #[serde(borrow)]
    choices: Option<Vec<ChoiceHead<'e>>>,
    error: Option<ErrorHead>,
    #[serde(rename = "type")]
    kind: Option<String>,
    code: Option<String>,
}

#[derive(Deserialize)]
struct ChoiceHead<'e> {
    index: u64,
    #[serde(borrow)]
    text: Option<&'e RawValue>,
    #[serde(borrow)]
    delta: Option<&'e RawValue>,
    #[serde(borrow)]
    finish_reason: Option<&'e RawValue>,
}

#[derive(Deserialize)]
struct ErrorHead {
    code: Option<String>,
}

/// What an event belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Choice(u64),
    /// The figures behind the choices, which tell what this process had in its cache.
    Figures,
    /// The end, and all events of a stream that has no choices.
    Whole,
}

/// Events of one part: how many, and their hash.
#[derive(Clone, Default)]
struct Heard {
    count: usize,
    hash: DefaultHasher,
}

impl Heard {
    fn push(&mut self, said: &[&[u8]]) {
        self.count += 1;
        for part in said {
            self.hash.write_usize(part.len());
            self.hash.write(part);
        }
    }
}

#[derive(Default)]
struct Progress {
    sent: Heard,
    /// Of the stream that is heard now.
    heard: Heard,
}

/// The events that a client has got.
#[derive(Default)]
pub(super) struct SentEvents {
    parts: HashMap<Part, Progress>,
    is_complete: bool,
}

impl SentEvents {
    /// Whether the client has the last event.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn has_choices_caught_up(&self) -> bool {
        let choices = self.parts.iter().filter(|(part, _)| matches!(part, Part::Choice(_)));
        choices.into_iter().all(|(_, progress)| progress.heard.count >= progress.sent.count)
    }

    /// Whether the stream that is heard now has brought all that was sent.
    pub(super) fn has_caught_up(&self) -> bool {
        self.parts.values().all(|progress| progress.heard.count >= progress.sent.count)
    }

    /// The stream begins again.
    pub(super) fn begin_again(&mut self) {
        for progress in self.parts.values_mut() {
            progress.heard = Heard::default();
        }
    }

    /// What to do with the next event.
    pub(super) fn hear(&mut self, event: &[u8]) -> EventUse {
        let Some(data) = data_of(event) else {
            // A comment, which keeps the connection alive.
            return EventUse::Send;
        };
        let head = serde_json::from_slice::<EventHead<'_>>(data).ok();
        let error = head.as_ref().and_then(|head| match (&head.error, head.kind.as_deref()) {
            (Some(error), _) => error.code.as_deref(),
            (None, Some("error")) => head.code.as_deref(),
            (None, _) => None,
        });
        if error.is_some_and(is_passing) {
            return EventUse::Failed;
        }
        let text = |raw: Option<&'_ RawValue>| raw.map_or("", RawValue::get).to_owned();
        let (part, said) = match head.as_ref().and_then(|head| head.choices.as_deref()) {
            None => (
                Part::Whole,
                [String::from_utf8_lossy(event).into_owned(), String::new(), String::new()],
            ),
            Some([]) => (Part::Figures, [const { String::new() }; 3]),
            Some([choice, ..]) => {
                let said = [choice.text, choice.delta, choice.finish_reason].map(text);
                (Part::Choice(choice.index), said)
            }
        };
        // Behind the choices come the figures and the end: what is missing by then does not come.
        let is_behind = part == Part::Figures || data == b"[DONE]";
        if is_behind && !self.has_choices_caught_up() {
            return EventUse::Differs;
        }
        let kind = head.as_ref().and_then(|head| head.kind.as_deref());
        let is_last =
            data == b"[DONE]" || matches!(kind, Some("response.completed" | "response.incomplete"));
        let progress = self.parts.entry(part).or_default();
        progress.heard.push(&said.each_ref().map(String::as_bytes));
        if progress.heard.count <= progress.sent.count {
            let is_end_of_sent = progress.heard.count == progress.sent.count;
            let same = progress.heard.hash.finish() == progress.sent.hash.finish();
            return match is_end_of_sent && !same {
                true => EventUse::Differs,
                false => EventUse::Skip,
            };
        }
        progress.sent = progress.heard.clone();
        self.is_complete |= is_last;
        EventUse::Send
    }
}

fn data_of(event: &[u8]) -> Option<&[u8]> {
    event.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"data: "))
}

#[cfg(test)]
mod tests {
    use super::EventUse::{Differs, Failed, Send, Skip};
    use super::*;

    fn token(choice: u64, text: &str) -> String {
        format!("data: {{\"choices\": [{{\"index\": {choice}, \"text\": \"{text}\"}}]}}\n\n")
    }

    fn heard(sent: &mut SentEvents, events: &[&str]) -> Vec<EventUse> {
        events.iter().map(|event| sent.hear(event.as_bytes())).collect()
    }

    #[test]
    fn events_are_whole_however_they_arrive() {
        let text = b"data: a\n\nevent: x\ndata: b\n\n: \n\ndata: c";
        for size in 1..text.len() {
            let mut splitter = EventSplitter::default();
            let mut events = Vec::new();
            for bytes in text.chunks(size) {
                splitter.push(bytes);
                while let Some(event) = splitter.next() {
                    events.push(String::from_utf8(event).unwrap());
                }
            }
            assert_eq!(events, ["data: a\n\n", "event: x\ndata: b\n\n", ": \n\n"]);
            assert_eq!(splitter.rest(), b"data: c");
        }
    }

    #[test]
    fn a_stream_goes_on_behind_what_was_sent_of_each_choice() {
        let (a, b, c, x, y) =
            (token(0, "a"), token(0, "b"), token(0, "c"), token(1, "x"), token(1, "y"));
        let mut sent = SentEvents::default();
        assert_eq!(heard(&mut sent, &[&a, ": \n\n", &x, &b]), [Send; 4]);
        sent.begin_again();
        // The other choice is ahead this time.
        assert_eq!(heard(&mut sent, &[&x, &y, &a, &b, &c]), [Skip, Send, Skip, Skip, Send]);
        sent.begin_again();
        assert_eq!(heard(&mut sent, &[&a, &b, &c, &x, &y]), [Skip; 5]);
        assert!(!sent.is_complete());
        assert_eq!(heard(&mut sent, &["data: [DONE]\n\n"]), [Send]);
        assert!(sent.is_complete());
    }

    #[test]
    fn another_answer_is_not_glued_to_the_first() {
        let mut sent = SentEvents::default();
        heard(&mut sent, &[&token(0, "a"), &token(0, "b")]);
        sent.begin_again();
        assert_eq!(heard(&mut sent, &[&token(0, "a"), &token(0, "B")]), [Skip, Differs]);
    }

    #[test]
    fn an_answer_that_is_shorter_the_second_time_is_another_one() {
        let figures = "data: {\"choices\": [], \"usage\": {}}\n\n";
        for behind in [figures, "data: [DONE]\n\n"] {
            let mut sent = SentEvents::default();
            heard(&mut sent, &[&token(0, "a"), &token(1, "x"), &token(0, "b")]);
            sent.begin_again();
            assert_eq!(heard(&mut sent, &[&token(0, "a"), &token(1, "x")]), [Skip; 2]);
            assert!(!sent.has_caught_up());
            assert_eq!(heard(&mut sent, &[behind]), [Differs]);
        }
    }

    #[test]
    fn probabilities_are_no_part_of_what_is_said() {
        let rated = |text: &str, logprob: f32| {
            format!(
                "data: {{\"choices\": [{{\"index\": 0, \"text\": \"{text}\", \"logprobs\": {logprob}}}]}}\n\n"
            )
        };
        let mut sent = SentEvents::default();
        assert_eq!(heard(&mut sent, &[&rated("a", -1.5)]), [Send]);
        sent.begin_again();
        assert_eq!(heard(&mut sent, &[&rated("a", -1.25)]), [Skip]);
        sent.begin_again();
        assert_eq!(heard(&mut sent, &[&rated("b", -1.5)]), [Differs]);
    }

    #[test]
    fn figures_may_differ_since_another_process_has_another_cache() {
        let mut sent = SentEvents::default();
        let figures =
            |cached| format!("data: {{\"choices\": [], \"usage\": {{\"cached\": {cached}}}}}\n\n");
        assert_eq!(heard(&mut sent, &[&figures(5)]), [Send]);
        sent.begin_again();
        assert_eq!(heard(&mut sent, &[&figures(0), "data: [DONE]\n\n"]), [Skip, Send]);
    }

    #[test]
    fn errors_of_a_process_are_told_from_those_of_a_request() {
        let error = |code: &str| format!("data: {{\"error\": {{\"code\": \"{code}\"}}}}\n\n");
        let event = |code: &str| {
            format!("event: error\ndata: {{\"type\": \"error\", \"code\": \"{code}\"}}\n\n")
        };
        let mut sent = SentEvents::default();
        for code in ["device_fault", "shutting_down", "internal_error"] {
            assert_eq!(heard(&mut sent, &[&error(code), &event(code)]), [Failed; 2]);
        }
        for code in ["timeout", "not_finite"] {
            assert_eq!(heard(&mut sent, &[&error(code), &event(code)]), [Send; 2]);
        }
        assert_eq!(error_code(br#"{"error": {"code": "timeout"}}"#).as_deref(), Some("timeout"));
        assert_eq!(error_code(br#"{"error": {"code": null}}"#), None);
        assert_eq!(error_code(b"[1]"), None);
    }

    #[test]
    fn the_last_event_of_a_response_ends_it() {
        for last in ["response.completed", "response.incomplete"] {
            let mut sent = SentEvents::default();
            heard(&mut sent, &["event: x\ndata: {\"type\": \"response.created\"}\n\n"]);
            assert!(!sent.is_complete());
            heard(&mut sent, &[&format!("event: {last}\ndata: {{\"type\": \"{last}\"}}\n\n")]);
            assert!(sent.is_complete());
        }
    }
}
