//! Reads prompts and texts to embed: a text, token ids, or a list of either.
//!
//! Lists are read element by element into their final form, and reading stops at the first element
//! that is one too many. So a request takes no more memory than its text has bytes, whatever it
//! holds.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::error::ApiError;
use super::fields::mistyped;

const EXPECTED: &str = "a text, token ids, or a list of either";

/// One sequence that is to be run: a text, or its tokens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

impl Input {
    /// The bytes of a text; token ids have none.
    pub(super) fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(_) => 0,
        }
    }
}

/// How much one request may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputLimits {
    /// Sequences.
    pub(super) inputs: usize,
    /// Tokens of one sequence.
    pub(super) tokens: usize,
    /// Bytes of one text.
    pub(super) bytes: usize,
}

impl InputLimits {
    /// Refuses a text that has more bytes than any text of [`InputLimits::tokens`] tokens.
    pub(super) fn check_text(&self, key: &str, bytes: usize) -> Result<(), ApiError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let message = format!(
            "a text of {bytes} bytes is more than the {} tokens that this server takes: a text can \
             have {} bytes",
            self.tokens, self.bytes
        );
        Err(ApiError::invalid(message).code("context_length_exceeded").param(key))
    }
}

/// Reads the sequences of a field.
pub(super) fn inputs(
    key: &str,
    value: &RawValue,
    limits: InputLimits,
) -> Result<Vec<Input>, ApiError> {
    let mut problem = None;
    let mut json = serde_json::Deserializer::from_str(value.get());
    let read = Reader { key, limits, nested: false, problem: &mut problem }.deserialize(&mut json);
    let inputs = match (read, problem) {
        (_, Some(problem)) => return Err(problem),
        (Err(_), None) | (Ok(Element::Id(_)), None) => return Err(mistyped(key, EXPECTED)),
        (Ok(Element::One(input)), None) => vec![input],
        (Ok(Element::Many(inputs)), None) => inputs,
    };
    if inputs.is_empty() {
        return Err(ApiError::invalid(format!("'{key}' is empty")).param(key));
    }
    Ok(inputs)
}

/// What stands at one place of the field.
enum Element {
    Id(u32),
    One(Input),
    Many(Vec<Input>),
}

/// Reads one element. A refusal that has a status of its own is left in `problem`.
struct Reader<'a> {
    key: &'a str,
    limits: InputLimits,
    nested: bool,
    problem: &'a mut Option<ApiError>,
}

impl Reader<'_> {
    fn refuse<E: serde::de::Error>(self, problem: ApiError) -> E {
        *self.problem = Some(problem);
        E::custom("refused")
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Element, E> {
        match self.limits.check_text(self.key, text.len()) {
            Ok(()) => Ok(Element::One(Input::Text(text.to_owned()))),
            Err(problem) => Err(self.refuse(problem)),
        }
    }

    fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Element, E> {
        u32::try_from(id).map(Element::Id).map_err(|_| E::custom(EXPECTED))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
        let (mut tokens, mut many) = (Vec::new(), Vec::new());
        let Self { key, limits, nested, .. } = self;
        loop {
            let reader = Reader { key, limits, nested: true, problem: &mut *self.problem };
            match list.next_element_seed(reader)? {
                None => break,
                Some(Element::Id(_)) if tokens.len() >= limits.tokens => {
                    let message =
                        format!("more than the {} tokens that this server takes", limits.tokens);
                    let problem = ApiError::invalid(message);
                    return Err(self.refuse(problem.code("context_length_exceeded").param(key)));
                }
                Some(Element::Id(id)) if many.is_empty() => tokens.push(id),
                Some(Element::One(_)) if many.len() >= limits.inputs => {
                    let message =
                        format!("more than the {} that can be taken at once", limits.inputs);
                    return Err(self.refuse(ApiError::invalid(message).param(key)));
                }
                Some(Element::One(input)) if tokens.is_empty() && !nested => many.push(input),
                Some(_) => return Err(A::Error::custom(EXPECTED)),
            }
        }
        Ok(match tokens.is_empty() && !nested {
            true => Element::Many(many),
            false => Element::One(Input::Tokens(tokens)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: InputLimits = InputLimits { inputs: 3, tokens: 4, bytes: 16 };

    fn read(text: &str) -> Result<Vec<Input>, ApiError> {
        inputs("input", serde_json::from_str(text).unwrap(), LIMITS)
    }

    #[test]
    fn inputs_are_texts_tokens_or_lists_of_either() {
        let text = |text: &str| Input::Text(text.to_owned());
        assert_eq!(read(r#""a""#).unwrap(), [text("a")]);
        assert_eq!(read(r#"["a", "b"]"#).unwrap(), [text("a"), text("b")]);
        assert_eq!(read("[1, 2]").unwrap(), [Input::Tokens(vec![1, 2])]);
        assert_eq!(read(r#"[[1], "x"]"#).unwrap(), [Input::Tokens(vec![1]), text("x")]);
        for wrong in ["7", "[]", "[-1]", r#"[1, "a"]"#, r#"["a", 1]"#, "[{}]", "[1.5]", "[[[1]]]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reading_stops_at_the_first_element_too_many() {
        for (text, code) in [
            ("[1, 2, 3, 4, 5]", "context_length_exceeded"),
            ("[[1], [1, 2, 3, 4, 5]]", "context_length_exceeded"),
            (r#""seventeen bytes..""#, "context_length_exceeded"),
            (r#"["a", "seventeen bytes.."]"#, "context_length_exceeded"),
        ] {
            assert_eq!(read(text).unwrap_err().body()["error"]["code"], code, "{text}");
        }
        let many = read(r#"["a", "b", "c", "d"]"#).unwrap_err().body();
        assert!(many["error"]["message"].as_str().unwrap().contains("at once"), "{many}");
        assert!(read("[1, 2, 3, 4]").is_ok() && read(r#"["a", "b", "c"]"#).is_ok());
    }

    proptest! {
        #[test]
        fn no_input_makes_reading_panic(text in "\\PC{0,40}") {
            if let Ok(value) = serde_json::from_str::<&RawValue>(&text) {
                let _ = inputs("input", value, LIMITS);
            }
        }
    }
}
