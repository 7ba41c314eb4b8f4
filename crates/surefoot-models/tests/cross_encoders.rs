//! Cross-encoders made with transformers (`make_cross_encoders.py`): the same tokens, token types, numbers and scores.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use surefoot::Footing;
use surefoot_models::Opened;
use surefoot_models::classify::ClassificationHead;
use surefoot_models::generate::text::{Texts, TokenPair};
use surefoot_models::runner::Runner;

#[derive(Deserialize)]
struct Golden {
    longest: usize,
    pairs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    query: String,
    document: String,
    ids: Vec<u32>,
    types: Vec<u8>,
    number: f32,
    score: f32,
}

fn folders() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cross_encoders");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert_eq!(folders.len(), 5, "{folders:?}");
    folders
}

fn golden(folder: &Path) -> Golden {
    serde_json::from_slice(&std::fs::read(folder.join("pairs.json")).unwrap()).unwrap()
}

fn runner(folder: &Path, drill: &str) -> Runner {
    let mut builder = Footing::builder();
    if !drill.is_empty() {
        builder = builder.drill(drill.parse().unwrap());
    }
    let footing = builder.build().unwrap();
    Runner::open(Arc::new(footing), folder).unwrap()
}

#[test]
fn pairs_are_tokenized_as_transformers_does_it_also_those_that_are_cut() {
    for folder in folders() {
        let golden = golden(&folder);
        let texts = Texts::open(&folder, Opened::new(&folder).unwrap().blueprint.vocab).unwrap();
        let mut cut_off = 0;
        for pair in &golden.pairs {
            let (tokens, cut) =
                texts.encode_pair(&pair.query, &pair.document, golden.longest).unwrap();
            let expected = TokenPair { ids: pair.ids.clone(), types: pair.types.clone() };
            assert_eq!(tokens, expected, "{}: {}", folder.display(), pair.document);
            cut_off += cut;
            let (whole, none) = texts.encode_pair(&pair.query, &pair.document, 500).unwrap();
            assert_eq!((none, whole.ids.len()), (0, tokens.ids.len() + cut));
        }
        assert!(cut_off > 0, "some pairs are longer than {}", golden.longest);
    }
}

#[test]
fn numbers_and_scores_are_those_of_transformers_in_a_batch_in_parts_and_after_faults() {
    for folder in folders() {
        let golden = golden(&folder);
        let pairs: Vec<TokenPair> = golden
            .pairs
            .iter()
            .map(|pair| TokenPair { ids: pair.ids.clone(), types: pair.types.clone() })
            .collect();
        for drill in [
            "",
            "out_of_memory:op=classify,count=2",
            "command_buffer:op=classify,at=during,nth=3,count=1",
        ] {
            let runner = runner(&folder, drill);
            let head = ClassificationHead::read(runner.opened()).unwrap().unwrap();
            assert_eq!(head.labels(), 1);
            let rows = runner.classify(&pairs, &head).unwrap().value;
            assert_eq!((rows.cols, rows.numbers.len()), (1, pairs.len()));
            for (number, pair) in rows.numbers.iter().zip(&golden.pairs) {
                let what = format!("{} {drill:?}: {}", folder.display(), pair.document);
                assert!(
                    (number - pair.number).abs() < 1e-4,
                    "{what}: {number}, not {}",
                    pair.number
                );
                let score = head.score_activation.score(*number);
                assert!((score - pair.score).abs() < 1e-4, "{what}: {score}, not {}", pair.score);
            }
        }
    }
}

#[test]
fn token_types_matter_to_a_model_that_has_them() {
    let folder = folders().remove(0);
    assert!(folder.ends_with("bert-cross"));
    let pair = golden(&folder).pairs.remove(0);
    let runner = runner(&folder, "");
    let head = ClassificationHead::read(runner.opened()).unwrap().unwrap();
    let number = |types: Vec<u8>| {
        let pair = TokenPair { ids: pair.ids.clone(), types };
        runner.classify(&[pair], &head).unwrap().value.numbers[0]
    };
    assert!((number(pair.types.clone()) - number(vec![0; pair.ids.len()])).abs() > 1e-3);
    let unknown = TokenPair { types: vec![2; pair.ids.len()], ids: pair.ids.clone() };
    let error = runner.classify(&[unknown], &head).unwrap_err().to_string();
    assert!(error.contains("token type 2"), "{error}");
}

#[test]
fn a_model_without_a_head_for_classes_has_none_and_a_damaged_one_is_refused() {
    let plain = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bert-tiny");
    assert!(ClassificationHead::read(&Opened::new(&plain).unwrap()).unwrap().is_none());
    // The weights of a plain encoder under the configuration of a classifier.
    let damaged = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(plain.join(file), damaged.path().join(file)).unwrap();
    }
    let config = damaged.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains("\"BertModel\""), "{text}");
    std::fs::write(&config, text.replace("\"BertModel\"", "\"BertForSequenceClassification\""))
        .unwrap();
    let error = ClassificationHead::read(&Opened::new(damaged.path()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("classifier"), "{error}");
}
