//! Whatever bytes come as a configuration, an index or a header, there is an answer or an error
//! that names the file, and no panic.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use surefoot_models::arch;
use surefoot_models::folder::mapped::WeightFile;
use surefoot_models::folder::settings::Settings;
use surefoot_models::folder::{header, index};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_0-9]{0,12}".prop_map(Value::from),
        Just(json!("llama3")),
        Just(json!("yarn")),
        Just(json!("silu")),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("(rope_type|factor|rope_theta|[a-z]{1,3})", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

const KEYS: [&str; 24] = [
    "hidden_size",
    "n_embd",
    "num_hidden_layers",
    "n_layer",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "n_inner",
    "vocab_size",
    "max_position_embeddings",
    "n_positions",
    "rms_norm_eps",
    "layer_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rotary_pct",
    "hidden_act",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "type_vocab_size",
];

proptest! {
    #[test]
    fn any_configuration_is_described_or_refused(
        family in prop::sample::select(arch::FAMILIES.to_vec()),
        base in 1_usize..5,
        changes in prop::collection::vec((prop::sample::select(KEYS.to_vec()), any_json()), 0..4),
    ) {
        let mut config = json!({
            "model_type": family, "hidden_size": 16 * base, "num_hidden_layers": base,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32,
            "vocab_size": 100, "n_embd": 16 * base, "n_layer": base, "n_head": 4,
            "max_position_embeddings": 64,
        });
        for (key, value) in changes {
            config[key] = value;
        }
        let file = Path::new("folder/config.json");
        let settings = Settings::parse(file, &serde_json::to_vec(&config).unwrap()).unwrap();
        match arch::describe(&settings) {
            Ok(blueprint) => {
                prop_assert!(blueprint.heads % blueprint.kv_heads == 0);
                prop_assert!(!blueprint.blocks.is_empty());
                if let Some(rope) = &blueprint.rope {
                    prop_assert!(rope.dims() <= blueprint.head_dim);
                }
            }
            Err(error) => prop_assert!(error.to_string().contains("folder/config.json")),
        }
    }

    #[test]
    fn any_bytes_are_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let file = Path::new("f.json");
        let _ = Settings::parse(file, &bytes).and_then(|settings| arch::describe(&settings));
        let _ = index::parse(file, &bytes);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.safetensors");
        std::fs::write(&path, &bytes).unwrap();
        let file = WeightFile::open(&path).unwrap();
        prop_assert!(header::check_file(&file).is_err());
    }

    #[test]
    fn an_index_gives_plain_file_names_only(name in "[a-z./\\\\]{0,12}(\\.safetensors)?") {
        let json = serde_json::to_vec(&json!({"weight_map": {"t": name}})).unwrap();
        if let Ok(map) = index::parse(Path::new("i"), &json) {
            let joined = Path::new("/folder").join(&map["t"]);
            prop_assert_eq!(joined.parent().unwrap(), Path::new("/folder"));
            prop_assert_ne!(map["t"].as_str(), "..");
        }
    }
}
