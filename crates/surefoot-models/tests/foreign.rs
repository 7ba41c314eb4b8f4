//! Weights that other programs quantised (GPTQ, AWQ, fp8): every number against an independent dequantisation, and logits against
//! transformers with those numbers; `make_quantized.py` wrote the folders. Hostile folders are refused.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use surefoot_models::stream::needs::Work;
use surefoot_models::stream::plan::Placement;
use surefoot_models::{Logits, Opened, TokenBatch, Want};
use surefoot_quant::BlockFormat::{self, *};

const WANT: Want = Want { logits: Logits::All, hidden: false, last_hidden: false };
/// The folders, and the format in which their matrices are kept.
const FOLDERS: [(&str, BlockFormat); 8] = [
    ("gptq-symmetric", Q4_0),
    ("gptq-zero-points", Q4_ZP),
    ("gptq-act-order", Q8_0),
    ("gptq-v2-whole", Q4_ZP),
    ("awq", Q4_ZP),
    ("fp8-blocks", Q8_0),
    ("fp8-tensor", Q8_0),
    ("fp8-channel", Q8_0),
];

/// The CPU, or the device that `SUREFOOT_TEST_DEVICE` names.
fn device() -> Device {
    match std::env::var("SUREFOOT_TEST_DEVICE") {
        Ok(name) => surefoot::device::open(name.parse().unwrap()).unwrap().burn().clone(),
        Err(_) => Device::flex(),
    }
}

/// The same bits on the CPU, where each row of weights is multiplied for itself; elsewhere sums may be in another order.
fn assert_same(what: &str, one: &[f32], other: &[f32]) {
    match device() == Device::flex() {
        true => assert_eq!(one, other, "{what}"),
        false => {
            let worst = one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(one.len() == other.len() && worst <= 1e-3, "{what}: {worst}");
        }
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantized").join(name)
}

fn floats(golden: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = golden.tensor(name).unwrap().data().to_vec();
    data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn every_weight_is_the_dequantised_one_and_stays_packed() {
    for (name, expected_format) in FOLDERS {
        let bytes = std::fs::read(folder(name).join("golden.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let opened = Opened::new(&folder(name)).unwrap();
        let mut compared = 0;
        for stored in opened.tensors().iter().filter(|stored| stored.is_foreign()) {
            assert_eq!(stored.format().unwrap(), expected_format, "{name}, {}", stored.name);
            let expected = floats(&golden, &stored.name);
            let got = stored.numbers().unwrap();
            assert_eq!(got.len(), expected.len());
            // What does not fit into 4 bits is rounded to 8, with a scale for 32 numbers.
            for (got, expected) in got.chunks(32).zip(expected.chunks(32)) {
                let largest = expected.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
                let allowed = if expected_format == Q8_0 { largest * 0.0045 } else { 0.0 };
                for (got, expected) in got.iter().zip(expected) {
                    assert!(
                        (got - expected).abs() <= allowed,
                        "{name}, {}: {got}, not {expected}",
                        stored.name
                    );
                }
            }
            compared += 1;
        }
        assert_eq!(compared, 14, "{name}");
        for matrix in opened.binding.matrices.iter().filter(|matrix| matrix.block.is_some()) {
            let most = if expected_format == Q8_0 { 2.4 } else { 1.25 };
            let share = opened.format().bytes(matrix) as f64 / matrix.file_bytes() as f64;
            assert!(share <= most, "{name}: {share} of what its file has");
        }
    }
}

/// The logits of a folder, those expected, and how it was placed.
fn logits(name: &str, share: f64) -> (Vec<f32>, Vec<f32>, Placement) {
    let bytes = std::fs::read(folder(name).join("golden.safetensors")).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let ids = golden.tensor("input_ids").unwrap();
    let width = ids.shape()[1];
    let ids: Vec<u32> = ids.data().as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
    let sequences: Vec<Vec<u32>> = ids.chunks(width).map(<[u32]>::to_vec).collect();
    let opened = Opened::new(&folder(name)).unwrap();
    let work = Work { batch: 2, prompt: 24, new_tokens: 0, want: WANT };
    let plan = opened.plan_with_share(&work, share);
    let model = opened.load(&plan, &device(), Arc::default()).unwrap();
    let batch = TokenBatch::new(&sequences, model.blueprint().vocab).unwrap();
    let output = model.forward(&batch, WANT).unwrap();
    (output.logits.unwrap().numbers, floats(&golden, "logits"), plan.mode)
}

#[test]
fn logits_are_nearly_those_of_transformers_and_the_same_in_every_mode() {
    for (name, _) in FOLDERS {
        let (resident, expected, mode) = logits(name, 1.0);
        assert_eq!(mode, Placement::Resident);
        let difference: f32 = resident.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum();
        let far = (difference / expected.iter().map(|number| number.powi(2)).sum::<f32>()).sqrt();
        println!("{name}: {far}");
        // Activations are rounded to 8 bits. A row, a group or a zero point in the wrong place makes a difference of about 1.
        assert!(far <= 0.06, "{name}: {far}");
        for (share, expected_mode) in [(0.5, Placement::Mixed), (0.0, Placement::Streamed)] {
            let (got, _, mode) = logits(name, share);
            assert_eq!(mode, expected_mode, "{name}");
            assert_same(&format!("{name}, {mode:?}"), &got, &resident);
        }
    }
}

struct Changed {
    tensors: HashMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    config: serde_json::Value,
}

/// What opening says of a copy of a folder in which something was changed.
fn refused(name: &str, change: impl Fn(&mut Changed)) -> String {
    let bytes = std::fs::read(folder(name).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let config = std::fs::read(folder(name).join("config.json")).unwrap();
    let of = |view: TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    let mut changed = Changed {
        tensors: tensors.tensors().into_iter().map(|(name, view)| (name, of(view))).collect(),
        config: serde_json::from_slice(&config).unwrap(),
    };
    change(&mut changed);
    let copy = tempfile::tempdir().unwrap();
    let views = changed.tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &copy.path().join("model.safetensors")).unwrap();
    std::fs::write(copy.path().join("config.json"), changed.config.to_string()).unwrap();
    let opened = match Opened::new(copy.path()) {
        Ok(opened) => opened,
        Err(error) => return error.to_string(),
    };
    // What only the numbers show is found when they are read.
    let read = opened.tensors().iter().find_map(|stored| stored.numbers().err());
    read.map_or_else(|| "nothing is refused".to_owned(), |error| error.to_string())
}

const Q: &str = "model.layers.0.self_attn.q_proj";

#[test]
fn hostile_shapes_and_numbers_are_refused_by_name() {
    let drop = |part: &'static str| {
        move |changed: &mut Changed| drop(changed.tensors.remove(&format!("{Q}.{part}")).unwrap())
    };
    for part in ["qzeros", "scales"] {
        let error = refused("awq", drop(part));
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = refused("fp8-blocks", drop("weight_scale_inv"));
    assert!(error.contains("neither weight_scale nor"), "{error}");
    let shaped = |part: &'static str, shape: [usize; 2]| {
        move |changed: &mut Changed| {
            changed.tensors.get_mut(&format!("{Q}.{part}")).unwrap().1 = shape.to_vec();
        }
    };
    // As many numbers, in another shape.
    for (name, part, shape) in [
        ("gptq-symmetric", "qweight", [64, 8]),
        ("gptq-symmetric", "qzeros", [8, 2]),
        ("gptq-symmetric", "scales", [64, 2]),
        ("awq", "qweight", [8, 64]),
        ("awq", "scales", [1, 128]),
        ("fp8-blocks", "weight", [32, 128]),
        ("fp8-blocks", "weight_scale_inv", [4, 1]),
    ] {
        let error = refused(name, shaped(part, shape));
        assert!(error.contains(Q), "{name}, {part}: {error}");
    }
    let error = refused("gptq-symmetric", |changed| {
        changed.tensors.get_mut(&format!("{Q}.g_idx")).unwrap().2[..4]
            .copy_from_slice(&[9, 0, 0, 0]);
    });
    assert!(error.contains("names the group 9 of 2"), "{error}");
    let error = refused("gptq-symmetric", |changed| {
        changed.tensors.get_mut(&format!("{Q}.qzeros")).unwrap().2[0] ^= 1;
    });
    assert!(error.contains("zero point of 7"), "{error}");
    let error = refused("gptq-zero-points", |changed| {
        changed.config["quantization_config"]["group_size"] = 32.into();
    });
    assert!(error.contains("scales"), "{error}");
    let error = refused("fp8-tensor", |changed| {
        changed.tensors.get_mut(&format!("{Q}.weight")).unwrap().2[5] = 0x7f;
    });
    assert!(error.contains(Q) && error.contains("NaN"), "{error}");
    let error = refused("fp8-tensor", |changed| {
        changed.config["quantization_config"] = serde_json::Value::Null
    });
    assert!(error.contains("F8_E4M3"), "{error}");
}
