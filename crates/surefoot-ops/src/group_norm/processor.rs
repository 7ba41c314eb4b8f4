//! Group normalisation on the processor: a task takes whole samples.

use burn_flex::FlexTensor;
use rayon::prelude::*;
use surefoot_kernels::math::{TASK, change, each, fast, sums};

use super::GroupNorm;
use crate::flat;

/// The tensors, with their numbers side by side.
pub(super) struct Inputs {
    x: FlexTensor,
    gamma: FlexTensor,
    beta: FlexTensor,
    around: Option<FlexTensor>,
}

impl Inputs {
    pub(super) fn new(inputs: [FlexTensor; 3], around: Option<FlexTensor>) -> Self {
        let [x, gamma, beta] = inputs.map(flat::contiguous);
        Self { x, gamma, beta, around: around.map(flat::contiguous) }
    }

    /// Numbers of one channel, one group and one sample.
    fn sizes(&self, norm: GroupNorm) -> [usize; 3] {
        let [_, channels, rows, columns] = flat::dims(&self.x);
        let channel = rows * columns;
        [channel, channels / norm.groups * channel, channels * channel]
    }
}

/// The result, and for each group its mean and the inverse of its deviation.
pub(super) fn forward(inputs: &Inputs, norm: GroupNorm) -> (FlexTensor, Vec<f32>) {
    let [channel, group, sample] = inputs.sizes(norm);
    let x = flat::numbers(&inputs.x);
    let (gamma, beta) = (flat::numbers(&inputs.gamma), flat::numbers(&inputs.beta));
    let around = inputs.around.as_ref().map(flat::numbers);
    let mut out = vec![0.0; x.len()];
    let mut stats = vec![0.0; x.len() / group * 2];
    let at_once = (TASK / sample).max(1);
    out.par_chunks_mut(sample)
        .zip(stats.par_chunks_mut(norm.groups * 2))
        .enumerate()
        .with_min_len(at_once)
        .for_each(|(at, (out, stats))| {
            let x = &x[at * sample..][..sample];
            let around = around.map(|around| &around[at * sample..][..sample]);
            fast(
                #[inline(always)]
                || {
                    for (at, stats) in stats.chunks_exact_mut(2).enumerate() {
                        let x = &x[at * group..][..group];
                        let [sum] = sums([x], |[x]| [x]);
                        let mean = sum / group as f32;
                        let [square] = sums([x], |[x]| [(x - mean) * (x - mean)]);
                        let deviation = (square / group as f32 + norm.epsilon as f32).sqrt();
                        stats.copy_from_slice(&[mean, 1.0 / deviation]);
                    }
                    for (at, out) in out.chunks_exact_mut(channel).enumerate() {
                        let line = Line::new(at, at * channel / group, gamma, beta, stats);
                        let x = &x[at * channel..][..channel];
                        let cut = |y: f32| if norm.relu && y < 0.0 { 0.0 } else { y };
                        match around {
                            Some(around) => {
                                let around = &around[at * channel..][..channel];
                                each(out, [x, around], |[x, around]| cut(line.of(x) + around));
                            }
                            None => each(out, [x], |[x]| cut(line.of(x))),
                        }
                    }
                },
            );
        });
    (flat::shaped(out, inputs.x.layout().shape().clone()), stats)
}

/// What a channel's numbers go through.
#[derive(Clone, Copy)]
struct Line {
    mean: f32,
    inverse: f32,
    gamma: f32,
    scale: f32,
    shift: f32,
}

impl Line {
    #[inline(always)]
    fn new(channel: usize, group: usize, gamma: &[f32], beta: &[f32], stats: &[f32]) -> Self {
        let (mean, inverse) = (stats[2 * group], stats[2 * group + 1]);
        let scale = gamma[channel] * inverse;
        let shift = beta[channel] - mean * scale;
        Self { mean, inverse, gamma: gamma[channel], scale, shift }
    }

    #[inline(always)]
    fn of(self, x: f32) -> f32 {
        x * self.scale + self.shift
    }
}

/// The gradients by x, gamma, beta and the residual.
pub(super) fn backward(
    inputs: &Inputs,
    norm: GroupNorm,
    stats: &[f32],
    gradient: FlexTensor,
) -> [Option<FlexTensor>; 4] {
    let [_, _, sample] = inputs.sizes(norm);
    let x = flat::numbers(&inputs.x);
    let around = inputs.around.as_ref().map(flat::numbers);
    let channels = flat::numbers(&inputs.gamma).len();
    // The residual has the gradient that came through ReLU.
    let untouched = (around.is_some() && !norm.relu).then(|| gradient.clone());
    let mut through = vec![0.0; if around.is_some() && norm.relu { x.len() } else { 0 }];
    let keep = if through.is_empty() { 0 } else { sample };
    let mut kept: Vec<&mut [f32]> = match keep {
        0 => (0..x.len() / sample).map(|_| Default::default()).collect(),
        keep => through.chunks_mut(keep).collect(),
    };
    let mut of_channels = vec![0.0; x.len() / sample * channels * 2];
    let mut of_x = flat::owned(gradient);
    of_x.storage_mut::<f32>()
        .par_chunks_mut(sample)
        .zip(of_channels.par_chunks_mut(channels * 2))
        .zip(kept.par_iter_mut())
        .enumerate()
        .with_min_len((TASK / sample).max(1))
        .for_each(|(at, ((gradient, of_channels), kept))| {
            let stats = &stats[at * norm.groups * 2..][..norm.groups * 2];
            let x = &x[at * sample..][..sample];
            let around = around.map(|around| &around[at * sample..][..sample]);
            fast(
                #[inline(always)]
                || match around {
                    Some(around) => {
                        of_sample([x, around], inputs, norm, stats, gradient, of_channels, kept);
                    }
                    None => of_sample([x], inputs, norm, stats, gradient, of_channels, kept),
                },
            );
        });
    let mut of_gamma = vec![0.0; channels];
    let mut of_beta = vec![0.0; channels];
    for of_sample in of_channels.chunks_exact(channels * 2) {
        for (channel, sums) in of_sample.chunks_exact(2).enumerate() {
            of_beta[channel] += sums[0];
            of_gamma[channel] += sums[1];
        }
    }
    let shape = inputs.x.layout().shape().clone();
    let of_around = untouched.or((keep > 0).then(|| flat::shaped(through, shape)));
    let [of_gamma, of_beta] = [of_gamma, of_beta].map(|sums| flat::tensor(sums, [channels]));
    [Some(of_x), Some(of_gamma), Some(of_beta), of_around]
}

/// Whether ReLU let a number through. `numbers` are the input and, if there is one, what goes
/// around.
#[inline(always)]
fn is_open<const K: usize>(line: Line, relu: bool, numbers: [f32; K]) -> bool {
    let around = numbers.get(1).copied().unwrap_or(0.0);
    !relu || line.of(numbers[0]) + around > 0.0
}

/// Turns a sample's gradient into the one by its input, and sums it up for each channel.
#[inline(always)]
fn of_sample<const K: usize>(
    slices: [&[f32]; K],
    inputs: &Inputs,
    norm: GroupNorm,
    stats: &[f32],
    gradient: &mut [f32],
    of_channels: &mut [f32],
    kept: &mut [f32],
) {
    let [channel, group, _] = inputs.sizes(norm);
    let (gamma, beta) = (flat::numbers(&inputs.gamma), flat::numbers(&inputs.beta));
    let each_group = group / channel;
    for (at, sums_of) in of_channels.chunks_exact_mut(2).enumerate() {
        let line = Line::new(at, at / each_group, gamma, beta, stats);
        let slices = slices.map(|slice| &slice[at * channel..][..channel]);
        let gradient = &mut gradient[at * channel..][..channel];
        change(
            gradient,
            slices,
            |gradient, numbers| {
                if is_open(line, norm.relu, numbers) { gradient } else { 0.0 }
            },
        );
        let found = sums([slices[0], &*gradient], |[x, gradient]| {
            [gradient, gradient * ((x - line.mean) * line.inverse)]
        });
        sums_of.copy_from_slice(&found);
    }
    if !kept.is_empty() {
        kept.copy_from_slice(gradient);
    }
    for (at, gradient) in gradient.chunks_exact_mut(group).enumerate() {
        let [mut mean, mut slope] = [0.0; 2];
        for channel in at * each_group..(at + 1) * each_group {
            mean += gamma[channel] * of_channels[2 * channel];
            slope += gamma[channel] * of_channels[2 * channel + 1];
        }
        let (mean, slope) = (mean / group as f32, slope / group as f32);
        for (within, gradient) in gradient.chunks_exact_mut(channel).enumerate() {
            let number = at * each_group + within;
            let line = Line::new(number, at, gamma, beta, stats);
            change(gradient, [&slices[0][number * channel..][..channel]], |gradient, [x]| {
                let normal = (x - line.mean) * line.inverse;
                line.inverse * (gradient * line.gamma - mean - normal * slope)
            });
        }
    }
}
