//! Builds with a GPU: tensors packed by kernels.

use std::ops::Range;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor};
use surefoot_core::recover::Point;
use surefoot_core::recover::drill::point;

use crate::cube::{CubeKernels, Eight};
use crate::update::AdamW;

/// Tensors that are packed by one launch.
pub(crate) const AT_ONCE: usize = 16;

/// A multiple of what devices ask for where a view begins, in numbers of f32: CUDA asks for 512 bytes.
const ALIGNMENT: usize = 128;

/// The room that so many numbers take.
pub(crate) fn padded(count: usize) -> usize {
    count.next_multiple_of(ALIGNMENT)
}

/// Flat tensors in f32, one after another in one.
#[derive(Clone, Debug)]
pub struct Packed {
    arena: Tensor<1>,
    places: Vec<Range<usize>>,
}

impl Packed {
    /// Packs copies of the tensors; none where that is of no use, on the processor, or not possible: for no tensors, and for
    /// dtypes other than f32.
    pub fn new(tensors: &[Tensor<1>]) -> Option<Self> {
        if !is_packable(tensors) {
            return None;
        }
        let (places, end) = places(tensors);
        let lengths: Vec<usize> = places.iter().map(Range::len).collect();
        Some(Self { arena: gathered(tensors, &lengths, end, false), places })
    }

    /// The tensors, as views where the device allows it.
    pub fn parts(&self) -> Vec<Tensor<1>> {
        let part = |place: &Range<usize>| {
            let arena = self.arena.clone().into_dispatch();
            let part = <Dispatch as CubeKernels>::part_of(arena, place.start, place.len());
            Tensor::from_dispatch(part)
        };
        self.places.iter().map(part).collect()
    }

    /// The same tensors, of zeros.
    #[must_use]
    pub fn zeros(&self) -> Self {
        Self { arena: self.arena.zeros_like(), places: self.places.clone() }
    }

    /// Whether the other has tensors of the same sizes on the same device.
    pub fn is_alike(&self, other: &Self) -> bool {
        self.places == other.places && self.arena.device() == other.arena.device()
    }

    /// All of the tensors as one, with padding: it can be read only if all of them were made.
    pub fn whole(&self) -> Tensor<1> {
        self.arena.clone()
    }

    /// The sum of all numbers, or of their squares. It is finite only if all numbers are.
    pub fn sum(&self, squared: bool) -> Tensor<1> {
        point(Point::Operation);
        let arena = self.arena.clone().into_dispatch();
        Tensor::from_dispatch(<Dispatch as CubeKernels>::sum_of_all(arena, squared))
    }

    /// The room that the first `count` tensors take.
    fn room_of(&self, count: usize) -> usize {
        self.places[..count].last().map_or(0, |last| last.start + padded(last.len()))
    }
}

/// The first numbers of tensors, as many as `lengths` says, in a new tensor of `end` numbers.
fn gathered(tensors: &[Tensor<1>], lengths: &[usize], end: usize, dense: bool) -> Tensor<1> {
    point(Point::Operation);
    // Nobody else holds the arena while it is written.
    let mut arena = Tensor::<1>::empty([end], &tensors[0].device()).into_dispatch();
    let mut offset = 0;
    for (tensors, lengths) in tensors.chunks(AT_ONCE).zip(lengths.chunks(AT_ONCE)) {
        // A launch takes a fixed number of tensors: those that are missing are any, of length 0.
        let take = |at: usize| tensors.get(at).unwrap_or(&tensors[0]).clone().into_dispatch();
        let eight = |first: usize| Eight {
            a: take(first),
            b: take(first + 1),
            c: take(first + 2),
            d: take(first + 3),
            e: take(first + 4),
            f: take(first + 5),
            g: take(first + 6),
            h: take(first + 7),
        };
        let each = std::array::from_fn(|at| lengths.get(at).copied().unwrap_or(0));
        let (left, right) = (eight(0), eight(8));
        arena = <Dispatch as CubeKernels>::pack_into(arena, left, right, each, offset, dense);
        offset += lengths.iter().map(|n| if dense { *n } else { padded(*n) }).sum::<usize>();
    }
    Tensor::from_dispatch(arena)
}

/// The first number of each tensor, in one launch for many tensors; none where [`Packed::new`] gives none.
pub fn first_numbers(tensors: &[Tensor<1>]) -> Option<Tensor<1>> {
    is_packable(tensors).then(|| gathered(tensors, &vec![1; tensors.len()], tensors.len(), true))
}

fn is_packable(tensors: &[Tensor<1>]) -> bool {
    tensors.first().is_some_and(|first| first.device() != Device::flex())
        && tensors.iter().all(|tensor| tensor.dtype() == DType::F32)
}

fn places(tensors: &[Tensor<1>]) -> (Vec<Range<usize>>, usize) {
    let mut end = 0;
    let mut place = |tensor: &Tensor<1>| {
        let start = end;
        end += padded(tensor.dims()[0]);
        start..start + tensor.dims()[0]
    };
    let places = tensors.iter().map(&mut place).collect();
    (places, end)
}

/// How gradients are clipped.
#[derive(Clone, Debug)]
pub struct Clip {
    /// The sum of the squares of all gradients, as they are before [`AdamW::factor`].
    pub squares: Tensor<1>,
    /// Gradients together, times that factor, are made no longer than this.
    pub longest: f64,
}

/// The new values and moments of parameters that are packed alike. The first `decaying` of them are taken times
/// [`AdamW::keep`] before they are changed, the others are not. Nothing is read back: gradients are clipped on the device.
pub fn adamw_packed(
    inputs: [&Packed; 4],
    clip: Option<Clip>,
    step: AdamW,
    decaying: usize,
) -> [Packed; 3] {
    point(Point::Operation);
    let places = &inputs[0].places;
    let decaying = inputs[0].room_of(decaying);
    // Without clipping any number will do.
    let clip = clip.unwrap_or_else(|| Clip { squares: inputs[0].whole(), longest: f64::MAX });
    let [value, gradient, first, second] = inputs.map(|packed| packed.whole().into_dispatch());
    let squares = clip.squares.into_dispatch();
    let (value, first, second) = <Dispatch as CubeKernels>::adamw_of_all(
        value,
        gradient,
        first,
        second,
        squares,
        clip.longest,
        step,
        decaying,
    );
    let packed = |arena| Packed { arena: Tensor::from_dispatch(arena), places: places.clone() };
    [value, first, second].map(packed)
}
