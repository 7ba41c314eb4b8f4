//! JSON as Python's `json.dumps` writes it, which is what templates mean by `tojson`: a space behind each
//! comma and colon, and no escapes for HTML.

use std::io;

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The filter `tojson`, with `indent` or without.
pub(super) fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    // Whether other characters than ASCII are escaped: they never are here.
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    let wrong = |error: serde_json::Error| {
        Error::new(ErrorKind::InvalidOperation, format!("the value can't be JSON: {error}"))
    };
    let mut bytes = Vec::new();
    match indent {
        Some(indent) => {
            let spaces = " ".repeat(indent.min(16));
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value
                .serialize(&mut Serializer::with_formatter(&mut bytes, formatter))
                .map_err(wrong)?;
        }
        None => {
            value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)).map_err(wrong)?
        }
    }
    Ok(Value::from_safe_string(String::from_utf8_lossy(&bytes).into_owned()))
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}
