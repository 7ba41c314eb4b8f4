//! Which matrix units a device has, the tiles that suit a product, and launches of the kernel in [`super::matrix_units`].

use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

use super::kernel::Causal;
use super::matrix_units::{self, MoreColumnsLaunch};
use super::tile::{self, Form, Side};
use super::{MANY_TILES, Operand, Sizes};

/// What any tile takes of shared memory, with one run in it.
const LEAST_SHARED: usize = 46 << 10;

/// What is more, or less, than a product.
#[derive(Clone)]
pub(super) struct More {
    /// The sums of the right side's columns are one more row. Its lines lie side by side.
    pub(super) summed: bool,
    pub(super) causal: Causal,
    /// Right sides that lie as the first one does, and their columns: their results lie side by side with its.
    pub(super) rights: [Option<(CubeTensor, usize)>; 2],
}

impl More {
    pub(super) const NOTHING: Self =
        Self { summed: false, causal: Causal::All, rights: [None, None] };
}

/// The sides of the tiles that [`matrix_units`] makes, so that a large GPU has work: smaller ones where the result is small.
fn tile(sizes: Sizes) -> [usize; 2] {
    let batch = sizes.outer * sizes.inner;
    let fits = |side: usize, least: usize| side.max(least).min(128);
    // No larger than the result.
    let rows = fits(sizes.rows.next_power_of_two(), 32);
    // The lowest tile is a wide one: its planes lie side by side.
    let columns = if rows == 32 { 128 } else { fits(sizes.columns.next_power_of_two(), 64) };
    let tiles = |[rows, columns]: [usize; 2]| {
        sizes.rows.div_ceil(rows) * sizes.columns.div_ceil(columns) * batch
    };
    let smaller = [[rows, columns], [rows.min(64), columns], [rows.min(64), 64]];
    let known = smaller.into_iter().filter(|[rows, columns]| *rows > 32 || *columns == 128);
    let mut chosen = [rows, columns];
    for sides in known {
        chosen = sides;
        if tiles(sides) >= MANY_TILES {
            break;
        }
    }
    chosen
}

/// Matrix units of a device: what they multiply, and the depth of their fragments.
#[derive(Clone, Copy)]
pub(super) struct MatrixUnits {
    kind: FloatKind,
    depth: usize,
}

impl MatrixUnits {
    /// Those for numbers that are rounded to `dtype`; for f32, to TF32 if that is allowed.
    pub(super) fn find(client: &Client, dtype: DType) -> Option<Self> {
        let (kind, depth) = match dtype {
            DType::F16 => (FloatKind::F16, 16),
            DType::BF16 => (FloatKind::BF16, 16),
            DType::F32 if crate::tf32_is_allowed() => (FloatKind::TF32, 8),
            _ => return None,
        };
        let properties = client.properties();
        let (rounded, full) = (ElemType::Float(kind), ElemType::Float(FloatKind::F32));
        let config = MmaConfig {
            a_type: rounded,
            b_type: rounded,
            cd_type: full,
            m: 16,
            n: 16,
            k: depth as u32,
        };
        let hardware = &properties.hardware;
        let plane = tile::PLANE as u32;
        let fits = properties.features.matmul.cmma.contains(&config)
            && (hardware.plane_size_min, hardware.plane_size_max) == (plane, plane)
            && hardware.max_units_per_cube as usize >= tile::UNITS
            && hardware.max_shared_memory_size >= LEAST_SHARED;
        fits.then_some(Self { kind, depth })
    }

    /// An operand's side of a tile.
    fn side(self, along: bool, lines: usize) -> Side {
        let padding = if self.kind == FloatKind::TF32 && along { 4 } else { 8 };
        Side { along, lines, padding, run: tile::RUN }
    }

    fn form(
        self,
        [left, right, out]: [&Operand; 3],
        behind: [bool; 2],
        more: &More,
        sizes: Sizes,
    ) -> Form {
        let others = more.rights.each_ref().map(|side| side.as_ref().map_or(0, |side| side.1));
        let all = sizes.columns + others.iter().sum::<usize>();
        let [rows, columns] = tile(Sizes { columns: all, ..sizes });
        let [bias, residual] = behind;
        let mut places = vec![out.first, out.line, out.outer, out.inner];
        if all > sizes.columns {
            places.extend([sizes.columns, others[0]]);
        }
        let form = Form {
            left: self.side(left.along, rows),
            right: self.side(right.along, columns),
            bias,
            residual,
            summed: more.summed,
            causal: more.causal,
            rights: 1 + more.rights.iter().flatten().count(),
            direct: behind == [false; 2] && places.iter().all(|place| place.is_multiple_of(8)),
            depth: self.depth,
            buffers: 2,
        };
        let number = if self.kind == FloatKind::TF32 { 4 } else { 2 };
        let room = out.tensor.client.properties().hardware.max_shared_memory_size;
        let long = form.with_long_runs();
        if long.takes_long_runs(sizes.depth) && long.shared_bytes(number) <= room {
            return long;
        }
        Form { buffers: if form.shared_bytes(number) <= room { 2 } else { 1 }, ..form }
    }

    /// Whether the kernel takes a product of these sizes, which the other kernel takes.
    pub(super) fn take(sizes: Sizes) -> bool {
        sizes.depth.is_multiple_of(tile::RUN)
    }

    /// `left · right`, with a bias and a residual, or with what `more` says. Both sides are of types that [`Operand::element`] knows.
    pub(super) fn launch(
        self,
        [left, right, out]: [Operand; 3],
        [bias, residual]: [Option<CubeTensor>; 2],
        more: More,
        sizes: Sizes,
    ) {
        let (Some(of_left), Some(of_right)) = (left.element(), right.element()) else { return };
        let client = out.tensor.client.clone();
        let behind = [bias.is_some(), residual.is_some()];
        let form = self.form([&left, &right, &out], behind, &more, sizes);
        let [second, third] = more.rights.each_ref().map(|side| {
            side.as_ref()
                .map_or((right.tensor.clone(), 0), |(tensor, columns)| (tensor.clone(), *columns))
        });
        let tiles = |columns: usize| columns.div_ceil(form.right.lines) as u32;
        let across = tiles(sizes.columns) + tiles(second.1) + tiles(third.1);
        let down = sizes.rows.div_ceil(form.left.lines) as u32;
        let places = (left.place(), right.place(), out.place());
        // What is not there is never read.
        let [bias, residual] =
            [bias, residual].map(|tensor| tensor.unwrap_or_else(|| out.tensor.clone()));
        matrix_units::tiles_of_fragments::launch(
            &client,
            CubeCount::Static(across, down, (sizes.outer * sizes.inner) as u32),
            CubeDim::new_1d(tile::UNITS as u32),
            left.tensor.into_buffer_arg(),
            right.tensor.into_buffer_arg(),
            second.0.into_buffer_arg(),
            third.0.into_buffer_arg(),
            bias.into_buffer_arg(),
            residual.into_buffer_arg(),
            out.tensor.into_buffer_arg(),
            places.0,
            places.1,
            places.2,
            sizes.launched(),
            MoreColumnsLaunch::new(second.1 as u32, third.1 as u32),
            form,
            ElemType::Float(self.kind),
            of_left,
            of_right,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(rows: usize, columns: usize, outer: usize) -> Sizes {
        Sizes { rows, columns, depth: 512, outer, inner: 1 }
    }

    #[test]
    fn tiles_are_smaller_where_a_large_gpu_would_be_idle() {
        assert_eq!(tile(sizes(4096, 1536, 1)), [128, 128]);
        assert_eq!(tile(sizes(4096, 512, 1)), [64, 128]);
        assert_eq!(tile(sizes(256, 64, 128)), [128, 64]);
        assert_eq!(tile(sizes(64, 2048, 8)), [64, 64]);
        assert_eq!(tile(sizes(64, 11264, 8)), [64, 128]);
        assert_eq!(tile(sizes(9, 2048, 1)), [32, 128]);
    }

    #[test]
    fn planes_cover_every_tile_and_shared_memory_has_room_for_it() {
        let both = [(FloatKind::F16, 16, 2), (FloatKind::TF32, 8, 4)];
        for (rows, columns) in [(128, 128), (64, 128), (64, 64), (128, 64), (32, 128)] {
            for ((kind, depth, number), along) in
                both.into_iter().flat_map(|kind| [(kind, true), (kind, false)])
            {
                let units = MatrixUnits { kind, depth };
                let form = Form {
                    left: units.side(along, rows),
                    right: units.side(along, columns),
                    bias: false,
                    residual: false,
                    summed: !along,
                    causal: Causal::All,
                    rights: 1,
                    direct: false,
                    depth,
                    buffers: 1,
                };
                let long = form.with_long_runs();
                for side in [form.left, form.right, long.left, long.right] {
                    let fours = side.lines * side.run / 4;
                    assert_eq!(side.brought() * tile::UNITS, fours, "{side:?}");
                }
                let planes = tile::UNITS / tile::PLANE;
                let down = planes / form.planes_across();
                assert_eq!(down * 2 * tile::FRAGMENT, rows, "{form:?}");
                let across = form.planes_across() * form.across() * tile::FRAGMENT;
                assert_eq!(across, columns, "{form:?}");
                assert!(form.shared_bytes(number) <= LEAST_SHARED, "{form:?}");
            }
        }
    }
}
