//! `adapter_config.json`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::CONFIG_FILE;
use super::targets::matches;
use crate::error::ModelError;
use crate::folder::read_bounded;

/// More than any published one needs.
const MAX_CONFIG: u64 = 1 << 20;

/// Settings that make an adapter more than low-rank pairs, with what they are.
const REFUSED: [(&str, &str); 11] = [
    ("use_dora", "DoRA"),
    ("lora_bias", "biases of the low-rank pairs"),
    ("modules_to_save", "whole modules beside the low-rank pairs"),
    ("trainable_token_indices", "trained tokens"),
    ("target_parameters", "adapted parameters that are no projections"),
    ("layer_replication", "replicated layers"),
    ("alora_invocation_tokens", "activated LoRA"),
    ("use_qalora", "QALoRA"),
    ("use_bdlora", "block-diagonal LoRA"),
    ("kasa_config", "KaSA"),
    ("monteclora_config", "MonteCLoRA"),
];

/// What an adapter is made of.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AdapterConfig {
    /// The rank of its pairs, where no pattern says otherwise.
    pub rank: usize,
    /// The product of a pair is multiplied with `alpha / rank`.
    pub alpha: f64,
    /// Whether it is `alpha / √rank` instead.
    pub rank_stabilised: bool,
    /// The share of the inputs of its pairs that was dropped while they were trained; for the reader.
    pub dropout: f64,
    /// The alpha of some modules, by the ends of their names.
    pub alpha_pattern: Vec<(String, f64)>,
    /// The names of the adapted modules, as PEFT has them: a list, or a pattern.
    pub target_modules: Value,
    /// Where the model came from, for the reader.
    pub base_model: Option<String>,
    /// What the model does: `CAUSAL_LM` or `SEQ_CLS`.
    pub task_type: Option<String>,
    /// Whether weights are stored `[inputs, outputs]`.
    pub fan_in_fan_out: bool,
}

impl AdapterConfig {
    /// The settings of an adapter that is made here.
    pub fn new(rank: usize, alpha: f64, targets: &[String]) -> Self {
        Self {
            rank,
            alpha,
            rank_stabilised: false,
            dropout: 0.0,
            alpha_pattern: Vec::new(),
            target_modules: Value::from(targets.to_vec()),
            base_model: None,
            task_type: Some("CAUSAL_LM".to_owned()),
            fan_in_fan_out: false,
        }
    }

    /// What the product of a pair of `rank` is multiplied with.
    pub fn scale(&self, module: &str, rank: usize) -> f64 {
        let own = self.alpha_pattern.iter().find(|(name, _)| matches(name, module));
        let alpha = own.map_or(self.alpha, |(_, alpha)| *alpha);
        let rank = rank as f64;
        alpha / if self.rank_stabilised { rank.sqrt() } else { rank }
    }

    /// Reads the settings in `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self, ModelError> {
        let file = folder.join(CONFIG_FILE);
        if !file.exists() {
            return Err(ModelError::file(
                folder,
                format!("has no {CONFIG_FILE}, so it is not an adapter in PEFT's format"),
            ));
        }
        let problem = |key: &str, problem: String| ModelError::config(&file, key, problem);
        let settings: Map<String, Value> =
            serde_json::from_slice(&read_bounded(&file, MAX_CONFIG)?)
                .map_err(|error| ModelError::file(&file, format!("can't be read: {error}")))?;
        let kind = settings.get("peft_type").and_then(Value::as_str).unwrap_or_default();
        if kind != "LORA" {
            return Err(problem("peft_type", format!("is '{kind}'; only LORA is supported")));
        }
        for (key, what) in REFUSED {
            let unset = match settings.get(key) {
                None | Some(Value::Null | Value::Bool(false)) => true,
                Some(Value::Array(list)) => list.is_empty(),
                Some(Value::Object(map)) => map.is_empty(),
                Some(_) => false,
            };
            if !unset {
                return Err(problem(key, format!("is set; {what}: that is not supported")));
            }
        }
        let bias = settings.get("bias").and_then(Value::as_str).unwrap_or("none");
        if bias != "none" {
            return Err(problem("bias", format!("is '{bias}'; trained biases are not supported")));
        }
        let rank = settings.get("r").and_then(Value::as_u64).filter(|rank| *rank > 0);
        let rank = rank.ok_or_else(|| problem("r", "is not a rank above 0".to_owned()))?;
        let alpha = settings.get("lora_alpha").and_then(Value::as_f64);
        let alpha = alpha.filter(|alpha| alpha.is_finite());
        let alpha = alpha.ok_or_else(|| problem("lora_alpha", "is not a number".to_owned()))?;
        let mut alpha_pattern = Vec::new();
        if let Some(Value::Object(pattern)) = settings.get("alpha_pattern") {
            for (name, value) in pattern {
                let alpha = value.as_f64().ok_or_else(|| {
                    problem("alpha_pattern", format!("has no number for '{name}'"))
                })?;
                alpha_pattern.push((name.clone(), alpha));
            }
        }
        let text = |key: &str| settings.get(key).and_then(Value::as_str).map(str::to_owned);
        let flag = |key: &str| settings.get(key).and_then(Value::as_bool).unwrap_or(false);
        Ok(Self {
            rank: rank as usize,
            alpha,
            rank_stabilised: flag("use_rslora"),
            dropout: settings.get("lora_dropout").and_then(Value::as_f64).unwrap_or(0.0),
            alpha_pattern,
            target_modules: settings.get("target_modules").cloned().unwrap_or_default(),
            base_model: text("base_model_name_or_path"),
            task_type: text("task_type"),
            fan_in_fan_out: flag("fan_in_fan_out"),
        })
    }

    /// As PEFT writes it.
    pub(super) fn json(&self) -> Value {
        let alpha_pattern: Map<String, Value> =
            self.alpha_pattern.iter().map(|(name, alpha)| (name.clone(), json!(alpha))).collect();
        // Whole numbers as PEFT has them.
        let alpha = match self.alpha.fract() == 0.0 && self.alpha.abs() < 1e9 {
            true => json!(self.alpha as i64),
            false => json!(self.alpha),
        };
        json!({
            "peft_type": "LORA",
            "auto_mapping": null,
            "base_model_name_or_path": self.base_model,
            "revision": null,
            "task_type": self.task_type,
            "inference_mode": true,
            "r": self.rank,
            "lora_alpha": alpha,
            "lora_dropout": self.dropout,
            "target_modules": self.target_modules,
            "fan_in_fan_out": self.fan_in_fan_out,
            "bias": "none",
            "use_rslora": self.rank_stabilised,
            "use_dora": false,
            "modules_to_save": null,
            "init_lora_weights": true,
            "layers_to_transform": null,
            "layers_pattern": null,
            "rank_pattern": {},
            "alpha_pattern": alpha_pattern,
        })
    }
}
