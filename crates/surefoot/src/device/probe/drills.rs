//! A fire drill: each kind of fault strikes a small guarded job on this device, and the result
//! must be right all the same, or the fault must reach the caller if it is the caller's.

use burn::tensor::{Tensor, TensorData};

use super::reference::{Matrix, relative_error, wave};
use crate::Footing;
use crate::device::{OpenDevice, Selector};
use crate::fault::{Fault, FaultKind, from_error};
use crate::place::Place;
use crate::recover::{Drill, Policy};

pub(super) fn recover_from_all(device: &OpenDevice) -> Result<String, Fault> {
    let (mut recovered, mut reported) = (0, 0);
    for kind in FaultKind::ALL {
        match (strike(device, kind), kind.is_callers()) {
            (Ok(()), false) => recovered += 1,
            (Err(fault), true) if fault.kind == kind && fault.earlier.is_empty() => reported += 1,
            // Moving on is all that helps against these, and the CPU is the last device.
            (Err(fault), false) if fault.kind == kind && needs_another(device, kind) => {
                reported += 1;
            }
            (Ok(()), true) => {
                let message = "the caller's mistake was retried";
                return Err(Fault::new(kind, "drill", message));
            }
            (Err(fault), _) => return Err(fault.context(format!("drill of {kind}"))),
        }
    }
    Ok(format!("{recovered} kinds recovered with the right result, {reported} reported"))
}

fn needs_another(device: &OpenDevice, kind: FaultKind) -> bool {
    let alone = device.name() == crate::device::DeviceName::CPU;
    match kind {
        FaultKind::DeviceLost | FaultKind::DriverOrInit => alone,
        FaultKind::UnsupportedDtype => alone,
        // fp32 is what helps, and this job is in fp32 already.
        FaultKind::Numeric => true,
        // No retry helps: the caller has to go back to an earlier state.
        FaultKind::StateLost => true,
        _ => false,
    }
}

fn strike(device: &OpenDevice, kind: FaultKind) -> Result<(), Fault> {
    let footing = Footing::builder()
        .devices(Selector::only(device.name()))
        .precision(crate::place::Precision::Fp32)
        .policy(Policy::default())
        .drill(Drill::once(kind, 0))
        .build()?;
    let a = Matrix::new(8, 12, wave(1.0));
    let b = Matrix::new(12, 6, wave(2.0));
    let on = |m: &Matrix| {
        Tensor::<2>::from_data(TensorData::new(m.f32s(), [m.rows, m.columns]), device.burn())
    };
    let (weights, batch) = (on(&b), on(&a));
    let needs_segment = matches!(kind, FaultKind::UnsupportedOp | FaultKind::KernelCompile);
    let product = if needs_segment {
        footing.task("drill").run_segment((weights, batch), |_, (w, x)| Ok(x.matmul(w)))?.value
    } else {
        let task = footing.task("drill").split(batch).with(weights);
        task.run(|_, w, x| Ok(x.matmul(w)))?.value
    };
    let mut place = None;
    product.survey(&mut |spot| place = Some(spot));
    let found = product
        .try_into_data()
        .map_err(|error| from_error("drill", error))?
        .try_to_vec::<f32>()
        .map_err(|error| from_error("drill", error))?;
    let error = relative_error(&found, &a.times(&b).values);
    if error > 1e-5 {
        let message = format!("the recovered result is wrong: error {error:.1e} at {place:?}");
        return Err(Fault::new(FaultKind::Numeric, "drill", message));
    }
    Ok(())
}
