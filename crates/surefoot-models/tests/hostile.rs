//! Attack files: each must be refused with the file and the tensor or key, without a panic and
//! without memory that a stranger chose.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use surefoot_models::generate::text::Texts;
use surefoot_models::stream::process;
use surefoot_models::{ModelError, Opened};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A copy of a fixture that can be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::write(folder.path().join(path.file_name().unwrap()), fs::read(&path).unwrap()).unwrap();
    }
    folder
}

/// Rewrites the header of `model.safetensors`.
fn with_header(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    change(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(&bytes[8 + length..]);
    fs::write(path, out).unwrap();
}

fn with_config(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, serde_json::to_vec(&config).unwrap()).unwrap();
}

/// Opens the folder, which must be refused with a message that has all of `words`.
fn refused(folder: &Path, words: &[&str]) -> ModelError {
    let error = Opened::new(folder).map(|_| ()).unwrap_err();
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "'{word}' is not in: {message}");
    }
    error
}

const NAME: &str = "model.layers.1.mlp.up_proj.weight";
const FILE: &str = "model.safetensors";

#[test]
fn headers_that_lie_are_refused_by_tensor() {
    type Change = fn(&mut Value);
    let attacks: [(Change, &str); 10] = [
        (|h| h[NAME]["dtype"] = json!("I32"), "dtype I32"),
        (|h| h[NAME]["dtype"] = json!("F99"), "dtype 'F99'"),
        (|h| h[NAME]["dtype"] = json!("F16"), "needs"),
        (|h| h[NAME]["shape"] = json!([64, 176]), "has the shape [64, 176]"),
        (|h| h[NAME]["shape"] = json!([u64::MAX, u64::MAX]), "absurd shape"),
        (|h| h[NAME]["shape"] = json!([1, 1, 1, 1, 1, 1, 1, 1, 1]), "9 dimensions"),
        (|h| h[NAME]["data_offsets"] = json!([8, 4]), "ends (4) before it starts (8)"),
        (|h| h[NAME]["data_offsets"] = json!([u64::MAX - 45056, u64::MAX]), "truncated"),
        (|h| h[NAME]["data_offsets"] = json!([0, 45056]), "overlaps tensor"),
        (
            |h| {
                h.as_object_mut().unwrap().remove(NAME);
            },
            "is missing",
        ),
    ];
    for (change, problem) in attacks {
        let folder = copy("llama-tiny");
        with_header(folder.path(), change);
        let message = refused(folder.path(), &[FILE, problem]).to_string();
        assert!(message.contains("layers"), "{message}");
    }
}

#[test]
fn a_tensor_that_has_no_place_is_refused_by_name() {
    let folder = copy("llama-tiny");
    with_header(folder.path(), |header| {
        header["model.layers.7.mlp.up_proj.weight"] =
            json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
    });
    refused(folder.path(), &[FILE, "model.layers.7.mlp.up_proj.weight", "unexpected"]);
}

#[test]
fn a_tensor_that_is_in_the_header_twice_is_refused() {
    let folder = copy("llama-tiny");
    let header = r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    fs::write(folder.path().join(FILE), bytes).unwrap();
    refused(folder.path(), &[FILE, "'a'", "twice"]);
}

#[test]
fn files_cut_at_any_place_are_refused() {
    let folder = copy("llama-tiny");
    let bytes = fs::read(folder.path().join(FILE)).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for end in [0, 1, 7, 8, 9, header / 2, header + 7, header + 8, bytes.len() / 2, bytes.len() - 1]
    {
        fs::write(folder.path().join(FILE), &bytes[..end]).unwrap();
        refused(folder.path(), &[FILE]);
    }
}

#[test]
fn absurd_header_lengths_take_no_memory() {
    let folder = copy("llama-tiny");
    let before = process::memory().unwrap().peak;
    for length in [u64::MAX, u64::MAX - 7, 1 << 62, 100 << 20, (16 << 20) + 1] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([b'{'; 64]);
        fs::write(folder.path().join(FILE), bytes).unwrap();
        refused(folder.path(), &[FILE, "header"]);
    }
    // A header of the largest size that is read, nested as deeply as it goes.
    let mut bytes = (1_u64 << 20).to_le_bytes().to_vec();
    bytes.extend(vec![b'['; 1 << 20]);
    fs::write(folder.path().join(FILE), bytes).unwrap();
    refused(folder.path(), &[FILE, "header"]);
    // The kernel's count of pages is not exact: its peak can be a little less than it was.
    assert!(process::memory().unwrap().peak.saturating_sub(before) < 64 << 20);
}

#[test]
fn configuration_values_out_of_range_are_refused_by_key() {
    let attacks: [(&str, Value); 26] = [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-64)),
        ("hidden_size", json!(u64::MAX)),
        ("hidden_size", json!(64.5)),
        ("hidden_size", json!("64")),
        ("hidden_size", json!([64])),
        ("hidden_size", Value::Null),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(4_000_000_000_u64)),
        ("num_attention_heads", json!(0)),
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(0)),
        ("head_dim", json!(0)),
        ("intermediate_size", json!(1_u64 << 40)),
        ("vocab_size", json!(0)),
        ("max_position_embeddings", json!(0)),
        ("rms_norm_eps", json!(-1.0)),
        ("rms_norm_eps", json!("small")),
        ("hidden_act", json!("mystery")),
        ("tie_word_embeddings", json!("yes")),
        ("rope_parameters", json!("fast")),
        ("rope_parameters", json!({"rope_type": "longrope", "rope_theta": 1e4})),
        ("rope_parameters", json!({"rope_type": "llama3", "rope_theta": 1e4})),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 0.0})),
        ("model_type", json!("mamba")),
        ("quantization_config", json!({"bits": 4})),
    ];
    for (key, value) in attacks {
        let folder = copy("llama-tiny");
        with_config(folder.path(), |config| config[key] = value.clone());
        let error = refused(folder.path(), &["config.json"]);
        assert!(matches!(error, ModelError::Config { .. }), "{key} {value}: {error}");
        let named = error.to_string().contains(&format!("'{key}"));
        assert!(named, "{key} {value}: {error}");
    }
}

#[test]
fn a_configuration_that_is_none_is_refused() {
    let folder = copy("llama-tiny");
    for text in ["", "[]", "nonsense", "{\"a\":", "\u{0}\u{1}", &"[".repeat(100_000)] {
        fs::write(folder.path().join("config.json"), text).unwrap();
        refused(folder.path(), &["config.json"]);
    }
    fs::write(folder.path().join("config.json"), vec![b' '; 2 << 20]).unwrap();
    refused(folder.path(), &["config.json", "larger"]);
    fs::remove_file(folder.path().join("config.json")).unwrap();
    refused(folder.path(), &["config.json"]);
    refused(&folder.path().join("nowhere"), &["nowhere", "doesn't exist"]);
    refused(&folder.path().join(FILE), &[FILE, "not a model folder"]);
}

#[test]
fn an_index_can_not_leave_the_folder() {
    let secret = tempfile::tempdir().unwrap();
    let outside = secret.path().join("outside.safetensors");
    fs::copy(fixture("llama-tiny").join(FILE), &outside).unwrap();
    let tricks = [
        "../outside.safetensors".to_owned(),
        "..".to_owned(),
        ".".to_owned(),
        String::new(),
        outside.to_string_lossy().into_owned(),
        "a/../../outside.safetensors".to_owned(),
        "sub/model.safetensors".to_owned(),
        "..\\outside.safetensors".to_owned(),
        "nul\0.safetensors".to_owned(),
        "config.json".to_owned(),
        "/dev/zero".to_owned(),
    ];
    for trick in tricks {
        let folder = copy("llama-tiny");
        fs::remove_file(folder.path().join(FILE)).unwrap();
        let index = json!({"weight_map": {"lm_head.weight": trick}});
        let path = folder.path().join("model.safetensors.index.json");
        fs::write(path, serde_json::to_vec(&index).unwrap()).unwrap();
        refused(folder.path(), &["index.json", "lm_head.weight", "not a safetensors file"]);
    }
    #[cfg(unix)]
    {
        let folder = copy("llama-tiny");
        fs::remove_file(folder.path().join(FILE)).unwrap();
        std::os::unix::fs::symlink(&outside, folder.path().join(FILE)).unwrap();
        refused(folder.path(), &[FILE, "leads out of the folder"]);
    }
}

#[cfg(unix)]
#[test]
fn a_hub_cache_may_link_to_its_blobs() {
    let cache = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/abc"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for name in ["config.json", FILE] {
        fs::copy(fixture("llama-tiny").join(name), blobs.join(name)).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{name}"), snapshot.join(name)).unwrap();
    }
    Opened::new(&snapshot).unwrap();
}

#[test]
fn shards_must_be_what_the_index_says() {
    let attack = |change: &dyn Fn(&mut Value)| {
        let folder = copy("llama-f16-sharded");
        let path = folder.path().join("model.safetensors.index.json");
        let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut index);
        fs::write(path, serde_json::to_vec(&index).unwrap()).unwrap();
        folder
    };
    Opened::new(attack(&|_| ()).path()).unwrap();
    let missing = attack(&|i| i["weight_map"]["extra"] = i["weight_map"]["lm_head.weight"].clone());
    refused(missing.path(), &["index.json", "'extra'", "isn't there"]);
    let stray = attack(&|i| {
        i["weight_map"].as_object_mut().unwrap().remove("model.norm.weight");
    });
    refused(stray.path(), &["model.norm.weight", "not in the index"]);
    let gone = attack(&|i| i["weight_map"]["lm_head.weight"] = json!("gone.safetensors"));
    refused(gone.path(), &["gone.safetensors"]);
    refused(attack(&|i| i["weight_map"] = json!({})).path(), &["index.json", "no tensors"]);
    refused(attack(&|i| i["weight_map"] = json!(3)).path(), &["index.json"]);
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_not_opened() {
    let folder = copy("llama-tiny");
    let path = folder.path().join(FILE);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused(folder.path(), &[FILE, "not a regular file"]);
    fs::remove_dir(&path).unwrap();
    refused(folder.path(), &["has neither"]);
}

#[test]
fn a_tokenizer_must_fit_the_vocabulary() {
    let folder = copy("llama-tiny");
    let error = |vocab| Texts::open(folder.path(), vocab).map(|_| ()).unwrap_err().to_string();
    Texts::open(folder.path(), 256).unwrap();
    assert!(error(200).contains("tokenizer.json") && error(200).contains("200 rows"));
    for text in ["", "{}", "[1]", "{\"model\": {\"type\": \"BPE\"}}"] {
        fs::write(folder.path().join("tokenizer.json"), text).unwrap();
        assert!(error(256).contains("tokenizer.json"), "{text}");
    }
}
