//! The kernels of [`super::product`]: a cube makes a tile of the result.
//!
//! Its units bring a run of both operands into shared memory, in which lines lie side by side, and each adds up eight rows by
//! eight columns of the tile in registers. While they do, the next run is on its way, and where shared memory has room for two
//! runs it is put beside the one that is added up, so that units wait for each other once a run. Numbers are read and written in
//! fours. Lines beyond the operands' are read as the last one, and what is made of them is not written.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

/// Numbers that lie side by side.
pub(in crate::cube) type Four = Vector<f32, Const<4>>;

/// Rows of a tile. It has [`NARROW`] or [`WIDE`] columns.
pub(super) const ROWS: usize = 128;
pub(super) const NARROW: usize = 64;
pub(super) const WIDE: usize = 128;
/// How many numbers of each line are in shared memory at once.
pub(super) const DEPTH: usize = 16;
/// Units that bring the left side's part of a tile into shared memory, in blocks of 4 × 4 numbers.
const BRINGERS: usize = ROWS * DEPTH / 16;

/// How a tile is made: its columns, and how many runs are kept in shared memory, one or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    pub(super) columns: usize,
    pub(super) kept: usize,
}

impl Tile {
    /// The tile for a device with so many bytes of shared memory.
    pub(super) const fn new(columns: usize, shared: usize) -> Self {
        let run = (ROWS + columns) * DEPTH * size_of::<f32>();
        Self { columns, kept: if shared >= 2 * run { 2 } else { 1 } }
    }
}

/// Units of a cube whose tile has so many columns: each takes 8 × 8 numbers of it.
pub(super) const fn units(columns: usize) -> usize {
    ROWS * columns / 64
}

/// Where a matrix of a batch lies in its buffer, counted in fours: where the first begins, how far it is from one line to the
/// next, and from one matrix to the next by the outer and by the inner dimension of the batch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Place {
    first: u32,
    pub(super) line: u32,
    outer: u32,
    inner: u32,
}

#[cube]
impl Place {
    /// Where the matrix of this cube begins.
    pub(super) fn start(&self, count: u32) -> usize {
        let (outer, inner) = (CUBE_POS_Z / count, CUBE_POS_Z % count);
        (self.first + outer * self.outer + inner * self.inner) as usize
    }
}

/// The sizes of a product, and how many matrices the inner dimension of the batch has.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Sizes {
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) depth: u32,
    pub(super) count: u32,
}

/// What of a product causal attention leaves out, whose sizes are tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::cube) enum Causal {
    /// Nothing.
    All,
    /// Columns behind the row: nobody reads them, and tiles that have no others are not written.
    ColumnsBehind,
    /// Depth behind the row, where the left side is 0.
    DepthBehind,
    /// Depth before the row, where the left side is 0.
    DepthBefore,
}

/// Reads four lines by four numbers of a run: `block` counts fours of lines, `run` fours of numbers.
#[cube]
fn read(
    from: &[Four],
    start: usize,
    line: usize,
    lines: usize,
    block: usize,
    run: usize,
    found: &mut Array<Four>,
    #[comptime] along: bool,
) {
    #[unroll]
    for at in 0..4usize {
        if comptime!(along) {
            let number = (4 * block + at).min(lines - 1);
            found[at] = from[start + number * line + run];
        } else {
            let fours = block.min(lines / 4 - 1);
            found[at] = from[start + (4 * run + at) * line + fours];
        }
    }
}

/// Puts what was read into a run in shared memory that begins at `start`, so that the same number of four lines makes a four.
#[cube]
fn put(
    found: &Array<Four>,
    to: &mut Shared<[Four]>,
    start: usize,
    block: usize,
    run: usize,
    #[comptime] fours: usize,
    #[comptime] along: bool,
) {
    #[unroll]
    for at in 0..4usize {
        let place = start + (4 * run + at) * fours + block;
        if comptime!(along) {
            let mut turned = Four::new(0.0f32);
            #[unroll]
            for line in 0..4usize {
                turned.insert(line, found[line].extract(at));
            }
            to[place] = turned;
        } else {
            to[place] = found[at];
        }
    }
}

/// The numbers of the tile that this unit makes: eight rows of two fours. If columns are summed, one more four, of units that bring of the
/// right side, whose lines lie side by side: the sums of the columns that they bring of, in those that bring the first run.
#[cube]
fn of_tile(
    left: &[Four],
    right: &[Four],
    left_place: &Place,
    right_place: &Place,
    sizes: &Sizes,
    #[comptime] left_along: bool,
    #[comptime] right_along: bool,
    #[comptime] tile: Tile,
    #[comptime] summed: bool,
    #[comptime] causal: Causal,
) -> Array<Four> {
    let unit = UNIT_POS as usize;
    let wide = comptime!(tile.columns);
    // Fours of a run of each side.
    let left_run = ROWS * DEPTH / 4;
    let right_run = comptime!(wide * DEPTH / 4);
    let mut left_tile = Shared::<[Four]>::new_slice(comptime!(ROWS * DEPTH / 4 * tile.kept));
    let mut right_tile = Shared::<[Four]>::new_slice(comptime!(wide * DEPTH / 4 * tile.kept));
    // In a narrow tile some units bring of both sides; in a wide one each brings of one.
    let (run, block) = (run_of(), block_of());
    let brings_left = unit < BRINGERS;
    let brings_right = brings_of_right(wide);
    let (left_start, right_start) = (left_place.start(sizes.count), right_place.start(sizes.count));
    let (left_line, right_line) = (left_place.line as usize, right_place.line as usize);
    let (rows, columns) = (sizes.rows as usize, sizes.columns as usize);
    let left_block = CUBE_POS_Y as usize * (ROWS / 4) + block;
    let right_block = CUBE_POS_X as usize * comptime!(wide / 4) + block;
    let mut runs = sizes.depth as usize / 4;
    if comptime!(causal == Causal::DepthBehind) {
        runs = runs.min((CUBE_POS_Y as usize + 1) * (ROWS / 4));
    }
    let mut from = 0usize;
    if comptime!(causal == Causal::DepthBefore) {
        from = CUBE_POS_Y as usize * (ROWS / 4);
    }

    // In a wide tile a unit keeps what it brings in one place, whichever side it is of: two would take more registers than let
    // another cube run beside it.
    let mut found = Array::<Four>::new(4usize);
    let mut of_right = Array::<Four>::new(4usize);
    let first = from + run;
    if brings_left {
        read(left, left_start, left_line, rows, left_block, first, &mut found, left_along);
    }
    if brings_right {
        let (start, line) = (right_start, right_line);
        if comptime!(wide == WIDE) {
            read(right, start, line, columns, right_block, first, &mut found, right_along);
        } else {
            read(right, start, line, columns, right_block, first, &mut of_right, right_along);
        }
    }
    let (x, y) = (across(wide), down(wide));
    let mut sums = Array::<Four>::new(comptime!(if summed { 17usize } else { 16usize }));
    let mut column_sum = Four::new(0.0f32);
    // Where the run that is added up begins in either tile. The other run is not read any more: all units have passed its sum
    // when they meet at this one.
    let mut left_at = 0usize;
    let mut right_at = 0usize;
    while from < runs {
        if comptime!(summed) {
            if brings_right {
                #[unroll]
                for at in 0..4usize {
                    if comptime!(wide == WIDE) {
                        column_sum += found[at];
                    } else {
                        column_sum += of_right[at];
                    }
                }
            }
        }
        if brings_left {
            put(&found, &mut left_tile, left_at, block, run, ROWS / 4, left_along);
        }
        if brings_right {
            if comptime!(wide == WIDE) {
                put(
                    &found,
                    &mut right_tile,
                    right_at,
                    block,
                    run,
                    comptime!(wide / 4),
                    right_along,
                );
            } else {
                put(
                    &of_right,
                    &mut right_tile,
                    right_at,
                    block,
                    run,
                    comptime!(wide / 4),
                    right_along,
                );
            }
        }
        sync_cube();
        from += DEPTH / 4;
        if from < runs {
            let next = from + run;
            if brings_left {
                read(left, left_start, left_line, rows, left_block, next, &mut found, left_along);
            }
            if brings_right {
                let (start, line) = (right_start, right_line);
                if comptime!(wide == WIDE) {
                    read(right, start, line, columns, right_block, next, &mut found, right_along);
                } else {
                    read(
                        right,
                        start,
                        line,
                        columns,
                        right_block,
                        next,
                        &mut of_right,
                        right_along,
                    );
                }
            }
        }
        #[unroll]
        for number in 0..DEPTH {
            let upper = left_tile[left_at + number * (ROWS / 4) + y];
            let lower = left_tile[left_at + number * (ROWS / 4) + ROWS / 8 + y];
            let first = right_tile[right_at + number * comptime!(wide / 4) + x];
            let second =
                right_tile[right_at + number * comptime!(wide / 4) + comptime!(wide / 8) + x];
            #[unroll]
            for row in 0..4usize {
                let factor = Four::new(upper.extract(row));
                sums[2 * row] = fma(factor, first, sums[2 * row]);
                sums[2 * row + 1] = fma(factor, second, sums[2 * row + 1]);
                let factor = Four::new(lower.extract(row));
                sums[2 * row + 8] = fma(factor, first, sums[2 * row + 8]);
                sums[2 * row + 9] = fma(factor, second, sums[2 * row + 9]);
            }
        }
        if comptime!(tile.kept == 2) {
            left_at = left_run - left_at;
            right_at = right_run - right_at;
        } else {
            sync_cube();
        }
    }
    if comptime!(summed) {
        if comptime!(tile.kept == 2) {
            sync_cube();
        }
        // Nobody reads the left side's part any more.
        if brings_right {
            left_tile[run * comptime!(wide / 4) + block] = column_sum;
        }
        sync_cube();
        if brings_right {
            #[unroll]
            for at in 1..4usize {
                column_sum += left_tile[at * comptime!(wide / 4) + block];
            }
            sums[16] = column_sum;
        }
    }
    sums
}

/// The run and the block of lines that a unit brings: four runs of as many blocks as its side of the tile has.
#[cube]
fn run_of() -> usize {
    UNIT_POS as usize % BRINGERS / 8 % 4
}

#[cube]
fn block_of() -> usize {
    let bringer = UNIT_POS as usize % BRINGERS;
    bringer % 8 + bringer / 32 * 8
}

/// Whether a unit brings of the right side.
#[cube]
fn brings_of_right(#[comptime] wide: usize) -> bool {
    let unit = UNIT_POS as usize;
    let mut brings = unit < wide;
    if comptime!(wide == WIDE) {
        brings = unit >= BRINGERS;
    }
    brings
}

/// Where a unit's numbers are in the tile: 32 units take 4 × 8 fours, and their like lie side by side.
#[cube]
fn across(#[comptime] wide: usize) -> usize {
    UNIT_POS as usize / 32 % comptime!(wide / 64) * 8 + UNIT_POS as usize % 8
}

#[cube]
fn down(#[comptime] wide: usize) -> usize {
    UNIT_POS as usize / 32 / comptime!(wide / 64) * 4 + UNIT_POS as usize % 32 / 8
}

/// The row of the matrix that is the unit's row `at`, and the four of columns that is its `half`.
#[cube]
fn row_of(#[comptime] at: usize, #[comptime] wide: usize) -> usize {
    CUBE_POS_Y as usize * ROWS + comptime!(at / 4 * (ROWS / 2) + at % 4) + down(wide) * 4
}

#[cube]
fn four_of(#[comptime] half: usize, #[comptime] wide: usize) -> usize {
    CUBE_POS_X as usize * comptime!(wide / 4) + comptime!(half * (wide / 8)) + across(wide)
}

/// `left · right`, with one more row of the sums of the right side's columns if they are summed.
#[cube(launch)]
pub(super) fn tiles(
    left: &[Four],
    right: &[Four],
    out: &mut [Four],
    left_place: Place,
    right_place: Place,
    out_place: Place,
    sizes: Sizes,
    #[comptime] left_along: bool,
    #[comptime] right_along: bool,
    #[comptime] tile: Tile,
    #[comptime] summed: bool,
    #[comptime] causal: Causal,
) {
    let wide = comptime!(tile.columns);
    if comptime!(causal == Causal::ColumnsBehind) {
        if CUBE_POS_X as usize * wide >= (CUBE_POS_Y as usize + 1) * ROWS {
            terminate!();
        }
    }
    let sums = of_tile(
        left,
        right,
        &left_place,
        &right_place,
        &sizes,
        left_along,
        right_along,
        tile,
        summed,
        causal,
    );
    let start = out_place.start(sizes.count);
    #[unroll]
    for at in 0..8usize {
        let row = row_of(at, wide);
        #[unroll]
        for half in 0..2usize {
            let four = four_of(half, wide);
            if row < sizes.rows as usize && 4 * four < sizes.columns as usize {
                out[start + row * out_place.line as usize + four] = sums[2 * at + half];
            }
        }
    }
    if comptime!(summed) {
        let four = CUBE_POS_X as usize * comptime!(wide / 4) + block_of();
        let writes = CUBE_POS_Y == 0 && run_of() == 0 && brings_of_right(wide);
        if writes && 4 * four < sizes.columns as usize {
            out[start + sizes.rows as usize * out_place.line as usize + four] = sums[16];
        }
    }
}

/// `left · right + bias`, of one contiguous matrix.
#[cube(launch)]
pub(super) fn tiles_and_bias(
    left: &[Four],
    right: &[Four],
    bias: &[Four],
    out: &mut [Four],
    left_place: Place,
    right_place: Place,
    sizes: Sizes,
    #[comptime] left_along: bool,
    #[comptime] right_along: bool,
    #[comptime] tile: Tile,
) {
    let wide = comptime!(tile.columns);
    let sums = of_tile(
        left,
        right,
        &left_place,
        &right_place,
        &sizes,
        left_along,
        right_along,
        tile,
        false,
        comptime!(Causal::All),
    );
    let fours = sizes.columns as usize / 4;
    #[unroll]
    for at in 0..8usize {
        let row = row_of(at, wide);
        #[unroll]
        for half in 0..2usize {
            let four = four_of(half, wide);
            if row < sizes.rows as usize && four < fours {
                out[row * fours + four] = sums[2 * at + half] + bias[four];
            }
        }
    }
}

/// `left · right + bias + around`, of one contiguous matrix.
#[cube(launch)]
pub(super) fn tiles_bias_and_residual(
    left: &[Four],
    right: &[Four],
    bias: &[Four],
    around: &[Four],
    out: &mut [Four],
    left_place: Place,
    right_place: Place,
    sizes: Sizes,
    #[comptime] left_along: bool,
    #[comptime] right_along: bool,
    #[comptime] tile: Tile,
) {
    let wide = comptime!(tile.columns);
    let sums = of_tile(
        left,
        right,
        &left_place,
        &right_place,
        &sizes,
        left_along,
        right_along,
        tile,
        false,
        comptime!(Causal::All),
    );
    let fours = sizes.columns as usize / 4;
    #[unroll]
    for at in 0..8usize {
        let row = row_of(at, wide);
        #[unroll]
        for half in 0..2usize {
            let four = four_of(half, wide);
            if row < sizes.rows as usize && four < fours {
                let place = row * fours + four;
                out[place] = sums[2 * at + half] + bias[four] + around[place];
            }
        }
    }
}
