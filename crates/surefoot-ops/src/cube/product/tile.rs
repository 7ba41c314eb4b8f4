//! The tiles of products on matrix units ([`super::matrix_units`]): their sizes, how operands lie in memory and in shared memory, and what is
//! added to the product. Plain numbers, so that what they have to keep to is tested without a device (`units`).

use super::kernel::Causal;
use crate::cube::planes::LANES;

/// How many numbers of each line are in shared memory at once.
pub(super) const RUN: usize = 32;
/// The same of tiles with few rows.
pub(super) const LONG_RUN: usize = 64;
/// Units of a cube.
pub(super) const UNITS: usize = 256;
/// Units of a plane.
pub(super) const PLANE: usize = LANES;
pub(super) const PLANES: usize = UNITS / PLANE;
/// Rows and columns of a fragment.
pub(super) const FRAGMENT: usize = 16;
/// Fragments of a plane below each other.
pub(super) const DOWN: usize = 2;

/// An operand's part of a tile: how it lies in memory and in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    pub(super) along: bool,
    /// Rows or columns of the tile.
    pub(super) lines: usize,
    /// Numbers between those that lie side by side, so that a fragment's lines are in different banks.
    pub(super) padding: usize,
    /// Numbers of each line that are in shared memory at once: [`RUN`] or [`LONG_RUN`].
    pub(super) run: usize,
}

impl Side {
    /// From one row of shared memory to the next, in numbers.
    pub(super) const fn step(self) -> usize {
        self.padding + if self.along { self.run } else { self.lines }
    }

    /// Fours of a run.
    pub(super) const fn room(self) -> usize {
        self.step() * if self.along { self.lines } else { self.run } / 4
    }

    /// Fours of a line's run.
    pub(super) const fn fours(self) -> usize {
        self.run / 4
    }

    /// Lines along the depth that the units bring of at each turn.
    pub(super) const fn lines_at_once(self) -> usize {
        UNITS / self.fours()
    }

    /// Fours that a unit brings.
    pub(super) const fn brought(self) -> usize {
        self.lines * self.run / 4 / UNITS
    }
}

/// A tile, how operands lie, what is added to the product, and what fragments are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) left: Side,
    pub(super) right: Side,
    pub(super) bias: bool,
    pub(super) residual: bool,
    /// Whether the sums of the right side's columns become one more row. Its lines lie side by side.
    pub(super) summed: bool,
    pub(super) causal: Causal,
    /// Right sides whose results lie side by side: one to three.
    pub(super) rights: usize,
    /// Whether fragments may be written to the result as they are: where each of their rows begins at a multiple of eight.
    pub(super) direct: bool,
    /// The depth of a fragment: 8 in TF32, 16 in half precision.
    pub(super) depth: usize,
    /// Runs in shared memory: one or two.
    pub(super) buffers: usize,
}

impl Form {
    /// Bytes of shared memory, where a number takes so many.
    pub(super) const fn shared_bytes(self, number: usize) -> usize {
        let runs = self.buffers * (self.left.room() + self.right.room()) * 4 * number;
        let sums = if self.summed { 4 * 4 * UNITS } else { 0 };
        runs + 4 * PLANES * FRAGMENT * FRAGMENT + sums
    }

    /// The same with long runs.
    pub(super) const fn with_long_runs(self) -> Self {
        let left = Side { run: LONG_RUN, ..self.left };
        let right = Side { run: LONG_RUN, ..self.right };
        Self { left, right, ..self }
    }

    /// Whether long runs are of use, and whole: in tiles with few rows, which are made of weights that have yet to come from memory.
    pub(super) fn takes_long_runs(self, depth: usize) -> bool {
        let are_tokens = self.left.along && self.right.along && self.causal == Causal::All;
        are_tokens && self.left.lines <= 64 && depth.is_multiple_of(LONG_RUN)
    }

    /// Numbers of each line that are in shared memory at once.
    pub(super) const fn run(self) -> usize {
        self.left.run
    }

    /// Planes side by side in the tile; each takes `DOWN` fragments of its height.
    pub(super) const fn planes_across(self) -> usize {
        PLANES / (self.left.lines / (DOWN * FRAGMENT))
    }

    /// Fragments of a plane side by side.
    pub(super) const fn across(self) -> usize {
        self.right.lines / self.planes_across() / FRAGMENT
    }
}
