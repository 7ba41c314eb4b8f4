//! Finds the tool calls in an answer while it is generated.

use serde::Serialize;

use super::answer_end::AnswerEnd;
use crate::chat::CallStyle;

/// A call that is whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ToolCall {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) function: CalledFunction,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CalledFunction {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// Some more of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AnswerPart {
    Content(String),
    /// A call begins.
    Call {
        number: usize,
        name: String,
    },
    /// Some more of the arguments of a call.
    Arguments {
        number: usize,
        text: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    /// Before anything but space.
    Start,
    /// In text.
    Content,
    /// Before a call's arguments.
    Head,
    /// In a call's arguments.
    Arguments,
    /// Behind a call's arguments.
    Tail,
    /// Behind a call.
    Between,
}

/// Reads an answer piece by piece.
#[derive(Debug)]
pub(super) struct CallReader {
    style: CallStyle,
    state: ReaderState,
    rest: String,
    calls: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl CallReader {
    pub(super) fn new(style: CallStyle) -> Self {
        Self {
            style,
            state: ReaderState::Start,
            rest: String::new(),
            calls: 0,
            depth: 0,
            in_text: false,
            escaped: false,
        }
    }

    /// The finish reason of an answer that ended by `end`: its tool calls, if it has some and all arguments that were
    /// told are complete, even if there was no room for another call.
    pub(super) fn end(&self, end: AnswerEnd) -> AnswerEnd {
        let is_whole = end == AnswerEnd::Stop || self.state != ReaderState::Arguments;
        if self.calls > 0 && is_whole { AnswerEnd::ToolCalls } else { end }
    }

    /// What a further piece of text adds; with `is_last` nothing is held back.
    pub(super) fn push(&mut self, text: &str, is_last: bool) -> Vec<AnswerPart> {
        self.rest.push_str(text);
        let mut parts = Vec::new();
        while self.advance(is_last, &mut parts) {}
        parts
    }

    /// Reads as far as one state goes; false if more text is needed.
    fn advance(&mut self, is_last: bool, parts: &mut Vec<AnswerPart>) -> bool {
        let marker = self.style.marker();
        match self.state {
            ReaderState::Start if marker.is_empty() => {
                match self.rest.trim_start().chars().next() {
                    None => false,
                    Some('{') => self.go_on(0, ReaderState::Head),
                    Some(_) => self.go_on(0, ReaderState::Content),
                }
            }
            ReaderState::Start => self.go_on(0, ReaderState::Content),
            ReaderState::Content => {
                let found = (!marker.is_empty()).then(|| self.rest.find(marker)).flatten();
                let (end, next) = match found {
                    Some(at) => (at, at + marker.len()),
                    None => {
                        let sure = if is_last { self.rest.len() } else { sure(&self.rest, marker) };
                        (sure, sure)
                    }
                };
                if end > 0 {
                    parts.push(AnswerPart::Content(self.rest[..end].to_owned()));
                }
                self.go_on(
                    next,
                    if found.is_some() { ReaderState::Head } else { ReaderState::Content },
                );
                found.is_some()
            }
            ReaderState::Head => match head(&self.rest, self.style.arguments_key()) {
                None => false,
                Some((name, end)) => {
                    parts.push(AnswerPart::Call { number: self.calls, name });
                    self.calls += 1;
                    self.go_on(end, ReaderState::Arguments)
                }
            },
            ReaderState::Arguments => {
                let end = self.end_of_arguments();
                let taken = end.unwrap_or(self.rest.len());
                if taken > 0 {
                    let text = self.rest[..taken].to_owned();
                    parts.push(AnswerPart::Arguments { number: self.calls - 1, text });
                }
                self.go_on(
                    taken,
                    if end.is_some() { ReaderState::Tail } else { ReaderState::Arguments },
                );
                end.is_some()
            }
            ReaderState::Tail => {
                let end = self.style.end_marker();
                match self.rest.find(end).filter(|_| !end.is_empty()) {
                    Some(at) => self.go_on(at + end.len(), ReaderState::Between),
                    None => false,
                }
            }
            ReaderState::Between => match self.rest.find(marker) {
                Some(at) => self.go_on(at + marker.len(), ReaderState::Head),
                None => false,
            },
        }
    }

    fn go_on(&mut self, taken: usize, state: ReaderState) -> bool {
        self.rest.drain(..taken);
        self.state = state;
        true
    }

    /// Where the arguments, which are an object, end.
    fn end_of_arguments(&mut self) -> Option<usize> {
        for (at, byte) in self.rest.bytes().enumerate() {
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

/// The name of a call, and where its arguments begin.
fn head(text: &str, key: &str) -> Option<(String, usize)> {
    let mut rest = text.trim_start();
    let mut take = |token: &str| -> Option<()> {
        rest = rest.trim_start().strip_prefix(token)?;
        Some(())
    };
    take("{")?;
    take("\"name\"")?;
    take(":")?;
    take("\"")?;
    // Names have no characters that are escaped.
    let end = rest.find('"')?;
    let name = rest[..end].to_owned();
    rest = &rest[end + 1..];
    let mut take = |token: &str| -> Option<()> {
        rest = rest.trim_start().strip_prefix(token)?;
        Some(())
    };
    take(",")?;
    take(&format!("\"{key}\""))?;
    take(":")?;
    let rest = rest.trim_start();
    (!rest.is_empty()).then(|| (name, text.len() - rest.len()))
}

/// How much of a text can't be the beginning of the marker.
fn sure(text: &str, marker: &str) -> usize {
    let from = text.ceil_char_boundary((text.len() + 1).saturating_sub(marker.len()));
    let begins = |at: &usize| !marker.is_empty() && marker.starts_with(&text[*at..]);
    text[from..].char_indices().map(|(at, _)| from + at).find(begins).unwrap_or(text.len())
}

/// The content and the calls of a whole answer, and why it ended if `end` says so of its text.
pub(super) fn whole(
    style: CallStyle,
    text: &str,
    end: Option<AnswerEnd>,
    id: impl Fn(usize) -> String,
) -> (String, Vec<ToolCall>, Option<AnswerEnd>) {
    let mut reader = CallReader::new(style);
    let mut content = String::new();
    let mut calls: Vec<ToolCall> = Vec::new();
    for part in reader.push(text, true) {
        match part {
            AnswerPart::Content(text) => content.push_str(&text),
            AnswerPart::Call { number, name } => calls.push(ToolCall {
                id: id(number),
                kind: "function",
                function: CalledFunction { name, arguments: String::new() },
            }),
            AnswerPart::Arguments { number, text } => {
                if let Some(call) = calls.get_mut(number) {
                    call.function.arguments.push_str(&text);
                }
            }
        }
    }
    (content, calls, end.map(|end| reader.end(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "Let me see <3\n<tool_call>\n{\"name\": \"find\", \"arguments\": {\"q\": \"a}\\\"<tool_call>\", \"n\": [1]}}\n</tool_call>\n<tool_call>\n{\"name\":\"stop\",\"arguments\":{}}\n</tool_call>";

    fn joined(
        style: CallStyle,
        pieces: impl Iterator<Item = String>,
    ) -> (String, Vec<(String, String)>) {
        let mut reader = CallReader::new(style);
        let mut parts: Vec<AnswerPart> =
            pieces.flat_map(|piece| reader.push(&piece, false)).collect();
        parts.extend(reader.push("", true));
        let mut content = String::new();
        let mut calls: Vec<(String, String)> = Vec::new();
        for part in parts {
            match part {
                AnswerPart::Content(text) => content.push_str(&text),
                AnswerPart::Call { number, name } => {
                    assert_eq!(number, calls.len());
                    calls.push((name, String::new()));
                }
                AnswerPart::Arguments { number, text } => calls[number].1.push_str(&text),
            }
        }
        (content, calls)
    }

    #[test]
    fn text_and_calls_are_told_apart_however_the_answer_is_cut_into_pieces() {
        let whole = joined(CallStyle::Tagged, std::iter::once(TWO.to_owned()));
        assert_eq!(whole.0, "Let me see <3\n");
        let arguments = "{\"q\": \"a}\\\"<tool_call>\", \"n\": [1]}";
        assert_eq!(whole.1[0], ("find".to_owned(), arguments.to_owned()));
        assert_eq!(whole.1[1], ("stop".to_owned(), "{}".to_owned()));
        for size in 1..9 {
            let letters: Vec<char> = TWO.chars().collect();
            let pieces = letters.chunks(size).map(|piece| piece.iter().collect());
            assert_eq!(joined(CallStyle::Tagged, pieces), whole, "{size}");
        }
    }

    #[test]
    fn an_answer_ends_for_its_calls_if_the_last_one_is_whole() {
        let id = |number: usize| number.to_string();
        let end = |text: &str, end| whole(CallStyle::Tagged, text, Some(end), id).2.unwrap();
        use AnswerEnd::{Length, Stop, ToolCalls};
        assert_eq!(end(TWO, Stop), ToolCalls);
        assert_eq!(end(TWO, Length), ToolCalls);
        let (begun, second) = (TWO.rfind("{\"name\"").unwrap(), TWO.rfind("{}").unwrap());
        assert_eq!(
            end(&TWO[..begun + 5], Length),
            ToolCalls,
            "of the second call nothing was told"
        );
        assert_eq!(end(&TWO[..second + 1], Length), Length, "its arguments are cut");
        assert_eq!(end(&TWO[..second + 2], Length), ToolCalls, "only its end marker is missing");
        assert_eq!((end("text", Stop), end("text", Length)), (Stop, Length));
    }

    #[test]
    fn an_answer_without_calls_is_its_text() {
        let text = "a < b, and <tool is no call";
        assert_eq!(
            joined(CallStyle::Tagged, std::iter::once(text.to_owned())),
            (text.to_owned(), Vec::new())
        );
        assert_eq!(
            joined(CallStyle::Bare, std::iter::once(text.to_owned())),
            (text.to_owned(), Vec::new())
        );
        let call = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}";
        let read = joined(CallStyle::Bare, call.chars().map(String::from));
        assert_eq!(read, (String::new(), vec![("f".to_owned(), "{\"x\": 1}".to_owned())]));
    }
}
