//! Normalisations over the last dimension.

use burn::tensor::{Device, Tensor, TensorData};

use super::tuning::Tuning;
use crate::arch::blueprint::NormKind;
use crate::error::ModelError;
use crate::folder::checkpoint::Stored;
use crate::weights::binding::BoundNorm;
use crate::weights::convert;
use crate::weights::format::is_host;

/// A norm with its weights on a device.
#[derive(Debug)]
pub(crate) struct Norm {
    kind: NormKind,
    scale: (String, Tensor<1>),
    shift: Option<(String, Tensor<1>)>,
    eps: f64,
    /// What is added to the scale, also to one that is trained.
    offset: f64,
}

impl Norm {
    pub(crate) fn load(
        kind: NormKind,
        bound: &BoundNorm,
        (eps, offset): (f64, f64),
        device: &Device,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            kind,
            scale: (bound.scale.name.clone(), vector(&bound.scale, device)?),
            shift: match &bound.shift {
                Some(shift) => Some((shift.name.clone(), vector(shift, device)?)),
                None => None,
            },
            eps,
            offset,
        })
    }

    /// The factors and what is added to the mean square, if it is a root-mean-square norm that has no more than these.
    pub(super) fn plain_rms(&self) -> Option<(&Tensor<1>, f64)> {
        let plain = self.kind == NormKind::Rms && self.shift.is_none() && self.offset == 0.0;
        plain.then_some((&self.scale.1, self.eps))
    }

    pub(crate) fn apply<const D: usize>(&self, x: Tensor<D>, tuning: Option<&Tuning>) -> Tensor<D> {
        let last = D - 1;
        let tuned = |(name, own): &(String, Tensor<1>)| {
            tuning.and_then(|tuning| tuning.vector(name)).unwrap_or(own).clone()
        };
        let scale = tuned(&self.scale);
        let scale = if self.offset == 0.0 { scale } else { scale + self.offset };
        if self.kind == NormKind::Rms
            && self.shift.is_none()
            && let Some(normal) = surefoot_ops::rms_norm(&x, &scale, self.eps)
        {
            return normal;
        }
        let x = row_by_row(x);
        let normal = match self.kind {
            NormKind::Rms => {
                let mean = (x.clone() * x.clone()).mean_dim(last);
                x / (mean + self.eps).sqrt()
            }
            NormKind::Layer | NormKind::LayerWithoutShift => {
                let centred = x.clone() - x.mean_dim(last);
                let variance = (centred.clone() * centred.clone()).mean_dim(last);
                centred / (variance + self.eps).sqrt()
            }
        };
        let scaled = normal * scale.unsqueeze();
        match &self.shift {
            Some(shift) => scaled + tuned(shift).unsqueeze(),
            None => scaled,
        }
    }
}

/// The same numbers with each row in one piece, on the processor: a row that lies scattered, since its tensor was
/// turned, is added up in another order than one that does not, and a single row never does.
fn row_by_row<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match is_host(&x.device()) && !x.is_autodiff() {
        true => {
            let dims = x.dims();
            x.reshape([dims.iter().product::<usize>()]).reshape(dims)
        }
        false => x,
    }
}

/// Loads a vector as f32.
pub(crate) fn vector(stored: &Stored, device: &Device) -> Result<Tensor<1>, ModelError> {
    let mut numbers = vec![0.0; stored.shape.iter().product()];
    let format = stored.format()?;
    convert::add_row(stored, format, format, 0, &mut numbers)?;
    Ok(Tensor::from_data(TensorData::new(numbers, stored.shape.clone()), device))
}
