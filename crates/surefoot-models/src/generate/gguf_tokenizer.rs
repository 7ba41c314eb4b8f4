//! The tokenizer of a GGUF file, written as the `tokenizer.json` that the model's folder would have.
//!
//! Two kinds are known: `gpt2`, byte-level pairs with merges, whose way of splitting a text into words has a
//! name (`tokenizer.ggml.pre`); and `llama`, SentencePiece's pairs, whose merges follow from the scores of the
//! tokens. Others, and names that are not known, are refused: otherwise texts would silently be split in the wrong places.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use surefoot_quant::gguf::{Gguf, GgufError};

use crate::error::ModelError;

/// Kinds of tokens as GGUF numbers them.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The text of a `tokenizer.json` for the file at `path`, whose header is `gguf`.
pub(super) fn json(path: &Path, gguf: &Gguf) -> Result<Vec<u8>, ModelError> {
    let wrong = |error: GgufError| ModelError::file(path, error.to_string());
    let kind = gguf.text("tokenizer.ggml.model").map_err(wrong)?.unwrap_or_default();
    let vocabulary = Vocabulary::read(path, gguf)?;
    let tokenizer = match kind {
        "gpt2" => byte_level(path, gguf, &vocabulary)?,
        "llama" => sentence_piece(gguf, &vocabulary).map_err(wrong)?,
        other => {
            return Err(ModelError::config(
                path,
                "tokenizer.ggml.model",
                format!("is '{other}', which can't be used; gpt2 and llama can"),
            ));
        }
    };
    Ok(tokenizer.to_string().into_bytes())
}

struct Vocabulary<'a> {
    tokens: &'a [String],
    kinds: &'a [i32],
    ids: HashMap<&'a str, usize>,
}

impl<'a> Vocabulary<'a> {
    fn read(path: &Path, gguf: &'a Gguf) -> Result<Self, ModelError> {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let tokens = gguf
            .texts(TOKENS)
            .and_then(|tokens| tokens.ok_or(GgufError::MissingKey(TOKENS.to_owned())))
            .map_err(|error| ModelError::file(path, error.to_string()))?;
        let kinds = gguf.metadata.get("tokenizer.ggml.token_type");
        let kinds = kinds.and_then(|kinds| kinds.as_i32s()).unwrap_or_default();
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if ids.insert(token.as_str(), id).is_some() {
                return Err(ModelError::config(path, TOKENS, format!("has {token:?} twice")));
            }
        }
        Ok(Self { tokens, kinds, ids })
    }

    fn kind(&self, id: usize) -> i32 {
        self.kinds.get(id).copied().unwrap_or(1)
    }

    /// Every token with its number.
    fn json(&self) -> Value {
        let pairs = self.tokens.iter().enumerate();
        Value::Object(pairs.map(|(id, token)| (token.clone(), id.into())).collect::<Map<_, _>>())
    }

    /// Tokens that are found in a text before anything else is.
    fn added(&self) -> Vec<Value> {
        let added = |(id, token): (usize, &String)| {
            let special = matches!(self.kind(id), CONTROL | UNKNOWN);
            (special || self.kind(id) == USER_DEFINED).then(|| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": special,
                })
            })
        };
        self.tokens.iter().enumerate().filter_map(added).collect()
    }

    /// The token that the metadata name under `key`.
    fn named(&self, gguf: &Gguf, key: &str) -> Result<Option<(u64, &str)>, GgufError> {
        let id = gguf.number(&format!("tokenizer.ggml.{key}_token_id"))?;
        Ok(id.and_then(|id| {
            let token = self.tokens.get(usize::try_from(id).ok()?)?;
            Some((id, token.as_str()))
        }))
    }

    /// Adds the tokens that begin and end every text.
    fn processor(&self, gguf: &Gguf, begins: bool) -> Result<Value, GgufError> {
        let begins = gguf.truth("tokenizer.ggml.add_bos_token")?.unwrap_or(begins);
        let ends = gguf.truth("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let begin = if begins { self.named(gguf, "bos")? } else { None };
        let end = if ends { self.named(gguf, "eos")? } else { None };
        let mut special = Map::new();
        let mut around = |token: Option<(u64, &str)>, kind: u64| -> Vec<Value> {
            let Some((id, token)) = token else { return Vec::new() };
            let entry = json!({"id": token, "ids": [id], "tokens": [token]});
            special.insert(token.to_owned(), entry);
            vec![json!({"SpecialToken": {"id": token, "type_id": kind}})]
        };
        let sequence = |name: &str, kind: u64| json!({"Sequence": {"id": name, "type_id": kind}});
        let mut single = around(begin, 0);
        single.push(sequence("A", 0));
        single.extend(around(end, 0));
        let mut pair = single.clone();
        pair.extend(around(begin, 1));
        pair.push(sequence("B", 1));
        pair.extend(around(end, 1));
        Ok(json!({
            "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special,
        }))
    }
}

fn byte_level(path: &Path, gguf: &Gguf, vocabulary: &Vocabulary<'_>) -> Result<Value, ModelError> {
    const PRE: &str = "tokenizer.ggml.pre";
    let wrong = |error: GgufError| ModelError::file(path, error.to_string());
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let split = |regex: &str| {
        let words = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
                           "invert": false});
        json!({"type": "Sequence", "pretokenizers": [words, bytes(false)]})
    };
    let digits = json!({"type": "Digits", "individual_digits": true});
    // How words are split, whether words that are tokens are taken whole, and whether texts begin with a token.
    let (words, whole, begins) = match gguf.text(PRE).map_err(wrong)?.unwrap_or("default") {
        "default" | "gpt-2" => (bytes(true), false, false),
        name @ ("smollm" | "command-r") => {
            let words = json!({"type": "Sequence", "pretokenizers": [digits, bytes(true)]});
            (words, false, name == "command-r")
        }
        "llama-bpe" | "llama3" | "llama-v3" => (split(LLAMA3), true, true),
        "qwen2" => (split(QWEN2), false, false),
        other => {
            return Err(ModelError::config(
                path,
                PRE,
                format!(
                    "is '{other}', which can't be used; gpt-2, smollm, llama-bpe, qwen2 and command-r can"
                ),
            ));
        }
    };
    let normalizer = match gguf.text(PRE).map_err(wrong)? {
        Some("qwen2" | "command-r") => json!({"type": "NFC"}),
        _ => Value::Null,
    };
    let merges = gguf.texts("tokenizer.ggml.merges").map_err(wrong)?.unwrap_or_default();
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": normalizer,
        "pre_tokenizer": words,
        "post_processor": vocabulary.processor(gguf, begins).map_err(wrong)?,
        "decoder": bytes(true),
        "model": {
            "type": "BPE", "vocab": vocabulary.json(), "merges": merges, "ignore_merges": whole,
            "fuse_unk": false, "byte_fallback": false,
        },
    }))
}

fn sentence_piece(gguf: &Gguf, vocabulary: &Vocabulary<'_>) -> Result<Value, GgufError> {
    let prefix = gguf.truth("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let normalizers = match prefix {
        true => vec![json!({"type": "Prepend", "prepend": "\u{2581}"}), space],
        false => vec![space],
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = vocabulary.named(gguf, "unknown")?.map(|(_, token)| token);
    Ok(json!({
        "version": "1.0",
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": vocabulary.processor(gguf, true)?,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "vocab": vocabulary.json(), "merges": merges(gguf, vocabulary),
            "unk_token": unknown, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        },
    }))
}

/// The pairs that make up tokens, those of tokens with higher scores first.
fn merges(gguf: &Gguf, vocabulary: &Vocabulary<'_>) -> Vec<[String; 2]> {
    let scores = gguf.metadata.get("tokenizer.ggml.scores").and_then(|scores| scores.as_f32s());
    let score = |id: usize| scores.and_then(|scores| scores.get(id)).copied().unwrap_or(0.0);
    let mut merged: Vec<(f32, usize, usize, &str, &str)> = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        for (middle, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(middle);
            if let (Some(a), Some(b)) = (vocabulary.ids.get(left), vocabulary.ids.get(right)) {
                merged.push((score(id), *a, *b, left, right));
            }
        }
    }
    merged.sort_by(|one, other| {
        other.0.total_cmp(&one.0).then_with(|| (one.1, one.2).cmp(&(other.1, other.2)))
    });
    merged.into_iter().map(|(.., left, right)| [left.to_owned(), right.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::Tokenizer;

    /// The header of a file with this metadata and no tensors.
    fn header(pairs: &[(&str, Vec<u8>)]) -> Gguf {
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let mut bytes = [b"GGUF", &3_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
        bytes.extend((pairs.len() as u64).to_le_bytes());
        for (key, value) in pairs {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        Gguf::read(&bytes[..], bytes.len() as u64).unwrap()
    }

    fn text(value: &str) -> Vec<u8> {
        [&8_u32.to_le_bytes()[..], &(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
    }

    fn number(value: u32) -> Vec<u8> {
        [4_u32.to_le_bytes(), value.to_le_bytes()].concat()
    }

    fn array(kind: u32, values: Vec<Vec<u8>>) -> Vec<u8> {
        let head =
            [&9_u32.to_le_bytes()[..], &kind.to_le_bytes(), &(values.len() as u64).to_le_bytes()];
        [head.concat(), values.concat()].concat()
    }

    /// As a Llama 2's: a few characters, the pairs of two words, and bytes for what is left.
    fn sentence_piece_file() -> Gguf {
        let tokens = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "▁a", "ab", "▁ab"];
        let kinds = [2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1];
        let scores = [0.0, 0.0, 0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -3.0, -2.0, -4.0_f32];
        header(&[
            ("tokenizer.ggml.model", text("llama")),
            ("tokenizer.ggml.tokens", array(8, tokens.map(|it| text(it)[4..].to_vec()).into())),
            (
                "tokenizer.ggml.token_type",
                array(5, kinds.map(|it: i32| it.to_le_bytes().into()).into()),
            ),
            ("tokenizer.ggml.scores", array(6, scores.map(|it| it.to_le_bytes().into()).into())),
            ("tokenizer.ggml.bos_token_id", number(1)),
            ("tokenizer.ggml.eos_token_id", number(2)),
            ("tokenizer.ggml.unknown_token_id", number(0)),
        ])
    }

    #[test]
    fn pieces_are_merged_by_score_and_unknown_characters_become_bytes() {
        let json = json(Path::new("a.gguf"), &sentence_piece_file()).unwrap();
        let tokenizer = Tokenizer::from_bytes(json).unwrap();
        let ids = |text: &str| tokenizer.encode(text, true).unwrap().get_ids().to_vec();
        // "ab" has a higher score than "▁a", so it is merged first, and then "▁" with it.
        assert_eq!(ids("ab"), [1, 10]);
        assert_eq!(ids("a ab"), [1, 8, 10]);
        assert_eq!(ids("bé"), [1, 5, 7, 3, 4]);
        assert_eq!(ids("a</s>"), [1, 8, 2]);
        assert_eq!(tokenizer.decode(&[1, 10, 8, 3, 4], true).unwrap(), "ab aé");
    }

    #[test]
    fn digits_of_command_r_are_words_of_their_own_and_texts_begin_with_its_token() {
        let texts =
            |texts: &[&str]| array(8, texts.iter().map(|it| text(it)[4..].to_vec()).collect());
        for (pre, expected) in [("command-r", vec![4, 0, 1, 3]), ("gpt-2", vec![2, 3])] {
            let gguf = header(&[
                ("tokenizer.ggml.model", text("gpt2")),
                ("tokenizer.ggml.pre", text(pre)),
                ("tokenizer.ggml.tokens", texts(&["1", "2", "12", "a", "<BOS>"])),
                ("tokenizer.ggml.merges", texts(&["1 2"])),
                ("tokenizer.ggml.bos_token_id", number(4)),
            ]);
            let json = json(Path::new("a.gguf"), &gguf).unwrap();
            let tokenizer = Tokenizer::from_bytes(json).unwrap();
            assert_eq!(tokenizer.encode("12a", true).unwrap().get_ids(), expected, "{pre}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let tokens = || array(8, vec![text("a")[4..].to_vec()]);
        let told = |gguf: &Gguf| json(Path::new("a.gguf"), gguf).unwrap_err().to_string();
        let gguf =
            header(&[("tokenizer.ggml.model", text("t5")), ("tokenizer.ggml.tokens", tokens())]);
        assert!(told(&gguf).contains("'tokenizer.ggml.model' is 't5'"));
        let gguf = header(&[
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("tekken")),
            ("tokenizer.ggml.tokens", tokens()),
        ]);
        assert!(told(&gguf).contains("'tokenizer.ggml.pre' is 'tekken'"));
        let gguf = header(&[("tokenizer.ggml.model", text("gpt2"))]);
        assert!(told(&gguf).contains("no metadata key 'tokenizer.ggml.tokens'"));
    }
}
