//! Writing an adapter as PEFT reads it.

use std::borrow::Cow;
use std::path::Path;

use safetensors::{Dtype, View};

use super::{Adapter, AdapterPair, CONFIG_FILE, WEIGHTS_FILE, interleaved};
use crate::error::ModelError;

struct Side<'a> {
    shape: [usize; 2],
    numbers: Cow<'a, [f32]>,
}

impl View for Side<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        self.numbers.len() * 4
    }
}

impl Adapter {
    /// Its files by their names, as they go into a folder.
    pub fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, ModelError> {
        let mut config = serde_json::to_vec_pretty(&self.config.json())
            .map_err(|error| ModelError::file(Path::new(CONFIG_FILE), error.to_string()))?;
        config.push(b'\n');
        let named = |pair: &AdapterPair, side: &str| {
            format!("base_model.model.{}.lora_{side}.weight", pair.target.module)
        };
        let views = self.pairs.iter().flat_map(|pair| {
            let (inputs, outputs) = (pair.target.inputs, pair.target.outputs);
            let b = match pair.target.interleaved_head {
                Some(head) => Cow::Owned(interleaved::to_peft(&pair.b, pair.rank, head)),
                None => Cow::Borrowed(&pair.b[..]),
            };
            let a = Cow::Borrowed(&pair.a[..]);
            [
                (named(pair, "A"), Side { shape: [pair.rank, inputs], numbers: a }),
                (named(pair, "B"), Side { shape: [outputs, pair.rank], numbers: b }),
            ]
        });
        let format = [("format".to_owned(), "pt".to_owned())].into();
        let weights = safetensors::serialize(views, Some(format)).map_err(|error| {
            ModelError::file(Path::new(WEIGHTS_FILE), format!("can't be made: {error}"))
        })?;
        Ok(vec![(CONFIG_FILE, config), (WEIGHTS_FILE, weights)])
    }
}
