//! The adapter of a run: written beside its checkpoints when it ends, for `--adapter` and other programs.

use std::path::Path;

use surefoot_train::TrainReport;
use surefoot_train::config::{Config, ModelConfig, Tune};
use surefoot_train::export::{self, ExportFormat};

use crate::terminal::Terminal;

/// Writes the adapter of the last checkpoint into `FOLDER/adapter`, if the run trained one.
pub(super) fn write(config: &Config, report: &TrainReport, folder: &Path, terminal: &Terminal) {
    let ModelConfig::Pretrained(model) = &config.model else { return };
    if model.tune != Tune::Lora || !report.checkpoint.is_file() {
        return;
    }
    let place = folder.join("adapter");
    // What an earlier end of this run left.
    let removed = match std::fs::remove_dir_all(&place) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.to_string()),
        _ => Ok(()),
    };
    let written = removed.and_then(|()| {
        export::export(&report.checkpoint, ExportFormat::Peft, &place)
            .map_err(|error| error.to_string())
    });
    match written {
        Ok(_) => terminal.note(&format!(
            "the adapter is in {}; run it with: surefoot generate {} --adapter {} PROMPT",
            place.display(),
            model.path.display(),
            place.display()
        )),
        Err(error) => terminal.note(&format!("the adapter could not be written: {error}")),
    }
}
