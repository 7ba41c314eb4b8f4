//! Tiles of images at the points of the transform, and back.
//!
//! Images lie channel by channel; at the points the channels of a tile lie side by side, so that a product over channels reads rows. So
//! lines of an image are transposed, as many channels at a time as a vector holds, and transformed while they are in the first-level cache.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::transform::{POINTS, REACH, SIDE, inputs, output_gradient, outputs};
use crate::math::by_lanes;
use crate::processor::arch;

/// A vector of the widest sort; rows of channels are a multiple of it long.
const WIDEST: usize = 16;

/// For each point the tiles, in each tile the channels.
pub(super) struct Planes {
    pub(super) numbers: Vec<f32>,
    /// Numbers from one tile to the next.
    pub(super) pitch: usize,
    /// Numbers from one point to the next: a line of the cache more than the tiles take, so that the points of a tile don't all
    /// compete for the same places of a cache.
    plane: usize,
}

impl Planes {
    pub(super) fn new(tiles: usize, channels: usize) -> Self {
        let pitch = channels.next_multiple_of(WIDEST);
        let plane = tiles * pitch + WIDEST;
        Self { numbers: vec![0.0; POINTS * plane], pitch, plane }
    }

    pub(super) fn at(&self, point: usize) -> &[f32] {
        &self.numbers[point * self.plane..][..self.plane]
    }

    pub(super) fn at_mut(&mut self, point: usize) -> &mut [f32] {
        &mut self.numbers[point * self.plane..][..self.plane]
    }
}

/// Images that are cut into tiles.
#[derive(Clone, Copy)]
pub(super) struct Images {
    pub(super) channels: usize,
    pub(super) image: [usize; 2],
    /// Zeros before the first row and column.
    pub(super) padding: usize,
    /// Tiles down and across.
    pub(super) tiles: [usize; 2],
}

impl Images {
    #[inline(always)]
    fn plane(&self) -> usize {
        self.image[0] * self.image[1]
    }

    /// Numbers of memory for lines that [`InputTransform`] needs.
    pub(super) fn lines(&self) -> usize {
        2 * REACH * (self.tiles[1] * SIDE + REACH - SIDE) * WIDEST
    }

    /// Where a channel of a sample begins.
    #[inline(always)]
    fn start(&self, sample: usize, channel: usize) -> usize {
        (sample * self.channels + channel) * self.plane()
    }
}

/// The input transform of rows of tiles, counted through the samples: their values at the points. With `TAKEN` = 6 these are inputs and tiles overlap, with 4 they
/// are gradients of outputs.
pub(super) struct InputTransform<'a, const TAKEN: usize> {
    pub(super) images: Images,
    pub(super) numbers: &'a [f32],
    pub(super) rows: Range<usize>,
    /// As long as [`Images::lines`] says.
    pub(super) lines: &'a mut [f32],
    pub(super) planes: &'a mut Planes,
}

impl<const TAKEN: usize> InputTransform<'_, TAKEN> {
    pub(super) fn run(self) {
        arch().dispatch(self);
    }
}

impl<const TAKEN: usize> WithSimd for InputTransform<'_, TAKEN> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        by_lanes!(S, LANES => input_transform::<S, TAKEN, LANES>(simd, self))
    }
}

#[inline(always)]
fn load<S: Simd>(numbers: &[f32], at: usize) -> S::f32s {
    S::as_simd_f32s(&numbers[at..][..S::F32_LANES]).0[0]
}

#[inline(always)]
fn store<S: Simd>(numbers: &mut [f32], at: usize, vector: S::f32s) {
    S::as_mut_simd_f32s(&mut numbers[at..][..S::F32_LANES]).0[0] = vector;
}

#[inline(always)]
fn at_points<S: Simd, const TAKEN: usize>(simd: S, d: [S::f32s; TAKEN]) -> [S::f32s; REACH] {
    match TAKEN {
        REACH => inputs(simd, [d[0], d[1], d[2], d[3], d[4 % TAKEN], d[5 % TAKEN]]),
        _ => output_gradient(simd, [d[0], d[1], d[2], d[3]]),
    }
}

#[inline(always)]
fn input_transform<S: Simd, const TAKEN: usize, const LANES: usize>(
    simd: S,
    work: InputTransform<'_, TAKEN>,
) {
    let InputTransform { images, numbers, rows, lines, planes } = work;
    let [down, across] = images.tiles;
    let wide = across * SIDE + TAKEN - SIDE;
    let line = wide * LANES;
    let (lines, tall) = lines.split_at_mut(TAKEN * line);
    for channel in (0..images.channels).step_by(LANES) {
        for (nth, row) in rows.clone().enumerate() {
            let (sample, top) = (row / down, row % down * SIDE);
            // The rest is there from the row of tiles above it.
            let known = if nth == 0 || top == 0 { 0 } else { TAKEN - SIDE };
            let new = top + known..top + TAKEN;
            transpose_in::<S, TAKEN, LANES>(simd, &images, numbers, [sample, channel], new, lines);
            for x in (0..line).step_by(LANES) {
                let mut column = [simd.splat_f32s(0.0); TAKEN];
                for (y, value) in column.iter_mut().enumerate() {
                    *value = load::<S>(lines, (top + y) % TAKEN * line + x);
                }
                for (y, value) in at_points::<S, TAKEN>(simd, column).iter().enumerate() {
                    store::<S>(tall, y * line + x, *value);
                }
            }
            for x in 0..across {
                let tile = (nth * across + x) * planes.pitch + channel;
                for y in 0..REACH {
                    let mut values = [simd.splat_f32s(0.0); TAKEN];
                    for (at, value) in values.iter_mut().enumerate() {
                        *value = load::<S>(tall, y * line + (x * SIDE + at) * LANES);
                    }
                    let values = at_points::<S, TAKEN>(simd, values);
                    for (at, value) in values.iter().enumerate() {
                        let point = y * REACH + at;
                        store::<S>(&mut planes.numbers, point * planes.plane + tile, *value);
                    }
                }
            }
        }
    }
}

/// Lays rows of the padded image out with the channels of a pixel side by side. Row `y` is line `y % TAKEN`.
#[inline(always)]
fn transpose_in<S: Simd, const TAKEN: usize, const LANES: usize>(
    simd: S,
    images: &Images,
    numbers: &[f32],
    [sample, channel]: [usize; 2],
    rows: Range<usize>,
    lines: &mut [f32],
) {
    let ([height, width], padding) = (images.image, images.padding);
    let line = lines.len() / TAKEN;
    for row in rows.clone() {
        let to = &mut lines[row % TAKEN * line..][..line];
        if row < padding || row >= padding + height {
            to.fill(0.0);
        } else {
            to[..padding * LANES].fill(0.0);
            to[(padding + width) * LANES..].fill(0.0);
        }
    }
    let row = |at: usize| at.clamp(padding, padding + height) - padding;
    // Pixels of neighbouring rows follow each other, so that images may be narrower than a vector.
    let pixels = row(rows.start) * width..row(rows.end) * width;
    let mut at = [pixels.start / width.max(1), 0];
    for first in pixels.clone().step_by(LANES) {
        let count = LANES.min(pixels.end - first);
        let mut places = [0; LANES];
        for place in places.iter_mut().take(count) {
            *place = (at[0] + padding) % TAKEN * line + (at[1] + padding) * LANES;
            at = if at[1] + 1 == width { [at[0] + 1, 0] } else { [at[0], at[1] + 1] };
        }
        let mut square = [[0f32; LANES]; LANES];
        for quad in (0..LANES).step_by(4) {
            let mut channels = [simd.splat_f32s(0.0); 4];
            for (nth, values) in channels.iter_mut().enumerate() {
                if channel + quad + nth < images.channels {
                    let start = images.start(sample, channel + quad + nth) + first;
                    *values = load_or_end::<S, LANES>(numbers, start);
                }
            }
            for (column, values) in transposed(simd, channels).iter().enumerate() {
                for (nth, part) in parts::<S>(values).iter().enumerate() {
                    square[nth * 4 + column][quad..quad + 4].copy_from_slice(part);
                }
            }
        }
        for (pixel, place) in square.iter().zip(&places).take(count) {
            lines[*place..][..LANES].copy_from_slice(pixel);
        }
    }
}

/// Four vectors as squares of 4 × 4 numbers, each transposed.
#[inline(always)]
fn transposed<S: Simd>(simd: S, rows: [S::f32s; 4]) -> [S::f32s; 4] {
    simd.deinterleave_shfl_f32s(rows)
}

/// A vector in parts of four numbers.
#[inline(always)]
fn parts<S: Simd>(vector: &S::f32s) -> &[[f32; 4]] {
    pulp::bytemuck::cast_slice(std::slice::from_ref(vector))
}

/// A vector from there on, with zeros behind the last number.
#[inline(always)]
fn load_or_end<S: Simd, const LANES: usize>(numbers: &[f32], start: usize) -> S::f32s {
    match numbers.get(start..start + LANES) {
        Some(numbers) => load::<S>(numbers, 0),
        None => {
            let mut end = [0f32; LANES];
            let rest = &numbers[start..];
            end[..rest.len()].copy_from_slice(rest);
            load::<S>(&end, 0)
        }
    }
}

/// The output transform of rows of tiles: pixels from the values at the points.
pub(super) struct OutputTransform<'a> {
    pub(super) images: Images,
    pub(super) planes: &'a Planes,
    pub(super) rows: Range<usize>,
    pub(super) numbers: &'a mut [f32],
}

impl OutputTransform<'_> {
    pub(super) fn run(self) {
        arch().dispatch(self);
    }
}

impl WithSimd for OutputTransform<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        by_lanes!(S, LANES => output_transform::<S, LANES>(simd, self))
    }
}

#[inline(always)]
fn output_transform<S: Simd, const LANES: usize>(simd: S, work: OutputTransform<'_>) {
    let OutputTransform { images, planes, rows, numbers } = work;
    let ([down, across], [height, width]) = (images.tiles, images.image);
    for channel in (0..images.channels).step_by(LANES) {
        for (nth, row) in rows.clone().enumerate() {
            let (sample, top) = (row / down, row % down * SIDE);
            for x in 0..across {
                let tile = (nth * across + x) * planes.pitch + channel;
                let pixels = from_points(simd, planes, tile);
                let wide = SIDE.min(width - x * SIDE);
                for (y, pixels) in pixels.iter().enumerate().take(height - top) {
                    for (column, values) in transposed(simd, *pixels).iter().enumerate() {
                        for (quad, part) in parts::<S>(values).iter().enumerate() {
                            let channel = channel + quad * 4 + column;
                            if channel < images.channels {
                                let start = images.start(sample, channel) + (top + y) * width;
                                let to = &mut numbers[start + x * SIDE..];
                                match wide {
                                    SIDE => to[..SIDE].copy_from_slice(part),
                                    _ => to[..wide].copy_from_slice(&part[..wide]),
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The outputs of a tile, row by row.
#[inline(always)]
fn from_points<S: Simd>(simd: S, planes: &Planes, tile: usize) -> [[S::f32s; SIDE]; SIDE] {
    let mut narrow = [[simd.splat_f32s(0.0); SIDE]; REACH];
    for (y, narrow) in narrow.iter_mut().enumerate() {
        let mut values = [simd.splat_f32s(0.0); REACH];
        for (at, value) in values.iter_mut().enumerate() {
            let point = y * REACH + at;
            *value = load::<S>(&planes.numbers, point * planes.plane + tile);
        }
        *narrow = outputs(simd, values);
    }
    let mut pixels = [[simd.splat_f32s(0.0); SIDE]; SIDE];
    for at in 0..SIDE {
        let mut column = [simd.splat_f32s(0.0); REACH];
        for (value, narrow) in column.iter_mut().zip(&narrow) {
            *value = narrow[at];
        }
        for (pixels, value) in pixels.iter_mut().zip(outputs(simd, column)) {
            pixels[at] = value;
        }
    }
    pixels
}
