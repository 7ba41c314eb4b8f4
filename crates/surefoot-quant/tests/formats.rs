//! What holds for every format, whatever the numbers are.

use proptest::prelude::*;
use surefoot_quant::BlockFormat::{self, *};
use surefoot_quant::{BlockError, block};

fn through(format: BlockFormat, numbers: &[f32]) -> Vec<f32> {
    let mut blocks = vec![0; format.bytes_of(numbers.len()).expect("whole blocks")];
    format.quantize(numbers, &mut blocks).expect("whole blocks");
    let mut back = vec![f32::NAN; numbers.len()];
    format.dequantize(&blocks, &mut back).expect("whole blocks");
    back
}

/// The root of the mean squared error, relative to the numbers themselves.
fn relative_error(format: BlockFormat, numbers: &[f32]) -> f64 {
    let square = |number: f64| number * number;
    let back = through(format, numbers);
    let error: f64 = back.iter().zip(numbers).map(|(a, b)| square(f64::from(a - b))).sum();
    let size: f64 = numbers.iter().map(|number| square(f64::from(*number))).sum();
    (error / size).sqrt()
}

/// Of a normal distribution, by the sum of twelve uniform numbers.
fn normal(count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(3);
    (0..count).map(|_| (0..12).map(|_| random.f32()).sum::<f32>() - 6.0).collect()
}

/// An ideal uniform quantiser of 2^b steps has errors of about 2^(−b) on these numbers. The limits
/// are up to a quarter above what was measured: a wrong bit or a search that finds nothing is far beyond them.
#[test]
fn errors_on_normal_numbers_are_those_of_the_bits() {
    let numbers = normal(64 * 256);
    let limits = [
        (F32, 0.0),
        (F16, 0.000_25),
        (BF16, 0.002),
        (Q4_0, 0.095),
        (Q4_1, 0.087),
        (Q5_0, 0.047),
        (Q5_1, 0.042),
        (Q8_0, 0.0055),
        (Q2_K, 0.33),
        (Q3_K, 0.16),
        (Q4_K, 0.078),
        (Q5_K, 0.040),
        (Q6_K, 0.019),
    ];
    for (format, limit) in limits {
        let error = relative_error(format, &numbers);
        assert!(error <= limit, "{format}: {error:.5}");
        // A limit that is far away tests nothing.
        assert!(error >= limit * 0.8, "{format}: {error:.5}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // The K formats make the sum of squares small, not the largest error: a lone large number among zeros
    // has been seen to lose 0.54 of itself in Q2_K.
    #[test]
    fn an_error_is_at_most_a_share_of_the_largest_number(
        numbers in prop::collection::vec(-1.0_f32..1.0, 256), exponent in -12_i32..4, positive in any::<bool>(),
    ) {
        let size = 10_f32.powi(exponent);
        let numbers: Vec<f32> = numbers.iter()
            .map(|number| size * if positive { number.abs() } else { *number }).collect();
        for (format, share) in [
            (F32, 0.0), (F16, 5e-4), (BF16, 4e-3), (Q8_0, 5e-3), (Q6_K, 0.05), (Q5_0, 0.07), (Q5_1, 0.05),
            (Q5_K, 0.1), (Q4_0, 0.13), (Q4_1, 0.08), (Q4_ZP, 0.15), (Q4_K, 0.2), (Q3_K, 0.5), (Q2_K, 0.9),
        ] {
            let largest = numbers.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
            // Scales are halves, which stop at 6e-8: below that nothing can be kept.
            let limit = share * largest + if format == F32 { 0.0 } else { 4e-5 };
            for (number, back) in numbers.iter().zip(through(format, &numbers)) {
                prop_assert!((number - back).abs() <= limit, "{format}: {number} became {back}");
            }
        }
    }

    #[test]
    fn blocks_of_any_bytes_give_as_many_numbers_as_they_should(bytes in prop::collection::vec(any::<u8>(), 256 * 4)) {
        for format in BlockFormat::ALL {
            let blocks = bytes.len() / format.block_bytes();
            let mut numbers = vec![0.0; blocks * format.block_len()];
            let whole = &bytes[..blocks * format.block_bytes()];
            format.dequantize(whole, &mut numbers).unwrap();
            let short = format.dequantize(&whole[1..], &mut numbers);
            let refused = matches!(short, Err(BlockError::WrongLength { .. }));
            prop_assert!(refused);
        }
    }
}

#[test]
fn zeros_stay_zeros_and_extremes_stay_finite() {
    for format in BlockFormat::ALL {
        assert!(through(format, &[0.0; 256]).iter().all(|number| *number == 0.0), "{format}");
        if format.is_quantized() {
            for number in [f32::MIN_POSITIVE, -1e-30, 1e-45] {
                let back = through(format, &[number; 256]);
                assert!(back.iter().all(|number| number.abs() < 1e-6), "{format}: {back:?}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_or_not_whole_is_refused() {
    let mut numbers = [1.0; 256];
    numbers[77] = f32::NAN;
    for format in BlockFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
        let mut blocks = vec![0; format.bytes_of(256).unwrap()];
        let refused = format.quantize(&numbers, &mut blocks);
        assert_eq!(refused, Err(block::BlockError::NotFinite { format, at: 77 }));
        let refused = format.bytes_of(33);
        assert_eq!(refused, Err(BlockError::NotWholeBlocks { format, numbers: 33 }));
    }
    assert_eq!(
        Q8_0.bytes_of(usize::MAX - 31),
        Err(BlockError::TooLarge { format: Q8_0, numbers: usize::MAX - 31 })
    );
}

/// Integers, scales and offsets taken apart give the numbers that dequantisation gives, in the bytes that were announced.
#[test]
fn signed_integers_with_scales_and_offsets_are_the_same_numbers() {
    let numbers = normal(8 * 256);
    for format in BlockFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
        let mut blocks = vec![0; format.bytes_of(numbers.len()).expect("whole blocks")];
        format.quantize(&numbers, &mut blocks).expect("finite numbers");
        let mut expected = vec![f32::NAN; numbers.len()];
        format.dequantize(&blocks, &mut expected).expect("whole blocks");
        let signed = format.signed(&blocks).expect("whole blocks").expect("a quantised format");
        let bytes = 4 * (signed.words.len() + signed.scales.len() + signed.offsets.len());
        assert_eq!(bytes, format.signed_bytes(numbers.len()), "{format}");
        let bits = format.signed_bits();
        for (at, expected) in expected.iter().enumerate() {
            let word = signed.words[at * bits / 32] >> (at * bits % 32);
            // The sign is the highest of its bits.
            let integer = (word << (32 - bits)) as i32 >> (32 - bits);
            let group = at / format.group_len();
            let offset = signed.offsets.get(group).copied().unwrap_or(0.0);
            let number = signed.scales[group] * integer as f32 + offset;
            let allowed = 1e-5 * (1.0 + expected.abs());
            assert!((number - expected).abs() <= allowed, "{format}: {number}, not {expected}");
        }
    }
    assert!(F32.signed(&[0; 8]).expect("two numbers").is_none());
    assert!(Q8_0.signed(&[0; 35]).is_err());
}
