//! Writing and reading one checkpoint.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::{CheckpointError, Story, VERSION};
use crate::parameters::Shape;
use crate::state::Held;

/// The key of the story in the file's metadata.
const KEY: &str = "surefoot";

/// Numbers that are turned from or into bytes at once.
const AT_ONCE: usize = 16 << 10;

/// Writes a checkpoint so that it is there whole or not at all. Nothing is copied but a few
/// numbers at once: a save must fit into what a budget leaves beside the training.
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
    let wrong = |error: &dyn std::fmt::Display| CheckpointError::Wrong {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let tensors = in_order(held, shapes);
    let story = serde_json::to_string(story).map_err(|error| wrong(&error))?;
    let header = header(&tensors, story).map_err(|error| wrong(&error))?;
    let temporary = temporary(path);
    let written = write_all(&temporary, &header, &tensors)
        .map_err(failed(&temporary))
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

/// A tensor's name in the file, its dimensions and its numbers.
type Named<'a> = (String, &'a [usize], &'a [f32]);

fn in_order<'a>(held: &'a Held, shapes: &'a [Shape]) -> Vec<Named<'a>> {
    let mut tensors: Vec<Named<'a>> = Vec::new();
    for (at, Shape { name, dims }) in shapes.iter().enumerate() {
        // Before the first step there are no moments.
        let moment = |moments: &'a [Option<Vec<f32>>]| moments.get(at)?.as_deref();
        let parts = [
            ("model", held.values.get(at).map(Vec::as_slice)),
            ("first", moment(&held.first)),
            ("second", moment(&held.second)),
        ];
        for (part, numbers) in parts {
            tensors.extend(numbers.map(|numbers| (format!("{part}.{name}"), &**dims, numbers)));
        }
    }
    tensors
}

/// What comes before the numbers: its own length, then names and places, filled up with spaces so
/// that the numbers lie at a multiple of 8.
fn header(tensors: &[Named<'_>], story: String) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut end = 0;
    let infos = tensors.iter().map(|(name, dims, numbers)| {
        let start = end;
        end += 4 * numbers.len();
        let (dtype, shape) = (Dtype::F32, dims.to_vec());
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let story = HashMap::from([(KEY.to_owned(), story)]);
    let json = serde_json::to_vec(&Metadata::new(Some(story), infos.collect())?)?;
    let length = json.len().next_multiple_of(8);
    let mut header = (length as u64).to_le_bytes().to_vec();
    header.extend(json);
    header.resize(8 + length, b' ');
    Ok(header)
}

fn write_all(path: &Path, header: &[u8], tensors: &[Named<'_>]) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(4 * AT_ONCE, File::create(path)?);
    file.write_all(header)?;
    for number in tensors.iter().flat_map(|(_, _, numbers)| *numbers) {
        file.write_all(&number.to_le_bytes())?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// A name beside `path` that no checkpoint has.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

/// Reads a checkpoint's tensors in the order of `shapes`, and its story. One tensor after the
/// other: a file can be larger than what a budget leaves free.
pub fn read(path: &Path, shapes: &[Shape]) -> Result<(Held, Story), CheckpointError> {
    let wrong = |why: String| CheckpointError::Wrong { path: path.to_owned(), why };
    let (mut file, header) = Header::read(path)?;
    let story = header.story;
    let mut numbers = |name: &str, shape: &Shape| {
        let name = format!("{name}.{}", shape.name);
        let Some(info) = header.tensors.info(&name) else { return Ok(None) };
        if info.dtype != Dtype::F32 || info.shape != shape.dims {
            return Err(wrong(format!(
                "{name} is {:?} {:?}, but the model's is F32 {:?}",
                info.dtype, info.shape, shape.dims
            )));
        }
        file.seek(SeekFrom::Start(header.data_at + info.data_offsets.0 as u64))
            .and_then(|_| floats(&mut file, shape.dims.iter().product()))
            .map(Some)
            .map_err(|source| CheckpointError::Io { path: path.to_owned(), source })
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
    let names = header.tensors.offset_keys();
    let weights = names.iter().filter(|name| name.starts_with("model.")).count();
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
    Header::read(path).map(|(_, header)| header.story)
}

fn floats(from: &mut impl Read, count: usize) -> io::Result<Vec<f32>> {
    let mut numbers = Vec::with_capacity(count);
    let mut bytes = [0; 4 * AT_ONCE];
    while numbers.len() < count {
        let bytes = &mut bytes[..4 * AT_ONCE.min(count - numbers.len())];
        from.read_exact(bytes)?;
        numbers.extend(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    }
    Ok(numbers)
}

/// What a file says of itself before the numbers begin.
struct Header {
    tensors: Metadata,
    /// Where in the file the numbers begin.
    data_at: u64,
    story: Story,
}

impl Header {
    fn read(path: &Path) -> Result<(BufReader<File>, Self), CheckpointError> {
        let failed = |source| CheckpointError::Io { path: path.to_owned(), source };
        let wrong = |why: String| CheckpointError::Wrong { path: path.to_owned(), why };
        let not_ours =
            |error: &dyn std::fmt::Display| wrong(format!("it is no checkpoint: {error}"));
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut file = BufReader::with_capacity(4 * AT_ONCE, file);
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| not_ours(&"it is too short"))?;
        // Also where the length is no length, but the start of another sort of file.
        let data_at = u64::from_le_bytes(length).checked_add(8).filter(|end| *end <= size);
        let data_at = data_at.ok_or_else(|| not_ours(&"it is cut off, or none at all"))?;
        let mut header = Vec::new();
        file.by_ref().take(data_at - 8).read_to_end(&mut header).map_err(failed)?;
        let tensors: Metadata =
            serde_json::from_slice(&header).map_err(|error| not_ours(&error))?;
        if data_at + tensors.data_len() as u64 != size {
            return Err(not_ours(&"it is cut off, or longer than it says"));
        }
        let story = tensors.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
        let story = story.ok_or_else(|| not_ours(&"it doesn't tell of a run"))?;
        let story: Story = serde_json::from_str(story).map_err(|error| not_ours(&error))?;
        if story.version > VERSION {
            return Err(wrong(format!(
                "it has version {}, this program knows {VERSION}",
                story.version
            )));
        }
        Ok((file, Self { tensors, data_at, story }))
    }
}
