//! Indices and slices, checked where they enter: on wgpu Burn reads another row for an index
//! out of bounds, and clamps a slice that is.

use std::ops::Range;

use burn::tensor::{Int, Tensor};

use crate::fault::{Fault, FaultKind, from_error};

/// Checks that every id is below `bound`; names the first that isn't, and where it is.
pub fn check_ids(name: &str, ids: &[i64], bound: usize) -> Result<(), Fault> {
    match ids.iter().position(|&id| usize::try_from(id).map_or(true, |id| id >= bound)) {
        None => Ok(()),
        Some(at) => Err(Fault::new(
            FaultKind::ShapeMismatch,
            name,
            format!("{name}[{at}] is {}, but must be from 0 to {}", ids[at], bound.max(1) - 1),
        )),
    }
}

/// [`check_ids`] for a tensor that is already on a device. Reads it back, which waits for the
/// device: prefer to check ids while they are still on the host.
pub fn check_tensor_ids<const D: usize>(
    name: &str,
    ids: &Tensor<D, Int>,
    bound: usize,
) -> Result<(), Fault> {
    let ids = ids
        .try_to_data()
        .map_err(|error| from_error(name, error))?
        .try_cast_as::<i64>()
        .and_then(|data| data.try_to_vec::<i64>())
        .map_err(|error| from_error(name, error))?;
    check_ids(name, &ids, bound)
}

/// Checks that `range` lies within `0..size`.
pub fn check_range(name: &str, range: &Range<usize>, size: usize) -> Result<(), Fault> {
    if range.start <= range.end && range.end <= size {
        return Ok(());
    }
    Err(Fault::new(
        FaultKind::ShapeMismatch,
        name,
        format!("{name} takes {}..{} of {size}", range.start, range.end),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;
    use proptest::prelude::*;

    #[test]
    fn the_first_bad_id_is_named() {
        let fault = check_ids("tokens", &[1, 5, -1], 5).unwrap_err();
        assert_eq!(fault.root_cause(), "tokens[1] is 5, but must be from 0 to 4");
        assert!(fault.kind.is_callers());
        assert!(check_ids("tokens", &[], 0).is_ok());
        assert!(check_ids("tokens", &[0], 0).is_err());
        let on_device = Tensor::<1, Int>::from_data([0, 7], &Device::flex());
        assert!(check_tensor_ids("labels", &on_device, 7).is_err());
        assert!(check_tensor_ids("labels", &on_device, 8).is_ok());
    }

    /// Shows what Burn does: the slice comes back shorter than what was asked for.
    #[test]
    fn burn_clamps_a_slice_that_a_check_refuses() {
        let rows = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &Device::flex());
        assert_eq!(rows.slice([1..9]).dims(), [2]);
        assert!(check_range("rows", &(1..9), 3).is_err());
    }

    proptest! {
        #[test]
        fn ids_pass_exactly_when_all_are_in_bounds(
            ids in prop::collection::vec(-2i64..20, 0..30), bound in 0usize..20,
        ) {
            let good = ids.iter().all(|&id| id >= 0 && (id as usize) < bound);
            prop_assert_eq!(check_ids("x", &ids, bound).is_ok(), good);
        }

        #[test]
        fn a_range_passes_exactly_when_it_lies_inside(a in 0usize..9, b in 0usize..9, n in 0usize..9) {
            prop_assert_eq!(check_range("x", &(a..b), n).is_ok(), a <= b && b <= n);
        }
    }
}
