//! Writing and reading one checkpoint.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors, View};

use super::{CheckpointError, Story, VERSION};
use crate::parameters::Shape;
use crate::state::Held;

/// The key of the story in the file's metadata.
const KEY: &str = "surefoot";

/// Numbers that lie in memory as the file wants them.
struct Floats<'a> {
    dims: &'a [usize],
    numbers: &'a [f32],
}

impl View for Floats<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.dims
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>().into()
    }

    fn data_len(&self) -> usize {
        4 * self.numbers.len()
    }
}

/// Writes a checkpoint so that it is there whole or not at all.
pub fn write(
    path: &Path,
    held: &Held,
    shapes: &[Shape],
    story: &Story,
) -> Result<(), CheckpointError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| CheckpointError::Io { path, source }
    };
    let temporary = temporary(path);
    let mut tensors: Vec<(String, Floats<'_>)> = Vec::new();
    let none = vec![None; shapes.len()];
    let moments = |moments: &[Option<Vec<f32>>]| {
        if moments.is_empty() { none.clone() } else { moments.to_vec() }
    };
    let (first, second) = (moments(&held.first), moments(&held.second));
    for (at, shape) in shapes.iter().enumerate() {
        let dims = &shape.dims;
        let view = |numbers| Floats { dims, numbers };
        tensors.push((format!("model.{}", shape.name), view(&held.values[at])));
        for (name, moment) in [("first", &first[at]), ("second", &second[at])] {
            if let Some(moment) = moment {
                tensors.push((format!("{name}.{}", shape.name), view(moment)));
            }
        }
    }
    let story = serde_json::to_string(story)
        .map_err(|error| CheckpointError::Wrong { path: path.into(), why: error.to_string() })?;
    let metadata = HashMap::from([(KEY.to_owned(), story)]);
    let written = safetensors::serialize_to_file(tensors, Some(metadata), &temporary)
        .map_err(|error| failed(&temporary)(io::Error::other(error)))
        .and_then(|()| {
            let file = File::options().write(true).open(&temporary);
            file.and_then(|file| file.sync_all()).map_err(failed(&temporary))
        })
        .and_then(|()| fs::rename(&temporary, path).map_err(failed(path)));
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    // Without this the name could be lost in a power cut, though the file is there.
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed(folder))?;
    }
    Ok(())
}

/// A name beside `path` that no checkpoint has.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

/// Reads a checkpoint's tensors in the order of `shapes`, and its story.
pub fn read(path: &Path, shapes: &[Shape]) -> Result<(Held, Story), CheckpointError> {
    let wrong = |why: String| CheckpointError::Wrong { path: path.to_owned(), why };
    let bytes = bytes_of(path)?;
    let (tensors, story) = parse(path, &bytes)?;
    let numbers = |name: &str, shape: &Shape| -> Result<Option<Vec<f32>>, CheckpointError> {
        let name = format!("{name}.{}", shape.name);
        let Ok(view) = tensors.tensor(&name) else { return Ok(None) };
        if view.dtype() != Dtype::F32 || view.shape() != shape.dims {
            return Err(wrong(format!(
                "{name} is {:?} {:?}, but the model's is F32 {:?}",
                view.dtype(),
                view.shape(),
                shape.dims
            )));
        }
        let chunks = view.data().as_chunks::<4>().0;
        Ok(Some(chunks.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    };
    let mut held = Held {
        values: Vec::with_capacity(shapes.len()),
        first: Vec::new(),
        second: Vec::new(),
        updates: story.updates,
        scale: story.scale,
        step: story.step,
    };
    for shape in shapes {
        let value = numbers("model", shape)?
            .ok_or_else(|| wrong(format!("it has no model.{}", shape.name)))?;
        held.values.push(value);
        held.first.push(numbers("first", shape)?);
        held.second.push(numbers("second", shape)?);
    }
    let weights = tensors.names().into_iter().filter(|name| name.starts_with("model.")).count();
    if weights != shapes.len() {
        return Err(wrong(format!(
            "it is of another model: it has {weights} weights, the model {}",
            shapes.len()
        )));
    }
    Ok((held, story))
}

/// Reads the story alone. Checks that the file is whole.
pub fn read_story(path: &Path) -> Result<Story, CheckpointError> {
    let bytes = bytes_of(path)?;
    parse(path, &bytes).map(|(_, story)| story)
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    fs::read(path).map_err(|source| CheckpointError::Io { path: path.to_owned(), source })
}

fn parse<'b>(path: &Path, bytes: &'b [u8]) -> Result<(SafeTensors<'b>, Story), CheckpointError> {
    let wrong = |why: String| CheckpointError::Wrong { path: path.to_owned(), why };
    let not_ours = |error: &dyn std::fmt::Display| wrong(format!("it is no checkpoint: {error}"));
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| not_ours(&error))?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| not_ours(&error))?;
    let story = metadata.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
    let story = story.ok_or_else(|| not_ours(&"it doesn't tell of a run"))?;
    let story: Story = serde_json::from_str(story).map_err(|error| not_ours(&error))?;
    if story.version > VERSION {
        return Err(wrong(format!(
            "it has version {}, this program knows {VERSION}",
            story.version
        )));
    }
    Ok((tensors, story))
}
