//! Products on matrix units: numbers in f32 or half precision are rounded on their way into shared memory, so that nothing is cast in a
//! launch of its own, and sums are in f32.
//!
//! A cube of eight planes of 32 units makes a tile of the result ([`Form`]); each plane adds up fragments of 16 × 16. Numbers are read
//! and put into shared memory in fours, a run of numbers of each line at a time, a longer one where tiles are small and more
//! has to be on its way. Shared memory has room for two runs where the
//! device has room for it: while one is multiplied, the next is on its way, and a run needs one barrier. Lines beyond the
//! operands' are read as the last one, and what is made of them is not written.

use burn_cubecl::cubecl;
use cubecl::cmma;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::kernel::{Causal, Four, Place, Sizes};
use super::tile::{DOWN, FRAGMENT, Form, PLANE, PLANES, Side, UNITS};

/// The line that a unit brings of at turn `at`, of those that lie along the depth. Units side by side bring fours that lie side by
/// side; every eighth of a plane takes a line whose place in shared memory is in other banks than its neighbour's.
#[cube]
fn line_along(#[comptime] at: usize, #[comptime] side: Side) -> usize {
    let group = UNIT_POS as usize / comptime!(side.fours());
    group % 2 * 4 + group / 2 % 4 + group / 8 * 8 + comptime!(at * side.lines_at_once())
}

/// Where the fours are that a unit brings of the first run, one for each turn.
#[cube]
fn places(
    start: usize,
    step: usize,
    lines: usize,
    first_line: usize,
    #[comptime] side: Side,
) -> Array<usize> {
    let unit = UNIT_POS as usize;
    let fours = comptime!(side.lines / 4);
    let mut found = Array::<usize>::new(comptime!(side.brought()));
    #[unroll]
    for at in 0..comptime!(side.brought()) {
        if comptime!(side.along) {
            let line = (first_line + line_along(at, side)).min(lines - 1);
            found[at] = start + line * step + unit % comptime!(side.fours());
        } else {
            let number = unit / fours + comptime!(at * (UNITS / fours));
            let four = (first_line / 4 + unit % fours).min(lines / 4 - 1);
            found[at] = start + number * step + four;
        }
    }
    found
}

/// Reads a unit's fours of a run, which is so far from the first one.
#[cube]
fn bring<E: Float>(
    operand: &[Vector<E, Const<4>>],
    places: &Array<usize>,
    far: usize,
    found: &mut Array<Vector<E, Const<4>>>,
    #[comptime] side: Side,
) {
    #[unroll]
    for at in 0..comptime!(side.brought()) {
        found[at] = operand[places[at] + far];
    }
}

/// Puts what was read into shared memory from `first` on, where it lies as it does in the operand.
#[cube]
fn put<T: Float, E: Float>(
    found: &Array<Vector<E, Const<4>>>,
    to: &mut Shared<[Vector<T, Const<4>>]>,
    first: usize,
    #[comptime] side: Side,
) {
    let unit = UNIT_POS as usize;
    let (fours, step) = (comptime!(side.lines / 4), comptime!(side.step() / 4));
    #[unroll]
    for at in 0..comptime!(side.brought()) {
        let rounded = Vector::<T, Const<4>>::cast_from(found[at]);
        if comptime!(side.along) {
            to[first + line_along(at, side) * step + unit % comptime!(side.fours())] = rounded;
        } else {
            let number = unit / fours + comptime!(at * (UNITS / fours));
            to[first + number * step + unit % fours] = rounded;
        }
    }
}

/// Where a fragment begins in a run in shared memory.
#[cube]
fn fragment_start(line: usize, #[comptime] number: usize, #[comptime] side: Side) -> usize {
    let step = comptime!(side.step() / 4);
    let mut start = comptime!(number * side.step() / 4) + line / 4;
    if comptime!(side.along) {
        start = line * step + comptime!(number / 4);
    }
    start
}

/// Adds what a unit has brought of the right side, in which all of its fours are of the same columns.
#[cube]
fn add_columns<E: Float>(found: &Array<Vector<E, Const<4>>>, #[comptime] side: Side) -> Four {
    let mut sum = Four::new(0.0f32);
    #[unroll]
    for at in 0..comptime!(side.brought()) {
        sum += Four::cast_from(found[at]);
    }
    sum
}

/// Columns of a second and a third right side.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct MoreColumns {
    second: u32,
    third: u32,
}

/// Reads of the right side that is the cube's.
#[cube]
fn bring_right<E: Float>(
    right: &[Vector<E, Const<4>>],
    second: &[Vector<E, Const<4>>],
    third: &[Vector<E, Const<4>>],
    which: u32,
    places: &Array<usize>,
    far: usize,
    found: &mut Array<Vector<E, Const<4>>>,
    #[comptime] form: Form,
) {
    if comptime!(form.rights == 1) {
        bring::<E>(right, places, far, found, comptime!(form.right));
    } else {
        if which == 0 {
            bring::<E>(right, places, far, found, comptime!(form.right));
        }
        if which == 1 {
            bring::<E>(second, places, far, found, comptime!(form.right));
        }
        if which == 2 {
            bring::<E>(third, places, far, found, comptime!(form.right));
        }
    }
}

/// `left · right`, with a bias and a residual, or with one more row of the sums of the right side's columns; or the products with several
/// right sides, which lie alike, side by side.
#[cube(launch)]
pub(super) fn tiles_of_fragments<T: Float, L: Float, R: Float>(
    left: &[Vector<L, Const<4>>],
    right: &[Vector<R, Const<4>>],
    second: &[Vector<R, Const<4>>],
    third: &[Vector<R, Const<4>>],
    bias: &[Four],
    residual: &[Four],
    out: &mut [Four],
    left_place: Place,
    right_place: Place,
    out_place: Place,
    sizes: Sizes,
    more_columns: MoreColumns,
    #[comptime] form: Form,
    #[define(T)] _rounded: ElemType,
    #[define(L)] _of_left: ElemType,
    #[define(R)] _of_right: ElemType,
) {
    let (left_side, right_side) = (comptime!(form.left), comptime!(form.right));
    let depth = comptime!(form.depth);
    let across = comptime!(form.across());
    let (left_room, right_room) = (comptime!(form.left.room()), comptime!(form.right.room()));
    let mut left_tile =
        Shared::<[Vector<T, Const<4>>]>::new_slice(comptime!(form.buffers * left_room));
    let mut right_tile =
        Shared::<[Vector<T, Const<4>>]>::new_slice(comptime!(form.buffers * right_room));
    let rows = sizes.rows as usize;
    let mut columns = sizes.columns as usize;
    // Which right side the tile is of, its place among that one's tiles, and where in a row that one's results begin.
    let mut which = 0u32;
    let mut tile_across = CUBE_POS_X as usize;
    let mut behind = 0usize;
    #[unroll]
    for at in 1..comptime!(form.rights) {
        let tiles = (columns + comptime!(form.right.lines - 1)) / comptime!(form.right.lines);
        if which == comptime!(at as u32 - 1) && tile_across >= tiles {
            tile_across -= tiles;
            behind += columns / 4;
            which = comptime!(at as u32).runtime();
            columns = more_columns.third as usize;
            if comptime!(at == 1) {
                columns = more_columns.second as usize;
            }
        }
    }
    let (left_start, right_start) = (left_place.start(sizes.count), right_place.start(sizes.count));
    let (left_step, right_step) = (left_place.line as usize, right_place.line as usize);
    let first_row = CUBE_POS_Y as usize * comptime!(form.left.lines);
    let first_column = tile_across * comptime!(form.right.lines);
    let plane = UNIT_POS as usize / PLANE;
    let planes_across = comptime!(form.planes_across());
    let down = plane / planes_across * (DOWN * FRAGMENT);
    let right_of = plane % planes_across * comptime!(across * FRAGMENT);

    if comptime!(form.causal == Causal::ColumnsBehind) {
        if first_column >= first_row + comptime!(form.left.lines) {
            terminate!();
        }
    }

    let mut sums = Sequence::<cmma::Matrix<f32>>::new();
    #[unroll]
    for _ in 0..comptime!(DOWN * across) {
        sums.push(cmma::Matrix::<f32>::from_value(
            cmma::MatrixIdent::Accumulator,
            FRAGMENT,
            FRAGMENT,
            depth,
            cmma::MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    let of_left_places = places(left_start, left_step, rows, first_row, left_side);
    let of_right_places = places(right_start, right_step, columns, first_column, right_side);
    // From one run to the next.
    let of_run = comptime!(form.run());
    let mut left_run = left_step * of_run;
    if comptime!(left_side.along) {
        left_run = comptime!(form.run() / 4).runtime();
    }
    let mut right_run = right_step * of_run;
    if comptime!(right_side.along) {
        right_run = comptime!(form.run() / 4).runtime();
    }
    let mut of_left = Array::<Vector<L, Const<4>>>::new(comptime!(left_side.brought()));
    let mut of_right = Array::<Vector<R, Const<4>>>::new(comptime!(right_side.brought()));
    let mut runs = sizes.depth as usize / of_run;
    if comptime!(form.causal == Causal::DepthBehind) {
        runs = runs.min((first_row + comptime!(form.left.lines)) / of_run);
    }
    let mut run = 0usize;
    if comptime!(form.causal == Causal::DepthBefore) {
        run = first_row / of_run;
    }
    bring::<L>(left, &of_left_places, run * left_run, &mut of_left, left_side);
    let far = run * right_run;
    bring_right::<R>(right, second, third, which, &of_right_places, far, &mut of_right, form);
    // The cubes of the first row of tiles sum columns up.
    let is_first = CUBE_POS_Y == 0;
    let mut column_sum = Four::new(0.0f32);
    while run < runs {
        if comptime!(form.summed) {
            if is_first {
                column_sum += add_columns::<R>(&of_right, right_side);
            }
        }
        // Which of the runs in shared memory.
        let buffer = run % comptime!(form.buffers);
        let (in_left, in_right) = (buffer * left_room, buffer * right_room);
        put::<T, L>(&of_left, &mut left_tile, in_left, left_side);
        put::<T, R>(&of_right, &mut right_tile, in_right, right_side);
        sync_cube();
        run += 1;
        if run < runs {
            bring::<L>(left, &of_left_places, run * left_run, &mut of_left, left_side);
            let far = run * right_run;
            bring_right::<R>(
                right,
                second,
                third,
                which,
                &of_right_places,
                far,
                &mut of_right,
                form,
            );
        }
        #[unroll]
        for step in 0..comptime!(form.run() / depth) {
            let number = comptime!(step * depth);
            let mut lefts = Sequence::<cmma::Matrix<Vector<T, Const<4>>>>::new();
            #[unroll]
            for at in 0..DOWN {
                let line = down + comptime!(at * FRAGMENT);
                let start = in_left + fragment_start(line, number, left_side);
                lefts.push(cmma::Matrix::<Vector<T, Const<4>>>::from_slice(
                    cmma::MatrixIdent::A,
                    FRAGMENT,
                    FRAGMENT,
                    depth,
                    comptime!(match left_side.along {
                        true => cmma::MatrixLayout::RowMajor,
                        false => cmma::MatrixLayout::ColMajor,
                    }),
                    &left_tile[start..comptime!(form.buffers * left_room)],
                    comptime!(left_side.step() as u32),
                ));
            }
            #[unroll]
            for at in 0..across {
                let line = right_of + comptime!(at * FRAGMENT);
                let start = in_right + fragment_start(line, number, right_side);
                let of_right = cmma::Matrix::<Vector<T, Const<4>>>::from_slice(
                    cmma::MatrixIdent::B,
                    FRAGMENT,
                    FRAGMENT,
                    depth,
                    comptime!(match right_side.along {
                        true => cmma::MatrixLayout::ColMajor,
                        false => cmma::MatrixLayout::RowMajor,
                    }),
                    &right_tile[start..comptime!(form.buffers * right_room)],
                    comptime!(right_side.step() as u32),
                );
                #[unroll]
                for of in 0..DOWN {
                    let sum = sums.index(comptime!(of * across + at));
                    cmma::execute(lefts.index(of), &of_right, sum, sum);
                }
            }
        }
        if comptime!(form.buffers == 1) {
            sync_cube();
        }
    }
    if comptime!(form.buffers > 1) {
        // What is next in shared memory may lie where runs were.
        sync_cube();
    }
    let out_start = out_place.start(sizes.count) + behind;
    let out_line = out_place.line as usize;
    if comptime!(form.summed) {
        let mut of_units = Shared::<[Four]>::new_slice(UNITS);
        of_units[UNIT_POS as usize] = column_sum;
        sync_cube();
        let fours = comptime!(right_side.lines / 4);
        let unit = UNIT_POS as usize;
        let four = first_column / 4 + unit;
        if is_first && unit < fours && 4 * four < columns {
            let mut sum = Four::new(0.0f32);
            #[unroll]
            for at in 0..comptime!(UNITS / fours) {
                sum += of_units[unit + comptime!(at * fours)];
            }
            out[out_start + rows * out_line + four] = sum;
        }
        sync_cube();
    }
    let mut by_fours = true.runtime();
    if comptime!(form.direct) {
        let is_inside = first_row + comptime!(form.left.lines) <= rows
            && first_column + comptime!(form.right.lines) <= columns;
        by_fours = !is_inside;
        if is_inside {
            #[unroll]
            for at in 0..comptime!(DOWN * across) {
                let row = first_row + down + comptime!(at / across * FRAGMENT);
                let column = first_column + right_of + comptime!(at % across * FRAGMENT);
                let start = out_start + row * out_line + column / 4;
                let end = start + (FRAGMENT - 1) * out_line + FRAGMENT / 4;
                cmma::store(
                    &mut out[start..end],
                    sums.index(at),
                    out_place.line * 4,
                    cmma::MatrixLayout::RowMajor,
                );
            }
        }
    }
    if by_fours {
        // Each plane has room of its own for one fragment, from which its units write fours: planes need not wait for each other.
        let mut fragments = Shared::<[f32]>::new_slice(comptime!(PLANES * FRAGMENT * FRAGMENT));
        let own = plane * (FRAGMENT * FRAGMENT);
        let unit = UNIT_POS as usize % PLANE;
        let fours = columns / 4;
        #[unroll]
        for at in 0..comptime!(DOWN * across) {
            cmma::store(
                &mut fragments[own..own + FRAGMENT * FRAGMENT],
                sums.index(at),
                16u32,
                cmma::MatrixLayout::RowMajor,
            );
            sync_plane();
            #[unroll]
            for half in 0..2usize {
                let (line, place) = (unit / 4 + comptime!(half * 8), unit % 4);
                let row = first_row + down + comptime!(at / across * FRAGMENT) + line;
                let column = first_column + right_of + comptime!(at % across * FRAGMENT);
                let four = column / 4 + place;
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
                    out[out_start + row * out_line + four] = sum;
                }
            }
            sync_plane();
        }
    }
}
