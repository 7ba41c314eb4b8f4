//! CIFAR-10 in its binary form: a label and 3×32×32 bytes a record.

use std::path::Path;

use super::{DataError, Form, Pixels, Target, gzip};

const IMAGE: usize = 3 * 32 * 32;
const CLASSES: u8 = 10;

/// What the classes are called.
pub(super) const NAMES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// The images of these files, one after the other.
pub(super) fn cifar10(folder: &Path, files: &[&str]) -> Result<Pixels, DataError> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for file in files {
        let path = folder.join(file);
        let bytes = gzip::read(&path)?;
        if bytes.is_empty() || bytes.len() % (IMAGE + 1) != 0 {
            return Err(DataError::new(
                &path,
                format!(
                    "its {} bytes are no whole number of records of {}",
                    bytes.len(),
                    IMAGE + 1
                ),
            )
            .hint("take the binary version of CIFAR-10, not the Python one"));
        }
        for (at, record) in bytes.chunks_exact(IMAGE + 1).enumerate() {
            if record[0] >= CLASSES {
                let why = format!("record {at} has the label {}, above 9", record[0]);
                return Err(DataError::new(&path, why));
            }
            labels.push(record[0]);
            pixels.extend(&record[1..]);
        }
    }
    let form = Form::Dense {
        channels: 3,
        height: 32,
        width: 32,
        target: Target::Classes(usize::from(CLASSES)),
    };
    Ok(Pixels::new(folder.display().to_string(), form, pixels, labels, 255.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Label, Sample, Source};

    #[test]
    fn records_are_read_and_bad_ones_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = vec![3];
        bytes.extend(vec![255; IMAGE]);
        std::fs::write(folder.path().join("a.bin"), &bytes).unwrap();
        let set = cifar10(folder.path(), &["a.bin", "a.bin"]).unwrap();
        assert_eq!(set.len(), 2);
        let Sample::Dense { values, label } = set.read(1).unwrap() else { panic!() };
        assert!(label == Label::Class(3) && values == vec![1.0; IMAGE]);
        bytes[0] = 10;
        std::fs::write(folder.path().join("b.bin"), &bytes).unwrap();
        let error = cifar10(folder.path(), &["b.bin"]).unwrap_err().to_string();
        assert!(error.contains("b.bin") && error.contains("label 10"), "{error}");
        std::fs::write(folder.path().join("c.bin"), &bytes[1..]).unwrap();
        assert!(cifar10(folder.path(), &["c.bin"]).unwrap_err().hint.is_some());
    }
}
