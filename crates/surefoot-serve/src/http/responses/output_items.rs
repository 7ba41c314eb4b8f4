//! The output of a response: a message and calls of tools, as items that grow while the answer is generated.
//!
//! [`OutputItems`] is told the parts of an answer in their order and gives the events that stream them; at its
//! end [`OutputItems::items`] is what a whole response has. Whole and streamed answers take this same way, so
//! they can't differ. At most one item is open at a time: a new one closes the one before it.

use serde_json::{Value, json};

use super::Status;
use crate::http::call_reader::AnswerPart;

/// An event of a stream, without its number: its type and its fields.
pub(super) type NamedEvent = (&'static str, Value);

/// The items of one response.
pub(super) struct OutputItems {
    /// What makes the identifiers of this response's items different from those of others.
    own: String,
    closed: Vec<Value>,
    open: Option<OpenItem>,
}

enum OpenItem {
    Message { id: String, text: String },
    Call { id: String, call_id: String, name: String, arguments: String },
}

impl OutputItems {
    pub(super) fn new(response: &str) -> Self {
        let own = response.rsplit('-').next().unwrap_or_default().to_owned();
        Self { own, closed: Vec::new(), open: None }
    }

    /// The items that are closed.
    pub(super) fn items(&self) -> &[Value] {
        &self.closed
    }

    /// Takes a further part of the answer.
    pub(super) fn push(&mut self, part: AnswerPart) -> Vec<NamedEvent> {
        let mut events = Vec::new();
        match part {
            AnswerPart::Content(more) => {
                if !matches!(self.open, Some(OpenItem::Message { .. })) {
                    self.open_message(&mut events);
                }
                let place = self.place();
                if let Some(OpenItem::Message { text, .. }) = &mut self.open {
                    text.push_str(&more);
                    let fields = json!({"delta": more, "logprobs": []});
                    events.push(("response.output_text.delta", joined(place, fields)));
                }
            }
            AnswerPart::Call { number, name } => {
                self.close(Status::Completed, &mut events);
                let id = format!("fc_{}_{number}", self.own);
                let call_id = format!("call_{}_{number}", self.own);
                self.open_item(
                    OpenItem::Call { id, call_id, name, arguments: String::new() },
                    &mut events,
                );
            }
            AnswerPart::Arguments { text, .. } => {
                let place = self.place();
                if let Some(OpenItem::Call { arguments, .. }) = &mut self.open {
                    arguments.push_str(&text);
                    let delta = joined(place, json!({"delta": text}));
                    events.push(("response.function_call_arguments.delta", delta));
                }
            }
        }
        events
    }

    /// Ends the output. A response has at least one item: an empty message if the model said nothing.
    pub(super) fn end(&mut self, status: Status) -> Vec<NamedEvent> {
        let mut events = Vec::new();
        if self.open.is_none() && self.closed.is_empty() {
            self.open_message(&mut events);
        }
        self.close(status, &mut events);
        events
    }

    fn open_message(&mut self, events: &mut Vec<NamedEvent>) {
        self.close(Status::Completed, events);
        let id = format!("msg_{}_{}", self.own, self.closed.len());
        self.open_item(OpenItem::Message { id, text: String::new() }, events);
        let part = joined(self.place(), json!({"part": part("")}));
        events.push(("response.content_part.added", part));
    }

    fn open_item(&mut self, item: OpenItem, events: &mut Vec<NamedEvent>) {
        let added = json!({"output_index": self.closed.len(), "item": item.json(None)});
        self.open = Some(item);
        events.push(("response.output_item.added", added));
    }

    fn close(&mut self, status: Status, events: &mut Vec<NamedEvent>) {
        let place = self.place();
        let Some(item) = self.open.take() else { return };
        match &item {
            OpenItem::Message { text, .. } => {
                let done = json!({"text": text, "logprobs": []});
                events.push(("response.output_text.done", joined(place.clone(), done)));
                let done = joined(place, json!({"part": part(text)}));
                events.push(("response.content_part.done", done));
            }
            OpenItem::Call { name, arguments, .. } => {
                let done = json!({"name": name, "arguments": arguments});
                events.push(("response.function_call_arguments.done", joined(place, done)));
            }
        }
        let item = item.json(Some(status));
        let done = json!({"output_index": self.closed.len(), "item": item});
        events.push(("response.output_item.done", done));
        self.closed.push(item);
    }

    /// Where the open item is.
    fn place(&self) -> Value {
        let index = self.closed.len();
        match &self.open {
            None => json!({}),
            Some(OpenItem::Message { id, .. }) => {
                json!({"item_id": id, "output_index": index, "content_index": 0})
            }
            Some(OpenItem::Call { id, .. }) => json!({"item_id": id, "output_index": index}),
        }
    }
}

impl OpenItem {
    /// The item as it is when it is added, or when it has ended.
    fn json(&self, end: Option<Status>) -> Value {
        let status = end.unwrap_or(Status::InProgress);
        match self {
            Self::Message { id, text } => {
                let content: Vec<Value> = end.iter().map(|_| part(text)).collect();
                json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
            }
            Self::Call { id, call_id, name, arguments } => {
                json!({"type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments, "status": status})
            }
        }
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// The fields of two objects.
fn joined(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_and_two_calls_are_three_items_with_the_events_that_clients_expect() {
        let mut output = OutputItems::new("resp-1a");
        let mut events = Vec::new();
        for part in [
            AnswerPart::Content("So".to_owned()),
            AnswerPart::Content("!".to_owned()),
            AnswerPart::Call { number: 0, name: "f".to_owned() },
            AnswerPart::Arguments { number: 0, text: "{}".to_owned() },
            AnswerPart::Call { number: 1, name: "g".to_owned() },
            AnswerPart::Arguments { number: 1, text: "{\"a\"".to_owned() },
        ] {
            events.extend(output.push(part));
        }
        events.extend(output.end(Status::Incomplete));
        let kinds: Vec<&str> = events.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(
            kinds,
            [
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.output_item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.output_item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
            ]
        );
        let places: Vec<Value> =
            events.iter().map(|(_, event)| event["output_index"].clone()).collect();
        assert_eq!(json!(places), json!([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]));
        assert_eq!(events[2].1["item_id"], "msg_1a_0");
        assert_eq!(
            (&events[9].1["arguments"], &events[9].1["item_id"]),
            (&json!("{}"), &json!("fc_1a_0"))
        );
        assert_eq!(events[0].1["item"]["status"], "in_progress");
        let items = output.items();
        assert_eq!(items[0]["content"][0]["text"], "So!");
        assert_eq!(
            (&items[0]["status"], &items[1]["status"]),
            (&json!("completed"), &json!("completed"))
        );
        assert_eq!(
            items[2],
            json!({"type": "function_call", "id": "fc_1a_1", "call_id": "call_1a_1", "name": "g", "arguments": "{\"a\"", "status": "incomplete"})
        );
    }

    #[test]
    fn an_answer_without_text_is_an_empty_message() {
        let mut output = OutputItems::new("resp-1a");
        let kinds: Vec<&str> =
            output.end(Status::Completed).iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds.first(), Some(&"response.output_item.added"));
        assert_eq!(output.items()[0]["content"][0]["text"], "");
        assert_eq!(output.items().len(), 1);
    }
}
