//! Rounding of activations to 8 bits, with the bits of the portable function for finite numbers.

/// Defines it for the instructions of a module.
macro_rules! rounding {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(in crate::product) fn quantize(column: &[f32], groups: &mut [ActivationGroup]) {
            let (whole, rest) = column.as_chunks::<256>();
            for (numbers, group) in whole.iter().zip(&mut *groups) {
                round_group(numbers, group);
            }
            if let (false, Some(group)) = (rest.is_empty(), groups.get_mut(whole.len())) {
                let mut padded = [0.0; 256];
                padded[..rest.len()].copy_from_slice(rest);
                round_group(&padded, group);
            }
        }

        #[target_feature(enable = $features)]
        fn round_group(numbers: &[f32; 256], group: &mut ActivationGroup) {
            let size =
                |x: __m256| _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(i32::MAX)));
            let zero = _mm256_setzero_ps();
            for (at, numbers) in numbers.as_chunks::<32>().0.iter().enumerate() {
                let [a, b, c, d]: [__m256; 4] = bytemuck::cast(*numbers);
                let largest =
                    _mm256_max_ps(_mm256_max_ps(size(a), size(b)), _mm256_max_ps(size(c), size(d)));
                let largest = _mm256_max_ps(largest, _mm256_permute2f128_ps::<1>(largest, largest));
                let largest =
                    _mm256_max_ps(largest, _mm256_shuffle_ps::<0b01_00_11_10>(largest, largest));
                let largest =
                    _mm256_max_ps(largest, _mm256_shuffle_ps::<0b10_11_00_01>(largest, largest));
                let largest = _mm256_cvtss_f32(largest);
                // What is infinite or NaN is NaN when it is multiplied by zero.
                let poison = _mm256_fmadd_ps(a, zero, _mm256_mul_ps(b, zero));
                let poison = _mm256_fmadd_ps(c, zero, _mm256_fmadd_ps(d, zero, poison));
                let poisoned = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(poison, poison));
                let inverse = 127.0 / largest;
                let inverse = if inverse.is_finite() { inverse } else { 0.0 };
                let inverse = _mm256_set1_ps(inverse);
                let rounded = |x: __m256| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
                let (a, b, c, d) = (rounded(a), rounded(b), rounded(c), rounded(d));
                let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
                let in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                let bytes = _mm256_permutevar8x32_epi32(bytes, in_order);
                group.q.as_chunks_mut::<32>().0[at] = bytemuck::cast(bytes);
                let sums = _mm256_hadd_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
                let sums = _mm256_hadd_epi32(sums, sums);
                let sums = _mm_add_epi32(
                    _mm256_castsi256_si128(sums),
                    _mm256_extracti128_si256::<1>(sums),
                );
                let [first, second, ..]: [i32; 4] = bytemuck::cast(sums);
                let scale = if poisoned == 0 { largest / 127.0 } else { f32::NAN };
                group.scale[at] = scale;
                group.sum16[2 * at] = scale * first as f32;
                group.sum16[2 * at + 1] = scale * second as f32;
                group.sum32[at] = scale * (first + second) as f32;
            }
        }
    };
}

pub(super) use rounding;
