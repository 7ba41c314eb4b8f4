//! Bytes as lower-case hexadecimal text: one text for each value, so that a changed letter is a
//! changed value or an error.

use crate::error::VerifyError;

pub(crate) fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// The bytes of `text`, or an error if it has an odd length or other letters than `0-9a-f`.
pub fn decode(text: &str) -> Result<Vec<u8>, VerifyError> {
    let digit = |letter: u8| match letter {
        b'0'..=b'9' => Ok(letter - b'0'),
        b'a'..=b'f' => Ok(letter - b'a' + 10),
        _ => Err(VerifyError::document("a hexadecimal text has other letters than 0-9 and a-f")),
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(VerifyError::document("a hexadecimal text has an odd number of letters"));
    }
    pairs.iter().map(|[high, low]| Ok(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Exactly 32 bytes.
pub fn decode32(text: &str) -> Result<[u8; 32], VerifyError> {
    decode(text)?
        .try_into()
        .map_err(|_| VerifyError::document("a key or a digest doesn't have 64 hexadecimal letters"))
}

pub(crate) mod bytes32 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(
        bytes: &[u8; 32],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[u8; 32], D::Error> {
        super::decode32(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn bytes_come_back(bytes: Vec<u8>) {
            assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
        }
    }

    #[test]
    fn only_one_text_stands_for_a_value() {
        assert!(decode("0A").is_err());
        assert!(decode("0").is_err());
        assert!(decode("é0").is_err());
        assert!(decode32(&"00".repeat(31)).is_err());
    }
}
