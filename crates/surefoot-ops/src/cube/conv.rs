//! Convolutions of images on Cube devices, where they lie: one launch for the result, and one for each gradient. Burn's copy images and
//! weights between layouts before and after each.
//!
//! The result and the gradient by the images are made alike: a unit makes one pixel of [`RESULTS`] channels, and the cube keeps the
//! weights of a run of channels in shared memory. Each pair of channels has a cube for its gradient of weights, whose units take
//! turns with the pixels; sums depend on the sizes alone.
//!
//! In mixed precision numbers are rounded to half precision as they are read, and added up in f32: nothing is cast in a launch of
//! its own.

use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::calculate_cube_count_elemwise;
use cubecl::ir::features::TypeUsage;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::launch::empty;
use super::product::{Four, float_kind};
use super::reduce::sum_of_units;
use crate::conv::{Convolution, Sizes};

/// Channels of which a unit makes a pixel, in fours.
const FOURS: usize = 2;
const RESULTS: usize = 4 * FOURS;
/// Channels whose weights are in shared memory at once.
const RUN: usize = 16;
/// Units of a cube that makes pixels, and of one that makes weights.
const UNITS: usize = 128;
const SUMMERS: usize = 256;
/// Numbers of a kernel at most: each has a sum of its own.
pub(crate) const MOST_TAPS: usize = 25;

/// What of a convolution is known when a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kernel {
    rows: usize,
    columns: usize,
    stride: usize,
    padding: usize,
    /// From the results to the images, for gradients.
    backwards: bool,
}

impl Kernel {
    fn of(sizes: &Sizes, backwards: bool) -> Self {
        let [rows, columns] = sizes.kernel;
        Self { rows, columns, stride: sizes.stride, padding: sizes.padding, backwards }
    }

    fn taps(&self) -> usize {
        self.rows * self.columns
    }
}

/// The channels and the sides of images.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Images {
    channels: u32,
    height: u32,
    width: u32,
}

/// Where a tap reads along one side: backwards only what a stride hits. Beyond the end if there is nothing.
#[cube]
fn read_place(at: usize, #[comptime] tap: usize, side: usize, #[comptime] kernel: Kernel) -> usize {
    let mut place = side;
    if comptime!(kernel.backwards) {
        let shifted = at + comptime!(kernel.padding);
        if shifted >= tap {
            let from = shifted - tap;
            if from % comptime!(kernel.stride) == 0 {
                place = from / comptime!(kernel.stride);
            }
        }
    } else {
        let shifted = at * comptime!(kernel.stride) + tap;
        if shifted >= comptime!(kernel.padding) {
            place = shifted - comptime!(kernel.padding);
        }
    }
    place
}

/// A number as it is in `T`.
#[cube]
fn rounded<T: Float>(number: f32) -> f32 {
    f32::cast_from(T::cast_from(number))
}

/// Pixels of `out` from `source`.
#[cube(launch)]
fn correlate<T: Float>(
    source: &[f32],
    weight: &[f32],
    out: &mut [f32],
    from: Images,
    to: Images,
    samples: u32,
    #[comptime] kernel: Kernel,
    #[define(T)] _rounded: ElemType,
) {
    let taps = comptime!(kernel.taps());
    let (depth, results) = (from.channels as usize, to.channels as usize);
    let (from_height, from_width) = (from.height as usize, from.width as usize);
    let plane = to.height as usize * to.width as usize;
    let unit = UNIT_POS as usize;
    let position = CUBE_POS_X as usize * UNITS + unit;
    let first_result = CUBE_POS_Y as usize * RESULTS;
    let is_there = position < samples as usize * plane;
    let (sample, pixel) = (position / plane, position % plane);
    let (y, x) = (pixel / to.width as usize, pixel % to.width as usize);
    // Where each tap reads, the same in every channel: beyond the image if it does not.
    let from_plane = from_height * from_width;
    let mut places = Array::<usize>::new(taps);
    #[unroll]
    for tap in 0..taps {
        let row = read_place(y, comptime!(tap / kernel.columns), from_height, kernel);
        let column = read_place(x, comptime!(tap % kernel.columns), from_width, kernel);
        places[tap] = from_plane;
        if is_there && row < from_height && column < from_width {
            places[tap] = row * from_width + column;
        }
    }
    let mut sums = Array::<Four>::new(FOURS);
    #[unroll]
    for four in 0..FOURS {
        sums[four] = Four::new(0.0f32);
    }
    let mut weights = Shared::<[Four]>::new_slice(comptime!(RUN * taps * FOURS));
    let mut first = 0usize;
    while first < depth {
        let mut at = unit;
        while at < comptime!(RUN * taps * FOURS) {
            let (four, tap) = (at % FOURS, at / FOURS % taps);
            let channel = first + at / comptime!(FOURS * taps);
            let mut found = Four::new(0.0f32);
            #[unroll]
            for number in 0..4usize {
                let result = first_result + 4 * four + number;
                if channel < depth && result < results {
                    let mut pair = result * depth + channel;
                    if comptime!(kernel.backwards) {
                        pair = channel * results + result;
                    }
                    found.insert(number, rounded::<T>(weight[pair * taps + tap]));
                }
            }
            weights[at] = found;
            at += UNITS;
        }
        sync_cube();
        let last = (first + RUN).min(depth);
        for channel in first..last {
            let start = (sample * depth + channel) * from_plane;
            #[unroll]
            for tap in 0..taps {
                let mut number = 0.0f32;
                if places[tap] < from_plane {
                    number = rounded::<T>(source[start + places[tap]]);
                }
                #[unroll]
                for four in 0..FOURS {
                    let factors = weights[((channel - first) * taps + tap) * FOURS + four];
                    sums[four] = fma(Four::new(number), factors, sums[four]);
                }
            }
        }
        sync_cube();
        first += RUN;
    }
    #[unroll]
    for four in 0..FOURS {
        #[unroll]
        for number in 0..4usize {
            let result = first_result + comptime!(4 * four + number);
            if is_there && result < results {
                out[(sample * results + result) * plane + pixel] = sums[four].extract(number);
            }
        }
    }
}

/// The gradient by the weights of a pair of channels.
#[cube(launch)]
fn sums_of_pixels<T: Float>(
    image: &[f32],
    gradient: &[f32],
    out: &mut [f32],
    from: Images,
    to: Images,
    samples: u32,
    #[comptime] kernel: Kernel,
    #[define(T)] _rounded: ElemType,
) {
    let taps = comptime!(kernel.taps());
    let (inputs, outputs) = (from.channels as usize, to.channels as usize);
    let (height, width) = (from.height as usize, from.width as usize);
    let plane = to.height as usize * to.width as usize;
    let pair = CUBE_POS;
    if pair >= inputs * outputs {
        terminate!();
    }
    let (output, input) = (pair / inputs, pair % inputs);
    let mut sums = Array::<f32>::new(taps);
    #[unroll]
    for tap in 0..taps {
        sums[tap] = 0.0f32;
    }
    let mut position = UNIT_POS as usize;
    while position < samples as usize * plane {
        let (sample, pixel) = (position / plane, position % plane);
        let (y, x) = (pixel / to.width as usize, pixel % to.width as usize);
        let slope = rounded::<T>(gradient[(sample * outputs + output) * plane + pixel]);
        let start = (sample * inputs + input) * (height * width);
        #[unroll]
        for tap in 0..taps {
            let row = read_place(y, comptime!(tap / kernel.columns), height, kernel);
            let column = read_place(x, comptime!(tap % kernel.columns), width, kernel);
            if row < height && column < width {
                sums[tap] += slope * rounded::<T>(image[start + row * width + column]);
            }
        }
        position += SUMMERS;
    }
    #[unroll]
    for tap in 0..taps {
        let sum = sum_of_units(sums[tap], SUMMERS);
        if UNIT_POS == 0 {
            out[pair * taps + tap] = sum;
        }
    }
}

fn images(channels: usize, [height, width]: [usize; 2]) -> ImagesLaunch {
    ImagesLaunch::new(channels as u32, height as u32, width as u32)
}

/// What numbers are rounded to.
fn compute(of: &Convolution) -> ElemType {
    ElemType::Float(float_kind(of.compute).unwrap_or(FloatKind::F32))
}

/// Whether the kernels round to this dtype on the tensor's device.
pub(super) fn round_to(tensor: &CubeTensor, dtype: DType) -> bool {
    let usage = |kind| tensor.client.properties().type_usage(ElemType::Float(kind));
    dtype == DType::F32
        || float_kind(dtype).is_some_and(|kind| usage(kind).contains(TypeUsage::Conversion))
}

fn pixels(source: CubeTensor, weight: CubeTensor, of: &Convolution, backwards: bool) -> CubeTensor {
    let sizes = of.sizes;
    let (source, weight) = (into_contiguous(source), into_contiguous(weight));
    let (mut from, mut to) = ((sizes.inputs, sizes.image), (sizes.outputs, sizes.out_image()));
    if backwards {
        (from, to) = (to, from);
    }
    let (channels, [height, width]) = to;
    let out = empty(&source, Shape::new([sizes.samples, channels, height, width]));
    let client = source.client.clone();
    let positions = (sizes.samples * height * width).div_ceil(UNITS) as u32;
    correlate::launch(
        &client,
        CubeCount::Static(positions, channels.div_ceil(RESULTS) as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        source.into_buffer_arg(),
        weight.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        images(from.0, from.1),
        images(to.0, to.1),
        sizes.samples as u32,
        Kernel::of(&sizes, backwards),
        compute(of),
    );
    out
}

/// The result.
pub(super) fn forward(x: CubeTensor, weight: CubeTensor, of: &Convolution) -> CubeTensor {
    pixels(x, weight, of, false)
}

/// The gradient by the images.
pub(super) fn x_gradient(weight: CubeTensor, gradient: CubeTensor, of: &Convolution) -> CubeTensor {
    pixels(gradient, weight, of, true)
}

/// The gradient by the weights.
pub(super) fn weight_gradient(x: CubeTensor, gradient: CubeTensor, of: &Convolution) -> CubeTensor {
    let sizes = of.sizes;
    let (x, gradient) = (into_contiguous(x), into_contiguous(gradient));
    let [rows, columns] = sizes.kernel;
    let out = empty(&x, Shape::new([sizes.outputs, sizes.inputs, rows, columns]));
    let client = x.client.clone();
    let dim = CubeDim::new_1d(SUMMERS as u32);
    let count = calculate_cube_count_elemwise(&client, sizes.outputs * sizes.inputs * SUMMERS, dim);
    sums_of_pixels::launch(
        &client,
        count,
        dim,
        x.into_buffer_arg(),
        gradient.into_buffer_arg(),
        out.clone().into_buffer_arg(),
        images(sizes.inputs, sizes.image),
        images(sizes.outputs, sizes.out_image()),
        sizes.samples as u32,
        Kernel::of(&sizes, false),
        compute(of),
    );
    out
}
