//! MNIST and its like: idx files, packed or not.

use std::path::Path;

use super::{DataError, Form, Pixels, Target, first_of, gzip};

/// The images and labels of one set: `train` or `t10k`. There are at least `classes` classes.
pub(super) fn mnist(folder: &Path, set: &str, classes: usize) -> Result<Pixels, DataError> {
    let find = |what: &str| {
        let dashed = format!("{set}-{what}");
        let dotted = dashed.replace("-idx", ".idx");
        first_of(folder, &[&dashed, &format!("{dashed}.gz"), &dotted, &format!("{dotted}.gz")])
    };
    let (images, labels) = (find("images-idx3-ubyte")?, find("labels-idx1-ubyte")?);
    let (image_sizes, pixels) = idx(&images, gzip::read(&images)?)?;
    let (label_sizes, label_bytes) = idx(&labels, gzip::read(&labels)?)?;
    let ([count, height, width], [label_count]) = (&image_sizes[..], &label_sizes[..]) else {
        return Err(DataError::new(&images, "images have 3 dimensions and labels 1"));
    };
    if count != label_count {
        return Err(DataError::new(
            &labels,
            format!("it has {label_count} labels for {count} images"),
        ));
    }
    let seen = label_bytes.iter().max().map_or(1, |&label| usize::from(label) + 1);
    let classes = seen.max(classes);
    let form = Form::Dense {
        channels: 1,
        height: *height,
        width: *width,
        target: Target::Classes(classes),
    };
    Ok(Pixels::new(images.display().to_string(), form, pixels, label_bytes, 255.0))
}

/// The sizes and the bytes of an idx file of bytes.
fn idx(path: &Path, bytes: Vec<u8>) -> Result<(Vec<usize>, Vec<u8>), DataError> {
    let wrong = |why: String| DataError::new(path, format!("it is not an idx file: {why}"));
    let [0, 0, kind, dimensions] = *bytes.first_chunk::<4>().unwrap_or(&[1; 4]) else {
        return Err(wrong("it doesn't begin with two zeros".into()));
    };
    if kind != 8 {
        return Err(wrong(format!("its elements are of kind {kind:#04x}, not bytes (0x08)")));
    }
    let head = 4 + 4 * usize::from(dimensions);
    if bytes.len() < head || dimensions == 0 {
        return Err(wrong("its head is cut off".into()));
    }
    let sizes: Vec<usize> = bytes[4..head]
        .chunks_exact(4)
        .map(|size| size.iter().fold(0, |number, &byte| number << 8 | usize::from(byte)))
        .collect();
    let expected = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    let data = &bytes[head..];
    if expected != Some(data.len()) || data.is_empty() {
        return Err(wrong(format!("its head says {sizes:?}, but {} bytes follow", data.len())));
    }
    Ok((sizes, data.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Label, Sample, Source};
    use proptest::prelude::*;

    pub(crate) fn idx_bytes(sizes: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, sizes.len() as u8];
        sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend(data);
        bytes
    }

    #[test]
    fn a_set_is_read_and_a_short_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        };
        write("train-images-idx3-ubyte", idx_bytes(&[2, 2, 2], &[0, 255, 0, 0, 1, 2, 3, 4]));
        write("train-labels-idx1-ubyte", idx_bytes(&[2], &[7, 1]));
        let set = mnist(folder.path(), "train", 2).unwrap();
        assert_eq!(
            set.read(0).unwrap(),
            Sample::Dense { values: vec![0.0, 1.0, 0.0, 0.0], label: Label::Class(7) }
        );
        write("train-labels-idx1-ubyte", idx_bytes(&[3], &[7, 1]));
        let error = mnist(folder.path(), "train", 2).unwrap_err().to_string();
        assert!(error.contains("train-labels") && error.contains("2 bytes"), "{error}");
        let missing = mnist(folder.path(), "t10k", 2).unwrap_err().to_string();
        assert!(missing.contains("t10k-images-idx3-ubyte.gz"), "{missing}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_idx_file_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = idx(Path::new("x"), bytes);
        }
    }
}
