//! Where everything lies while a convolution runs.
//!
//! A few samples are worked on at once, so few that they stay in a core's cache; how many depends
//! on the shapes alone, so that sums come out the same with any number of threads. Their padded
//! planes lie one after the other as if they were one tall image. With a stride, a plane is kept
//! as its phases: the pixels whose row and column leave the same remainders.
//!
//! Neighbours share their padding: the zeros before a row are those behind the row above it, and the rows of zeros before a plane
//! those behind the plane before it. So a plane of 8 × 8 with a padding of 1 takes 9 × 9 positions.

use super::kernel::{BLOCK, STRIP};

/// The sizes of a convolution. None but the padding is 0, and the padded image is no smaller than the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Images.
    pub samples: usize,
    /// Channels of an image.
    pub inputs: usize,
    /// Channels of a result.
    pub outputs: usize,
    /// Rows and columns of an image.
    pub image: [usize; 2],
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Pixels from one position of the kernel to the next, along both axes.
    pub stride: usize,
    /// Zeros before and behind each row and column of the image.
    pub padding: usize,
}

/// Bytes of a core's cache that a chunk of samples may take.
const CACHE: usize = 512 << 10;

impl Sizes {
    /// Rows and columns of a result.
    pub fn out_image(&self) -> [usize; 2] {
        std::array::from_fn(|at| {
            (self.image[at] + 2 * self.padding - self.kernel[at]) / self.stride + 1
        })
    }

    pub(super) fn in_plane(&self) -> usize {
        self.image[0] * self.image[1]
    }

    pub(super) fn out_plane(&self) -> usize {
        let [rows, columns] = self.out_image();
        rows * columns
    }

    /// Weights of one output channel.
    pub(super) fn terms(&self) -> usize {
        self.inputs * self.kernel[0] * self.kernel[1]
    }

    /// Samples that are worked on at once.
    pub(super) fn chunk(&self) -> usize {
        let input = self.inputs * (self.in_plane() + self.image[0] + self.image[1]);
        let output = self.outputs * (self.out_plane() + self.image[0] + self.image[1]);
        (CACHE / 4 / (input + output)).clamp(1, 16)
    }
}

pub(super) fn padded_channels(channels: usize) -> usize {
    channels.next_multiple_of(BLOCK)
}

/// How the source of a correlation is laid out: `phases²` planes for each channel and sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    /// Phases along each axis.
    pub(super) phases: usize,
    /// Rows and columns of one plane.
    pub(super) rows: usize,
    pub(super) pitch: usize,
    /// Samples side by side.
    pub(super) samples: usize,
    /// How far from its position the last term of a sum is.
    pub(super) reach: usize,
}

impl Grid {
    pub(super) fn plane(&self) -> usize {
        self.rows * self.pitch
    }

    /// Positions of one channel, with room for whole strips.
    pub(super) fn positions(&self) -> usize {
        (self.samples * self.plane()).next_multiple_of(STRIP)
    }

    /// Where a channel's phase begins.
    pub(super) fn start(&self, channel: usize, phase: [usize; 2]) -> usize {
        let phase = phase[0] * self.phases + phase[1];
        (channel * self.phases * self.phases + phase) * self.samples * self.plane()
    }

    /// Numbers in all, with room to read strips past the end.
    pub(super) fn length(&self, channels: usize) -> usize {
        self.start(channels, [0, 0]) + self.reach + STRIP
    }
}

/// The source of the forward pass, and of the weights' gradient: the padded input.
pub(super) fn input_grid(sizes: &Sizes, samples: usize) -> Grid {
    let out = sizes.out_image();
    let padded = |at: usize| match sizes.stride {
        // Reads beyond a line meet the padding of the next, if that is as wide as a line's own.
        1 => (sizes.image[at] + sizes.padding).max(out[at]),
        // A phase may have padding on one side only.
        stride => (sizes.image[at] + 2 * sizes.padding).div_ceil(stride),
    };
    let [down, right]: [usize; 2] = std::array::from_fn(|at| (sizes.kernel[at] - 1) / sizes.stride);
    let (rows, pitch) = (padded(0), padded(1));
    Grid { phases: sizes.stride, rows, pitch, samples, reach: down * pitch + right }
}

/// For each term of an output channel, where its value for position 0 lies.
pub(super) fn input_offsets(sizes: &Sizes, grid: &Grid) -> Vec<usize> {
    let stride = sizes.stride;
    let mut offsets = Vec::with_capacity(sizes.terms());
    for channel in 0..sizes.inputs {
        for row in 0..sizes.kernel[0] {
            for column in 0..sizes.kernel[1] {
                let start = grid.start(channel, [row % stride, column % stride]);
                offsets.push(start + row / stride * grid.pitch + column / stride);
            }
        }
    }
    offsets
}

/// Lays samples of the input out. `source` must be zero where nothing is written.
pub(super) fn place_input(sizes: &Sizes, grid: &Grid, input: &[f32], source: &mut [f32]) {
    let ([_, width], stride, padding) = (sizes.image, sizes.stride, sizes.padding);
    let planes = input.chunks_exact(sizes.in_plane()).enumerate();
    for (at, plane) in planes {
        let (sample, channel) = (at / sizes.inputs, at % sizes.inputs);
        for (row, values) in plane.chunks_exact(width).enumerate() {
            let row = row + padding;
            let line = sample * grid.plane() + row / stride * grid.pitch;
            if stride == 1 {
                let start = grid.start(channel, [0, 0]) + line + padding;
                source[start..start + width].copy_from_slice(values);
                continue;
            }
            for phase in 0..stride {
                // The first column of the image that belongs to this phase.
                let first = (phase + stride - padding % stride) % stride;
                let start = grid.start(channel, [row % stride, phase]) + line;
                let start = start + (first + padding) / stride;
                let values = values.iter().skip(first).step_by(stride);
                for (slot, value) in source[start..].iter_mut().zip(values) {
                    *slot = *value;
                }
            }
        }
    }
}

/// Copies between an output `[sample][channel][row][column]` and rows of positions.
pub(super) fn for_each_out_row(
    sizes: &Sizes,
    grid: &Grid,
    samples: usize,
    mut visit: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>),
) {
    let [rows, columns] = sizes.out_image();
    let positions = grid.positions();
    for sample in 0..samples {
        for channel in 0..sizes.outputs {
            for row in 0..rows {
                let tight = ((sample * sizes.outputs + channel) * rows + row) * columns;
                let wide = channel * positions + sample * grid.plane() + row * grid.pitch;
                visit(tight..tight + columns, wide..wide + columns);
            }
        }
    }
}

/// Weights in blocks of output channels: in each block the terms, in each the channels.
pub(super) fn pack(rows: usize, terms: usize, weight: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let mut packed = vec![0.0; padded_channels(rows) * terms];
    for row in 0..rows {
        for term in 0..terms {
            packed[(row / BLOCK * terms + term) * BLOCK + row % BLOCK] = weight(row, term);
        }
    }
    packed
}

/// How the input's gradient is computed: for each phase of the input a correlation of the padded
/// output gradient with the taps that reach that phase.
pub(super) struct InputGradient {
    pub(super) grid: Grid,
    /// Rows and columns of zeros before the first of the gradient.
    before: [usize; 2],
    /// Rows and columns of the input, in strides, that come before the first position: they are padding.
    skipped: usize,
    pub(super) phases: Vec<Phase>,
}

pub(super) struct Phase {
    at: [usize; 2],
    pub(super) offsets: Vec<usize>,
    pub(super) weights: Vec<f32>,
}

impl InputGradient {
    pub(super) fn new(sizes: &Sizes, samples: usize, weights: &[f32]) -> Self {
        let (stride, padding) = (sizes.stride, sizes.padding);
        let skipped = padding / stride;
        let out = sizes.out_image();
        let before: [usize; 2] =
            std::array::from_fn(|at| ((sizes.kernel[at] - 1) / stride).saturating_sub(skipped));
        // The last position reads so far at most, and meets the zeros before the next line if that is no further than a line is long.
        let positions = |at: usize| (sizes.image[at] - 1 + padding) / stride + 1;
        let lines = |at: usize| (before[at] + out[at]).max(positions(at));
        let (rows, pitch) = (lines(0), lines(1));
        let reach = (skipped + before[0]) * pitch + skipped + before[1];
        let grid = Grid { phases: 1, rows, pitch, samples, reach };
        let area = sizes.kernel[0] * sizes.kernel[1];
        let mut phases = Vec::new();
        for row in 0..stride {
            for column in 0..stride {
                let taps: Vec<[usize; 2]> = (row..sizes.kernel[0])
                    .step_by(stride)
                    .flat_map(|y| (column..sizes.kernel[1]).step_by(stride).map(move |x| [y, x]))
                    .collect();
                if taps.is_empty() {
                    continue;
                }
                let far = |at: usize, tap: usize| skipped + before[at] - tap / stride;
                let shift = |[y, x]: &[usize; 2]| far(0, *y) * grid.pitch + far(1, *x);
                let offsets = (0..sizes.outputs)
                    .flat_map(|channel| {
                        let start = grid.start(channel, [0, 0]);
                        taps.iter().map(move |tap| start + shift(tap))
                    })
                    .collect();
                let terms = sizes.outputs * taps.len();
                let weights = pack(sizes.inputs, terms, |input, term| {
                    let (output, [y, x]) = (term / taps.len(), taps[term % taps.len()]);
                    weights[(output * sizes.inputs + input) * area + y * sizes.kernel[1] + x]
                });
                phases.push(Phase { at: [row, column], offsets, weights });
            }
        }
        Self { grid, before, skipped, phases }
    }

    /// Lays samples of the output's gradient out. `source` must be zero elsewhere.
    pub(super) fn place(&self, sizes: &Sizes, gradient: &[f32], source: &mut [f32]) {
        let [rows, columns] = sizes.out_image();
        for (at, values) in gradient.chunks_exact(columns).enumerate() {
            let (plane, row) = (at / rows, at % rows);
            let (sample, channel) = (plane / sizes.outputs, plane % sizes.outputs);
            let start = self.grid.start(channel, [0, 0])
                + sample * self.grid.plane()
                + (row + self.before[0]) * self.grid.pitch
                + self.before[1];
            source[start..start + columns].copy_from_slice(values);
        }
    }

    /// Takes a phase's result into the input's gradient.
    pub(super) fn take(&self, sizes: &Sizes, phase: &Phase, result: &[f32], gradient: &mut [f32]) {
        let ([height, width], stride, padding) = (sizes.image, sizes.stride, sizes.padding);
        let first = |at: usize| (phase.at[at] + stride - padding % stride) % stride;
        let positions = self.grid.positions();
        for (at, plane) in gradient.chunks_exact_mut(height * width).enumerate() {
            let (sample, channel) = (at / sizes.inputs, at % sizes.inputs);
            for row in (first(0)..height).step_by(stride) {
                let line = channel * positions
                    + sample * self.grid.plane()
                    + ((row + padding) / stride - self.skipped) * self.grid.pitch;
                let start = line + (first(1) + padding) / stride - self.skipped;
                let values = &mut plane[row * width..][..width];
                if stride == 1 {
                    values.copy_from_slice(&result[start..start + width]);
                    continue;
                }
                for (slot, value) in
                    values.iter_mut().skip(first(1)).step_by(stride).zip(&result[start..])
                {
                    *slot = *value;
                }
            }
        }
    }
}
