//! Products with packed weights, against reading the same bytes.
//!
//!     cargo bench -p surefoot-quant --bench product [-- FILTER]
//!
//! For one column the time is that of bringing the weights from memory, so what counts is the share of the
//! rate at which the same threads read the same bytes and do nothing else. For several columns it is
//! multiplications a second. Rounds alternate between the two, and the best round of each counts: others
//! may use the machine. Weights are larger than the caches together.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;
use surefoot_quant::BlockFormat::{self, *};
use surefoot_quant::product::{Activations, Instructions, PackedRows};

const ROWS: usize = 4096;
const COLS: usize = 4096;
const MATRICES: usize = 8;
const ROUNDS: usize = 7;
const PROMPT: usize = 512;
/// Sequences that are decoded together, and parts of prompts.
const COLUMNS: [usize; 6] = [2, 4, 8, 16, 64, PROMPT];

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    println!("{}, {} threads", processor(), rayon::current_num_threads());
    for format in [F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K, Q5_K, Q3_K, Q2_K, Q4_1, Q5_0, Q5_1] {
        if filter.as_ref().is_none_or(|filter| format.name().contains(filter.as_str())) {
            measure(format);
        }
    }
}

fn measure(format: BlockFormat) {
    let blocks = blocks(format);
    let matrices: Vec<&[u8]> = blocks.chunks(blocks.len() / MATRICES).collect();
    let numbers: Vec<f32> = (0..COLS * PROMPT).map(|at| (at % 113) as f32 / 50.0 - 1.0).collect();
    let all = if format.is_quantized() { Instructions::all() } else { vec![Instructions::best()] };
    for instructions in all {
        let column = Activations::with(instructions, &numbers[..COLS], COLS, 1).expect("it fits");
        let (mut out, mut reading, mut product) = (vec![0.0; ROWS], f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            reading = reading.min(seconds(|| read(&blocks)));
            product = product.min(seconds(|| {
                for blocks in &matrices {
                    let rows = PackedRows::new(format, ROWS, COLS, blocks).expect("it fits");
                    match format.is_quantized() {
                        true => rows.times_quantized(&column, &mut out),
                        false => rows.times(&numbers[..COLS], 1, &mut out),
                    }
                    .expect("it fits");
                }
            }));
        }
        let rate = |seconds: f64| blocks.len() as f64 / seconds / 1e9;
        let rows = PackedRows::new(format, ROWS, COLS, matrices[0]).expect("it fits");
        let mut by_columns = String::new();
        for columns in COLUMNS {
            let mut out = vec![0.0; ROWS * columns];
            let mut multiplications = |numbers: &[f32]| {
                let best = (0..5).map(|_| {
                    seconds(|| {
                        match format.is_quantized() {
                            true => {
                                let x = Activations::with(instructions, numbers, COLS, columns);
                                rows.times_quantized(&x.expect("it fits"), &mut out)
                            }
                            false => rows.times(numbers, columns, &mut out),
                        }
                        .expect("it fits");
                    })
                });
                (ROWS * COLS * columns) as f64 / best.fold(f64::MAX, f64::min) / 1e9
            };
            let numbers = &numbers[..COLS * columns];
            by_columns += &format!(" {columns}: {:.0}", multiplications(numbers));
            if format == BF16 {
                let short = |number: &f32| f32::from_bits(number.to_bits() & 0xffff_0000);
                let short: Vec<f32> = numbers.iter().map(short).collect();
                by_columns += &format!(" (of bf16 numbers {:.0})", multiplications(&short));
            }
        }
        println!(
            "{:5} {:13} {:.1} GB/s, reading alone {:.1} GB/s: {:.0} %; G multiplications/s by columns:{by_columns}",
            format.name(),
            instructions.name(),
            rate(product),
            rate(reading),
            100.0 * reading / product,
        );
    }
}

/// Random bits with scales that are finite.
fn blocks(format: BlockFormat) -> Vec<u8> {
    let row: Vec<f32> = (0..COLS).map(|at| ((at * 37 % 101) as f32 - 50.0) / 70.0).collect();
    let mut one = vec![0; format.bytes_of(COLS).expect("whole blocks")];
    format.quantize(&row, &mut one).expect("finite numbers");
    one.repeat(ROWS * MATRICES)
}

fn read(bytes: &[u8]) {
    let sum: u64 = bytes
        .par_chunks(1 << 20)
        .map(|bytes| {
            let mut sums = [0_u64; 16];
            for words in bytes.as_chunks::<8>().0.as_chunks::<16>().0 {
                for lane in 0..16 {
                    sums[lane] = sums[lane].wrapping_add(u64::from_le_bytes(words[lane]));
                }
            }
            sums.into_iter().fold(0, u64::wrapping_add)
        })
        .reduce(|| 0, u64::wrapping_add);
    black_box(sum);
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

/// The processor's name, where the system tells it.
fn processor() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    name.map_or("a processor".to_owned(), |name| name.trim_matches([' ', '\t', ':']).to_owned())
}
