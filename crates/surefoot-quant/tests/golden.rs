//! The formats against the `gguf` Python package; `make_goldens.py` wrote the files.

use std::path::Path;

use surefoot_quant::BlockFormat::{self, *};

fn file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn floats(name: &str) -> Vec<f32> {
    file(name).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn dequantized(format: BlockFormat, blocks: &[u8]) -> Vec<f32> {
    let count = blocks.len() / format.block_bytes() * format.block_len();
    let mut numbers = vec![f32::NAN; count];
    format.dequantize(blocks, &mut numbers).expect("whole blocks");
    numbers
}

#[test]
fn blocks_of_any_bits_are_dequantised_to_the_same_bits() {
    for format in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K] {
        let expected = floats(&format!("{format}.any.numbers.bin"));
        let ours = dequantized(format, &file(&format!("{format}.any.blocks.bin")));
        assert_eq!(ours.len(), 2048);
        assert_eq!(ours.len(), expected.len(), "{format}");
        for (at, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
            assert_eq!(ours, expected, "{format}, number {at}");
        }
    }
}

#[test]
fn numbers_are_quantised_to_the_same_bits() {
    for format in [F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0] {
        let numbers = floats(&format!("{format}.numbers.bin"));
        let expected = file(&format!("{format}.blocks.bin"));
        let mut ours = vec![0xff; format.bytes_of(numbers.len()).unwrap()];
        format.quantize(&numbers, &mut ours).unwrap();
        assert_eq!(numbers.len(), 12 * 256);
        assert_eq!(ours.len(), expected.len(), "{format}");
        let blocks = ours.chunks(format.block_bytes()).zip(expected.chunks(format.block_bytes()));
        for (at, (ours, expected)) in blocks.enumerate() {
            assert_eq!(ours, expected, "{format}, block {at}");
        }
    }
}
