//! Products on matrix units: numbers in f32 or half precision are rounded on their way into shared memory, so that nothing is cast in a
//! launch of its own, and sums are in f32.
//!
//! A cube makes a tile of [`SIDE`] × [`SIDE`] numbers with eight planes of 32 units; each plane adds up 2 × 4 fragments of 16 × 16. While
//! they multiply a run of [`RUN`] numbers of each line, the next run is on its way. Lines beyond the operands' are read as the
//! last one, and what is made of them is not written.

use burn_cubecl::cubecl;
use cubecl::cmma;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::kernel::{Four, Place, Sizes};

/// Rows and columns of a tile.
pub(super) const SIDE: usize = 128;
/// How many numbers of each line are in shared memory at once.
pub(super) const RUN: usize = 32;
/// Units of a cube.
pub(super) const UNITS: usize = 256;
/// Units of a plane.
pub(super) const PLANE: usize = 32;
/// Numbers that a unit brings of each operand.
const BROUGHT: usize = SIDE * RUN / UNITS;
/// Rows and columns of a fragment.
const FRAGMENT: usize = 16;
/// Fragments of a plane, down and across.
const DOWN: usize = 2;
const ACROSS: usize = 4;

/// How operands lie, what is added to the product, and what fragments are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) left_along: bool,
    pub(super) right_along: bool,
    pub(super) bias: bool,
    pub(super) residual: bool,
    /// The depth of a fragment: 8 in TF32, 16 in half precision.
    pub(super) depth: usize,
    /// Numbers between lines in shared memory, so that a fragment's lines are in different banks.
    pub(super) padding: usize,
}

/// Bytes of shared memory that a cube takes at most.
pub(super) const SHARED_BYTES: usize = 4 * (2 * part(4) + UNITS / PLANE * FRAGMENT * FRAGMENT);

/// Numbers of an operand's part of shared memory.
const fn part(padding: usize) -> usize {
    SIDE * (RUN + padding)
}

/// The line and the number of a run that a unit brings at turn `at`: units side by side bring numbers that lie side by side.
#[cube]
fn line_of(#[comptime] at: usize, #[comptime] along: bool) -> usize {
    let unit = UNIT_POS as usize;
    let mut line = unit % SIDE;
    if comptime!(along) {
        line = unit / RUN + comptime!(at * (UNITS / RUN));
    }
    line
}

#[cube]
fn number_of(#[comptime] at: usize, #[comptime] along: bool) -> usize {
    let unit = UNIT_POS as usize;
    let mut number = unit / SIDE + comptime!(at * (UNITS / SIDE));
    if comptime!(along) {
        number = unit % RUN;
    }
    number
}

/// Reads a unit's numbers of a run that begins at `from`.
#[cube]
fn bring<E: Float>(
    operand: &[E],
    start: usize,
    step: usize,
    lines: usize,
    first_line: usize,
    from: usize,
    #[comptime] along: bool,
) -> Array<f32> {
    let mut found = Array::<f32>::new(BROUGHT);
    #[unroll]
    for at in 0..BROUGHT {
        let line = (first_line + line_of(at, along)).min(lines - 1);
        let number = from + number_of(at, along);
        let mut place = start + number * step + line;
        if comptime!(along) {
            place = start + line * step + number;
        }
        found[at] = f32::cast_from(operand[place]);
    }
    found
}

/// Puts what was read into shared memory, where it lies as it does in the operand.
#[cube]
fn put<T: Float>(
    found: &Array<f32>,
    to: &mut Shared<[T]>,
    #[comptime] along: bool,
    #[comptime] padding: usize,
) {
    #[unroll]
    for at in 0..BROUGHT {
        let (line, number) = (line_of(at, along), number_of(at, along));
        let mut place = number * comptime!(SIDE + padding) + line;
        if comptime!(along) {
            place = line * comptime!(RUN + padding) + number;
        }
        to[place] = T::cast_from(found[at]);
    }
}

/// Where a fragment begins in shared memory.
#[cube]
fn fragment_start(
    line: usize,
    #[comptime] number: usize,
    #[comptime] along: bool,
    #[comptime] padding: usize,
) -> usize {
    let mut start = comptime!(number * (SIDE + padding)) + line;
    if comptime!(along) {
        start = line * comptime!(RUN + padding) + comptime!(number);
    }
    start
}

/// `left · right`, with a bias and a residual.
#[cube(launch)]
pub(super) fn tiles_of_fragments<T: Float, L: Float, R: Float>(
    left: &[L],
    right: &[R],
    bias: &[Four],
    residual: &[Four],
    out: &mut [Four],
    left_place: Place,
    right_place: Place,
    out_place: Place,
    sizes: Sizes,
    #[comptime] form: Form,
    #[define(T)] _rounded: ElemType,
    #[define(L)] _of_left: ElemType,
    #[define(R)] _of_right: ElemType,
) {
    let (left_along, right_along) = (comptime!(form.left_along), comptime!(form.right_along));
    let (depth, padding) = (comptime!(form.depth), comptime!(form.padding));
    let mut left_tile = Shared::<[T]>::new_slice(comptime!(part(padding)));
    let mut right_tile = Shared::<[T]>::new_slice(comptime!(part(padding)));
    let (rows, columns) = (sizes.rows as usize, sizes.columns as usize);
    // Places are counted in fours.
    let (left_start, right_start) =
        (4 * left_place.start(sizes.count), 4 * right_place.start(sizes.count));
    let (left_step, right_step) = (4 * left_place.line as usize, 4 * right_place.line as usize);
    let (first_row, first_column) = (CUBE_POS_Y as usize * SIDE, CUBE_POS_X as usize * SIDE);
    let plane = UNIT_POS as usize / PLANE;
    let (down, across) = (plane / 2 * (DOWN * FRAGMENT), plane % 2 * (ACROSS * FRAGMENT));

    let mut sums = Sequence::<cmma::Matrix<f32>>::new();
    #[unroll]
    for _ in 0..DOWN * ACROSS {
        sums.push(cmma::Matrix::<f32>::from_value(
            cmma::MatrixIdent::Accumulator,
            FRAGMENT,
            FRAGMENT,
            depth,
            cmma::MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    let all = sizes.depth as usize;
    let mut of_left = bring::<L>(left, left_start, left_step, rows, first_row, 0usize, left_along);
    let mut of_right =
        bring::<R>(right, right_start, right_step, columns, first_column, 0usize, right_along);
    let mut from = 0usize;
    while from < all {
        put::<T>(&of_left, &mut left_tile, left_along, padding);
        put::<T>(&of_right, &mut right_tile, right_along, padding);
        sync_cube();
        from += RUN;
        if from < all {
            of_left = bring::<L>(left, left_start, left_step, rows, first_row, from, left_along);
            of_right = bring::<R>(
                right,
                right_start,
                right_step,
                columns,
                first_column,
                from,
                right_along,
            );
        }
        #[unroll]
        for step in 0..comptime!(RUN / depth) {
            let number = comptime!(step * depth);
            let mut lefts = Sequence::<cmma::Matrix<T>>::new();
            #[unroll]
            for at in 0..DOWN {
                let line = down + comptime!(at * FRAGMENT);
                let start = fragment_start(line, number, left_along, padding);
                lefts.push(cmma::Matrix::<T>::from_slice(
                    cmma::MatrixIdent::A,
                    FRAGMENT,
                    FRAGMENT,
                    depth,
                    comptime!(match left_along {
                        true => cmma::MatrixLayout::RowMajor,
                        false => cmma::MatrixLayout::ColMajor,
                    }),
                    &left_tile[start..comptime!(part(padding))],
                    comptime!((if left_along { RUN + padding } else { SIDE + padding }) as u32),
                ));
            }
            #[unroll]
            for at in 0..ACROSS {
                let line = across + comptime!(at * FRAGMENT);
                let start = fragment_start(line, number, right_along, padding);
                let of_right = cmma::Matrix::<T>::from_slice(
                    cmma::MatrixIdent::B,
                    FRAGMENT,
                    FRAGMENT,
                    depth,
                    comptime!(match right_along {
                        true => cmma::MatrixLayout::ColMajor,
                        false => cmma::MatrixLayout::RowMajor,
                    }),
                    &right_tile[start..comptime!(part(padding))],
                    comptime!((if right_along { RUN + padding } else { SIDE + padding }) as u32),
                );
                #[unroll]
                for of in 0..DOWN {
                    let sum = sums.index(comptime!(of * ACROSS + at));
                    cmma::execute(lefts.index(of), &of_right, sum, sum);
                }
            }
        }
        sync_cube();
    }
    // Each plane has room for one fragment, from which its units write fours.
    let mut fragments = Shared::<[f32]>::new_slice(comptime!(UNITS / PLANE * FRAGMENT * FRAGMENT));
    let own = plane * (FRAGMENT * FRAGMENT);
    let unit = UNIT_POS as usize % PLANE;
    let out_start = out_place.start(sizes.count);
    let fours = columns / 4;
    #[unroll]
    for at in 0..DOWN * ACROSS {
        cmma::store(
            &mut fragments[own..own + FRAGMENT * FRAGMENT],
            sums.index(at),
            16u32,
            cmma::MatrixLayout::RowMajor,
        );
        sync_cube();
        #[unroll]
        for half in 0..2usize {
            let (line, place) = (unit / 4 + comptime!(half * 8), unit % 4);
            let row = first_row + down + comptime!(at / ACROSS * FRAGMENT) + line;
            let four = (first_column + across + comptime!(at % ACROSS * FRAGMENT)) / 4 + place;
            if row < rows && four < fours {
                let mut sum = Four::new(0.0f32);
                #[unroll]
                for number in 0..4usize {
                    sum.insert(number, fragments[own + line * FRAGMENT + 4 * place + number]);
                }
                if comptime!(form.bias) {
                    sum += bias[four];
                }
                if comptime!(form.residual) {
                    sum += residual[row * fours + four];
                }
                out[out_start + row * out_place.line as usize + four] = sum;
            }
        }
        sync_cube();
    }
}
