//! Fine-tuning of published models: the same numbers as PEFT with transformers, whatever the batch is packed into, and the same
//! bits after faults and resumed runs. The golden values are made by benches/peers/peft_goldens.py.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use safetensors::SafeTensors;
use serde::Deserialize;
use surefoot::Footing;
use surefoot::device::{Backend, DeviceName, Selector};
use surefoot::recover::Drill;
use surefoot_train::batch::HostBatch;
use surefoot_train::checkpoint::CheckpointFolder;
use surefoot_train::config::ModelConfig;
use surefoot_train::data::{self, Example, Form, Sequences, Source};
use surefoot_train::model::{Builtin, Pretrained};
use surefoot_train::optimizer::UpdateRule;
use surefoot_train::state::State;
use surefoot_train::step::{StepOrder, StepSettings, step};
use surefoot_train::{Config, Run, TrainEvent, TrainReport, parameters};

const RULE: UpdateRule =
    UpdateRule::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
const STEPS: usize = 10;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn model_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../surefoot-models/tests/fixtures").join(name)
}

#[derive(Deserialize)]
struct Row {
    tokens: Vec<u32>,
    unpredicted: usize,
    class: Option<usize>,
}

/// The sequences of each step.
fn batches(name: &str) -> Vec<Vec<Row>> {
    serde_json::from_slice(&std::fs::read(fixture(name).join("batches.json")).unwrap()).unwrap()
}

fn golden(name: &str) -> HashMap<String, Vec<f64>> {
    golden_file(&fixture(name).join("golden.safetensors"))
}

fn golden_file(file: &Path) -> HashMap<String, Vec<f64>> {
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |view: safetensors::tensor::TensorView<'_>| match view.dtype() {
        safetensors::Dtype::F64 => {
            view.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
        }
        _ => {
            let numbers = view.data().as_chunks::<4>().0.iter();
            numbers.map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
        }
    };
    tensors.tensors().into_iter().map(|(name, view)| (name, numbers(view))).collect()
}

/// How a batch is run.
#[derive(Clone, Copy, Debug)]
struct Way {
    pack: bool,
    checkpointing: bool,
    /// Rows that are run at once.
    at_once: usize,
}

const WAYS: [Way; 4] = [
    Way { pack: false, checkpointing: false, at_once: 8 },
    Way { pack: true, checkpointing: false, at_once: 8 },
    Way { pack: true, checkpointing: true, at_once: 8 },
    Way { pack: false, checkpointing: true, at_once: 2 },
];

fn host_batch(rows: &[Row], form: Form, pack: bool) -> HostBatch {
    let examples = rows.iter().map(|row| Example {
        name: "a row".to_owned(),
        tokens: row.tokens.clone(),
        predicted: (0..row.tokens.len()).map(|at| at >= row.unpredicted).collect(),
        class: row.class,
    });
    let source = Sequences::new(form, examples.collect(), pack);
    let mut batch = HostBatch::new(form, source.len());
    for at in 0..source.len() {
        batch.push(source.read(at).unwrap()).unwrap();
    }
    batch
}

fn open(model: &str, form: Form, footing: &Footing) -> (Pretrained, Config) {
    let text = format!("{{data: {{kind: jsonl, path: x}}, model: {{{model}}}, steps: {STEPS}}}");
    let config = Config::parse(&text, &[]).unwrap();
    let device = footing.device().unwrap();
    match Builtin::new(&config.model, form, 1, device.burn()).unwrap() {
        Builtin::Pretrained(model) => (model, config),
        other => panic!("{other:?}"),
    }
}

/// Trains ten steps and gives the losses and the models after one step and after ten.
fn train(
    model: Pretrained,
    rows: &[Vec<Row>],
    form: Form,
    way: Way,
    footing: &Footing,
) -> (Vec<f64>, [Pretrained; 2]) {
    train_steps(STEPS, model, rows, form, way, footing)
}

/// Trains some steps and gives the losses and the models after one step and after the last.
fn train_steps(
    steps: usize,
    model: Pretrained,
    rows: &[Vec<Row>],
    form: Form,
    way: Way,
    footing: &Footing,
) -> (Vec<f64>, [Pretrained; 2]) {
    let shapes = parameters::shapes(&model);
    let settings = StepSettings { rule: RULE, clip_norm: None, micro_batch: way.at_once };
    let order = StepOrder { lr: 1e-3, checkpointing: way.checkpointing, name_bad: false };
    let mut state = State::new(model, footing.device().unwrap().name());
    let (mut losses, mut after_one) = (Vec::new(), None);
    for at in 0..steps {
        let batch = host_batch(&rows[at % rows.len()], form, way.pack);
        let done = step(footing, &settings, order, &state, &shapes, &batch).unwrap().value;
        assert!(done.finite);
        losses.push(done.loss / batch.items() as f64);
        state = done.state;
        if at == 0 {
            after_one = Some(state.model.clone());
        }
    }
    (losses, [after_one.unwrap(), state.model])
}

#[track_caller]
fn near(what: &str, is: &[f64], should: &[f64]) {
    within(1e-5, what, is, should);
}

/// A gradient near zero can have either sign, and Adam's step is as large for it as for any other: of the many numbers
/// of a whole model a few differ by a part of the learning rate.
const OF_WHOLE_MODELS: f64 = 2e-4;

#[track_caller]
fn within(tolerance: f64, what: &str, is: &[f64], should: &[f64]) {
    assert_eq!(is.len(), should.len(), "{what}");
    for (at, (is, should)) in is.iter().zip(should).enumerate() {
        assert!((is - should).abs() < tolerance, "{what}: number {at} is {is}, not {should}");
    }
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|number| f64::from(*number)).collect()
}

fn equals_peft(name: &str, vocabulary: usize) {
    let golden = golden(name);
    let rows = batches(name);
    let footing = Footing::builder().devices(Selector::only(DeviceName::CPU)).build().unwrap();
    let form = Form::Sequences { vocabulary, length: 64, classes: None };
    let settings = format!(
        "kind: pretrained, path: {:?}, adapter: {:?}, rank: 2, alpha: 6",
        model_folder(name),
        fixture(name)
    );
    for way in WAYS {
        let (model, config) = open(&settings, form, &footing);
        let ModelConfig::Pretrained(config) = &config.model else { panic!() };
        let (losses, models) = train(model, &rows, form, way, &footing);
        near(&format!("{name} {way:?}: losses"), &losses, &golden["losses"]);
        for (steps, model) in ["after1", "after10"].into_iter().zip(models) {
            let adapter = model.adapter(config).unwrap();
            let expected =
                golden.keys().filter(|key| key.starts_with(&format!("{steps}."))).count();
            assert_eq!(2 * adapter.pairs.len(), expected, "{name}: as many tensors as PEFT has");
            for pair in &adapter.pairs {
                for (side, numbers) in [("A", &pair.a), ("B", &pair.b)] {
                    let key = format!(
                        "{steps}.base_model.model.{}.lora_{side}.weight",
                        pair.target.module
                    );
                    near(&format!("{name} {way:?}: {key}"), &wide(numbers), &golden[&key]);
                }
            }
        }
    }
}

#[test]
fn llama_learns_as_with_peft() {
    equals_peft("llama-tiny", 256);
}

/// Rounding grows over a longer run: the first losses are compared one by one, later ones by their means.
#[test]
fn the_losses_of_a_longer_run_are_those_of_peft() {
    let name = "llama-tiny";
    let expected = &golden_file(&fixture(name).join("curve.safetensors"))["losses"];
    assert!(expected.len() == 300 && expected[299] < 0.4 * expected[0], "the model learns much");
    let footing = Footing::builder().devices(Selector::only(DeviceName::CPU)).build().unwrap();
    let form = Form::Sequences { vocabulary: 256, length: 64, classes: None };
    let settings = format!(
        "kind: pretrained, path: {:?}, adapter: {:?}, rank: 2, alpha: 6",
        model_folder(name),
        fixture(name)
    );
    let (model, _) = open(&settings, form, &footing);
    let (losses, _) = train_steps(300, model, &batches(name), form, WAYS[1], &footing);
    assert_eq!(losses.len(), expected.len());
    within(1e-3, "the first losses", &losses[..30], &expected[..30]);
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    for (at, (is, should)) in losses.chunks(50).zip(expected.chunks(50)).enumerate() {
        let (is, should) = (mean(is), mean(should));
        assert!((is - should).abs() < 0.04 * should, "fifty losses, {at}: {is}, not {should}");
    }
}

#[test]
fn gpt2_learns_as_with_peft() {
    equals_peft("gpt2-tiny", 256);
}

#[test]
fn qwen2_learns_as_with_peft() {
    equals_peft("qwen2-tiny", 256);
}

#[test]
fn mistral_with_a_window_learns_as_with_peft() {
    equals_peft("mistral-window", 96);
}

#[test]
fn qwen3_learns_as_with_peft() {
    equals_peft("qwen3-bias-tied", 96);
}

#[test]
fn gpt_neox_learns_as_with_peft() {
    equals_peft("neox-tiny", 256);
}

#[test]
fn weights_in_half_precision_and_several_files_learn_as_with_peft() {
    equals_peft("llama-f16-sharded", 96);
}

#[test]
fn other_decoders_learn_as_with_peft() {
    for name in ["granite-tiny", "olmo2-tiny", "phi3-tiny", "smollm3-tiny"] {
        equals_peft(name, 96);
    }
}

/// Gradients flow through the router, whose weights, like those of the experts, stay as they are.
#[test]
fn the_attention_of_models_with_experts_learns_as_with_peft() {
    for name in ["mixtral-tiny", "qwen3-moe-tiny", "qwen2-moe-tiny"] {
        equals_peft(name, 96);
    }
}

/// A budget that leaves no room for weights: each is read when it is needed, forwards and backwards.
#[test]
fn weights_that_do_not_fit_are_streamed_to_the_same_result() {
    let rows = batches("llama-tiny");
    let footing = Footing::builder().devices(Selector::only(DeviceName::CPU)).build().unwrap();
    let form = Form::Sequences { vocabulary: 256, length: 64, classes: None };
    for folder in ["llama-tiny", "llama-f16-sharded"] {
        let form = match folder {
            "llama-tiny" => form,
            _ => Form::Sequences { vocabulary: 96, length: 64, classes: None },
        };
        let rows = if folder == "llama-tiny" { &rows } else { &batches(folder) };
        let settings = format!(
            "kind: pretrained, path: {:?}, adapter: {:?}",
            model_folder(folder),
            fixture(folder)
        );
        let (resident, _) = open(&settings, form, &footing);
        let (streamed, _) =
            open(&format!("{settings}}}, memory: 1MiB, optimizer: {{lr: 1"), form, &footing);
        assert_eq!((resident.resident_share(), streamed.resident_share()), (1.0, 0.0));
        let (expected, _) = train(resident, rows, form, WAYS[0], &footing);
        for way in [WAYS[0], WAYS[2]] {
            let (losses, _) = train(streamed.clone(), rows, form, way, &footing);
            near(&format!("{folder} {way:?}"), &losses, &expected);
        }
    }
}

/// The tensors of a model that are trained themselves, by the names in its files.
fn trained(model: &Pretrained) -> HashMap<String, Vec<f64>> {
    let names = model.trained_names();
    let values = parameters::values(model);
    assert_eq!(names.len(), values.len());
    let numbers = |value: burn::tensor::Tensor<1>| value.into_data().try_to_vec::<f32>().unwrap();
    names.into_iter().zip(values).map(|(name, value)| (name, wide(&numbers(value)))).collect()
}

#[test]
fn a_whole_model_learns_as_with_transformers() {
    let golden = golden("qwen2-tiny-full");
    let rows = batches("qwen2-tiny-full");
    let footing = Footing::builder().devices(Selector::only(DeviceName::CPU)).build().unwrap();
    let form = Form::Sequences { vocabulary: 256, length: 64, classes: None };
    let settings = format!("kind: pretrained, path: {:?}, tune: full", model_folder("qwen2-tiny"));
    for way in WAYS {
        let (model, _) = open(&settings, form, &footing);
        let (losses, [_, model]) = train(model, &rows, form, way, &footing);
        near(&format!("{way:?}: losses"), &losses, &golden["losses"]);
        let ours = trained(&model);
        let names = golden.keys().filter_map(|key| key.strip_prefix("after10."));
        let mut compared = 0;
        for name in names {
            let expected = &golden[&format!("after10.{name}")];
            within(OF_WHOLE_MODELS, &format!("{way:?}: {name}"), &ours[name], expected);
            compared += 1;
        }
        assert!(compared >= 10, "{compared} tensors");
    }
}

#[test]
fn a_classifier_of_texts_learns_as_with_transformers() {
    let golden = golden("bert-tiny-classes");
    let rows = batches("bert-tiny-classes");
    let footing = Footing::builder().devices(Selector::only(DeviceName::CPU)).build().unwrap();
    let form = Form::Sequences { vocabulary: 256, length: 64, classes: Some(3) };
    let settings = format!("kind: pretrained, path: {:?}, tune: full", model_folder("bert-tiny"));
    for way in WAYS {
        let (model, _) = open(&settings, form, &footing);
        // transformers draws other first weights for the classes.
        let names = model.trained_names();
        let device = footing.device().unwrap().burn().clone();
        let values = parameters::values(&model);
        let start = names.iter().zip(values).map(|(name, value)| {
            match golden.get(&format!("start.{name}")) {
                None => value,
                Some(numbers) => {
                    let numbers: Vec<f32> = numbers.iter().map(|number| *number as f32).collect();
                    let count = numbers.len();
                    let data = burn::tensor::TensorData::new(numbers, [count]);
                    burn::tensor::Tensor::from_data(data, &device)
                }
            }
        });
        let model = parameters::with_values(model, start.collect());
        let (losses, [_, model]) = train(model, &rows, form, way, &footing);
        near(&format!("{way:?}: losses"), &losses, &golden["losses"]);
        let ours = trained(&model);
        for name in golden.keys().filter_map(|key| key.strip_prefix("after10.")) {
            // This checkpoint leaves the prefix out.
            let own = ours.get(name).or_else(|| ours.get(name.strip_prefix("bert.")?)).unwrap();
            let expected = &golden[&format!("after10.{name}")];
            within(OF_WHOLE_MODELS, &format!("{way:?}: {name}"), own, expected);
        }
    }
}

/// A short run on prompts and completions, which can be disturbed.
struct Trial<'a> {
    folder: &'a Path,
    flags: &'a [(&'a str, &'a str)],
    drill: &'a str,
    devices: Vec<DeviceName>,
    resume: Option<&'a Path>,
    stop_after: Option<u64>,
}

const LINES: usize = 24;

impl<'a> Trial<'a> {
    fn new(folder: &'a Path) -> Self {
        let devices = vec![DeviceName::CPU];
        Self { folder, flags: &[], drill: "", devices, resume: None, stop_after: None }
    }

    fn run(self) -> (TrainReport, Vec<TrainEvent>) {
        let data_file = self.folder.join("data.jsonl");
        let line = |at: usize| {
            format!("{{\"prompt\": \"item {at}\", \"completion\": \" is {}\"}}\n", at % 3)
        };
        std::fs::write(&data_file, (0..LINES).map(line).collect::<String>()).unwrap();
        let text = format!(
            "{{data: {{kind: jsonl, path: {data_file:?}, length: 48}}, model: {{kind: pretrained, \
             path: {:?}, rank: 2}}, batch_size: 4, steps: 6, optimizer: {{lr: 0.01}}, clip_norm: 1.0, \
             workers: 1, checkpoint: {{every: 2, keep: 9}}}}",
            model_folder("llama-tiny")
        );
        let flags: Vec<(String, String)> = self
            .flags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let config = Config::parse(&text, &flags).unwrap();
        let data = data::open(&config.data, config.seed).unwrap();
        let drill: Drill = match self.drill {
            "" => Drill::default(),
            drill => drill.parse().unwrap(),
        };
        let footing =
            Footing::builder().devices(Selector::Chain(self.devices)).drill(drill).build().unwrap();
        let device = footing.device().unwrap();
        let model = Builtin::new(&config.model, data.form(), config.seed, device.burn()).unwrap();
        let stop = AtomicBool::new(false);
        let run = Run {
            footing: &footing,
            config: &config,
            flags,
            data: &data,
            checkpoints: CheckpointFolder::new(self.folder, 9).unwrap(),
            stop: &stop,
            earlier_faults: Vec::new(),
            ranks: None,
        };
        let mut heard = Vec::new();
        let report = run.train(model, self.resume, |event| {
            if let TrainEvent::Step { step, .. } = event
                && self.stop_after.is_some_and(|after| *step >= after)
            {
                stop.store(true, Ordering::Relaxed);
            }
            heard.push(event.clone());
        });
        (report.unwrap(), heard)
    }
}

/// The weights in a checkpoint, as bytes.
fn weights(report: &TrainReport) -> Vec<(String, Vec<u8>)> {
    let bytes = std::fs::read(&report.checkpoint).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<(String, Vec<u8>)> =
        tensors.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect();
    all.sort();
    assert!(all.iter().any(|(name, _)| name.starts_with("model.")));
    all
}

#[test]
fn a_run_that_was_stopped_goes_on_to_the_same_bits() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (plain, _) = Trial::new(whole.path()).run();
    assert_eq!((plain.steps, plain.interrupted), (6, false));
    let (stopped, _) = Trial { stop_after: Some(3), ..Trial::new(parts.path()) }.run();
    assert!(stopped.interrupted);
    let (resumed, _) =
        Trial { resume: Some(&stopped.checkpoint), ..Trial::new(parts.path()) }.run();
    assert_eq!(weights(&resumed), weights(&plain));
    assert_eq!(resumed.test_loss.to_bits(), plain.test_loss.to_bits());
}

#[test]
fn faults_at_any_point_of_a_step_lead_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, _) = Trial::new(folder.path()).run();
    let spare = DeviceName { backend: Backend::Cpu, index: 1 };
    for drill in [
        "device_lost:step=3,op=train step",
        "command_buffer:step=2,op=train step",
        "device_lost:step=2,at=during,nth=1,op=train step",
        "device_lost:step=2,at=during,nth=40,op=train step",
        "command_buffer:step=4,at=during,nth=75,op=train step",
        "device_lost:step=4,at=during,nth=110,op=train step",
        "device_lost:step=3,at=during,point=allocation,nth=2,op=train step",
        "device_lost:step=3,at=after,op=train step",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let devices = vec![DeviceName::CPU, spare];
        let (hit, heard) = Trial { drill, devices, ..Trial::new(folder.path()) }.run();
        assert!(heard.iter().any(|event| matches!(event, TrainEvent::Fault { .. })), "{drill}");
        assert_eq!(weights(&hit), weights(&plain), "{drill}");
    }
}

#[test]
fn running_out_of_memory_trains_in_parts_and_by_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, _) = Trial::new(folder.path()).run();
    let folder = tempfile::tempdir().unwrap();
    let drill = "out_of_memory:step=3,count=4";
    let (hit, heard) = Trial { drill, ..Trial::new(folder.path()) }.run();
    assert!(heard.iter().any(|event| matches!(event, TrainEvent::Recovery { .. })));
    assert!(
        (hit.test_loss - plain.test_loss).abs() < 1e-4,
        "{} {}",
        hit.test_loss,
        plain.test_loss
    );
}

#[test]
fn gradient_checkpointing_is_a_setting_and_changes_no_more_than_the_last_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, _) = Trial::new(folder.path()).run();
    let folder = tempfile::tempdir().unwrap();
    let flags = [("gradient_checkpointing", "yes")];
    let (saving, _) = Trial { flags: &flags, ..Trial::new(folder.path()) }.run();
    assert!((saving.test_loss - plain.test_loss).abs() < 1e-5);
}

#[test]
fn lines_that_can_not_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.jsonl");
    let refused = |line: &str| {
        let good = "{\"prompt\": \"a\", \"completion\": \" b\"}\n";
        std::fs::write(&path, format!("{good}\n{line}\n{good}")).unwrap();
        let text = format!(
            "{{data: {{kind: jsonl, path: {path:?}}}, steps: 1, model: {{kind: pretrained, path: {:?}}}}}",
            model_folder("llama-tiny")
        );
        let config = Config::parse(&text, &[]).unwrap();
        match data::open(&config.data, 1) {
            Ok(_) => panic!("{line} was taken"),
            Err(error) => error.to_string(),
        }
    };
    for (line, why) in [
        ("not json", "not a JSON object"),
        ("{\"prompt\": \"a\"}", "it has prompt"),
        ("{\"prompt\": \"a\", \"completion\": \"\"}", "completion is empty"),
        ("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", "no chat template"),
        ("[1, 2]", "not a JSON object"),
    ] {
        let told = refused(line);
        assert!(told.contains("bad.jsonl:3: ") && told.contains(why), "{line}: {told}");
    }
}

#[test]
fn chats_are_written_by_the_template_and_only_answers_are_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir(model_folder("llama-tiny")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    let template = "{% for m in messages %}{{ m.role }}{{ m.content }};{% endfor %}\
                    {% if add_generation_prompt %}assistant{% endif %}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let path = folder.path().join("chats.jsonl");
    let chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"yes\"}, \
                {\"role\": \"user\", \"content\": \"so\"}, {\"role\": \"assistant\", \"content\": \"no\"}]}\n";
    std::fs::write(&path, chat.repeat(4)).unwrap();
    let text = format!(
        "{{data: {{kind: jsonl, path: {path:?}, length: 200, pack: no}}, steps: 1, model: {{kind: pretrained, path: {model:?}}}}}"
    );
    let config = Config::parse(&text, &[]).unwrap();
    let set = data::open(&config.data, 1).unwrap();
    let Ok(data::Sample::Sequences { tokens, targets, .. }) = set.train.read(0) else { panic!() };
    let texts = surefoot_models::generate::text::Texts::open(&model, 256).unwrap();
    let whole: String = tokens.iter().map(|id| texts.spell(*id).unwrap()).collect();
    assert_eq!(whole, "userhi;assistantyes;userso;assistantno;");
    let wanted = targets.iter().filter(|target| **target >= 0);
    let answers: String = wanted.map(|id| texts.spell(*id as u32).unwrap()).collect();
    // Tokens may reach over the border between the template and an answer.
    assert!(answers.contains("yes;") && answers.contains("no;"), "{answers}");
    assert!(!answers.contains("user") && !answers.contains("hi"), "{answers}");
}
