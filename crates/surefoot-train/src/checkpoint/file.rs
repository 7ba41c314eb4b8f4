//! Writing and reading one checkpoint file.
//!
//! The file is a safetensors file. Its metadata holds the [`Manifest`] as JSON and a BLAKE3 digest of the whole
//! file, computed with the digest's own characters as zeros. A file whose digest is wrong is refused: a
//! flipped bit in a weight would silently change every result.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tempfile::NamedTempFile;

use super::{CheckpointError, Manifest, VERSION};
use crate::parameters::Shape;
use crate::state::Held;

/// The key of the manifest in the file's metadata.
const MANIFEST: &str = "surefoot";
/// The key of the digest.
const DIGEST: &str = "blake3";
/// What the digest is while it is computed.
const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Numbers that are turned from or into bytes at once.
const AT_ONCE: usize = 16 << 10;

/// What temporary files of checkpoints begin and end with.
pub(super) const TEMPORARY: (&str, &str) = (".step-", ".tmp");

/// Writes a checkpoint so that it is there whole or not at all. Nothing is copied but a few
/// numbers at once: a save must fit into what a budget leaves beside the training.
pub fn write(
    path: &Path,
    held: &Held,
    shapes: &[Shape],
    manifest: &Manifest,
) -> Result<(), CheckpointError> {
    let failed = |source: io::Error| CheckpointError::Io { path: path.to_owned(), source };
    let wrong = |error: &dyn std::fmt::Display| CheckpointError::Wrong {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let tensors = in_order(held, shapes);
    let manifest = serde_json::to_string(manifest).map_err(|error| wrong(&error))?;
    let header = header(&tensors, manifest).map_err(|error| wrong(&error))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Removed when it is dropped, unless it has become the checkpoint.
    let mut temporary = temporary_in(folder).map_err(failed)?;
    write_all(temporary.as_file_mut(), header, &tensors).map_err(failed)?;
    temporary.persist(path).map_err(|error| failed(error.error))?;
    // Without this the name could be lost in a power cut, though the file is there.
    #[cfg(unix)]
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(())
}

fn temporary_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY.0).suffix(TEMPORARY.1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The usual rights of a new file, not those of a secret one.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
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
/// that the numbers lie at a multiple of 8. The digest is still to be filled in.
fn header(tensors: &[Named<'_>], manifest: String) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut end = 0;
    let infos = tensors.iter().map(|(name, dims, numbers)| {
        let start = end;
        end += 4 * numbers.len();
        let (dtype, shape) = (Dtype::F32, dims.to_vec());
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let metadata = [(MANIFEST, manifest), (DIGEST, NO_DIGEST.to_owned())];
    let metadata = HashMap::from(metadata.map(|(key, value)| (key.to_owned(), value)));
    let json = serde_json::to_vec(&Metadata::new(Some(metadata), infos.collect())?)?;
    let length = json.len().next_multiple_of(8);
    let mut header = (length as u64).to_le_bytes().to_vec();
    header.extend(json);
    header.resize(8 + length, b' ');
    Ok(header)
}

fn write_all(file: &mut File, mut header: Vec<u8>, tensors: &[Named<'_>]) -> io::Result<()> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&header);
    for_each_chunk(tensors, |bytes| {
        hasher.update(bytes);
        Ok(())
    })?;
    let digest = hasher.finalize().to_hex();
    if let Some(at) = digest_at(&header, NO_DIGEST) {
        header[at..at + digest.len()].copy_from_slice(digest.as_bytes());
    }
    let mut out = BufWriter::with_capacity(4 * AT_ONCE, &mut *file);
    out.write_all(&header)?;
    for_each_chunk(tensors, |bytes| out.write_all(bytes))?;
    out.flush()?;
    drop(out);
    file.sync_all()
}

/// The numbers as bytes, a few at once.
fn for_each_chunk(
    tensors: &[Named<'_>],
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 * AT_ONCE);
    for numbers in tensors.iter().flat_map(|(_, _, numbers)| numbers.chunks(AT_ONCE)) {
        bytes.clear();
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        take(&bytes)?;
    }
    Ok(())
}

/// Where in a header the value of the digest begins.
fn digest_at(header: &[u8], digest: &str) -> Option<usize> {
    let entry = format!("\"{DIGEST}\":\"{digest}\"");
    let at = header.windows(entry.len()).position(|window| window == entry.as_bytes())?;
    Some(at + entry.len() - 1 - digest.len())
}

/// Reads a checkpoint's tensors in the order of `shapes`, and its manifest. One tensor after the
/// other: a file can be larger than what a budget leaves free.
pub fn read(path: &Path, shapes: &[Shape]) -> Result<(Held, Manifest), CheckpointError> {
    let wrong = |why: String| CheckpointError::Wrong { path: path.to_owned(), why };
    let (mut file, header) = Header::read(path)?;
    let manifest = header.manifest;
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
        updates: manifest.updates,
        scale: manifest.scale,
        step: manifest.step,
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
    Ok((held, manifest))
}

/// Reads the manifest alone, after checking that the file is whole and undamaged.
pub fn read_manifest(path: &Path) -> Result<Manifest, CheckpointError> {
    Header::read(path).map(|(_, header)| header.manifest)
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
    manifest: Manifest,
}

impl Header {
    /// Reads the header and checks the digest of the whole file.
    fn read(path: &Path) -> Result<(BufReader<File>, Self), CheckpointError> {
        let failed = |source| CheckpointError::Io { path: path.to_owned(), source };
        let wrong = |why: String| CheckpointError::Wrong { path: path.to_owned(), why };
        let not_ours =
            |error: &dyn std::fmt::Display| wrong(format!("it is not a checkpoint: {error}"));
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
        let metadata = tensors.metadata().clone().unwrap_or_default();
        let text = metadata.get(MANIFEST).ok_or_else(|| not_ours(&"it doesn't tell of a run"))?;
        check_version(text).map_err(wrong)?;
        let digest = metadata.get(DIGEST).map(String::as_str).unwrap_or_default();
        let at = digest_at(&header, digest).filter(|_| digest.len() == NO_DIGEST.len());
        let at = at.ok_or_else(|| not_ours(&"it has no digest"))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&length);
        hasher.update(&header[..at]);
        hasher.update(NO_DIGEST.as_bytes());
        hasher.update(&header[at + digest.len()..]);
        hasher.update_reader(&mut file).map_err(failed)?;
        if hasher.finalize().to_hex().as_str() != digest {
            return Err(CheckpointError::Damaged { path: path.to_owned() });
        }
        let manifest: Manifest = serde_json::from_str(text).map_err(|error| not_ours(&error))?;
        Ok((file, Self { tensors, data_at, manifest }))
    }
}

/// Refuses manifests of other versions before the rest of them is read.
fn check_version(manifest: &str) -> Result<(), String> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let version = serde_json::from_str::<Versioned>(manifest).map_or(0, |found| found.version);
    match version {
        VERSION => Ok(()),
        older if older < VERSION => Err(format!(
            "it has version {older}, written by an earlier surefoot; this one reads {VERSION}"
        )),
        newer => {
            Err(format!("it has version {newer}, this program reads {VERSION}: use a newer one"))
        }
    }
}
