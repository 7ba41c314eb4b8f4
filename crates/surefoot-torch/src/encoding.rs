//! The encoding of a Python file: UTF-8, unless a comment on one of its first two lines names
//! another (`# -*- coding: latin-1 -*-`, PEP 263).
//!
//! Text that was decoded here is encoded by the same encoding when a fix is written back.

use encoding_rs::Encoding;

/// Why bytes are no text.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// Neither UTF-8 nor declared to be something else.
    #[error(
        "not UTF-8 at byte {valid}; save the file as UTF-8, or name its encoding as PEP 263 says"
    )]
    NotUtf8 {
        /// How many bytes are valid.
        valid: usize,
    },
    /// The comment names an encoding that is not known here.
    #[error(
        "its first lines name the encoding `{label}`, which is not known; save the file as UTF-8"
    )]
    Unknown {
        /// The name.
        label: String,
    },
    /// The bytes are not of the encoding that the comment names.
    #[error("not valid {label}, the encoding that its first lines name")]
    Invalid {
        /// The name.
        label: String,
    },
}

/// The text of a file, and its encoding where that is not UTF-8.
pub(crate) fn decode(bytes: &[u8]) -> Result<(String, Option<&'static Encoding>), DecodeError> {
    let utf8 = std::str::from_utf8(bytes).map(|text| (text.to_owned(), None));
    // Plain ASCII reads the same under any name.
    if bytes.is_ascii() {
        return utf8.map_err(|error| DecodeError::NotUtf8 { valid: error.valid_up_to() });
    }
    match declared(bytes) {
        Some(label) if !is_utf8(label) => {
            let Some(encoding) = find(label) else {
                return Err(DecodeError::Unknown { label: label.to_owned() });
            };
            match encoding.decode_without_bom_handling_and_without_replacement(bytes) {
                Some(text) => Ok((text.into_owned(), Some(encoding))),
                None => Err(DecodeError::Invalid { label: label.to_owned() }),
            }
        }
        _ => utf8.map_err(|error| DecodeError::NotUtf8 { valid: error.valid_up_to() }),
    }
}

/// The bytes of a text in this encoding; `None` if it has no bytes for some character.
pub(crate) fn encode(text: &str, encoding: Option<&'static Encoding>) -> Option<Vec<u8>> {
    match encoding {
        None => Some(text.as_bytes().to_vec()),
        Some(encoding) => {
            let (bytes, used, lossy) = encoding.encode(text);
            (!lossy && used == encoding).then(|| bytes.into_owned())
        }
    }
}

/// The encoding that a comment on one of the first two lines names. The second line counts only if
/// the first is blank or a comment, and a byte order mark means UTF-8.
fn declared(bytes: &[u8]) -> Option<&str> {
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return None;
    }
    for line in bytes.split(|byte| *byte == b'\n').take(2) {
        let line = line.trim_ascii();
        if let Some(label) = line.starts_with(b"#").then(|| label_in(line)).flatten() {
            return Some(label);
        }
        if !line.is_empty() && !line.starts_with(b"#") {
            return None;
        }
    }
    None
}

/// The name after `coding:` or `coding=`.
fn label_in(comment: &[u8]) -> Option<&str> {
    memchr::memmem::find_iter(comment, b"coding").find_map(|at| {
        let rest = &comment[at + b"coding".len()..];
        let rest = rest.strip_prefix(b":").or_else(|| rest.strip_prefix(b"="))?;
        let rest = rest.trim_ascii_start();
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        let end = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        (end > 0).then(|| std::str::from_utf8(&rest[..end]).ok())?
    })
}

fn is_utf8(label: &str) -> bool {
    let plain: String = label.chars().filter(char::is_ascii_alphanumeric).collect();
    matches!(
        plain.to_ascii_lowercase().as_str(),
        "utf8" | "utf8sig" | "u8" | "utf" | "ascii" | "usascii"
    )
}

/// Finds an encoding by the names that Python uses for it.
fn find(label: &str) -> Option<&'static Encoding> {
    let lower = label.to_ascii_lowercase().replace('_', "-");
    let name = match lower.as_str() {
        "latin-1" | "latin1" | "l1" => "iso-8859-1",
        "latin-2" => "iso-8859-2",
        "latin-9" | "latin9" => "iso-8859-15",
        "cp932" | "ms932" => "shift_jis",
        "cp936" => "gbk",
        "cp949" | "uhc" => "euc-kr",
        "cp950" => "big5",
        "cp866" => "ibm866",
        "euc-jp" | "eucjp" | "ujis" => "euc-jp",
        other => match other.strip_prefix("iso8859-") {
            Some(part) => return Encoding::for_label(format!("iso-8859-{part}").as_bytes()),
            None => other,
        },
    };
    Encoding::for_label(name.as_bytes())
        .or_else(|| Encoding::for_label(name.replace('-', "_").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> Result<String, DecodeError> {
        decode(bytes).map(|(text, _)| text)
    }

    #[test]
    fn the_comment_decides_on_the_first_two_lines_only() {
        assert_eq!(text(b"# coding: latin-1\n# \xe9").as_deref(), Ok("# coding: latin-1\n# é"));
        let emacs = b"#!/usr/bin/env python\n# -*- coding: ISO-8859-15 -*-\n# \xa4";
        assert!(text(emacs).expect("decoded").ends_with('€'));
        assert!(text(b"# vim: set fileencoding=cp1251 :\n# \xff").expect("decoded").ends_with('я'));
        assert!(text(b"\n\n# coding: latin-1\n# \xe9").is_err(), "the third line");
        assert!(text(b"x = 1\n# coding: latin-1\n# \xe9").is_err(), "after code");
        assert!(text(b"x = '# coding: latin-1'\n# \xe9").is_err(), "in a string");
    }

    #[test]
    fn errors_name_what_is_wrong() {
        assert_eq!(text(b"# \xe9"), Err(DecodeError::NotUtf8 { valid: 2 }));
        let unknown = Err(DecodeError::Unknown { label: "klingon".to_owned() });
        assert_eq!(text(b"# coding: klingon\n# \xe9"), unknown);
        assert!(
            text(b"# coding: klingon\nx = 1").is_ok(),
            "ASCII reads the same in every encoding"
        );
        let invalid = Err(DecodeError::Invalid { label: "euc-jp".to_owned() });
        assert_eq!(text(b"# coding: euc-jp\n# \xff"), invalid);
    }

    #[test]
    fn what_was_decoded_is_encoded_to_the_same_bytes() {
        for (label, body) in [
            ("latin-1", &b"\x80\x9f\xa0\xff"[..]),
            ("koi8-r", b"\xd0\xd2\xc9"),
            ("gbk", b"\xc4\xe3"),
            ("shift_jis", b"\x93\xfa\x96\x7b"),
            ("cp949", b"\xb0\xa1"),
            ("utf-8", "é日".as_bytes()),
        ] {
            let mut bytes = format!("# coding: {label}\n# ").into_bytes();
            bytes.extend_from_slice(body);
            let (text, encoding) = decode(&bytes).expect(label);
            assert_eq!(encode(&text, encoding), Some(bytes), "{label}");
        }
        let (_, latin) = decode(b"# coding: latin-1\n# \xe9").expect("decoded");
        assert_eq!(encode("日", latin), None);
    }
}
