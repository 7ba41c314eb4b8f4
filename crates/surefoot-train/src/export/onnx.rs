//! An MLP or CNN as an ONNX graph (opset 17).
//!
//! The graph takes what `surefoot predict` reads (a table's numbers, or pixels from 0 to 1) and
//! normalises it itself. Its outputs are `logits` and `probabilities`, or `prediction` for numbers.
//! The metadata `surefoot.classes` and `surefoot.columns` hold names as JSON arrays.

use prost::Message as _;
use serde_json::json;

use super::onnx_proto::{
    Attribute, Dimension, Entry, FLOAT, FLOAT_ATTRIBUTE, Graph, INT_ATTRIBUTE, INT64,
    INTS_ATTRIBUTE, Model, Node, OperatorSet, Size, Tensor, TensorShape, TensorType, Type,
    ValueInfo,
};
use super::{ExportError, Trained};
use crate::config::ModelConfig;
use crate::data::Form;

/// The epsilon of Burn's group norms, and the groups that the model makes them with.
const EPSILON: f32 = 1e-5;
const GROUPS: i64 = 8;
/// The name of the graph's input.
const INPUT: &str = "input";

/// A graph that is being written: each operation adds a node and returns the name of its result.
struct Writer<'a> {
    trained: &'a Trained,
    graph: Graph,
}

/// An image's size on its way through the network.
#[derive(Clone, Copy)]
struct Extent {
    channels: usize,
    height: usize,
    width: usize,
}

/// The bytes of the file.
pub(super) fn file(trained: &Trained) -> Result<Vec<u8>, ExportError> {
    let mut writer = Writer { trained, graph: Graph::default() };
    writer.write()?;
    let data = &trained.data;
    let mut metadata_props = vec![
        entry("surefoot.input", input_in_words(data.form)),
        entry("surefoot.classes", json!(data.classes).to_string()),
    ];
    if !data.columns.is_empty() {
        metadata_props.push(entry("surefoot.columns", json!(data.columns).to_string()));
    }
    let model = Model {
        ir_version: 8,
        producer_name: "surefoot".to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        doc_string: input_in_words(data.form),
        graph: Some(writer.graph),
        opset_import: vec![OperatorSet { domain: String::new(), version: 17 }],
        metadata_props,
    };
    Ok(model.encode_to_vec())
}

fn entry(key: &str, value: String) -> Entry {
    Entry { key: key.to_owned(), value }
}

fn input_in_words(form: Form) -> String {
    match form {
        Form::Dense { channels, height: 1, width: 1, .. } => {
            format!("{channels} numbers a row, in the order of surefoot.columns, not normalised")
        }
        Form::Dense { channels, height, width, .. } => format!(
            "{channels}x{height}x{width} pixels, channels first, from 0 to 1, not normalised"
        ),
        Form::Text { .. } | Form::Sequences { .. } => "tokens".to_owned(),
    }
}

impl Writer<'_> {
    fn write(&mut self) -> Result<(), ExportError> {
        let extent = match self.trained.data.form {
            Form::Dense { channels, height, width, .. } => Extent { channels, height, width },
            Form::Text { length, .. } | Form::Sequences { length, .. } => {
                Extent { channels: 1, height: 1, width: length }
            }
        };
        let is_image = extent.height * extent.width > 1;
        let sizes: Vec<usize> = match is_image {
            true => vec![extent.channels, extent.height, extent.width],
            false => vec![extent.channels],
        };
        self.graph.name = "surefoot".to_owned();
        self.graph.input.push(value_info(INPUT, &sizes));
        let x = self.normalised(is_image);
        let outputs = match &self.trained.config.model {
            ModelConfig::Cnn { stages, .. } => self.cnn(x, extent, is_image, *stages)?,
            ModelConfig::Mlp { hidden } => {
                let flat = self.flattened(x);
                self.mlp(flat, hidden.len() + 1)?
            }
            ModelConfig::Gpt { .. } | ModelConfig::Pretrained(_) => x,
        };
        self.name_outputs(outputs);
        Ok(())
    }

    /// `(input - mean) * scale`, for each channel.
    fn normalised(&mut self, is_image: bool) -> String {
        let normalisation = self.trained.data.normalisation.clone();
        let dims: Vec<usize> = match is_image {
            true => vec![1, normalisation.mean.len(), 1, 1],
            false => vec![1, normalisation.mean.len()],
        };
        let mean = self.constant("input.mean", &dims, &normalisation.mean);
        let scale = self.constant("input.scale", &dims, &normalisation.scale);
        let centred = self.node("Sub", "input.centred", vec![INPUT.to_owned(), mean], vec![]);
        self.node("Mul", "input.normalised", vec![centred, scale], vec![])
    }

    fn flattened(&mut self, x: String) -> String {
        self.node("Flatten", "flat", vec![x], vec![int("axis", 1)])
    }

    fn mlp(&mut self, mut x: String, layers: usize) -> Result<String, ExportError> {
        for layer in 0..layers {
            x = self.linear(&format!("layers.{layer}"), x)?;
            if layer + 1 < layers {
                x = self.node("Relu", &format!("layers.{layer}.relu"), vec![x], vec![]);
            }
        }
        Ok(x)
    }

    fn cnn(
        &mut self,
        x: String,
        extent: Extent,
        is_image: bool,
        stages: usize,
    ) -> Result<String, ExportError> {
        let x = match is_image {
            true => x,
            false => self.reshaped("input.image", x, &[0, extent.channels as i64, 1, 1]),
        };
        let (mut x, mut extent) = self.unit("stem", x, extent, 1, None, true)?;
        for stage in 0..stages {
            let stride = if stage == 0 { 1 } else { 2 };
            let name = |unit: &str| format!("blocks.{stage}.{unit}");
            let has_own_way = self.trained.tensor(&name("around.conv.weight")).is_ok();
            let around = match has_own_way {
                true => self.unit(&name("around"), x.clone(), extent, stride, None, false)?.0,
                false => x.clone(),
            };
            let (first, inner) = self.unit(&name("first"), x, extent, stride, None, true)?;
            (x, extent) = self.unit(&name("second"), first, inner, 1, Some(around), true)?;
        }
        let pooled = self.node("GlobalAveragePool", "pooled", vec![x], vec![]);
        let flat = self.flattened(pooled);
        self.linear("head", flat)
    }

    /// A convolution, its group norm, what is added, and ReLU.
    fn unit(
        &mut self,
        name: &str,
        x: String,
        extent: Extent,
        stride: usize,
        added: Option<String>,
        relu: bool,
    ) -> Result<(String, Extent), ExportError> {
        let (dims, numbers) = self.trained.tensor(&format!("{name}.conv.weight"))?;
        let (channels, kernel) = (dims[0], dims[2]);
        let (dims, numbers) = (dims.to_vec(), numbers.to_vec());
        let padding = kernel / 2;
        let weight = self.constant(&format!("{name}.conv.weight"), &dims, &numbers);
        let attributes = vec![
            ints("kernel_shape", &[kernel, kernel]),
            ints("strides", &[stride, stride]),
            ints("pads", &[padding; 4]),
        ];
        let x = self.node("Conv", &format!("{name}.conv"), vec![x, weight], attributes);
        let size = |size: usize| (size + 2 * padding - kernel) / stride + 1;
        let extent = Extent { channels, height: size(extent.height), width: size(extent.width) };
        let mut x = self.group_norm(name, x, extent)?;
        if let Some(added) = added {
            x = self.node("Add", &format!("{name}.sum"), vec![x, added], vec![]);
        }
        if relu {
            x = self.node("Relu", &format!("{name}.relu"), vec![x], vec![]);
        }
        Ok((x, extent))
    }

    /// Normalises groups of channels as instances, which every runtime has; then scales and shifts
    /// each channel.
    fn group_norm(&mut self, name: &str, x: String, extent: Extent) -> Result<String, ExportError> {
        let grouped = self.reshaped(&format!("{name}.grouped"), x, &[0, GROUPS, -1]);
        let ones =
            self.constant(&format!("{name}.ones"), &[GROUPS as usize], &[1.0; GROUPS as usize]);
        let zeros =
            self.constant(&format!("{name}.zeros"), &[GROUPS as usize], &[0.0; GROUPS as usize]);
        let inputs = vec![grouped, ones, zeros];
        let epsilon = vec![float("epsilon", EPSILON)];
        let normed = self.node("InstanceNormalization", &format!("{name}.normed"), inputs, epsilon);
        let Extent { channels, height, width } = extent;
        let shape = [0, channels as i64, height as i64, width as i64];
        let x = self.reshaped(&format!("{name}.image"), normed, &shape);
        let dims = [1, channels, 1, 1];
        let gamma = self.trained.tensor(&format!("{name}.norm.gamma"))?.1.to_vec();
        let beta = self.trained.tensor(&format!("{name}.norm.beta"))?.1.to_vec();
        let gamma = self.constant(&format!("{name}.norm.gamma"), &dims, &gamma);
        let beta = self.constant(&format!("{name}.norm.beta"), &dims, &beta);
        let scaled = self.node("Mul", &format!("{name}.scaled"), vec![x, gamma], vec![]);
        Ok(self.node("Add", &format!("{name}.shifted"), vec![scaled, beta], vec![]))
    }

    fn linear(&mut self, name: &str, x: String) -> Result<String, ExportError> {
        let mut inputs = vec![x];
        for part in ["weight", "bias"] {
            let name = format!("{name}.{part}");
            let (dims, numbers) = self.trained.tensor(&name)?;
            let (dims, numbers) = (dims.to_vec(), numbers.to_vec());
            inputs.push(self.constant(&name, &dims, &numbers));
        }
        Ok(self.node("Gemm", name, inputs, vec![]))
    }

    fn name_outputs(&mut self, outputs: String) {
        let count = self.trained.data.form.outputs();
        match self.trained.data.target.clone() {
            Some(target) => {
                let scale = self.constant("target.scale", &[1, 1], &target.scale);
                let mean = self.constant("target.mean", &[1, 1], &target.mean);
                let scaled = self.node("Div", "target.scaled", vec![outputs, scale], vec![]);
                self.named_node("Add", "prediction", vec![scaled, mean], vec![]);
                self.graph.output.push(value_info("prediction", &[count]));
            }
            None => {
                self.named_node("Identity", "logits", vec![outputs.clone()], vec![]);
                self.named_node("Softmax", "probabilities", vec![outputs], vec![int("axis", 1)]);
                self.graph.output.push(value_info("logits", &[count]));
                self.graph.output.push(value_info("probabilities", &[count]));
            }
        }
    }

    fn reshaped(&mut self, name: &str, x: String, shape: &[i64]) -> String {
        let shape_name = format!("{name}.shape");
        self.graph.initializer.push(Tensor {
            dims: vec![shape.len() as i64],
            data_type: INT64,
            name: shape_name.clone(),
            raw_data: shape.iter().flat_map(|size| size.to_le_bytes()).collect(),
        });
        self.node("Reshape", name, vec![x, shape_name], vec![])
    }

    fn constant(&mut self, name: &str, dims: &[usize], numbers: &[f32]) -> String {
        self.graph.initializer.push(Tensor {
            dims: dims.iter().map(|size| *size as i64).collect(),
            data_type: FLOAT,
            name: name.to_owned(),
            raw_data: numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        });
        name.to_owned()
    }

    /// Adds an operation whose result is called after it.
    fn node(
        &mut self,
        operation: &str,
        name: &str,
        inputs: Vec<String>,
        attributes: Vec<Attribute>,
    ) -> String {
        let result = format!("{name}.result");
        self.add(operation, name, &result, inputs, attributes);
        result
    }

    /// Adds an operation whose result has its own name.
    fn named_node(
        &mut self,
        operation: &str,
        name: &str,
        inputs: Vec<String>,
        attributes: Vec<Attribute>,
    ) {
        self.add(operation, name, name, inputs, attributes);
    }

    fn add(
        &mut self,
        operation: &str,
        name: &str,
        result: &str,
        input: Vec<String>,
        attribute: Vec<Attribute>,
    ) {
        self.graph.node.push(Node {
            input,
            output: vec![result.to_owned()],
            name: name.to_owned(),
            op_type: operation.to_owned(),
            attribute,
        });
    }
}

/// A value with any number of samples.
fn value_info(name: &str, sizes: &[usize]) -> ValueInfo {
    let samples = Dimension { value: Some(Size::Named("samples".to_owned())) };
    let known = |size: &usize| Dimension { value: Some(Size::Known(*size as i64)) };
    let dim = std::iter::once(samples).chain(sizes.iter().map(known)).collect();
    let tensor = TensorType { elem_type: FLOAT, shape: Some(TensorShape { dim }) };
    ValueInfo { name: name.to_owned(), r#type: Some(Type { tensor_type: Some(tensor) }) }
}

fn float(name: &str, value: f32) -> Attribute {
    Attribute { name: name.to_owned(), f: value, r#type: FLOAT_ATTRIBUTE, ..Attribute::default() }
}

fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.to_owned(), i: value, r#type: INT_ATTRIBUTE, ..Attribute::default() }
}

fn ints(name: &str, values: &[usize]) -> Attribute {
    Attribute {
        name: name.to_owned(),
        ints: values.iter().map(|value| *value as i64).collect(),
        r#type: INTS_ATTRIBUTE,
        ..Attribute::default()
    }
}
