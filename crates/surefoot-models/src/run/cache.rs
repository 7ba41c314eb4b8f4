//! Keys and values of the positions that were seen, with room for those to come.

use burn::tensor::Tensor;

use super::attention::{self, AttentionMask, Scores};
use super::part_devices::PartDevices;
use crate::arch::blueprint::Blueprint;
use crate::error::ModelError;

/// Where a pass puts its keys and values, and attends to those of earlier passes.
pub(crate) trait KeyValueStore {
    /// Adds the keys and values of this pass for a block and attends from `q` to all that are known. Shapes
    /// are those of [`attention::attend`].
    fn attend(
        &mut self,
        block: usize,
        queries: Queries<'_>,
        k: Tensor<4>,
        v: Tensor<4>,
    ) -> Result<Tensor<4>, ModelError>;

    /// Whether there is something for this block: a block that fails while it adds its keys and
    /// values may lose what was there.
    fn has(&self, block: usize) -> bool;

    /// The tensors of a block, if it has some on a device whose kernels write into them.
    fn of_device(&mut self, _block: usize) -> Option<DeviceCache<'_>> {
        None
    }
}

/// A block's part of a [`Cache`], with its rows and columns: `keys` and `values` have room behind `filled`.
#[derive(Clone, Copy)]
pub(crate) struct DeviceCache<'a> {
    pub(crate) keys: &'a Tensor<4>,
    pub(crate) values: &'a Tensor<4>,
    pub(crate) start: usize,
    pub(crate) filled: usize,
    pub(crate) first_row: usize,
    pub(crate) stale: usize,
}

/// The queries of a block, and how they attend.
pub(crate) struct Queries<'a> {
    pub(crate) q: Tensor<4>,
    pub(crate) scores: Scores,
    pub(crate) mask: &'a AttentionMask<'a>,
}

/// A store that a pass may be given.
pub(crate) type Store = dyn KeyValueStore + 'static;

/// The cache of one batch: two tensors `[rows, kv_heads, capacity, head_dim]` a block. A pass
/// uses the rows from `first_row` on, as many as its batch has, and looks at the positions from `start` on.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    pub(crate) layers: Vec<Option<(Tensor<4>, Tensor<4>)>>,
    /// The first position that any sequence still needs.
    pub(crate) start: usize,
    pub(crate) filled: usize,
    /// Other than 0 while sequences join those before them.
    pub(crate) first_row: usize,
    /// Columns before `start` of a pass's rows that it sets to zero: they hold what sequences left that had these rows before.
    pub(crate) stale: usize,
}

impl Cache {
    /// Room for the keys and values of each block on the block's device.
    pub(crate) fn new(
        blueprint: &Blueprint,
        batch: usize,
        capacity: usize,
        parts: &PartDevices,
    ) -> Self {
        let shape = [batch, blueprint.kv_heads, capacity, blueprint.head_dim];
        let empty = |block: usize| {
            let device = parts.of(block);
            Some((Tensor::zeros(shape, device), Tensor::zeros(shape, device)))
        };
        Self { layers: (0..blueprint.blocks.len()).map(empty).collect(), ..Self::default() }
    }

    /// Positions that a pass can look back on.
    pub(crate) fn past(&self) -> usize {
        self.filled - self.start
    }

    /// Adds the keys and values of this pass and returns all that are known.
    fn extend(&mut self, layer: usize, k: Tensor<4>, v: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let [batch, heads, width, dim] = k.dims();
        let end = self.filled + width;
        let rows = self.first_row..self.first_row + batch;
        let place = [rows.clone(), 0..heads, self.filled..end, 0..dim];
        let stale = [rows.clone(), 0..heads, self.start - self.stale..self.start, 0..dim];
        // Taken out, so that the tensors are written in place and not copied.
        let Some((keys, values)) = self.layers[layer].take() else { return (k, v) };
        // A block that runs elsewhere takes its part of the cache along.
        let (keys, values) = (moved_to(&k, keys), moved_to(&v, values));
        let written = |cache: Tensor<4>, new: Tensor<4>| {
            let cache = match self.stale {
                0 => cache,
                columns => {
                    let nothing = Tensor::zeros([batch, heads, columns, dim], &cache.device());
                    cache.slice_assign(stale.clone(), nothing)
                }
            };
            cache.slice_assign(place.clone(), new)
        };
        let (keys, values) = (written(keys, k), written(values, v));
        self.layers[layer] = Some((keys.clone(), values.clone()));
        let seen = [rows, 0..heads, self.start..end, 0..dim];
        (keys.slice(seen.clone()), values.slice(seen))
    }
}

/// `tensor` on the device that `other` is on; not copied if it is there.
pub(crate) fn moved_to(other: &Tensor<4>, tensor: Tensor<4>) -> Tensor<4> {
    match tensor.device() == other.device() {
        true => tensor,
        false => tensor.to_device(&other.device()),
    }
}

impl KeyValueStore for Cache {
    fn attend(
        &mut self,
        block: usize,
        queries: Queries<'_>,
        k: Tensor<4>,
        v: Tensor<4>,
    ) -> Result<Tensor<4>, ModelError> {
        let (k, v) = self.extend(block, k, v);
        let Queries { q, scores, mask } = queries;
        Ok(attention::attend(q, &k, &v, scores, mask))
    }

    fn has(&self, block: usize) -> bool {
        self.layers[block].is_some()
    }

    fn of_device(&mut self, block: usize) -> Option<DeviceCache<'_>> {
        let (keys, values) = self.layers[block].as_ref()?;
        let has_room = self.filled < keys.dims()[2];
        let Self { start, filled, first_row, stale, .. } = *self;
        has_room.then_some(DeviceCache { keys, values, start, filled, first_row, stale })
    }
}
