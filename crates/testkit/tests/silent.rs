//! Where Burn computes wrong numbers without a word: each case shows what Burn does, and that a
//! guarded run refuses or repairs it. If Burn learns to refuse one itself, its test here fails
//! and the check can go.

use burn::tensor::{Device, Tensor};
use surefoot::place::check_range;

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.to_data_as::<f32>().try_to_vec().expect("fp32")
}

#[test]
fn a_slice_out_of_range_is_clamped_by_burn_and_refused_by_the_check() {
    let x = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &Device::flex());
    assert_eq!(numbers(x.slice([1..9])), [2.0, 3.0]);
    assert!(check_range("x", &(1..9), 3).unwrap_err().kind.is_callers());
}

#[cfg(feature = "gpu")]
mod on_wgpu {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::numbers;
    use burn::tensor::{DType, Int, Tensor, TensorData};
    use surefoot::device::{OpenDevice, Selector};
    use surefoot::fault::catch;
    use surefoot::place::{Dtype, DtypeSupport, check_ids, check_tensor_ids, probe_dtype, target};
    use surefoot::{FaultKind, Footing};

    /// One case at a time: another thread's read would hand over what a case leaves pending.
    fn device_to_myself() -> MutexGuard<'static, ()> {
        static DEVICE: Mutex<()> = Mutex::new(());
        DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn footing(device: &OpenDevice) -> Footing {
        Footing::builder().devices(Selector::only(device.name())).build().expect("it opens")
    }

    #[test]
    fn f32_and_f16_give_wrong_sums_in_burn_and_right_ones_in_a_guarded_run() {
        let _alone = device_to_myself();
        let Some(device) = testkit::gpu() else { return };
        let a = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0], device.burn());
        // Converted on the host: this device's own casts can't be trusted either.
        let halves = TensorData::from([1.0f32, 2.0, 3.0, 4.0]).convert_dtype(DType::F16);
        let b = Tensor::<1>::from_data(halves, (device.burn(), DType::F16));
        let right = [2.0, 4.0, 6.0, 8.0];
        let bare = catch(|| numbers(a.clone() + b.clone()));
        assert_ne!(bare.ok().as_deref(), Some(&right[..]), "Burn got this right");
        let guarded = footing(&device)
            .task("sum")
            .run_with((a, b), |_, (a, b)| Ok(a + b))
            .expect("it is repaired");
        assert_eq!(numbers(guarded.value), right);
    }

    #[test]
    fn a_dtype_that_is_only_stored_is_refused_as_a_target() {
        let _alone = device_to_myself();
        let Some(device) = testkit::gpu() else { return };
        for dtype in Dtype::ALL {
            if probe_dtype(&device, dtype) == DtypeSupport::Works {
                continue;
            }
            let fault = target(&device, dtype).unwrap_err();
            assert_eq!(fault.kind, FaultKind::UnsupportedDtype);
        }
        assert!(
            Dtype::ALL.iter().any(|dtype| probe_dtype(&device, *dtype) != DtypeSupport::Works),
            "this device computes in everything: the case is not shown"
        );
    }

    #[test]
    fn bf16_where_it_is_only_stored_is_wrong_in_burn_and_right_in_a_guarded_run() {
        let _alone = device_to_myself();
        let Some(device) = testkit::gpu() else { return };
        if probe_dtype(&device, Dtype::BF16) == DtypeSupport::Works {
            return;
        }
        let right = [2.0, 4.0, 6.0];
        let bf16 = TensorData::from([1.0f32, 2.0, 3.0]).convert_dtype(DType::BF16);
        let x = Tensor::<1>::from_data(bf16, (device.burn(), DType::BF16));
        let bare = catch(|| numbers(x.clone() + x.clone()));
        assert_ne!(bare.ok().as_deref(), Some(&right[..]), "Burn got this right");
        let guarded = footing(&device)
            .task("sum")
            .run_with(x, |_, x| Ok(x.clone() + x))
            .expect("it is repaired");
        assert_eq!(numbers(guarded.value), right);
    }

    #[test]
    fn an_index_out_of_bounds_reads_something_in_burn_and_is_refused_by_the_check() {
        let _alone = device_to_myself();
        let Some(device) = testkit::gpu() else { return };
        let table = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], device.burn());
        let ids = Tensor::<1, Int>::from_data([0, 7], device.burn());
        let bare = catch(|| numbers(table.select(0, ids.clone())));
        assert_eq!(bare.map(|rows| rows.len()).ok(), Some(4), "Burn refused this");
        assert!(check_tensor_ids("ids", &ids, 2).unwrap_err().kind.is_callers());
        assert!(check_ids("ids", &[0, 7], 2).is_err());
    }
}
