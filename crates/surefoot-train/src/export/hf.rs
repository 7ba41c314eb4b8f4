//! A GPT as a folder of Hugging Face's GPT-2, which has the same operations: learned positions,
//! norms before attention and feed-forward part, exact GELU, an output matrix of its own.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError};
use serde_json::{Map, Value, json};

use super::{ExportError, Trained};
use crate::config::ModelConfig;
use crate::data::{Form, Vocabulary};

/// The files of the folder.
pub(super) fn files(trained: &Trained) -> Result<Vec<(&'static str, Vec<u8>)>, ExportError> {
    let mut files =
        vec![("config.json", pretty(&config(trained))), ("model.safetensors", weights(trained)?)];
    let length = trained.data.form.size();
    match &trained.data.vocabulary {
        Some(Vocabulary::Characters(known)) => {
            files.push(("tokenizer.json", pretty(&character_tokenizer(known))));
        }
        Some(Vocabulary::Tokenizer(json)) => {
            files.push(("tokenizer.json", json.clone().into_bytes()));
        }
        Some(Vocabulary::OfModel { .. }) | None => return Ok(files),
    }
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "clean_up_tokenization_spaces": false,
    });
    files.push(("tokenizer_config.json", pretty(&settings)));
    Ok(files)
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

fn config(trained: &Trained) -> Value {
    let (vocabulary, length) = match trained.data.form {
        Form::Text { vocabulary, length } => (vocabulary, length),
        Form::Dense { .. } | Form::Sequences { .. } => {
            (trained.data.form.outputs(), trained.data.form.size())
        }
    };
    let (layers, heads, width) = match trained.config.model {
        ModelConfig::Gpt { layers, heads, width } => (layers, heads, width),
        ModelConfig::Mlp { .. } | ModelConfig::Cnn { .. } | ModelConfig::Pretrained(_) => (0, 0, 0),
    };
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocabulary,
        "n_positions": length,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-5,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": false,
        "bos_token_id": null,
        "eos_token_id": null,
        "torch_dtype": "float32",
    })
}

/// The parts of a block here and there; both store a linear layer's weight with a row an input.
const IN_A_BLOCK: [(&str, &str); 12] = [
    ("attend_norm.gamma", "ln_1.weight"),
    ("attend_norm.beta", "ln_1.bias"),
    ("attend_in.weight", "attn.c_attn.weight"),
    ("attend_in.bias", "attn.c_attn.bias"),
    ("attend_out.weight", "attn.c_proj.weight"),
    ("attend_out.bias", "attn.c_proj.bias"),
    ("feed_norm.gamma", "ln_2.weight"),
    ("feed_norm.beta", "ln_2.bias"),
    ("feed_in.weight", "mlp.c_fc.weight"),
    ("feed_in.bias", "mlp.c_fc.bias"),
    ("feed_out.weight", "mlp.c_proj.weight"),
    ("feed_out.bias", "mlp.c_proj.bias"),
];

fn weights(trained: &Trained) -> Result<Vec<u8>, ExportError> {
    let mut names: Vec<(String, String)> = [
        ("tokens.weight", "wte.weight"),
        ("places.weight", "wpe.weight"),
        ("norm.gamma", "ln_f.weight"),
        ("norm.beta", "ln_f.bias"),
    ]
    .map(|(ours, theirs)| (ours.to_owned(), format!("transformer.{theirs}")))
    .into();
    let layers = match trained.config.model {
        ModelConfig::Gpt { layers, .. } => layers,
        ModelConfig::Mlp { .. } | ModelConfig::Cnn { .. } | ModelConfig::Pretrained(_) => 0,
    };
    for layer in 0..layers {
        names.extend(IN_A_BLOCK.map(|(ours, theirs)| {
            (format!("blocks.{layer}.{ours}"), format!("transformer.h.{layer}.{theirs}"))
        }));
    }
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (ours, theirs) in names {
        let (dims, numbers) = trained.tensor(&ours)?;
        tensors.push((theirs, dims.to_vec(), bytes(numbers.iter().copied())));
    }
    // Here the output matrix has a row an input, there one an output.
    let (dims, numbers) = trained.tensor("head.weight")?;
    let (inputs, outputs) = (dims[0], dims[1]);
    let turned = (0..outputs)
        .flat_map(|output| (0..inputs).map(move |input| numbers[input * outputs + output]));
    tensors.push(("lm_head.weight".to_owned(), vec![outputs, inputs], bytes(turned)));
    serialised(&tensors).map_err(|error| ExportError::Io {
        path: "model.safetensors".into(),
        source: std::io::Error::other(error),
    })
}

fn bytes(numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    numbers.flat_map(f32::to_le_bytes).collect()
}

fn serialised(tensors: &[(String, Vec<usize>, Vec<u8>)]) -> Result<Vec<u8>, SafeTensorError> {
    let mut views = Vec::with_capacity(tensors.len());
    for (name, dims, bytes) in tensors {
        views.push((name, TensorView::new(Dtype::F32, dims.clone(), bytes)?));
    }
    // Transformers refuses files that do not say this.
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize(views, Some(metadata))
}

/// A tokenizer with one token for each character. A character that it does not know is an error:
/// there is no token to stand for it.
fn character_tokenizer(known: &str) -> Value {
    let vocabulary: Map<String, Value> = known
        .chars()
        .zip(0..)
        .map(|(letter, number)| (letter.to_string(), json!(number)))
        .collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "[\\s\\S]"},
            "behavior": "Isolated",
            "invert": false,
        },
        "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unknown>"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_tokenizer_numbers_characters_as_training_did() {
        let known = "\n !abß語";
        let json = character_tokenizer(known).to_string();
        let tokenizer: tokenizers::Tokenizer = json.parse().unwrap();
        let text = "a b!\n語ß";
        let encoding = tokenizer.encode_fast(text, false).unwrap();
        assert_eq!(encoding.get_ids(), [3, 1, 4, 2, 0, 6, 5]);
        assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), text);
        assert!(tokenizer.encode_fast("x", false).is_err());
    }
}
