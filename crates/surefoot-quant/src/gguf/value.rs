//! Metadata values.

use std::io::Read;

use super::reader::Reader;
use super::{GgufError, MAX_DEPTH, MAX_HEADER};

const ARRAY: u32 = 9;

/// Defines values and arrays for the types that have a number and a form in the file.
macro_rules! values {
    ($($number:literal $name:ident $type:ty, $what:literal, $least:literal, $read:ident;)+) => {
        /// A metadata value.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Value {
            $(#[doc = $what] $name($type),)+
            /// Many values of one type.
            Array(Array),
        }

        /// Many values of one type.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Array {
            $(#[doc = concat!("Each is ", $what)] $name(Vec<$type>),)+
            /// Each is an array itself.
            Array(Vec<Array>),
        }

        impl Value {
            /// Reads the value of `key`.
            pub(super) fn read<R: Read>(reader: &mut Reader<R>, key: &str) -> Result<Self, GgufError> {
                match reader.u32("the type of a metadata value")? {
                    $($number => $read(reader, key).map(Self::$name),)+
                    ARRAY => Array::read(reader, key, 1).map(Self::Array),
                    number => Err(GgufError::UnknownValueType { key: key.to_owned(), number }),
                }
            }

            /// What it is, for messages.
            pub(super) fn kind(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $what,)+
                    Self::Array(_) => "an array",
                }
            }
        }

        impl Array {
            fn read<R: Read>(reader: &mut Reader<R>, key: &str, depth: usize) -> Result<Self, GgufError> {
                if depth > MAX_DEPTH {
                    return Err(GgufError::TooDeep { key: key.to_owned(), most: MAX_DEPTH });
                }
                let number = reader.u32("the type of an array's values")?;
                let count = reader.count("values of an array", MAX_HEADER)?;
                match number {
                    $($number => {
                        // What can't be in the file gets no memory.
                        reader.check(count * $least, "the values of an array")?;
                        let mut values = Vec::with_capacity(count as usize);
                        for _ in 0..count {
                            values.push($read(reader, key)?);
                        }
                        Ok(Self::$name(values))
                    })+
                    ARRAY => {
                        reader.check(count * 12, "the values of an array")?;
                        let mut values = Vec::with_capacity(count as usize);
                        for _ in 0..count {
                            values.push(Self::read(reader, key, depth + 1)?);
                        }
                        Ok(Self::Array(values))
                    }
                    number => Err(GgufError::UnknownValueType { key: key.to_owned(), number }),
                }
            }

            /// How many values there are.
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$name(values) => values.len(),)+
                    Self::Array(values) => values.len(),
                }
            }
        }
    };
}

macro_rules! numbers {
    ($($type:ident)+) => {
        $(fn $type<R: Read>(reader: &mut Reader<R>, _: &str) -> Result<$type, GgufError> {
            reader.array("a number").map(<$type>::from_le_bytes)
        })+
    };
}

numbers!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

fn text<R: Read>(reader: &mut Reader<R>, _: &str) -> Result<String, GgufError> {
    reader.text("a text", MAX_HEADER)
}

fn truth<R: Read>(reader: &mut Reader<R>, key: &str) -> Result<bool, GgufError> {
    match reader.array("a truth value")? {
        [0] => Ok(false),
        [1] => Ok(true),
        [byte] => Err(GgufError::NotABool { key: key.to_owned(), byte }),
    }
}

values! {
    0 U8 u8, "an unsigned number of 8 bits", 1, u8;
    1 I8 i8, "a number of 8 bits", 1, i8;
    2 U16 u16, "an unsigned number of 16 bits", 2, u16;
    3 I16 i16, "a number of 16 bits", 2, i16;
    4 U32 u32, "an unsigned number of 32 bits", 4, u32;
    5 I32 i32, "a number of 32 bits", 4, i32;
    6 F32 f32, "a floating-point number of 32 bits", 4, f32;
    7 Bool bool, "a truth value", 1, truth;
    8 Text String, "a text", 8, text;
    10 U64 u64, "an unsigned number of 64 bits", 8, u64;
    11 I64 i64, "a number of 64 bits", 8, i64;
    12 F64 f64, "a floating-point number of 64 bits", 8, f64;
}

impl Array {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Value {
    /// A whole number of any width that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::U64(number) => Some(number),
            Self::I8(number) => number.try_into().ok(),
            Self::I16(number) => number.try_into().ok(),
            Self::I32(number) => number.try_into().ok(),
            Self::I64(number) => number.try_into().ok(),
            _ => None,
        }
    }

    /// A floating-point number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(number) => Some(number.into()),
            Self::F64(number) => Some(number),
            _ => None,
        }
    }

    /// A truth value.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(truth) = self { Some(*truth) } else { None }
    }

    /// A text.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Texts.
    pub fn as_texts(&self) -> Option<&[String]> {
        if let Self::Array(Array::Text(texts)) = self { Some(texts) } else { None }
    }

    /// Floating-point numbers.
    pub fn as_f32s(&self) -> Option<&[f32]> {
        if let Self::Array(Array::F32(numbers)) = self { Some(numbers) } else { None }
    }

    /// Whole numbers.
    pub fn as_i32s(&self) -> Option<&[i32]> {
        if let Self::Array(Array::I32(numbers)) = self { Some(numbers) } else { None }
    }
}
