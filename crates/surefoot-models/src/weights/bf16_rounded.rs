//! Rounds activations to bf16 and keeps them in f32, in one pass over them on the processor.

use burn::tensor::{FloatDType, Tensor};
use rayon::prelude::*;

use super::format::is_host;

/// Numbers that one thread rounds at a time.
const PART: usize = 1 << 16;

/// The nearest numbers in bf16, ties to even ones, as f32. What lies column after column stays so.
pub(super) fn bf16_rounded(x: Tensor<2>) -> Tensor<2> {
    let device = x.device();
    if x.is_autodiff() || !is_host(&device) {
        return x.cast(FloatDType::BF16).cast(FloatDType::F32);
    }
    let mut data = x.transpose().into_data();
    match data.as_mut_slice::<f32>() {
        Ok(numbers) => round(numbers),
        // Numbers of another type than the processor computes in.
        Err(_) => {
            let x = Tensor::<2>::from_data(data, &device).transpose();
            return x.cast(FloatDType::BF16).cast(FloatDType::F32);
        }
    }
    Tensor::from_data(data, &device).transpose()
}

fn round(numbers: &mut [f32]) {
    let part = |numbers: &mut [f32]| {
        for number in numbers {
            let bits = number.to_bits();
            let up = 0x7fff + ((bits >> 16) & 1);
            // A NaN must not become infinite.
            let rounded = if number.is_nan() { bits | 0x40_0000 } else { bits.wrapping_add(up) };
            *number = f32::from_bits(rounded & 0xffff_0000);
        }
    };
    match numbers.len() > PART {
        true => numbers.par_chunks_mut(PART).for_each(part),
        false => part(numbers),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn rounding_is_that_of_the_cast() {
        let mut numbers: Vec<f32> =
            (0..200_000_u32).map(|at| f32::from_bits(at.wrapping_mul(2_654_435_761))).collect();
        numbers.retain(|number| !number.is_nan());
        numbers.truncate(198_000);
        let tensor = Tensor::<2>::from_data(TensorData::new(numbers, [99, 2000]), &Device::flex());
        for x in [tensor.clone(), tensor.transpose()] {
            let expected = x.clone().cast(FloatDType::BF16).cast(FloatDType::F32);
            let got = bf16_rounded(x);
            assert_eq!(got.dims(), expected.dims());
            assert_eq!(got.into_data(), expected.into_data());
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let mut numbers = [f32::NAN, f32::from_bits(0x7f80_0001), f32::INFINITY, -f32::MAX];
        round(&mut numbers);
        assert!(numbers[0].is_nan() && numbers[1].is_nan());
        assert_eq!(numbers[2..], [f32::INFINITY, f32::NEG_INFINITY]);
    }
}
