//! How a model writes calls of tools, read from its chat template.
//!
//! Templates differ in what stands around a call, in whether several calls are a list, and in what the keys are called.
//! [`CallStyle::shown_by`] has the template write two calls of an earlier answer and reads the style from the result. A template
//! that writes no calls mostly says in words how they are to be written: [`CallStyle::named_by`] looks for these words.

use serde_json::{Map, Value, json};

/// How a template writes calls: `marker [ {name, arguments}, … ] end` where they are a list, else `marker {name, arguments} end`
/// for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallStyle {
    /// What precedes the calls, or each of them where they are no list; empty if nothing does. It may have the bracket that
    /// opens the list as its last character.
    pub marker: String,
    /// What ends the calls, or each of them; empty if nothing does.
    pub end_marker: String,
    /// Whether calls are one list.
    pub is_list: bool,
    /// Whether one answer can have several calls.
    pub is_parallel: bool,
    /// The key of the function's name.
    pub name_key: String,
    /// The key of the arguments, behind the name.
    pub arguments_key: String,
    /// The key of an identifier before the name, and behind the arguments, if the template writes one. Models may leave it out.
    pub id_keys: [Option<String>; 2],
    /// White space where the template has some.
    pub space: CallSpace,
}

/// The white space of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallSpace {
    /// Behind the marker.
    pub behind_marker: String,
    /// Before the end marker, or the bracket that closes the list.
    pub before_end: String,
    /// Between the calls of a list and its brackets, and behind its commas.
    pub in_list: String,
    /// Behind the brace of a call, and behind its commas.
    pub in_call: String,
    /// Before the brace that closes a call.
    pub before_brace: String,
}

/// The names of calls that a template is made to write, and the argument of each.
const NAMES: [&str; 2] = ["probe_call_a", "probe_call_b"];
const ARGUMENT: &str = "probe_argument";

impl CallStyle {
    /// `<tool_call>` and `</tool_call>` around `{"name": …, "arguments": …}`, as Hermes and Qwen do. It is also the style of
    /// templates that say nothing else.
    pub fn tagged() -> Self {
        Self {
            marker: "<tool_call>".to_owned(),
            end_marker: "</tool_call>".to_owned(),
            is_list: false,
            is_parallel: true,
            name_key: "name".to_owned(),
            arguments_key: "arguments".to_owned(),
            id_keys: [None, None],
            space: CallSpace {
                behind_marker: "\n".to_owned(),
                before_end: "\n".to_owned(),
                ..CallSpace::default()
            },
        }
    }

    /// `{"name": …, "parameters": …}` and nothing else, as Llama 3 does.
    pub fn bare() -> Self {
        Self {
            marker: String::new(),
            end_marker: String::new(),
            is_parallel: false,
            arguments_key: "parameters".to_owned(),
            space: CallSpace::default(),
            ..Self::tagged()
        }
    }

    /// A list of `{"name": …, "arguments": …}` behind a marker.
    fn list(marker: &str, end_marker: &str) -> Self {
        Self {
            marker: marker.to_owned(),
            end_marker: end_marker.to_owned(),
            is_list: true,
            space: CallSpace::default(),
            ..Self::tagged()
        }
    }

    /// The style that the source of a template has words for.
    pub(super) fn named_by(source: &str) -> Self {
        let has = |word: &str| source.contains(word);
        if has("<tool_call>") {
            Self::tagged()
        } else if has("[TOOL_CALLS]") {
            Self::list("[TOOL_CALLS]", "")
        } else if has("functools[") {
            Self::list("functools[", "")
        } else if has("<|tool_call|>") || has("<|/tool|>") {
            Self::list("<|tool_call|>", if has("<|/tool") { "<|/tool_call|>" } else { "" })
        } else if has("\"parameters\"") && has("python_tag") {
            Self::bare()
        } else {
            Self::tagged()
        }
    }

    /// An answer of the assistant with so many calls, for a template to write.
    pub(super) fn probe(calls: usize) -> Value {
        let call = |name: &&str| {
            let function = json!({"name": name, "arguments": {ARGUMENT: 1}});
            // Mistral's templates want nine letters.
            json!({"id": format!("id{}", &name[5..]).replace('_', "0"), "type": "function", "function": function})
        };
        let calls: Vec<Value> = NAMES[..calls].iter().map(call).collect();
        json!({"role": "assistant", "content": "", "tool_calls": calls})
    }

    /// The style of a text that a template made of a chat that ends with [`Self::probe`]; `prompt` is what it makes of the chat
    /// before that. None if the calls are not there, or in no way that is known.
    pub(super) fn shown_by(text: &str, prompt: &str) -> Option<Self> {
        let first = CallText::find(text, NAMES[0])?;
        let second = CallText::find(text, NAMES[1]);
        let alike = text.bytes().zip(prompt.bytes()).take_while(|(one, other)| one == other);
        let begun = text.floor_char_boundary(alike.count().min(first.start));
        let before = text[..first.start].trim_end();
        let is_list = before.ends_with('[') && before.len() > begun;
        let opened = if is_list { &before[..before.len() - 1] } else { before };
        let lead = opened.trim_end();
        let marker = if lead.len() <= begun || lead[begun..].trim().is_empty() {
            ""
        } else {
            marker_of(lead, is_list && opened.len() == lead.len())?
        };
        let mut marker = marker.to_owned();
        let is_word = marker.ends_with(|last: char| last.is_ascii_alphanumeric());
        if is_list && is_word && opened.len() == lead.len() {
            // A word alone may be part of a text.
            marker.push('[');
        }
        let space = |range: &str| range.chars().all(char::is_whitespace).then(|| range.to_owned());
        let behind = &text[second.as_ref().unwrap_or(&first).end..];
        let closed = if is_list { behind.trim_start().strip_prefix(']')? } else { behind };
        let counterpart = counterpart(&marker);
        let has_end = !counterpart.is_empty() && closed.trim_start().starts_with(&counterpart);
        let end_marker = if has_end { counterpart } else { String::new() };
        let before_end = match is_list || has_end {
            true => behind[..behind.len() - behind.trim_start().len()].to_owned(),
            false => String::new(),
        };
        let mut in_list = String::new();
        let mut is_parallel = false;
        if let Some(second) = &second {
            let between = &text[first.end..second.start];
            if is_list {
                in_list = space(between.trim_start().strip_prefix(',')?)?;
                is_parallel = true;
            } else {
                is_parallel = !marker.is_empty() && between.contains(marker.as_str());
            }
        }
        let first_behind =
            if is_list { &opened[lead.len()..] } else { &text[lead.len()..first.start] };
        Some(Self {
            space: CallSpace {
                behind_marker: if marker.is_empty() { String::new() } else { space(first_behind)? },
                before_end,
                in_list,
                in_call: first.in_call,
                before_brace: first.before_brace,
            },
            marker,
            end_marker,
            is_list,
            is_parallel,
            name_key: first.name_key,
            arguments_key: first.arguments_key,
            id_keys: first.id_keys,
        })
    }

    /// A call as a model writes it: for templates that write none.
    pub(super) fn written(&self, calls: &[Value]) -> String {
        let space = &self.space;
        let call = |call: &Value| {
            let function = &call["function"];
            format!(
                "{{{}\"{}\": {},{}\"{}\": {}{}}}",
                space.in_call,
                self.name_key,
                function["name"],
                or_one(&space.in_call),
                self.arguments_key,
                function["arguments"],
                space.before_brace
            )
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        let (marker, end) = (&self.marker, &self.end_marker);
        if self.is_list {
            let open = if marker.ends_with('[') { "" } else { "[" };
            let calls = calls.join(&format!(",{}", or_one(&space.in_list)));
            format!("{marker}{}{open}{calls}{}]{end}", space.behind_marker, space.before_end)
        } else {
            let tagged = calls.into_iter().map(|call| {
                format!("{marker}{}{call}{}{end}", space.behind_marker, space.before_end)
            });
            tagged.collect::<Vec<_>>().join("\n")
        }
    }
}

/// White space behind a comma, of which there is some.
fn or_one(space: &str) -> &str {
    if space.is_empty() { " " } else { space }
}

/// A call that a template has written.
struct CallText {
    start: usize,
    end: usize,
    name_key: String,
    arguments_key: String,
    id_keys: [Option<String>; 2],
    in_call: String,
    before_brace: String,
}

impl CallText {
    fn find(text: &str, name: &str) -> Option<Self> {
        let named = text.find(&format!("\"{name}\""))?;
        let start = text[..named].rfind('{')?;
        let mut objects =
            serde_json::Deserializer::from_str(&text[start..]).into_iter::<Map<String, Value>>();
        let object = objects.next()?.ok()?;
        let end = start + objects.byte_offset();
        let written = &text[start..end];
        let key_of = |is: &dyn Fn(&Value) -> bool| {
            object.iter().find(|(_, value)| is(value)).map(|(key, _)| key.clone())
        };
        let name_key = key_of(&|value| value == name)?;
        let arguments_key = key_of(&|value| value.get(ARGUMENT).is_some())?;
        let place = |key: &str| written.find(&format!("\"{key}\""));
        let (name_at, arguments_at) = (place(&name_key)?, place(&arguments_key)?);
        if arguments_at < name_at {
            return None;
        }
        let mut id_keys = [None, None];
        for key in object.keys().filter(|key| **key != name_key && **key != arguments_key) {
            let at = place(key)?;
            if at > name_at && at < arguments_at || !object[key].is_string() {
                return None;
            }
            let slot = &mut id_keys[usize::from(at > arguments_at)];
            if slot.replace(key.clone()).is_some() {
                return None;
            }
        }
        let inside = &written[1..written.len() - 1];
        let leading = inside.len() - inside.trim_start().len();
        Some(Self {
            start,
            end,
            name_key,
            arguments_key,
            id_keys,
            in_call: inside[..leading].to_owned(),
            before_brace: inside[inside.trim_end().len()..].to_owned(),
        })
    }
}

/// What marks the calls at the end of a text: its last tag, or its last words.
fn marker_of(lead: &str, is_word: bool) -> Option<&str> {
    let from = match lead.chars().last()? {
        '>' => lead.rfind('<')?,
        ']' => lead.rfind('[')?,
        // A part of a larger object.
        ':' | ',' | '"' | '{' | '[' | '(' => return None,
        _ => {
            let line = lead.rfind(['\n', '>']).map_or(0, |at| at + 1);
            let before = lead[..line].trim_end();
            match before.ends_with(':') && !is_word {
                // `Action:` and the line behind it.
                true => before.rfind(['\n', '>']).map_or(0, |at| at + 1),
                false => line,
            }
        }
    };
    Some(lead[from..].trim_start()).filter(|marker| !marker.is_empty())
}

/// What ends what a marker begins.
fn counterpart(marker: &str) -> String {
    let fence = marker.rfind("```").map(|_| "```".to_owned());
    let inner = |open: &str, close: &str| marker.strip_prefix(open)?.strip_suffix(close);
    if let Some(name) = inner("<|", "|>") {
        return match name.strip_prefix("START") {
            Some(rest) => format!("<|END{rest}|>"),
            None => format!("<|/{name}|>"),
        };
    }
    if let Some(name) = inner("<", ">") {
        return format!("</{name}>");
    }
    if let Some(name) = inner("[", "]") {
        return format!("[/{name}]");
    }
    fence.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_template_name_its_style() {
        assert_eq!(CallStyle::named_by("{{ '<tool_call>' }}"), CallStyle::tagged());
        let llama = "{\"name\": x, \"parameters\": y} <|python_tag|>";
        assert_eq!(CallStyle::named_by(llama), CallStyle::bare());
        assert_eq!(CallStyle::named_by("{{ messages }}"), CallStyle::tagged());
        let granite =
            CallStyle::named_by("respond only with <|tool_call|> followed by a JSON list");
        assert_eq!((granite.marker.as_str(), granite.is_list), ("<|tool_call|>", true));
        assert_eq!(granite.end_marker, "");
        let phi = CallStyle::named_by("'<|tool|>' + message['tools'] + '<|/tool|>'");
        assert_eq!(phi.end_marker, "<|/tool_call|>");
    }

    #[test]
    fn the_end_of_a_marker_is_its_counterpart() {
        for (marker, end) in [
            ("<tool_call>", "</tool_call>"),
            ("<|tool_call|>", "<|/tool_call|>"),
            ("<|START_ACTION|>", "<|END_ACTION|>"),
            ("[TOOL_CALLS]", "[/TOOL_CALLS]"),
            ("Action:\n```json", "```"),
            ("functools[", ""),
        ] {
            assert_eq!(counterpart(marker), end);
        }
    }

    #[test]
    fn what_is_no_call_in_json_is_not_taken_for_one() {
        for text in [
            "user: hi",
            "<function=probe_call_a>{\"probe_argument\": 1}</function>",
            "{\"calls\": {\"name\": \"probe_call_a\", \"arguments\": {\"probe_argument\": 1}}}",
            "<tool_call>{\"name\": \"probe_call_a\", \"arguments\": \"{\\\"probe_argument\\\": 1}\"}",
        ] {
            assert_eq!(CallStyle::shown_by(text, ""), None, "{text}");
        }
    }
}
