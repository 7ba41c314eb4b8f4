//! What will be where.

use std::ops::Range;

use crate::weights::binding::Matrix;

/// Some rows of a matrix, and whether they stay.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) rows: Range<usize>,
    pub(crate) resident: bool,
}

/// Which rows of which matrices stay, and how many bytes of the others may be in memory at once.
#[derive(Clone, Debug)]
pub(crate) struct Residency {
    pub(crate) cuts: Vec<Vec<Cut>>,
    pub(crate) window: u64,
}

impl Residency {
    /// Everything stays.
    pub(crate) fn all(matrices: &[Matrix]) -> Self {
        let whole = |matrix: &Matrix| vec![Cut { rows: 0..matrix.rows(), resident: true }];
        Self { cuts: matrices.iter().map(whole).collect(), window: 0 }
    }
}
