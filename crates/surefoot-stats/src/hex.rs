//! Lower-case hexadecimal text for bytes in files.
//!
//! The `hex` crate encodes and decodes. It also accepts upper-case digits, which the file formats
//! do not: each value has exactly one text, so that any changed character changes the value or is
//! an error. That check is made here.

use crate::error::StatsError;

/// The text of `bytes`.
pub fn encode(bytes: &[u8]) -> String {
    hex::encode(bytes)
}

/// The bytes of `text`, or an error if it has an odd length or characters other than `0-9a-f`.
pub fn decode(text: &str) -> Result<Vec<u8>, StatsError> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(StatsError::document("hexadecimal text must be in lower case"));
    }
    hex::decode(text)
        .map_err(|error| StatsError::document(format!("invalid hexadecimal text: {error}")))
}

/// Exactly 32 bytes.
pub fn decode32(text: &str) -> Result<[u8; 32], StatsError> {
    decode(text)?
        .try_into()
        .map_err(|_| StatsError::document("a key or a digest must have 64 hexadecimal digits"))
}

/// For `#[serde(with = …)]` on a field of 32 bytes.
pub mod bytes32 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the bytes as text.
    pub fn serialize<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::encode(bytes))
    }

    /// Reads the bytes from text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
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
    fn each_value_has_exactly_one_text() {
        assert_eq!(encode(&[0x0a, 0xff]), "0aff");
        for wrong in ["0A", "0", "é0", "0g", " 0a"] {
            assert!(decode(wrong).is_err(), "{wrong}");
        }
        assert!(decode32(&"00".repeat(31)).is_err());
        assert_eq!(decode32(&"01".repeat(32)), Ok([1; 32]));
    }
}
