//! The bytes that each token of a vocabulary stands for, which constraints of generated text need.
//!
//! Two kinds of tokenizers are known: byte-level ones, which write each byte as one character, and those
//! of SentencePiece, which write spaces as `▁` and bytes as `<0x41>`.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer;

/// Why the bytes of tokens are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the tokenizer's decoder is {0}, whose tokens can't be taken as bytes; ByteLevel and Metaspace can"
)]
pub struct UnknownDecoder(String);

/// How tokens are written in the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    ByteLevel,
    SentencePiece,
}

/// The bytes of `size` tokens; none for special ones and for ids that are no token.
pub(super) fn token_bytes(
    tokenizer: &Tokenizer,
    size: usize,
) -> Result<Vec<Option<Vec<u8>>>, UnknownDecoder> {
    let decoder = tokenizer.get_decoder().map(serde_json::to_value);
    let decoder = decoder.and_then(Result::ok).unwrap_or(Value::Null);
    let spelling = spelling(&decoder)?;
    let added = tokenizer.get_added_tokens_decoder();
    let bytes_of_characters: HashMap<char, u8> =
        (0..=255).map(|byte| (byte_level_character(byte), byte)).collect();
    let of = |id: u32| {
        if let Some(added) = added.get(&id) {
            return (!added.special).then(|| added.content.clone().into_bytes());
        }
        let token = tokenizer.id_to_token(id)?;
        match spelling {
            Spelling::ByteLevel => {
                token.chars().map(|c| bytes_of_characters.get(&c).copied()).collect()
            }
            Spelling::SentencePiece => Some(match byte_token(&token) {
                Some(byte) => vec![byte],
                None => token.replace('▁', " ").into_bytes(),
            }),
        }
    };
    Ok((0..size as u32).map(of).collect())
}

fn spelling(decoder: &Value) -> Result<Spelling, UnknownDecoder> {
    let kind = |decoder: &Value| decoder["type"].as_str().unwrap_or("none").to_owned();
    let parts = match decoder["decoders"].as_array() {
        Some(parts) => parts.clone(),
        None => vec![decoder.clone()],
    };
    for part in &parts {
        match kind(part).as_str() {
            "ByteLevel" => return Ok(Spelling::ByteLevel),
            "Metaspace" | "ByteFallback" => return Ok(Spelling::SentencePiece),
            "Replace" if part["pattern"]["String"] == "▁" => return Ok(Spelling::SentencePiece),
            _ => {}
        }
    }
    Err(UnknownDecoder(kind(decoder)))
}

/// The byte that `<0x41>` stands for.
fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// The character that a byte-level tokenizer writes a byte as: itself if it can be seen, or one of
/// those from 256 on, in order.
fn byte_level_character(byte: u8) -> char {
    let is_seen = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if is_seen(byte) {
        return char::from(byte);
    }
    let unseen_before = (0..byte).filter(|byte| !is_seen(*byte)).count() as u32;
    char::from_u32(256 + unseen_before).unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::generate::text::Texts;

    #[test]
    fn the_bytes_of_tokens_make_up_the_text_that_the_tokenizer_gives() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        for name in ["gpt2-tiny", "llama-tiny", "qwen2-tiny"] {
            let texts = Texts::open(&folder.join(name), 256).unwrap();
            let bytes = texts.token_bytes().unwrap();
            assert_eq!(bytes.len(), 256);
            assert_eq!(bytes[0], None, "the end of a text has none");
            let text = "The tensor “quoted”\n  {\"a\": 1}";
            let ids = texts.encode(text).unwrap();
            let joined: Vec<u8> =
                ids.iter().flat_map(|id| bytes[*id as usize].clone().unwrap()).collect();
            assert_eq!(String::from_utf8_lossy(&joined), texts.decode(&ids).unwrap(), "{name}");
        }
    }

    #[test]
    fn sentence_piece_writes_spaces_and_bytes_in_its_own_way() {
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "pre_tokenizer": null, "post_processor": null,
            "added_tokens": [{"id": 0, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
                             {"id": 4, "content": "<tool>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false}],
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
            ]},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true,
                      "vocab": {"</s>": 0, "▁a": 1, "<0xE9>": 2, "é": 3, "<tool>": 4}, "merges": []},
        });
        let tokenizer = Tokenizer::from_bytes(tokenizer.to_string()).unwrap();
        let bytes = token_bytes(&tokenizer, 6).unwrap();
        let expected: [Option<&[u8]>; 6] =
            [None, Some(b" a"), Some(b"\xe9"), Some("é".as_bytes()), Some(b"<tool>"), None];
        assert_eq!(bytes.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
        assert!(spelling(&json!({"type": "WordPiece"})).is_err());
        assert!(spelling(&Value::Null).is_err());
    }

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        let all: std::collections::BTreeSet<char> = (0..=255).map(byte_level_character).collect();
        assert_eq!(all.len(), 256);
        assert_eq!((byte_level_character(b' '), byte_level_character(b'\n')), ('Ġ', 'Ċ'));
    }
}
