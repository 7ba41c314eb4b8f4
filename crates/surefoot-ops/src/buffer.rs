//! Buffers of Cube devices, for launches that are recorded once and repeated: which buffer a tensor lies in, and new numbers in the same
//! place. Both are for whoever records launches; everything else makes new tensors.

use burn::tensor::Tensor;

/// The buffer that a tensor lies in, as a number that no other buffer of this process has or will have. None on the processor and under autodiff.
pub fn buffer_of<const D: usize>(tensor: &Tensor<D>) -> Option<usize> {
    #[cfg(any(feature = "gpu", target_os = "macos"))]
    return cube::find(tensor.clone()).map(|tensor| tensor.handle.memory.descriptor().id.value);
    #[cfg(not(any(feature = "gpu", target_os = "macos")))]
    {
        let _ = tensor;
        None
    }
}

/// Writes numbers in the place of those of a contiguous tensor in f32, and of everyone who shares its buffer, behind all work that this
/// thread gave to the device before. False, with nothing written, where the tensor is not of that kind or has another number of elements.
pub fn overwrite<const D: usize>(tensor: &Tensor<D>, numbers: Vec<f32>) -> bool {
    #[cfg(any(feature = "gpu", target_os = "macos"))]
    return cube::write(tensor.clone(), numbers);
    #[cfg(not(any(feature = "gpu", target_os = "macos")))]
    {
        let _ = (tensor, numbers);
        false
    }
}

#[cfg(any(feature = "gpu", target_os = "macos"))]
pub(crate) mod cube {
    use burn::backend::{BackendTensor, DispatchTensorKind};
    use burn::tensor::{Bytes, DType, Tensor};
    use burn_cubecl::tensor::CubeTensor;

    /// The tensor of CubeCL behind a tensor without autodiff. None on the processor.
    pub(crate) fn find<const D: usize>(tensor: Tensor<D>) -> Option<CubeTensor> {
        match tensor.into_dispatch().kind {
            DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => Some(tensor),
            _ => None,
        }
    }

    pub(super) fn write<const D: usize>(tensor: Tensor<D>, numbers: Vec<f32>) -> bool {
        let Some(tensor) = find(tensor) else { return false };
        let bytes = 4 * numbers.len() as u64;
        let whole = tensor.dtype == DType::F32
            && tensor.is_contiguous()
            && tensor.meta.num_elements() == numbers.len()
            // Devices round the sizes of buffers up.
            && tensor.handle.size_in_used() >= bytes;
        if whole {
            tensor.client.write(&tensor.handle, Bytes::from_elems(numbers));
        }
        whole
    }
}
