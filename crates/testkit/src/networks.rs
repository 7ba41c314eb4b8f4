//! Small networks whose forward takes numbers and gives numbers, for tests with many callers.

use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, Tensor, TensorData};

/// A network with weights on one device, shared by all threads.
#[derive(Clone, Debug)]
pub enum Network {
    /// Three linear layers.
    Mlp(Mlp),
    /// Two convolutions over a sequence.
    Conv(Conv),
    /// A transformer block: norms, attention, two linear layers.
    Block(Box<Block>),
}

/// Three linear layers.
#[derive(Module, Debug)]
pub struct Mlp {
    first: Linear,
    second: Linear,
    third: Linear,
}

/// Two convolutions over a sequence.
#[derive(Module, Debug)]
pub struct Conv {
    first: Conv1d,
    second: Conv1d,
}

/// A transformer block.
#[derive(Module, Debug)]
pub struct Block {
    before_attention: LayerNorm,
    attention: MultiHeadAttention,
    before_mlp: LayerNorm,
    up: Linear,
    down: Linear,
}

const MLP_INPUTS: usize = 256;
const CHANNELS: usize = 8;
const STEPS: usize = 64;
const WIDTH: usize = 64;
const TOKENS: usize = 16;

impl Network {
    /// Three linear layers, 256 numbers to 16.
    pub fn mlp(device: &Device) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&Device::flex());
        let [first, second, third] = [linear(MLP_INPUTS, 512), linear(512, 512), linear(512, 16)];
        Self::Mlp(Mlp { first, second, third }.to_device(device))
    }

    /// Two convolutions over 64 steps of 8 channels.
    pub fn conv(device: &Device) -> Self {
        let conv = |inputs, outputs| Conv1dConfig::new(inputs, outputs, 5).init(&Device::flex());
        Self::Conv(Conv { first: conv(CHANNELS, 16), second: conv(16, 4) }.to_device(device))
    }

    /// A transformer block over 16 tokens of width 64.
    pub fn block(device: &Device) -> Self {
        let host = Device::flex();
        let block = Block {
            before_attention: LayerNormConfig::new(WIDTH).init(&host),
            attention: MultiHeadAttentionConfig::new(WIDTH, 4).init(&host),
            before_mlp: LayerNormConfig::new(WIDTH).init(&host),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(&host),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(&host),
        };
        Self::Block(Box::new(block.to_device(device)))
    }

    /// The same weights on another device.
    pub fn to(self, device: &Device) -> Self {
        match self {
            Self::Mlp(mlp) => Self::Mlp(mlp.to_device(device)),
            Self::Conv(conv) => Self::Conv(conv.to_device(device)),
            Self::Block(block) => Self::Block(Box::new(block.to_device(device))),
        }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mlp(_) => "mlp",
            Self::Conv(_) => "conv",
            Self::Block(_) => "block",
        }
    }

    /// An input, another one for each seed.
    pub fn input(&self, seed: usize) -> Vec<f32> {
        let count = match self {
            Self::Mlp(_) => MLP_INPUTS,
            Self::Conv(_) => CHANNELS * STEPS,
            Self::Block(_) => TOKENS * WIDTH,
        };
        (0..count).map(|i| ((seed * 31 + 7) as f32 * 0.37 + i as f32 * 0.61).sin()).collect()
    }

    /// Brings the input to the device, computes, and reads the result.
    pub fn forward(&self, input: &[f32], device: &Device) -> Vec<f32> {
        let data = |shape: &[usize]| TensorData::new(input.to_vec(), shape.to_vec());
        let output = match self {
            Self::Mlp(mlp) => {
                let x = Tensor::<2>::from_data(data(&[1, MLP_INPUTS]), device);
                let x = relu(mlp.second.forward(relu(mlp.first.forward(x))));
                mlp.third.forward(x).into_data()
            }
            Self::Conv(conv) => {
                let x = Tensor::<3>::from_data(data(&[1, CHANNELS, STEPS]), device);
                conv.second.forward(relu(conv.first.forward(x))).into_data()
            }
            Self::Block(block) => {
                let x = Tensor::<3>::from_data(data(&[1, TOKENS, WIDTH]), device);
                let attended = block.before_attention.forward(x.clone());
                let x = x + block.attention.forward(MhaInput::self_attn(attended)).context;
                let wide = gelu(block.up.forward(block.before_mlp.forward(x.clone())));
                (x + block.down.forward(wide)).into_data()
            }
        };
        output.try_to_vec().expect("the networks compute in fp32")
    }
}
