//! The resolved configuration as flat keys and values, as checkpoints store it.
//!
//! Every key that applies is there, defaults included, so that a checkpoint does not depend on
//! the defaults of the program that reads it. The values are YAML, as `--set` takes them:
//! [`Config::from_entries`] gives back the configuration that [`Config::entries`] was called on.

use std::collections::BTreeMap;
use std::path::Path;

use super::yaml::{self, Node, Value};
use super::{ClassWeights, Config, ConfigError, Length, ModelConfig, OnBadSample, OnFault};
use crate::optimizer::{Schedule, UpdateRule};

/// A resolved configuration: keys such as `optimizer.lr` and their values.
pub type Entries = BTreeMap<String, String>;

impl Config {
    /// All keys with their values.
    pub fn entries(&self) -> Entries {
        let mut entries = Entries::new();
        let mut put = |key: &str, value: String| {
            entries.insert(key.to_owned(), value);
        };
        let path = |path: &Path| quoted(&path.to_string_lossy());
        put("device", quoted(&self.device.to_string()));
        put("precision", self.precision.to_string());
        if let Some(bytes) = self.memory {
            put("memory", bytes.to_string());
        }
        put("seed", self.seed.to_string());
        put("batch_size", self.batch_size.to_string());
        put("accumulate", self.accumulate.to_string());
        // Later keys are there only where they are not the default: earlier checkpoints have none of them.
        if self.gradient_checkpointing {
            put("gradient_checkpointing", "true".to_owned());
        }
        match self.length {
            Length::Epochs(epochs) => put("epochs", epochs.to_string()),
            Length::Steps(steps) => put("steps", steps.to_string()),
        }
        if let Some(epochs) = self.early_stop {
            put("early_stop", epochs.to_string());
        }
        if let Some(norm) = self.clip_norm {
            put("clip_norm", norm.to_string());
        }
        let on_fault = match self.on_fault {
            OnFault::Recover => "recover",
            OnFault::Stay => "stay",
            OnFault::Fail => "fail",
        };
        put("on_fault", on_fault.to_owned());
        let number = |number: Option<usize>| number.map_or("auto".to_owned(), |n| n.to_string());
        put("workers", number(self.loading.workers));
        put("prefetch", number(self.loading.prefetch));
        let staging = match self.loading.staging {
            None => "auto",
            Some(true) => "on",
            Some(false) => "off",
        };
        put("staging", staging.to_owned());
        let data = &self.data;
        put("data.kind", data.kind.as_str().to_owned());
        if let Some(place) = &data.path {
            put("data.path", path(place));
        }
        put("data.test", data.test.to_string());
        put("data.normalise", data.normalise.to_string());
        put("data.augment.flip", data.augment.flip.to_string());
        put("data.augment.crop", data.augment.crop.to_string());
        let on_bad_sample = match data.on_bad_sample {
            OnBadSample::Fail => "fail",
            OnBadSample::Skip => "skip",
        };
        put("data.on_bad_sample", on_bad_sample.to_owned());
        put("data.size", data.size.to_string());
        put("data.channels", data.channels.to_string());
        if let Some(label) = &data.label {
            put("data.label", quoted(label));
        }
        if !data.ignore.is_empty() {
            put("data.ignore", serde_json::Value::from(data.ignore.clone()).to_string());
        }
        put("data.task", data.task.as_str().to_owned());
        match &data.class_weights {
            ClassWeights::Equal => put("data.class_weights", "equal".to_owned()),
            ClassWeights::Balanced => put("data.class_weights", "balanced".to_owned()),
            ClassWeights::Given(weights) => {
                let pair = |(name, weight): &(String, f64)| format!("{}: {weight}", quoted(name));
                let pairs: Vec<String> = weights.iter().map(pair).collect();
                put("data.class_weights", format!("{{{}}}", pairs.join(", ")));
            }
        }
        if let Some(tokenizer) = &data.tokenizer {
            put("data.tokenizer", path(tokenizer));
        }
        put("data.length", data.length.to_string());
        if !data.pack {
            put("data.pack", "false".to_owned());
        }
        if let Some(template) = &data.template {
            put("data.template", quoted(template));
        }
        if let Some(text) = &data.text {
            put("data.text", quoted(text));
        }
        match &self.model {
            ModelConfig::Mlp { hidden } => {
                put("model.kind", "mlp".to_owned());
                put("model.hidden", format!("{hidden:?}"));
            }
            ModelConfig::Cnn { width, stages } => {
                put("model.kind", "cnn".to_owned());
                put("model.width", width.to_string());
                put("model.stages", stages.to_string());
            }
            ModelConfig::Gpt { layers, heads, width } => {
                put("model.kind", "gpt".to_owned());
                put("model.layers", layers.to_string());
                put("model.heads", heads.to_string());
                put("model.width", width.to_string());
            }
            ModelConfig::Pretrained(model) => {
                put("model.kind", "pretrained".to_owned());
                put("model.path", path(&model.path));
                put("model.tune", model.tune.as_str().to_owned());
                put("model.rank", model.rank.to_string());
                put("model.alpha", model.alpha.to_string());
                if model.dropout > 0.0 {
                    put("model.dropout", model.dropout.to_string());
                }
                if !model.targets.is_empty() {
                    put(
                        "model.targets",
                        serde_json::Value::from(model.targets.clone()).to_string(),
                    );
                }
                if let Some(adapter) = &model.adapter {
                    put("model.adapter", path(adapter));
                }
            }
        }
        let optimizer = &self.optimizer;
        match optimizer.rule {
            UpdateRule::AdamW { beta1, beta2, weight_decay, .. } => {
                put("optimizer.kind", "adamw".to_owned());
                put("optimizer.beta1", beta1.to_string());
                put("optimizer.beta2", beta2.to_string());
                put("optimizer.weight_decay", weight_decay.to_string());
            }
            UpdateRule::Sgd { momentum, weight_decay } => {
                put("optimizer.kind", "sgd".to_owned());
                put("optimizer.momentum", momentum.to_string());
                put("optimizer.weight_decay", weight_decay.to_string());
            }
        }
        put("optimizer.lr", optimizer.lr.to_string());
        let schedule = match optimizer.schedule {
            Schedule::Constant => "constant",
            Schedule::Linear => "linear",
            Schedule::Cosine => "cosine",
        };
        put("optimizer.schedule", schedule.to_owned());
        put("optimizer.warmup", optimizer.warmup.to_string());
        if let Some(folder) = &self.checkpoint.folder {
            put("checkpoint.folder", path(folder));
        }
        if let Some(every) = self.checkpoint.every {
            put("checkpoint.every", every.to_string());
        }
        put("checkpoint.keep", self.checkpoint.keep.to_string());
        entries
    }

    /// The configuration that these entries are of, with `flags` on top.
    pub fn from_entries(
        entries: &Entries,
        flags: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let mut root = Node { line: 0, value: Value::Map(Vec::new()) };
        for (key, value) in entries.iter().chain(flags.iter().map(|(key, value)| (key, value))) {
            yaml::set(&mut root, key, value)?;
        }
        Self::from_root(root)
    }
}

/// A text as a YAML scalar: JSON strings are valid YAML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_give_back_the_configuration() {
        let texts = [
            "{data: {kind: digits}, model: {kind: mlp, hidden: [3, 4]}, epochs: 3}",
            "{data: {kind: csv, path: \"it's: a #1 \\\"table\\\".csv\", label: '3', class_weights: {'a, b': 2.5, c: 1}}, model: {kind: mlp}, \
             steps: 7, early_stop: 4, memory: 2GiB, clip_norm: 0.5, workers: 2, staging: on, on_fault: stay, \
             optimizer: {kind: sgd, momentum: 0.1, lr: 1.0e-7}, checkpoint: {folder: here, every: 3}}",
            "{data: {kind: text, path: t, tokenizer: x.json, length: 9}, precision: bf16, \
             device: 'gpu:1,cpu', model: {kind: gpt, heads: 2, width: 6}, epochs: 1, seed: 7}",
            "{data: {kind: jsonl, path: c.jsonl, pack: no, template: chatml, length: 64}, epochs: 1, gradient_checkpointing: yes, \
             model: {kind: pretrained, path: m, tune: lora, rank: 4, alpha: 7.5, dropout: 0.125, targets: [q_proj, v_proj], adapter: a}}",
            "{data: {kind: folder, path: f, augment: {flip: yes, crop: 3}, on_bad_sample: skip}, \
             model: {kind: cnn, width: 8}, epochs: 2}",
        ];
        for text in texts {
            let config = Config::parse(text, &[]).unwrap();
            let entries = config.entries();
            let again = Config::from_entries(&entries, &[]).unwrap();
            assert_eq!(again.entries(), entries, "{text}");
            assert_eq!(format!("{again:?}"), format!("{config:?}"), "{text}");
        }
    }

    #[test]
    fn flags_come_on_top_of_entries() {
        let text = "{data: {kind: digits}, model: {kind: mlp}, steps: 3}";
        let entries = Config::parse(text, &[]).unwrap().entries();
        let flags = [("epochs", "5"), ("steps", "null"), ("optimizer.lr", "0.5")];
        let flags = flags.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let config = Config::from_entries(&entries, &flags).unwrap();
        assert_eq!((config.length, config.optimizer.lr), (Length::Epochs(5), 0.5));
    }
}
