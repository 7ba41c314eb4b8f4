//! The same arithmetic on the host, in plain loops and fp64.

/// A matrix by rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) values: Vec<f64>,
}

impl Matrix {
    pub(super) fn new(rows: usize, columns: usize, at: impl Fn(usize) -> f64) -> Self {
        Self { rows, columns, values: (0..rows * columns).map(at).collect() }
    }

    pub(super) fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.columns + column]
    }

    pub(super) fn times(&self, other: &Self) -> Self {
        Self::new(self.rows, other.columns, |at| {
            let (row, column) = (at / other.columns, at % other.columns);
            (0..self.columns).map(|k| self.at(row, k) * other.at(k, column)).sum()
        })
    }

    pub(super) fn transposed(&self) -> Self {
        Self::new(self.columns, self.rows, |at| self.at(at % self.rows, at / self.rows))
    }

    pub(super) fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self::new(self.rows, self.columns, |at| f(self.values[at]))
    }

    pub(super) fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self::new(self.rows, self.columns, |at| f(self.values[at], other.values[at]))
    }

    pub(super) fn softmax_rows(&self) -> Self {
        let mut values = Vec::with_capacity(self.values.len());
        for row in self.values.chunks(self.columns) {
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let exps: Vec<f64> = row.iter().map(|x| (x - top).exp()).collect();
            let sum: f64 = exps.iter().sum();
            values.extend(exps.iter().map(|x| x / sum));
        }
        Self { rows: self.rows, columns: self.columns, values }
    }

    pub(super) fn f32s(&self) -> Vec<f32> {
        self.values.iter().map(|&x| x as f32).collect()
    }
}

/// Numbers that look random but are the same everywhere, between -1 and 1.
pub(super) fn wave(seed: f64) -> impl Fn(usize) -> f64 {
    move |i| f64::from(((i as f64 * 12.9898 + seed * 78.233).sin() * 437.585).fract() as f32)
}

/// The largest difference, relative to the largest expected number.
pub(super) fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let scale = expected.iter().fold(1e-12f64, |most, x| most.max(x.abs()));
    found.iter().zip(expected).fold(0.0, |most, (a, b)| {
        let gap = (f64::from(*a) - b).abs() / scale;
        if gap.is_nan() { f64::INFINITY } else { gap.max(most) }
    })
}
