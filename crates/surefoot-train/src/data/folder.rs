//! A folder of images per class: PNG, JPEG and WebP at any depth, read when they are needed.

use std::fs;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use super::image::decode_to;
use super::{DataError, Form, Label, Sample, Source, Target};

/// At most so many files that are no images are named.
const NAMED: usize = 5;

/// Images in folders that are named for their class.
#[derive(Debug)]
pub struct Folder {
    classes: Vec<String>,
    images: Vec<(PathBuf, usize)>,
    ignored: Vec<PathBuf>,
    side: usize,
    channels: usize,
}

impl Folder {
    /// Lists the images under `folder`, also in folders inside the folder of a class; each is
    /// brought to `side`×`side` pixels in grey (1 channel) or colour (3). With `known` classes,
    /// the folders must be among them and get their numbers.
    pub fn list(
        folder: &Path,
        side: usize,
        channels: usize,
        known: Option<&[String]>,
    ) -> Result<Self, DataError> {
        let mut found = class_folders(folder)?;
        found.sort();
        let classes = match known {
            Some(known) => known.to_vec(),
            None => found.iter().map(|(name, _)| name.clone()).collect(),
        };
        let (mut images, mut ignored) = (Vec::new(), Vec::new());
        for (name, folder) in &found {
            let Some(class) = classes.iter().position(|class| class == name) else {
                return Err(unknown_class(folder, name, &classes));
            };
            let before = images.len();
            for file in files(folder)? {
                match is_image(&file) {
                    true => images.push((file, class)),
                    false => ignored.push(file),
                }
            }
            if images.len() == before {
                return Err(DataError::new(
                    folder,
                    "this class has no .png, .jpg, .jpeg or .webp file",
                ));
            }
        }
        if classes.len() < 2 || found.is_empty() {
            return Err(DataError::new(
                folder,
                format!("it has {} folders; at least 2 classes are needed", found.len()),
            )
            .hint("put the images of each class into a folder that is named for the class"));
        }
        Ok(Self { classes, images, ignored, side, channels })
    }

    /// The classes' names, in the order of their numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// What is in the folders but is no image that can be read, in words; none if all is.
    pub fn ignored(&self) -> Option<String> {
        let names: Vec<String> =
            self.ignored.iter().take(NAMED).map(|path| path.display().to_string()).collect();
        let more = match self.ignored.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!names.is_empty()).then(|| {
            let files = if self.ignored.len() == 1 { "file is" } else { "files are" };
            format!(
                "{} {files} no .png, .jpg, .jpeg or .webp and not used: {}{more}",
                self.ignored.len(),
                names.join(", ")
            )
        })
    }
}

pub(super) fn unknown_class(place: &Path, name: &str, known: &[String]) -> DataError {
    DataError::new(place, format!("'{name}' is not a class of the model"))
        .hint(format!("its classes are {}", known.join(", ")))
}

/// The folders in `folder` that have a name, which is that of their class.
fn class_folders(folder: &Path) -> Result<Vec<(String, PathBuf)>, DataError> {
    let failed = |error: std::io::Error| DataError::new(folder, error.to_string());
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') {
            folders.push((name, path));
        }
    }
    Ok(folders)
}

/// All files below a folder that are not hidden, in order. Sockets and pipes are listed too: they
/// have no image's name, or are told as what they are when they are read.
fn files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let hidden = |entry: &walkdir::DirEntry| {
        entry.depth() > 0 && entry.file_name().to_string_lossy().starts_with('.')
    };
    let mut files = Vec::new();
    let walk = WalkDir::new(folder).follow_links(true).sort_by_file_name();
    for entry in walk.into_iter().filter_entry(|entry| !hidden(entry)) {
        let entry = entry.map_err(|error| DataError::new(folder, error.to_string()))?;
        if !entry.file_type().is_dir() {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

/// The images below a folder, in order.
pub(crate) fn image_files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let images: Vec<PathBuf> = files(folder)?.into_iter().filter(|file| is_image(file)).collect();
    match images.is_empty() {
        true => Err(DataError::new(folder, "it has no .png, .jpg, .jpeg or .webp file")),
        false => Ok(images),
    }
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
    extension.is_some_and(|end| matches!(end.as_str(), "png" | "jpg" | "jpeg" | "webp"))
}

/// The numbers of an image file. A pipe or a device is refused: reading it could take for ever.
pub(crate) fn read_image(path: &Path, side: usize, channels: usize) -> Result<Vec<f32>, String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    decode_to(bytes, side, channels)
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
            target: Target::Classes(self.classes.len()),
        }
    }

    fn read(&self, at: usize) -> Result<Sample, String> {
        let (path, label) = &self.images[at];
        let values = read_image(path, self.side, self.channels)?;
        Ok(Sample::Dense { values, label: Label::Class(*label) })
    }

    fn label(&self, at: usize) -> Option<Label> {
        Some(Label::Class(self.images[at].1))
    }

    fn name(&self, at: usize) -> String {
        self.images[at].0.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::image::tests::{TINY, tiny_webp};

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
        let images = Folder::list(folder.path(), 2, 3, None).unwrap();
        assert_eq!(images.classes(), ["cat", "dog"]);
        assert_eq!(images.len(), 2);
        let values = [0.0, 1.0, 0.0, 1.0].repeat(3);
        assert_eq!(images.read(1).unwrap(), Sample::Dense { values, label: Label::Class(1) });
        let ignored = images.ignored().unwrap();
        assert!(ignored.starts_with("1 file is no") && ignored.contains("notes.txt"), "{ignored}");
    }

    #[test]
    fn images_in_nested_folders_and_webp_are_read() {
        let folder = classes(&["dog", "cat"]);
        fs::create_dir_all(folder.path().join("dog/young/small")).unwrap();
        fs::write(folder.path().join("dog/young/small/b.webp"), tiny_webp()).unwrap();
        let images = Folder::list(folder.path(), 2, 1, None).unwrap();
        assert_eq!(images.len(), 3);
        assert!(images.name(2).ends_with("small/b.webp"), "{}", images.name(2));
        let values = vec![0.0, 1.0, 0.0, 1.0];
        assert_eq!(images.read(2).unwrap(), Sample::Dense { values, label: Label::Class(1) });
        assert_eq!(images.ignored(), None);
    }

    #[test]
    fn known_classes_keep_their_numbers_and_others_are_named() {
        let folder = classes(&["dog", "bird"]);
        let known = ["ant", "bird", "cat", "dog"].map(str::to_owned);
        let images = Folder::list(folder.path(), 2, 1, Some(&known)).unwrap();
        let labels = |at: usize| match images.read(at) {
            Ok(Sample::Dense { label, .. }) => label,
            other => panic!("{other:?}"),
        };
        assert_eq!([labels(0), labels(1)], [Label::Class(1), Label::Class(3)]);
        let error = Folder::list(folder.path(), 2, 1, Some(&known[..3])).unwrap_err();
        assert!(error.why.contains("'dog'") && error.hint.unwrap().contains("ant, bird, cat"));
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_among_the_images_is_a_bad_sample_and_does_not_hang() {
        let folder = classes(&["a", "b"]);
        let pipe = folder.path().join("a/pipe.png");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let images = Folder::list(folder.path(), 2, 1, None).unwrap();
        assert_eq!(images.read(1).unwrap_err(), "it is not a regular file");
    }

    #[test]
    fn a_broken_image_is_one_bad_sample_that_is_named() {
        let folder = classes(&["a", "b"]);
        fs::write(folder.path().join("a/broken.png"), &TINY[..40]).unwrap();
        fs::write(folder.path().join("a/text.jpg"), "hello").unwrap();
        let images = Folder::list(folder.path(), 4, 1, None).unwrap();
        assert!(images.read(0).is_ok());
        assert!(images.read(1).unwrap_err().contains("PNG"));
        assert!(images.name(1).ends_with("broken.png"));
        assert!(images.read(2).unwrap_err().contains("neither"));
        assert!(Folder::list(&folder.path().join("a"), 4, 1, None).unwrap_err().hint.is_some());
    }
}
