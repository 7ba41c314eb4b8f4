//! Columns of activations in f32, packed for products with F16 and BF16 rows.
//!
//! Sixteen columns lie side by side, input by input: a line has one number of each. Up to [`WIDEST`] lines make a panel, whose
//! numbers for one input lie together, so that a kernel reads it from one place. Columns that are missing in the last line are zeros.
//! Packed once for a product, by the caller's thread or, where it takes long, by rayon's; the kernels of `x86::float_panels` read them.

use rayon::prelude::*;

/// Columns of a line: as many numbers as the widest registers hold.
pub(super) const LINE: usize = 16;
/// The most lines of a panel.
pub(super) const WIDEST: usize = 3;
/// Below so many numbers, packing is over before other threads have begun.
const WORTH_SPLITTING: usize = 1 << 18;

/// Packed columns.
#[derive(Clone, Debug)]
pub(super) struct FloatColumns {
    numbers: Vec<[f32; LINE]>,
    inputs: usize,
    lines: usize,
}

/// Some lines of columns.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// The first line's number.
    pub(super) first: usize,
    /// How many lines there are.
    pub(super) width: usize,
    /// For each input, `width` lines.
    pub(super) numbers: &'a [[f32; LINE]],
}

impl FloatColumns {
    /// Packs columns of `inputs` numbers each.
    pub(super) fn new(x: &[f32], inputs: usize) -> Self {
        let lines = (x.len() / inputs.max(1)).div_ceil(LINE);
        let mut numbers = vec![[0.0; LINE]; lines * inputs];
        let mut panels: Vec<(usize, &mut [[f32; LINE]])> = Vec::new();
        let mut rest = &mut numbers[..];
        for width in widths(lines) {
            let (panel, others) = rest.split_at_mut(width * inputs);
            panels.push((width, panel));
            rest = others;
        }
        let mut from = 0;
        let columns = panels.into_iter().map(|(width, panel)| {
            let x = &x[from * inputs..x.len().min((from + width * LINE) * inputs)];
            from += width * LINE;
            (width, panel, x)
        });
        let fill = |(width, panel, x): (usize, &mut [[f32; LINE]], &[f32])| {
            for (line, x) in x.chunks(LINE * inputs).enumerate() {
                transpose(x, inputs, &mut panel[line..], width);
            }
        };
        if x.len() < WORTH_SPLITTING {
            columns.for_each(fill);
        } else {
            columns.collect::<Vec<_>>().into_par_iter().for_each(fill);
        }
        Self { numbers, inputs, lines }
    }

    /// How many lines of columns there are.
    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    /// Numbers of a column.
    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// All lines, panel by panel.
    pub(super) fn panels(&self) -> impl Iterator<Item = Panel<'_>> {
        let mut first = 0;
        widths(self.lines).map(move |width| {
            let numbers = &self.numbers[first * self.inputs..][..width * self.inputs];
            let panel = Panel { first, width, numbers };
            first += width;
            panel
        })
    }
}

/// The widths of panels: none has a single line where two of two lines can be made instead.
fn widths(lines: usize) -> impl Iterator<Item = usize> {
    let mut left = lines;
    std::iter::from_fn(move || {
        let width = match left {
            0 => return None,
            4 => 2,
            _ => left.min(WIDEST),
        };
        left -= width;
        Some(width)
    })
}

/// Writes up to sixteen columns to each `step`-th line. Runs of sixteen inputs, so that what is read and written stays in the
/// first-level cache.
fn transpose(x: &[f32], inputs: usize, lines: &mut [[f32; LINE]], step: usize) {
    for from in (0..inputs).step_by(LINE) {
        let run = LINE.min(inputs - from);
        for (lane, column) in x.chunks_exact(inputs).enumerate() {
            for (at, number) in column[from..from + run].iter().enumerate() {
                lines[(from + at) * step][lane] = *number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_have_three_lines_and_no_single_one_beside_others() {
        let of = |lines: usize| widths(lines).collect::<Vec<_>>();
        assert_eq!(of(0), [0; 0]);
        assert_eq!(of(1), [1]);
        assert_eq!(of(2), [2]);
        assert_eq!(of(3), [3]);
        assert_eq!(of(4), [2, 2]);
        assert_eq!(of(5), [3, 2]);
        assert_eq!(of(7), [3, 2, 2]);
        assert_eq!(of(8), [3, 3, 2]);
    }

    #[test]
    fn columns_lie_side_by_side() {
        // Column c has the numbers 100 · c + input.
        let (inputs, columns) = (19, 70);
        let x: Vec<f32> =
            (0..columns * inputs).map(|at| (100 * (at / inputs) + at % inputs) as f32).collect();
        let packed = FloatColumns::new(&x, inputs);
        assert_eq!((packed.inputs(), packed.lines()), (19, 5));
        let panels: Vec<Panel<'_>> = packed.panels().collect();
        assert_eq!(
            panels.iter().map(|panel| (panel.first, panel.width)).collect::<Vec<_>>(),
            [(0, 3), (3, 2)]
        );
        // Input 18 of column 35, which is the third line's fourth.
        assert_eq!(panels[0].numbers[18 * 3 + 2][3], 3518.0);
        // Input 1 of column 64, which is the fifth line's first; column 70 is missing.
        assert_eq!(panels[1].numbers[2 + 1][0], 6401.0);
        assert_eq!(panels[1].numbers[2 + 1][6], 0.0);
    }
}
