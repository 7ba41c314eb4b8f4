//! Storage that is reserved before it is written.

use burn::tensor::Tensor;

use crate::fault::{Fault, FaultKind};

/// A place for a tensor of a known shape. Reading it before it was written is a fault, not
/// whatever the memory held before.
#[derive(Clone, Debug)]
pub struct Slot<const D: usize> {
    name: String,
    shape: [usize; D],
    value: Option<Tensor<D>>,
}

impl<const D: usize> Slot<D> {
    /// An empty place for a tensor of this shape.
    pub fn new(name: impl Into<String>, shape: [usize; D]) -> Self {
        Self { name: name.into(), shape, value: None }
    }

    /// Puts `value` in; its shape must be the slot's.
    pub fn write(&mut self, value: Tensor<D>) -> Result<(), Fault> {
        if value.dims() != self.shape {
            return Err(Fault::new(
                FaultKind::ShapeMismatch,
                &self.name,
                format!("a {:?} tensor was written to a slot for {:?}", value.dims(), self.shape),
            ));
        }
        self.value = Some(value);
        Ok(())
    }

    /// What was written last.
    pub fn read(&self) -> Result<Tensor<D>, Fault> {
        self.value.clone().ok_or_else(|| {
            Fault::new(
                FaultKind::PlaceholderStorage,
                &self.name,
                format!("{} {:?} is read before anything was written to it", self.name, self.shape),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn a_slot_is_read_only_after_it_was_written() {
        let mut slot = Slot::new("cache", [2, 2]);
        assert_eq!(slot.read().unwrap_err().kind, FaultKind::PlaceholderStorage);
        let wrong = slot.write(Tensor::ones([1, 2], &Device::flex())).unwrap_err();
        assert_eq!(wrong.kind, FaultKind::ShapeMismatch);
        slot.write(Tensor::ones([2, 2], &Device::flex())).unwrap();
        assert_eq!(slot.read().unwrap().sum().into_scalar::<f32>(), 4.0);
    }
}
