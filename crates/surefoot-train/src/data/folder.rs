//! A folder of images per class: PNG and JPEG, read when they are needed.

use std::fs;
use std::path::{Path, PathBuf};

use zune_jpeg::JpegDecoder;
use zune_png::PngDecoder;
use zune_png::zune_core::bytestream::ZCursor;
use zune_png::zune_core::colorspace::ColorSpace;
use zune_png::zune_core::options::DecoderOptions;

use super::{DataError, Form, Sample, Source};

/// An image with more pixels on a side is refused before it is unpacked.
const LARGEST_SIDE: usize = 1 << 14;

/// Images in folders that are named for their class.
#[derive(Debug)]
pub struct Folder {
    classes: Vec<String>,
    images: Vec<(PathBuf, usize)>,
    side: usize,
    channels: usize,
}

impl Folder {
    /// Lists the images under `folder`; each is brought to `side`×`side` pixels in grey (1
    /// channel) or colour (3).
    pub fn list(folder: &Path, side: usize, channels: usize) -> Result<Self, DataError> {
        let mut classes: Vec<(String, PathBuf)> = entries(folder)?
            .into_iter()
            .filter(|path| path.is_dir())
            .map(|path| (file_name(&path), path))
            .collect();
        classes.sort();
        let mut images = Vec::new();
        for (class, (_, folder)) in classes.iter().enumerate() {
            let mut files: Vec<PathBuf> =
                entries(folder)?.into_iter().filter(|path| is_image(path)).collect();
            files.sort();
            if files.is_empty() {
                return Err(DataError::new(folder, "this class has no .png, .jpg or .jpeg file"));
            }
            images.extend(files.into_iter().map(|file| (file, class)));
        }
        if classes.len() < 2 {
            return Err(DataError::new(
                folder,
                format!("it has {} folders; at least 2 classes are needed", classes.len()),
            )
            .hint("put the images of each class into a folder that is named for the class"));
        }
        let classes = classes.into_iter().map(|(name, _)| name).collect();
        Ok(Self { classes, images, side, channels })
    }

    /// The classes' names, in the order of their numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let failed = |error: std::io::Error| DataError::new(folder, error.to_string());
    let entries = fs::read_dir(folder).map_err(failed)?;
    let paths: Result<Vec<PathBuf>, _> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(failed)?;
    paths.retain(|path| !file_name(path).starts_with('.'));
    Ok(paths)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
    extension.is_some_and(|end| matches!(end.as_str(), "png" | "jpg" | "jpeg"))
}

impl Source for Folder {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn form(&self) -> Form {
        Form::Dense {
            channels: self.channels,
            height: self.side,
            width: self.side,
            classes: self.classes.len(),
        }
    }

    fn read(&self, at: usize) -> Result<Sample, String> {
        let (path, label) = &self.images[at];
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let image = decode(bytes)?;
        Ok(Sample::Dense { values: image.fit(self.side, self.channels), label: *label })
    }

    fn name(&self, at: usize) -> String {
        self.images[at].0.display().to_string()
    }
}

/// An image as it was unpacked: pixels of 1 to 4 components.
struct Image {
    width: usize,
    height: usize,
    components: usize,
    bytes: Vec<u8>,
}

/// What the bytes are is told by the bytes, not by the file's name.
fn decode(bytes: Vec<u8>) -> Result<Image, String> {
    let options = DecoderOptions::default()
        .set_max_width(LARGEST_SIDE)
        .set_max_height(LARGEST_SIDE)
        .png_set_strip_to_8bit(true)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let (size, components, bytes) = if bytes.starts_with(b"\x89PNG") {
        let mut decoder = PngDecoder::new_with_options(ZCursor::new(bytes), options);
        let bytes =
            decoder.decode_raw().map_err(|error| format!("it is no whole PNG: {error:?}"))?;
        let components = decoder.colorspace().map_or(0, |space| space.num_components());
        (decoder.dimensions(), components, bytes)
    } else if bytes.starts_with(b"\xff\xd8") {
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        let bytes = decoder.decode().map_err(|error| format!("it is no whole JPEG: {error:?}"))?;
        (decoder.dimensions(), 3, bytes)
    } else {
        return Err("it is neither PNG nor JPEG".to_owned());
    };
    let (width, height) = size.unwrap_or_default();
    if components == 0 || bytes.len() != width * height * components || bytes.is_empty() {
        return Err("it was unpacked to another size than its head says".to_owned());
    }
    Ok(Image { width, height, components, bytes })
}

impl Image {
    /// This image in `side`×`side` pixels, channel by channel, from 0 to 1. Each new pixel is
    /// the mean of the old ones that it covers, so that no detail is picked by accident.
    fn fit(&self, side: usize, channels: usize) -> Vec<f32> {
        let mut values = Vec::with_capacity(channels * side * side);
        for channel in 0..channels {
            for row in 0..side {
                let rows = covered(row, side, self.height);
                for column in 0..side {
                    let columns = covered(column, side, self.width);
                    let mut sum = 0.0;
                    for y in rows.clone() {
                        for x in columns.clone() {
                            sum += self.value(y * self.width + x, channel, channels);
                        }
                    }
                    values.push(sum / (rows.len() * columns.len()) as f32);
                }
            }
        }
        values
    }

    fn value(&self, pixel: usize, channel: usize, channels: usize) -> f32 {
        let at = pixel * self.components;
        let byte = |component: usize| f32::from(self.bytes[at + component]) / 255.0;
        match (self.components, channels) {
            (1 | 2, _) => byte(0),
            (_, 1) => 0.299 * byte(0) + 0.587 * byte(1) + 0.114 * byte(2),
            _ => byte(channel),
        }
    }
}

/// The old pixels that the new pixel `at` of `side` covers; at least one.
fn covered(at: usize, side: usize, old: usize) -> std::ops::Range<usize> {
    let start = at * old / side;
    start..((at + 1) * old / side).max(start + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A PNG of 2×1 grey pixels, black and white.
    const TINY: &[u8] = &[
        0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44,
        0x52, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0xd1,
        0x49, 0x20, 0x56, 0x00, 0x00, 0x00, 0x0b, 0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x60,
        0xf8, 0x0f, 0x00, 0x01, 0x02, 0x01, 0x00, 0x42, 0xbe, 0xbc, 0x68, 0x00, 0x00, 0x00, 0x00,
        0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82,
    ];

    fn classes(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("a.png"), TINY).unwrap();
        }
        folder
    }

    #[test]
    fn images_are_found_by_class_and_brought_to_size() {
        let folder = classes(&["dog", "cat"]);
        fs::write(folder.path().join("dog/notes.txt"), "x").unwrap();
        let images = Folder::list(folder.path(), 2, 3).unwrap();
        assert_eq!(images.classes(), ["cat", "dog"]);
        assert_eq!(images.len(), 2);
        let values = [0.0, 1.0, 0.0, 1.0].repeat(3);
        assert_eq!(images.read(1).unwrap(), Sample::Dense { values, label: 1 });
    }

    #[test]
    fn a_broken_image_is_one_bad_sample_that_is_named() {
        let folder = classes(&["a", "b"]);
        fs::write(folder.path().join("a/broken.png"), &TINY[..40]).unwrap();
        fs::write(folder.path().join("a/text.jpg"), "hello").unwrap();
        let images = Folder::list(folder.path(), 4, 1).unwrap();
        assert!(images.read(0).is_ok());
        assert!(images.read(1).unwrap_err().contains("PNG"));
        assert!(images.name(1).ends_with("broken.png"));
        assert!(images.read(2).unwrap_err().contains("neither"));
        assert!(Folder::list(&folder.path().join("a"), 4, 1).unwrap_err().hint.is_some());
    }

    proptest! {
        #[test]
        fn every_new_pixel_covers_old_ones_and_none_is_left_out(side in 1usize..50, old in 1usize..200) {
            for at in 0..side {
                let range = covered(at, side, old);
                prop_assert!(!range.is_empty() && range.end <= old);
            }
            prop_assert_eq!(covered(side - 1, side, old).end, old);
        }
    }
}
