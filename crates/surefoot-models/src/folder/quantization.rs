//! How a model folder's weights were quantised by other programs, as the `quantization_config` of its `config.json` says it:
//! GPTQ and AWQ in 4 bits, and fp8 (e4m3) with scales. What is not known is refused by name, since a setting that is ignored
//! gives wrong numbers.

use super::settings::Settings;
use crate::error::ModelError;

const KEY: &str = "quantization_config";

/// `quant_method` in the `config.json` of folders that `surefoot quantize` writes.
pub(crate) const OWN_METHOD: &str = "surefoot";

/// A way of quantising that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// `qweight`, `qzeros`, `scales` and perhaps `g_idx` in the place of `weight`: eight inputs in a word.
    Gptq {
        /// Inputs that share a scale; all of them if it is none.
        group: Option<usize>,
        /// Whether the zero point is 8 everywhere.
        symmetric: bool,
        /// What is added to stored zero points.
        zero_offset: u8,
    },
    /// `qweight`, `qzeros` and `scales`: eight outputs in a word.
    Awq {
        /// Inputs that share a scale; all of them if it is none.
        group: Option<usize>,
    },
    /// `weight` in e4m3, with `weight_scale` or `weight_scale_inv`, which are both multiplied with.
    Fp8 {
        /// Outputs and inputs that share a scale, where scales are a matrix.
        block: Option<[usize; 2]>,
    },
}

impl Scheme {
    /// The one of a `config.json`; none if weights are plain, or in blocks of our own.
    pub(crate) fn read(settings: &Settings) -> Result<Option<Self>, ModelError> {
        let Some(config) = settings.object(KEY)? else { return Ok(None) };
        let method = config.text("quant_method")?.unwrap_or("an unnamed method");
        Ok(Some(match method {
            OWN_METHOD => return Ok(None),
            "gptq" => gptq(&config)?,
            "awq" => awq(&config)?,
            "fp8" => fp8(&config)?,
            "compressed-tensors" => compressed(&config)?,
            other => {
                return Err(settings.problem(
                    KEY,
                    format!(
                        "says that weights are quantised by '{other}', which can't be read; gptq, awq and fp8 can. Take the \
                         model's original folder and quantise it with --weights q4 or `surefoot quantize`, or take a GGUF \
                         file of it"
                    ),
                ));
            }
        }))
    }
}

/// Inputs that share a scale: blocks of 32 must not be cut.
fn group(config: &Settings) -> Result<Option<usize>, ModelError> {
    const KEY: &str = "group_size";
    match config.integer(KEY)? {
        None => Err(config.problem(KEY, "is missing")),
        Some(-1) => Ok(None),
        Some(size) => match usize::try_from(size) {
            Ok(size) if size > 0 && size.is_multiple_of(32) && size <= 1 << 20 => Ok(Some(size)),
            _ => Err(config.problem(KEY, format!("is {size}; -1 and multiples of 32 can be read"))),
        },
    }
}

fn only(config: &Settings, key: &str, allowed: &[&str]) -> Result<(), ModelError> {
    let Some(text) = config.text(key)? else { return Ok(()) };
    let known = allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(text));
    match known {
        true => Ok(()),
        false => Err(config
            .problem(key, format!("is '{text}', which can't be read; {} can", allowed.join(", ")))),
    }
}

fn four_bits(config: &Settings) -> Result<(), ModelError> {
    match config.needed("bits", 1..=64)? {
        4 => Ok(()),
        other => Err(config.problem("bits", format!("is {other}; only 4 bits can be read"))),
    }
}

fn gptq(config: &Settings) -> Result<Scheme, ModelError> {
    four_bits(config)?;
    only(config, "checkpoint_format", &["gptq", "gptq_v2"])?;
    only(config, "pack_dtype", &["int32"])?;
    Ok(Scheme::Gptq {
        group: group(config)?,
        symmetric: config.flag("sym")?.unwrap_or(false),
        zero_offset: u8::from(config.text("checkpoint_format")? != Some("gptq_v2")),
    })
}

fn awq(config: &Settings) -> Result<Scheme, ModelError> {
    four_bits(config)?;
    only(config, "version", &["gemm"])?;
    only(config, "backend", &["autoawq", "auto"])?;
    if !config.flag("zero_point")?.unwrap_or(true) {
        return Err(config.problem("zero_point", "is false; only AWQ with zero points can be read"));
    }
    Ok(Scheme::Awq { group: group(config)? })
}

fn fp8(config: &Settings) -> Result<Scheme, ModelError> {
    only(config, "fmt", &["e4m3", "float8_e4m3fn"])?;
    only(config, "activation_scheme", &["dynamic", "static"])?;
    let block = match config.counts("weight_block_size")?[..] {
        [] => None,
        [rows, cols] if rows > 0 && cols > 0 => Some([rows as usize, cols as usize]),
        _ => {
            return Err(config.problem("weight_block_size", "must be two whole numbers above 0"));
        }
    };
    Ok(Scheme::Fp8 { block })
}

/// The form in which llm-compressor writes fp8.
fn compressed(config: &Settings) -> Result<Scheme, ModelError> {
    only(config, "format", &["float-quantized", "naive-quantized"])?;
    let groups = config.object("config_groups")?;
    let first = match &groups {
        Some(groups) => groups.object("group_0")?,
        None => None,
    };
    let weights = match &first {
        Some(first) => first.object("weights")?,
        None => None,
    };
    let Some(weights) = weights else {
        return Err(config.problem("config_groups", "doesn't say how weights are quantised"));
    };
    only(&weights, "type", &["float"])?;
    only(&weights, "strategy", &["tensor", "channel"])?;
    match weights.needed("num_bits", 1..=64)? {
        8 => Ok(Scheme::Fp8 { block: None }),
        other => Err(weights.problem("num_bits", format!("is {other}; only 8 bits can be read"))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(config: &str) -> Result<Option<Scheme>, String> {
        let json = format!(r#"{{"quantization_config": {config}}}"#);
        let settings = Settings::parse(Path::new("config.json"), json.as_bytes()).unwrap();
        Scheme::read(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn known_methods_are_read() {
        assert_eq!(read("null"), Ok(None));
        assert_eq!(read(r#"{"quant_method": "surefoot"}"#), Ok(None));
        let (group, symmetric) = (Some(128), true);
        assert_eq!(
            read(
                r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": true}"#
            ),
            Ok(Some(Scheme::Gptq { group, symmetric, zero_offset: 1 }))
        );
        assert_eq!(
            read(
                r#"{"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"}"#
            ),
            Ok(Some(Scheme::Gptq { group: None, symmetric: false, zero_offset: 0 }))
        );
        assert_eq!(
            read(
                r#"{"quant_method": "awq", "bits": 4, "group_size": 64, "version": "GEMM", "zero_point": true}"#
            ),
            Ok(Some(Scheme::Awq { group: Some(64) }))
        );
        assert_eq!(
            read(r#"{"quant_method": "fp8", "weight_block_size": [128, 64]}"#),
            Ok(Some(Scheme::Fp8 { block: Some([128, 64]) }))
        );
        assert_eq!(
            read(
                r#"{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
                    {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}"#
            ),
            Ok(Some(Scheme::Fp8 { block: None }))
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (config, named) in [
            (r#"{"quant_method": "bitsandbytes"}"#, "bitsandbytes"),
            (r#"{"bits": 4}"#, "an unnamed method"),
            (r#"{"quant_method": "gptq", "bits": 3, "group_size": 128}"#, "bits' is 3"),
            (r#"{"quant_method": "gptq", "bits": 4, "group_size": 48}"#, "group_size' is 48"),
            (r#"{"quant_method": "gptq", "bits": 4}"#, "group_size' is missing"),
            (
                r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}"#,
                "marlin",
            ),
            (r#"{"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}"#, "gemv"),
            (
                r#"{"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": false}"#,
                "zero_point",
            ),
            (r#"{"quant_method": "fp8", "weight_block_size": [128]}"#, "weight_block_size"),
            (r#"{"quant_method": "fp8", "weight_block_size": [0, 128]}"#, "weight_block_size"),
            (r#"{"quant_method": "fp8", "fmt": "e5m2"}"#, "e5m2"),
            (
                r#"{"quant_method": "compressed-tensors", "format": "pack-quantized"}"#,
                "pack-quantized",
            ),
            (
                r#"{"quant_method": "compressed-tensors", "format": "float-quantized"}"#,
                "config_groups",
            ),
        ] {
            let error = read(config).unwrap_err();
            assert!(error.contains(named), "{config}: {error}");
        }
    }
}
