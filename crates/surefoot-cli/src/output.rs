//! Files that results go to.

use std::path::Path;

use crate::exit::Failure;

/// Refuses to write a result over what it is made from: a file, or a file of a model's folder.
pub(crate) fn spare(option: &str, out: &Path, inputs: &[&Path]) -> Result<(), Failure> {
    let Ok(target) = out.canonicalize() else { return Ok(()) };
    for input in inputs {
        let Ok(whole) = input.canonicalize() else { continue };
        let is_part = whole.is_dir() && target.parent() == Some(&whole);
        if target == whole || is_part {
            let what = format!("{option} {} would replace what it is made from", out.display());
            return Err(Failure::usage(what).hint("another place for the result"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_result_is_made_from_is_spared() {
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
        assert!(spare(&folder.path().join("new"), &weights));
        assert!(spare(&weights, Path::new("http://127.0.0.1/")));
    }
}
