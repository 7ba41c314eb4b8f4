//! Finds the tool calls in an answer while it is generated.

use std::sync::Arc;

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
    /// Behind a call's arguments, in its object.
    Tail,
    /// Behind the object of a call.
    Behind,
    /// Behind the end of a call that is in no list.
    Between,
    /// Behind the last call.
    End,
}

/// Reads an answer piece by piece.
#[derive(Debug)]
pub(super) struct CallReader {
    style: Arc<CallStyle>,
    state: ReaderState,
    rest: String,
    calls: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl CallReader {
    pub(super) fn new(style: &Arc<CallStyle>) -> Self {
        Self {
            style: Arc::clone(style),
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

    /// What a further piece of text adds, which is the last one if the answer ended. What may be the beginning of a call
    /// is held back. If the answer ended there, it is text; if it was cut off there, it is nothing.
    pub(super) fn push(&mut self, text: &str, end: Option<AnswerEnd>) -> Vec<AnswerPart> {
        self.rest.push_str(text);
        let mut parts = Vec::new();
        while self.advance(end, &mut parts) {}
        parts
    }

    /// Reads as far as one state goes; false if more text is needed.
    fn advance(&mut self, end: Option<AnswerEnd>, parts: &mut Vec<AnswerPart>) -> bool {
        let style = Arc::clone(&self.style);
        let is_whole = end == Some(AnswerEnd::Stop);
        match self.state {
            ReaderState::Start if style.marker.is_empty() => {
                let first = if style.is_list { '[' } else { '{' };
                match self.rest.trim_start().chars().next() {
                    None => false,
                    Some(found) if found == first => self.go_on(0, ReaderState::Head),
                    Some(_) => self.go_on(0, ReaderState::Content),
                }
            }
            ReaderState::Start => self.go_on(0, ReaderState::Content),
            ReaderState::Content => {
                let marker = style.marker.as_str();
                let found = (!marker.is_empty()).then(|| self.rest.find(marker)).flatten();
                let (end, next) = match found {
                    Some(at) => (at, at + marker.len()),
                    None => {
                        let sure =
                            if is_whole { self.rest.len() } else { sure(&self.rest, marker) };
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
            ReaderState::Head => match head(&self.rest, &style, self.calls == 0) {
                Head::Begun if is_whole && self.is_all() => self.go_on(0, ReaderState::Content),
                Head::Begun => false,
                // Without a marker, a text that begins as a call does may be something else.
                Head::Other if self.is_all() => {
                    parts.push(AnswerPart::Content(std::mem::take(&mut self.rest)));
                    self.go_on(0, ReaderState::Content)
                }
                Head::Other => self.go_on(self.rest.len(), ReaderState::End),
                Head::Call { name, end } => {
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
            // Only an identifier, which has no brace, is in between.
            ReaderState::Tail => match self.rest.find('}') {
                Some(at) => self.go_on(at + 1, ReaderState::Behind),
                None => false,
            },
            ReaderState::Behind if style.is_list => match self.rest.trim_start().chars().next() {
                None => false,
                Some(',') => self.go_on(0, ReaderState::Head),
                Some(_) => self.go_on(0, ReaderState::End),
            },
            ReaderState::Behind if style.end_marker.is_empty() => {
                self.go_on(0, ReaderState::Between)
            }
            ReaderState::Behind => match self.rest.find(&style.end_marker) {
                Some(at) => self.go_on(at + style.end_marker.len(), ReaderState::Between),
                None => false,
            },
            ReaderState::Between if style.marker.is_empty() => self.go_on(0, ReaderState::End),
            ReaderState::Between => match self.rest.find(&style.marker) {
                Some(at) => self.go_on(at + style.marker.len(), ReaderState::Head),
                None => false,
            },
            ReaderState::End => false,
        }
    }

    /// Whether what is left is all that came so far: no marker, no call.
    fn is_all(&self) -> bool {
        self.calls == 0 && self.style.marker.is_empty()
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

/// What a text begins with where a call is to begin.
enum Head {
    /// It may be a call.
    Begun,
    /// It is none.
    Other,
    /// A call of this name, whose arguments begin there.
    Call { name: String, end: usize },
}

/// The head of a call, which is the `first` one or comes behind another one.
fn head(text: &str, style: &CallStyle, first: bool) -> Head {
    let mut rest = text.trim_start();
    let mut begin = |token: &str| -> Option<bool> {
        rest = rest.trim_start();
        match rest.strip_prefix(token) {
            Some(behind) => {
                rest = behind;
                Some(true)
            }
            None if token.starts_with(rest) => None,
            None => Some(false),
        }
    };
    let opening = match (style.is_list, first) {
        (true, true) if !style.marker.ends_with('[') => "[",
        (true, false) => ",",
        _ => "",
    };
    for token in [opening, "{"] {
        match begin(token) {
            None => return Head::Begun,
            Some(false) => return Head::Other,
            Some(true) => {}
        }
    }
    let mut name = None;
    loop {
        let key = match text_at(&mut rest) {
            Ok(key) => key,
            Err(head) => return head,
        };
        if let Err(head) = sign_at(&mut rest, ':') {
            return head;
        }
        if key == style.arguments_key
            && let Some(name) = name
        {
            rest = rest.trim_start();
            return match rest.chars().next() {
                None => Head::Begun,
                Some('{') => Head::Call { name, end: text.len() - rest.len() },
                Some(_) => Head::Other,
            };
        }
        let is_id = style.id_keys.iter().flatten().any(|id| *id == key);
        if key != style.name_key && !is_id {
            return Head::Other;
        }
        let value = match text_at(&mut rest) {
            Ok(value) => value,
            Err(head) => return head,
        };
        if key == style.name_key {
            name = Some(value);
        }
        if let Err(head) = sign_at(&mut rest, ',') {
            return head;
        }
    }
}

/// Takes a text in quotes; names and identifiers have no characters that are escaped.
fn text_at(rest: &mut &str) -> Result<String, Head> {
    sign_at(rest, '"')?;
    let Some((text, behind)) = rest.split_once('"') else { return Err(Head::Begun) };
    *rest = behind;
    Ok(text.to_owned())
}

/// Takes a sign that has to come next.
fn sign_at(rest: &mut &str, sign: char) -> Result<(), Head> {
    let text = rest.trim_start();
    match text.strip_prefix(sign) {
        Some(behind) => {
            *rest = behind;
            Ok(())
        }
        None if text.is_empty() => Err(Head::Begun),
        None => Err(Head::Other),
    }
}

/// How much of a text can't be the beginning of the marker.
fn sure(text: &str, marker: &str) -> usize {
    let from = text.ceil_char_boundary((text.len() + 1).saturating_sub(marker.len()));
    let begins = |at: &usize| !marker.is_empty() && marker.starts_with(&text[*at..]);
    text[from..].char_indices().map(|(at, _)| from + at).find(begins).unwrap_or(text.len())
}

/// The content and the calls of a whole answer, and why it ended if `end` says so of its text.
pub(super) fn whole(
    style: &Arc<CallStyle>,
    text: &str,
    end: Option<AnswerEnd>,
    id: impl Fn(usize) -> String,
) -> (String, Vec<ToolCall>, Option<AnswerEnd>) {
    let mut reader = CallReader::new(style);
    let mut content = String::new();
    let mut calls: Vec<ToolCall> = Vec::new();
    for part in reader.push(text, end.or(Some(AnswerEnd::Stop))) {
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

    fn tagged() -> Arc<CallStyle> {
        Arc::new(CallStyle::tagged())
    }

    fn bare() -> Arc<CallStyle> {
        Arc::new(CallStyle::bare())
    }

    fn joined(
        style: &Arc<CallStyle>,
        pieces: impl Iterator<Item = String>,
    ) -> (String, Vec<(String, String)>) {
        let mut reader = CallReader::new(style);
        let mut parts: Vec<AnswerPart> =
            pieces.flat_map(|piece| reader.push(&piece, None)).collect();
        parts.extend(reader.push("", Some(AnswerEnd::Stop)));
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
        let whole = joined(&tagged(), std::iter::once(TWO.to_owned()));
        assert_eq!(whole.0, "Let me see <3\n");
        let arguments = "{\"q\": \"a}\\\"<tool_call>\", \"n\": [1]}";
        assert_eq!(whole.1[0], ("find".to_owned(), arguments.to_owned()));
        assert_eq!(whole.1[1], ("stop".to_owned(), "{}".to_owned()));
        for size in 1..9 {
            let letters: Vec<char> = TWO.chars().collect();
            let pieces = letters.chunks(size).map(|piece| piece.iter().collect());
            assert_eq!(joined(&tagged(), pieces), whole, "{size}");
        }
    }

    #[test]
    fn an_answer_ends_for_its_calls_if_the_last_one_is_whole() {
        let id = |number: usize| number.to_string();
        let end = |text: &str, end| whole(&tagged(), text, Some(end), id).2.unwrap();
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
            joined(&tagged(), std::iter::once(text.to_owned())),
            (text.to_owned(), Vec::new())
        );
        assert_eq!(
            joined(&bare(), std::iter::once(text.to_owned())),
            (text.to_owned(), Vec::new())
        );
        let call = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}";
        let read = joined(&bare(), call.chars().map(String::from));
        assert_eq!(read, (String::new(), vec![("f".to_owned(), "{\"x\": 1}".to_owned())]));
    }

    /// `name` and `arguments` in a list behind a marker, as Mistral and Granite write calls.
    fn listed(marker: &str, end: &str) -> Arc<CallStyle> {
        Arc::new(CallStyle {
            marker: marker.to_owned(),
            end_marker: end.to_owned(),
            is_list: true,
            id_keys: [None, Some("id".to_owned())],
            ..CallStyle::tagged()
        })
    }

    #[test]
    fn calls_in_a_list_are_read_however_the_answer_is_cut_into_pieces() {
        let commands = Arc::new(CallStyle {
            name_key: "tool_name".to_owned(),
            arguments_key: "parameters".to_owned(),
            id_keys: [Some("tool_call_id".to_owned()), None],
            ..(*listed("<|START_ACTION|>", "<|END_ACTION|>")).clone()
        });
        for (style, text) in [
            (
                listed("[TOOL_CALLS]", ""),
                "I [look].[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [\"]}\"]}, \"id\": \"x1\"}, {\"name\":\"g\",\"arguments\":{}}]",
            ),
            (
                listed("functools[", ""),
                "I [look].functools[{\"name\": \"f\", \"arguments\": {\"a\": [\"]}\"]}},{\"name\":\"g\",\"arguments\":{}}]",
            ),
            (
                commands,
                "I [look].<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"a\": [\"]}\"]}},\n    {\"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
            ),
        ] {
            let calls = vec![
                ("f".to_owned(), "{\"a\": [\"]}\"]}".to_owned()),
                ("g".to_owned(), "{}".to_owned()),
            ];
            let expected = ("I [look].".to_owned(), calls);
            for size in 1..12 {
                let letters: Vec<char> = text.chars().collect();
                let pieces = letters.chunks(size).map(|piece| piece.iter().collect());
                assert_eq!(joined(&style, pieces), expected, "{size}: {text}");
            }
        }
    }

    #[test]
    fn nothing_of_a_marker_is_text_where_an_answer_is_cut_off() {
        let id = |number: usize| number.to_string();
        let of = |style: &Arc<CallStyle>, text: &str, end| whole(style, text, Some(end), id).0;
        for (style, text) in [
            (tagged(), "Well.<tool_call>\n{\"name\": \"fin"),
            (listed("[TOOL_CALLS]", ""), "Well.[TOOL_CALLS] [{\"name"),
        ] {
            for cut in 5..text.len() {
                assert_eq!(
                    of(&style, &text[..cut], AnswerEnd::Length),
                    "Well.",
                    "{}",
                    &text[..cut]
                );
            }
        }
        assert_eq!(of(&tagged(), "1 <", AnswerEnd::Stop), "1 <", "it is whole, and no marker");
        assert_eq!(of(&bare(), "{\"na", AnswerEnd::Length), "");
    }

    #[test]
    fn an_answer_in_json_is_no_call_where_calls_have_no_marker() {
        for text in ["{\"name\": \"Ada\", \"age\": 36}", "{\"age\": 3}", "{}", "{\"name\": 5}"] {
            let read = joined(&bare(), text.chars().map(String::from));
            assert_eq!(read, (text.to_owned(), Vec::new()));
        }
    }
}
