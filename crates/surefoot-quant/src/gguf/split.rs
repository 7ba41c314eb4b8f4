//! A model in one GGUF file or in several parts.
//!
//! The parts of a split model lie in one folder and are named `NAME-00001-of-00003.gguf` and so on.
//! The first has the metadata; each says which part it is (`split.no`, from 0) and how many there are
//! (`split.count`), and the first says how many tensors all of them have (`split.tensors.count`).

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{Gguf, GgufError, Tensor};

/// One file of a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Part {
    /// Where it is.
    pub path: PathBuf,
    /// What its header says.
    pub gguf: Gguf,
}

/// All files of a model.
#[derive(Clone, Debug)]
pub struct GgufFiles {
    parts: Vec<Part>,
}

impl GgufFiles {
    /// Opens the file at `path` and, if it is the first of several parts, the others.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let first = Gguf::open(path)?;
        let (part, count) = numbers(&first).map_err(GgufError::at(path))?;
        if part != 1 {
            return Err(GgufError::at(path)(GgufError::NotFirstPart { part, count }));
        }
        let mut parts = vec![Part { path: path.to_owned(), gguf: first }];
        if count > 1 {
            let ending = format!("-00001-of-{count:05}.gguf");
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(stem) = name.strip_suffix(&ending) else {
                return Err(GgufError::at(path)(GgufError::PartName { count }));
            };
            for expected in 2..=count {
                let path = path.with_file_name(format!("{stem}-{expected:05}-of-{count:05}.gguf"));
                let gguf = Gguf::open(&path)?;
                let (part, said) = numbers(&gguf).map_err(GgufError::at(&path))?;
                if (part, said) != (expected, count) {
                    return Err(GgufError::at(&path)(GgufError::WrongPart {
                        part,
                        count: said,
                        expected,
                        expected_count: count,
                    }));
                }
                parts.push(Part { path, gguf });
            }
        }
        let files = Self { parts };
        files.check().map_err(GgufError::at(path))?;
        Ok(files)
    }

    fn check(&self) -> Result<(), GgufError> {
        let mut names = HashSet::new();
        for (_, tensor) in self.tensors() {
            if !names.insert(tensor.name.as_str()) {
                return Err(GgufError::DuplicateTensor(tensor.name.clone()));
            }
        }
        let actual = names.len() as u64;
        match self.metadata().number("split.tensors.count")? {
            Some(expected) if expected != actual => {
                Err(GgufError::PartTensors { expected, actual })
            }
            _ => Ok(()),
        }
    }

    /// The file with the metadata.
    pub fn metadata(&self) -> &Gguf {
        // `open` always has a first part.
        &self.parts[0].gguf
    }

    /// The files.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// All tensors, each with the file that has its bytes.
    pub fn tensors(&self) -> impl Iterator<Item = (&Part, &Tensor)> {
        self.parts.iter().flat_map(|part| part.gguf.tensors.iter().map(move |it| (part, it)))
    }
}

/// Which part it is, counted from 1, and of how many.
fn numbers(gguf: &Gguf) -> Result<(u64, u64), GgufError> {
    let count = gguf.number("split.count")?.unwrap_or(1).max(1);
    let part = gguf.number("split.no")?.unwrap_or(0);
    // The names of the parts have five digits.
    match count <= 99_999 && part < count {
        true => Ok((part + 1, count)),
        false => Err(GgufError::TooMany { what: "parts", count: count.max(part), most: 99_999 }),
    }
}
