//! Decoding one token: each block reads its weights once for one row, so memory bandwidth is the
//! limit. Weights are stored in the measured precision, as a server would store them.

use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Int, Tensor};
use surefoot::Fault;
use surefoot::device::OpenDevice;
use surefoot::fault::from_error;
use surefoot::place::Dtype;

use super::kernels::random;
use super::{Amount, Job};

const LAYERS: usize = 4;
const WIDTH: usize = 512;
const INNER: usize = 1408;
const HEADS: usize = 8;
const HEAD: usize = WIDTH / HEADS;
const VOCABULARY: usize = 8192;
/// Tokens that the cache holds.
const CONTEXT: usize = 128;

struct Block {
    qkv: Tensor<2>,
    out: Tensor<2>,
    gate_up: Tensor<2>,
    down: Tensor<2>,
    keys: Tensor<3>,
    values: Tensor<3>,
}

/// A decoder with a full cache.
pub(crate) struct Decode {
    embedding: Tensor<2>,
    blocks: Vec<Block>,
    head: Tensor<2>,
    token: i64,
    element: usize,
}

impl Decode {
    pub(crate) fn new(device: &OpenDevice, precision: Dtype) -> Self {
        let matrix = |rows, columns| random::<2>([rows, columns], device, precision);
        let cache = || random::<3>([HEADS, CONTEXT, HEAD], device, precision);
        let blocks = (0..LAYERS).map(|_| Block {
            qkv: matrix(WIDTH, 3 * WIDTH),
            out: matrix(WIDTH, WIDTH),
            gate_up: matrix(WIDTH, 2 * INNER),
            down: matrix(INNER, WIDTH),
            keys: cache(),
            values: cache(),
        });
        Self {
            blocks: blocks.collect(),
            embedding: matrix(VOCABULARY, WIDTH),
            head: matrix(WIDTH, VOCABULARY),
            token: 1,
            element: precision.size(),
        }
    }

    /// The next token. It is read each time, since it is the next input.
    fn step(&self) -> Result<i64, Fault> {
        let device = self.embedding.device();
        let token = Tensor::<1, Int>::from_ints([self.token as i32], &device);
        let mut x = self.embedding.clone().select(0, token);
        for block in &self.blocks {
            x = block.attend(x);
            x = block.feed_forward(x);
        }
        let next = norm(x).matmul(self.head.clone()).argmax(1);
        let read = next.try_into_data().map_err(|error| from_error("decode", error))?;
        Ok(read.iter::<i64>().next().unwrap_or_default())
    }
}

impl Block {
    fn attend(&self, x: Tensor<2>) -> Tensor<2> {
        let qkv = norm(x.clone()).matmul(self.qkv.clone()).reshape([3 * HEADS, 1, HEAD]);
        let part = |at: usize| qkv.clone().narrow(0, at * HEADS, HEADS);
        // The oldest entry of the cache is dropped, so every step does the same work.
        let keys = Tensor::cat(vec![self.keys.clone().narrow(1, 1, CONTEXT - 1), part(1)], 1);
        let values = Tensor::cat(vec![self.values.clone().narrow(1, 1, CONTEXT - 1), part(2)], 1);
        let scores = part(0).matmul(keys.swap_dims(1, 2)).div_scalar((HEAD as f32).sqrt());
        let seen = softmax(scores, 2).matmul(values);
        x + seen.reshape([1, WIDTH]).matmul(self.out.clone())
    }

    fn feed_forward(&self, x: Tensor<2>) -> Tensor<2> {
        let both = norm(x.clone()).matmul(self.gate_up.clone());
        let (gate, up) = (both.clone().narrow(1, 0, INNER), both.narrow(1, INNER, INNER));
        x + (silu(gate) * up).matmul(self.down.clone())
    }
}

/// RMS normalisation.
fn norm(x: Tensor<2>) -> Tensor<2> {
    let square = x.clone().mul(x.clone()).mean_dim(1);
    x.div(square.add_scalar(1e-4).sqrt())
}

impl Job for Decode {
    fn run(&mut self, repeats: u32) -> Result<(), Fault> {
        for _ in 0..repeats.max(1) {
            self.token = self.step()?.rem_euclid(VOCABULARY as i64);
        }
        Ok(())
    }

    fn amount(&self) -> Amount {
        let weights = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * INNER) + WIDTH * VOCABULARY;
        let cache = 2 * LAYERS * CONTEXT * WIDTH;
        let bytes = ((weights + cache) * self.element) as f64;
        Amount { count: 1.0, unit: "tokens/s", flops: None, bytes: Some(bytes) }
    }

    fn what(&self) -> String {
        format!("1 token behind {CONTEXT}, {LAYERS} blocks of {WIDTH}, {VOCABULARY} tokens")
    }
}
