//! Reading an adapter for a model. The files are not trusted: sizes are checked before numbers are read.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Adapter, AdapterConfig, AdapterPair, Projections, Target, WEIGHTS_FILE, interleaved};
use crate::error::ModelError;
use crate::folder::checkpoint::{self, Stored};
use crate::run::opened::Opened;

impl Adapter {
    /// Reads the adapter in `folder`, which must fit `model`.
    pub fn read(folder: &Path, model: &Opened) -> Result<Self, ModelError> {
        if !folder.is_dir() {
            let problem = match folder.exists() {
                true => "is not a folder; name the folder that holds adapter_config.json",
                false => "doesn't exist",
            };
            return Err(ModelError::file(folder, problem));
        }
        let config = AdapterConfig::read(folder)?;
        let file = folder.join(WEIGHTS_FILE);
        if !file.exists() {
            let problem = format!("has no {WEIGHTS_FILE}; adapters in other files are not read");
            return Err(ModelError::file(folder, problem));
        }
        let mut tensors = checkpoint::shard(&file)?;
        let mut pairs = Vec::new();
        for target in Projections::of(model).0 {
            pairs.extend(pair(&config, target, &file, &mut tensors)?);
        }
        if let Some((name, stored)) = tensors.first_key_value() {
            let known = name.contains("lora_A") || name.contains("lora_B");
            return Err(stored.problem(match known {
                true => format!("is of no projection of this {}", model.blueprint.family),
                false => {
                    "is not a part of a low-rank pair, which is all that is supported".to_owned()
                }
            }));
        }
        if pairs.is_empty() {
            return Err(ModelError::file(&file, "has no tensors"));
        }
        Ok(Self { config, pairs, folder: Some(folder.to_owned()) })
    }
}

fn pair(
    config: &AdapterConfig,
    target: Target,
    file: &Path,
    tensors: &mut BTreeMap<String, Stored>,
) -> Result<Option<AdapterPair>, ModelError> {
    let name = |side: &str| format!("base_model.model.{}.lora_{side}.weight", target.module);
    let (a, b) = match (tensors.remove(&name("A")), tensors.remove(&name("B"))) {
        (None, None) => return Ok(None),
        (Some(a), Some(b)) => (a, b),
        (Some(_), None) => return Err(ModelError::tensor(file, name("B"), "is missing")),
        (None, Some(_)) => return Err(ModelError::tensor(file, name("A"), "is missing")),
    };
    let rank = a.shape.first().copied().unwrap_or(0);
    let sizes = |stored: &Stored, expected: [usize; 2]| match stored.shape == expected {
        true => Ok(()),
        false => Err(stored.problem(format!(
            "has the shape {:?}, and the model needs {expected:?}",
            stored.shape
        ))),
    };
    if rank == 0 {
        return Err(a.problem("has no rows"));
    }
    sizes(&a, [rank, target.inputs])?;
    sizes(&b, [target.outputs, rank])?;
    let (numbers_a, mut numbers_b) = (numbers(&a)?, numbers(&b)?);
    if let Some(head) = target.interleaved_head {
        numbers_b = interleaved::to_file(&numbers_b, rank, head);
    }
    let scale = config.scale(&target.module, rank);
    Ok(Some(AdapterPair { target, rank, a: numbers_a, b: numbers_b, scale }))
}

fn numbers(stored: &Stored) -> Result<Vec<f32>, ModelError> {
    let numbers = stored.numbers()?;
    match numbers.iter().find(|number| !number.is_finite()) {
        None => Ok(numbers),
        Some(number) => Err(stored.problem(format!("has {number} among its numbers"))),
    }
}
