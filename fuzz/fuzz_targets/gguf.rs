//! Any bytes as a GGUF file: tensors that lie in the file, apart from each other, and can be
//! dequantised; or an error.
//!
//!     cargo +nightly fuzz run gguf

#![no_main]

use libfuzzer_sys::fuzz_target;
use surefoot_quant::gguf::Gguf;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::read(bytes, bytes.len() as u64) else { return };
    let mut ranges: Vec<_> = gguf.tensors.iter().map(|tensor| tensor.range.clone()).collect();
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert!(ranges.iter().all(|range| range.end <= bytes.len() as u64));
    for tensor in &gguf.tensors {
        let blocks = &bytes[tensor.range.start as usize..tensor.range.end as usize];
        let mut numbers = vec![0.0; (tensor.rows() * tensor.cols()) as usize];
        tensor.format.dequantize(blocks, &mut numbers).expect("its range fits its shape");
    }
});
