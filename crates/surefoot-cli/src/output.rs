//! Output files: a result must not overwrite what it is made from.

use std::path::Path;

use crate::exit::Failure;

/// Refuses an output path that is one of the inputs: the same file, or a file of a model's folder.
pub(crate) fn spare(option: &str, out: &Path, inputs: &[&Path]) -> Result<(), Failure> {
    let Ok(target) = out.canonicalize() else { return Ok(()) };
    for input in inputs {
        let Ok(whole) = input.canonicalize() else { continue };
        let is_part = whole.is_dir() && target.parent() == Some(&whole) && is_of_a_model(&target);
        if target == whole || is_part {
            let what =
                format!("{option} {} would overwrite an input of this command", out.display());
            return Err(Failure::usage(what).hint(format!("give {option} another path")));
        }
    }
    Ok(())
}

/// Whether the file name is one that published models use. Other files in the folder may be results.
fn is_of_a_model(file: &Path) -> bool {
    const OTHERS: [&str; 10] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "modules.json",
    ];
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_weights = name.starts_with("model") && name.contains(".safetensors");
    is_weights || name.ends_with(".jinja") || OTHERS.contains(&name.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        std::fs::create_dir(&model).unwrap();
        let weights = model.join("model.safetensors");
        std::fs::write(&weights, "x").unwrap();
        let spare = |out: &Path, input: &Path| spare("--out", out, &[input]).is_ok();
        assert!(!spare(&weights, &model));
        assert!(!spare(&model.join("../model/model.safetensors"), &model));
        assert!(!spare(&weights, &weights));
        assert!(spare(&model.join("new.safetensors"), &model));
        let result = model.join("states.safetensors");
        std::fs::write(&result, "x").unwrap();
        assert!(spare(&result, &model), "a result in the same folder as the model");
        assert!(spare(&folder.path().join("new"), &weights));
        assert!(spare(&weights, Path::new("http://127.0.0.1/")));
    }
}
