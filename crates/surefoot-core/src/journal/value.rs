//! A value in an event's context: what JSON can hold in one scalar.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

/// A number, text or boolean beside an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// True or false.
    Bool(bool),
    /// A whole number; `i128` so that every `i64` and `u64` fits.
    Int(i128),
    /// Any other number. One that isn't finite is written as text, since JSON has none.
    Float(f64),
    /// Anything else.
    Text(Cow<'static, str>),
}

impl Value {
    /// The value as a count, if it is one.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

macro_rules! from_integers {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Value {
            fn from(value: $integer) -> Self {
                Self::Int(value as i128)
            }
        }
    )*};
}
from_integers!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);

impl From<f32> for Value {
    fn from(value: f32) -> Self {
        Self::Float(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&'static str> for Value {
    fn from(value: &'static str) -> Self {
        Self::Text(super::bounded(value.into()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(super::bounded(value.into()))
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
                (Ok(value), _) => serializer.serialize_i64(value),
                (_, Ok(value)) => serializer.serialize_u64(value),
                _ => serializer.collect_str(value),
            },
            Self::Float(value) if value.is_finite() => serializer.serialize_f64(*value),
            Self::Float(value) => serializer.collect_str(value),
            Self::Text(value) => serializer.serialize_str(value),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyScalar)
    }
}

struct AnyScalar;

impl<'de> Visitor<'de> for AnyScalar {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, text or a boolean")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.to_owned().into())
    }

    // What a later version may put here is kept as a mark that something was there.
    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok("null".into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok("[…]".into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok("{…}".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through_json(value: Value) -> Value {
        serde_json::from_str(&serde_json::to_string(&value).unwrap()).unwrap()
    }

    #[test]
    fn whole_numbers_keep_every_digit() {
        for value in [Value::from(u64::MAX), Value::from(i64::MIN), Value::from(0)] {
            assert_eq!(through_json(value.clone()), value);
        }
    }

    #[test]
    fn numbers_that_json_lacks_become_text() {
        assert_eq!(through_json(f64::NAN.into()), Value::from("NaN"));
        assert_eq!(through_json(f64::NEG_INFINITY.into()), Value::from("-inf"));
    }

    #[test]
    fn a_later_versions_lists_and_objects_do_not_break_the_line() {
        for (json, mark) in [("[1,{}]", "[…]"), ("{\"a\":[2]}", "{…}"), ("null", "null")] {
            assert_eq!(serde_json::from_str::<Value>(json).unwrap(), Value::from(mark));
        }
    }
}
