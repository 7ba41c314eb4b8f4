//! Kernels for more columns than [`FEW`](crate::product::FEW): sixteen rows are unpacked and interleaved at a time, and that panel is
//! used for all columns.

use crate::block::Blocks;
use crate::product::PANEL;
use crate::product::activations::ActivationGroup;
use crate::product::group::WeightGroup;

/// Sixteen rows of 256 numbers, interleaved: four numbers of each row lie side by side, so that a dot
/// product of four numbers gives a vector of rows.
#[repr(C, align(64))]
pub(super) struct Panel {
    pub(super) q: [[[u8; 4]; PANEL]; 64],
    /// Of each sub-block, of each row.
    pub(super) scale: [[f32; PANEL]; 16],
    pub(super) offset: [[f32; PANEL]; 16],
}

/// Interleaves 256 numbers of up to sixteen rows. Rows that are missing have the scale 0.
#[inline(always)]
pub(super) fn interleave<B: Blocks>(panel: &mut Panel, rows: &[u8], row_bytes: usize, at: usize) {
    let (mut group, bytes) = (WeightGroup::EMPTY, WeightGroup::bytes::<B>());
    for (number, row) in rows.chunks_exact(row_bytes).enumerate().take(PANEL) {
        let from = at * bytes;
        group.unpack::<B>(&row[from..row_bytes.min(from + bytes)]);
        for (panel, q) in panel.q.iter_mut().zip(group.q.as_chunks::<4>().0) {
            panel[number] = *q;
        }
        for sub in 0..256 / B::SUB {
            panel.scale[sub][number] = group.scale[sub];
            panel.offset[sub][number] = group.offset[sub];
        }
    }
}

/// The scale of the activations that belong to a sub-block, and their sum.
#[inline(always)]
pub(super) fn scale_and_sum<B: Blocks>(x: &ActivationGroup, sub: usize) -> (f32, f32) {
    match B::SUB {
        16 => (x.scale[sub / 2], x.sum16[sub]),
        _ => (x.scale[sub], x.sum32[sub]),
    }
}

/// Defines the kernels of a module for some instructions. The module has
/// a function `tile_product`, which adds the products of a panel with a tile of columns to their sums.
macro_rules! many_columns {
    ($features:literal) => {
        /// Sixteen rows at a time, for more than [`FEW`] columns.
        #[target_feature(enable = $features)]
        pub(in crate::product) fn many<B: Blocks>(
            rows: &[u8],
            row_bytes: usize,
            x: &Activations,
            out: &mut [&mut [f32]],
        ) {
            let mut panel = Panel {
                q: [[[0; 4]; PANEL]; 64],
                scale: [[0.0; PANEL]; 16],
                offset: [[0.0; PANEL]; 16],
            };
            let zeros = [[0.0_f32; PANEL]; TILE];
            let mut sums = vec![zeros; x.tiles()];
            for (number, rows) in rows.chunks(PANEL * row_bytes).enumerate() {
                let count = rows.len() / row_bytes;
                if count < PANEL {
                    // What was left of the panel before belongs to no row.
                    (panel.scale, panel.offset) = ([[0.0; PANEL]; 16], [[0.0; PANEL]; 16]);
                }
                sums.fill(zeros);
                for at in 0..row_bytes.div_ceil(WeightGroup::bytes::<B>()) {
                    interleave::<B>(&mut panel, rows, row_bytes, at);
                    for (tile, sums) in sums.iter_mut().enumerate() {
                        let x = std::array::from_fn(|column| &x.column(tile * TILE + column)[at]);
                        tile_product::<B>(&panel, x, sums);
                    }
                }
                for (out, numbers) in out.iter_mut().zip(sums.as_flattened()) {
                    out[number * PANEL..][..count].copy_from_slice(&numbers[..count]);
                }
            }
        }
    };
}

pub(super) use many_columns;
