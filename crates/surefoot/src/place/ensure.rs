//! Putting tensors and modules where they belong, and saying what was moved.
//!
//! The rule: everything that a run touches is on the run's device; float tensors and weights
//! are in the run's dtype. A wrong device is always repaired. A float dtype is repaired unless
//! that would throw away digits that nobody allowed to lose (fp64), which is reported with
//! both sides.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, DType, Device, Float, Int, Tensor};
pub use surefoot_core::place::{Place, ValueName};

use super::{Dtype, DtypeSupport, dtype_of, float_dtype, probe_dtype};
use crate::Burn;
use crate::device::OpenDevice;
use crate::fault::{Fault, FaultKind};

/// Where a run's tensors belong.
pub type Target = surefoot_core::place::Target<Burn>;
/// Where one tensor is.
pub type Spot = surefoot_core::place::Spot<Burn>;

/// `dtype` on `device`. Refused if the device can't compute in it, since Burn would give wrong
/// numbers without an error.
pub fn target(device: &OpenDevice, dtype: Dtype) -> Result<Target, Fault> {
    match probe_dtype(device, dtype) {
        DtypeSupport::Works => {
            Ok(Target { name: device.name(), device: device.burn().clone(), dtype })
        }
        support => Err(does_not_compute(device, dtype, support)),
    }
}

pub(crate) fn does_not_compute(device: &OpenDevice, dtype: Dtype, support: DtypeSupport) -> Fault {
    let message =
        format!("{} ({}) does not compute in {dtype}: {support}", device.name(), device.info.label);
    Fault::new(FaultKind::UnsupportedDtype, "place", message).on(device.name().to_string())
}

/// Repairs device and dtype of everything in `value` in one call, and says where what it moved was.
pub fn ensure<P: Place<Burn>>(value: P, target: &Target) -> Result<(P, Vec<Spot>), Fault> {
    surefoot_core::place::ensure(&Burn, value, target)
}

/// Keeps the autodiff context that a tensor has; Burn refuses to move between contexts.
pub(crate) fn for_tensor(target: &Target, is_autodiff: bool) -> Device {
    match is_autodiff {
        true => target.device.clone().autodiff(),
        false => target.device.clone().without_autodiff(),
    }
}

macro_rules! spot {
    ($tensor:expr, $visit:expr) => {
        $visit(Spot::input($tensor.device(), $tensor.dtype(), $tensor.dims().to_vec()))
    };
}

impl<const D: usize> Place<Burn> for Tensor<D, Float> {
    fn survey(&self, visit: &mut dyn FnMut(Spot)) {
        spot!(self, visit);
    }

    fn place(self, target: &Target) -> Self {
        let wanted = for_tensor(target, self.device().is_autodiff());
        let tensor = converted(self, target.dtype);
        if tensor.device() == wanted { tensor } else { tensor.to_device(&wanted) }
    }
}

/// The tensor in `dtype`, where it is. A device may cast wrongly without an error in a dtype that it
/// only stores, so what is not on the CPU is converted there: a repair is rare, and has to
/// be right.
fn converted<const D: usize>(tensor: Tensor<D>, dtype: Dtype) -> Tensor<D> {
    let (now, wanted) = (tensor.dtype(), DType::from(float_dtype(dtype)));
    if dtype_of(now).is_none_or(|now| now == dtype) {
        return tensor;
    }
    let device = tensor.device();
    if device == Device::flex() {
        return tensor.cast(float_dtype(dtype));
    }
    Tensor::from_data(tensor.into_data().convert_dtype(wanted), (&device, wanted))
}

macro_rules! place_without_dtype {
    ($kind:ty) => {
        impl<const D: usize> Place<Burn> for Tensor<D, $kind> {
            fn survey(&self, visit: &mut dyn FnMut(Spot)) {
                spot!(self, visit);
            }

            fn place(self, target: &Target) -> Self {
                let device = self.device();
                let wanted = for_tensor(target, device.is_autodiff());
                if device == wanted { self } else { self.to_device(&wanted) }
            }
        }
    };
}
place_without_dtype!(Int);
place_without_dtype!(Bool);

/// A module's weights, as something to place.
#[derive(Clone, Debug)]
pub struct Weights<M>(pub M);

impl<M> std::ops::Deref for Weights<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.0
    }
}

impl<M: Module> Place<Burn> for Weights<M> {
    fn survey(&self, visit: &mut dyn FnMut(Spot)) {
        self.0.visit(&mut Surveyor { path: Vec::new(), visit });
    }

    fn place(self, target: &Target) -> Self {
        let devices = self.0.devices();
        let autodiff = devices.iter().any(Device::is_autodiff);
        let wanted = for_tensor(target, autodiff);
        let module = self.0.map(&mut Caster(target.dtype));
        Self(match devices.iter().all(|device| *device == wanted) {
            true => module,
            false => module.to_device(&wanted),
        })
    }
}

struct Surveyor<'a> {
    path: Vec<String>,
    visit: &'a mut dyn FnMut(Spot),
}

impl Surveyor<'_> {
    fn see(&mut self, device: Device, dtype: DType, shape: Vec<usize>) {
        (self.visit)(Spot::parameter(self.path.join("."), device, dtype, shape));
    }
}

impl ModuleVisitor for Surveyor<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        self.see(tensor.device(), tensor.dtype(), tensor.dims().to_vec());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.val();
        self.see(tensor.device(), tensor.dtype(), tensor.dims().to_vec());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.val();
        self.see(tensor.device(), tensor.dtype(), tensor.dims().to_vec());
    }
}

struct Caster(Dtype);

impl ModuleMapper for Caster {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let dtype = self.0;
        param.map(|tensor| match dtype_of(tensor.dtype()) {
            Some(now) if now != dtype => {
                let trained = tensor.is_require_grad();
                // A cast makes a new tensor: it has to become a leaf again to be trained.
                let cast = converted(tensor, dtype).detach();
                cast.set_require_grad(trained)
            }
            _ => tensor,
        })
    }
}

/// Checks that all float tensors of `value` are on one device and of one dtype, and that the
/// integer and bool ones are on that device too; else names the two that disagree.
pub fn consistent<P: Place<Burn>>(value: &P) -> Result<(), Fault> {
    let mut first: Option<Spot> = None;
    let mut first_float: Option<Spot> = None;
    let mut clash: Option<(FaultKind, String)> = None;
    value.survey(&mut |spot| {
        if clash.is_some() {
            return;
        }
        if let Some(other) = first.as_ref().filter(|other| other.device != spot.device) {
            clash = Some((FaultKind::DeviceMismatch, format!("{other}, but {spot}")));
            return;
        }
        if dtype_of(spot.dtype).is_some() {
            if let Some(other) = first_float.as_ref().filter(|other| other.dtype != spot.dtype) {
                clash = Some((FaultKind::DtypeMismatch, format!("{other}, but {spot}")));
                return;
            }
            first_float.get_or_insert_with(|| spot.clone());
        }
        first.get_or_insert(spot);
    });
    match clash {
        Some((kind, message)) => Err(Fault::new(kind, "place", message)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceName, open};
    use burn::nn::LinearConfig;
    use burn::tensor::FloatDType;

    fn target() -> Target {
        super::target(&open(DeviceName::CPU).unwrap(), Dtype::F32).unwrap()
    }

    #[test]
    fn what_is_in_place_is_not_touched() {
        let device = Device::flex();
        let model = LinearConfig::new(4, 2).init(&device);
        let x = Tensor::<2>::ones([3, 4], &device);
        let (_, moved) = ensure((Weights(model), x), &target()).unwrap();
        assert_eq!(moved, Vec::new());
    }

    #[test]
    fn weights_and_inputs_in_another_dtype_are_repaired_in_one_call() {
        let device = Device::flex();
        let model = LinearConfig::new(4, 2).init(&device);
        let x = Tensor::<2>::ones([3, 4], &device).cast(FloatDType::F16);
        let half = Target { dtype: Dtype::F16, ..target() };
        let half_model = Weights(model).place(&half);
        let ((model, x), moved) = ensure((half_model, x), &target()).unwrap();
        assert_eq!(moved.len(), 3, "{moved:?}");
        assert!(moved.iter().any(|m| m.name.to_string().contains("weight")), "{moved:?}");
        assert!(moved.iter().any(|m| m.name == ValueName::NumberedInput(1)), "{moved:?}");
        let y = model.forward(x);
        assert_eq!(y.dtype(), DType::F32);
    }

    #[test]
    fn fp64_is_not_narrowed_without_being_asked_and_both_sides_are_named() {
        let x = Tensor::<2>::ones([3, 4], &Device::flex()).cast(FloatDType::F64);
        let fault = ensure(x, &target()).unwrap_err();
        assert_eq!(fault.kind, FaultKind::DtypeMismatch);
        let text = fault.root_cause();
        assert!(text.contains("F64") && text.contains("fp32") && text.contains("[3, 4]"), "{text}");
    }

    #[test]
    fn a_mix_of_dtypes_names_both_sides() {
        let device = Device::flex();
        let a = Tensor::<2>::ones([3, 4], &device);
        let b = Tensor::<2>::ones([4, 5], &device).cast(FloatDType::F16);
        assert!(consistent(&(a.clone(), a.clone())).is_ok());
        let fault = consistent(&(a, b)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::DtypeMismatch);
        let text = fault.root_cause();
        assert!(text.contains("input 0") && text.contains("input 1"), "{text}");
        assert!(text.contains("F16") && text.contains("F32"), "{text}");
    }

    #[test]
    fn trained_weights_stay_trainable_when_cast() {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(2, 2).init(&device);
        let double = Weights(model).place(&Target { dtype: Dtype::F64, ..target() });
        assert!(double.0.weight.val().is_require_grad());
        let x = Tensor::<2>::ones([1, 2], &device).cast(FloatDType::F64);
        let grads = double.0.forward(x).sum().backward();
        assert!(double.0.weight.val().grad(&grads).is_some());
    }
}
