//! The kernels of decoding blocks give what their formulas say, which are written out here number by number.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod formulas;

use burn::tensor::{Device, FloatDType, Tensor};
use formulas::{EPSILON, close, normed, numbers, pitched, read, tensor};
use surefoot_ops::{AppendedAttention, AppendedTensors, DecodeProducts, MOST_DECODED};

/// `[tokens, outputs]`.
fn product(x: &[f32], weight: &[f32], inputs: usize) -> Vec<f64> {
    let dot = |x: &[f32], row: &[f32]| -> f64 {
        x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    x.chunks(inputs).flat_map(|x| weight.chunks(inputs).map(move |row| dot(x, row))).collect()
}

/// Tokens, inputs, and the outputs of each weight: below and above what the units of a row read at once, and rows that fill no cube.
const SIZES: [(usize, usize, &[usize]); 10] = [
    // More tokens than one launch takes: tiles of our products, cut off and not, and what is left to Burn.
    (9, 64, &[128, 32, 32]),
    (150, 32, &[132]),
    // In four parts along the depth.
    (12, 1024, &[40, 32]),
    (20, 36, &[7, 2]),
    (1, 4, &[1]),
    (1, 36, &[7, 2]),
    (2, 128, &[4, 8, 5]),
    (3, 516, &[9, 3, 3]),
    (8, 640, &[33]),
    (5, 1028, &[6, 10]),
];

#[test]
fn products_with_norm_bias_and_residual_are_their_formula() {
    let Some(gpu) = testkit::gpu() else { return };
    for (tokens, inputs, outputs) in SIZES {
        let all: usize = outputs.iter().sum();
        let (x, gamma) = (numbers(1, tokens * inputs), numbers(2, inputs));
        let weights: Vec<Vec<f32>> =
            (10..).zip(outputs).map(|(seed, rows)| numbers(seed, rows * inputs)).collect();
        let (bias, residual) = (numbers(3, all), numbers(4, tokens * all));
        let on_device: Vec<Tensor<2>> = weights
            .iter()
            .zip(outputs)
            .map(|(weight, rows)| tensor(weight, [*rows, inputs], gpu.burn()))
            .collect();
        let given =
            (tensor(&x, [tokens, inputs], gpu.burn()), tensor(&gamma, [inputs], gpu.burn()));
        let around =
            (tensor(&bias, [all], gpu.burn()), tensor(&residual, [tokens, all], gpu.burn()));
        let joined = weights.concat();
        for norm in [false, true] {
            for behind in [false, true] {
                let products = DecodeProducts {
                    norm: norm.then_some((&given.1, EPSILON)),
                    weights: on_device.iter().collect(),
                    gated: false,
                    bias: behind.then_some(&around.0),
                    residual: behind.then_some((&around.1, 0.5)),
                    next: None,
                };
                let is = read(products.of(&given.0).unwrap());
                let x = if norm { normed(&x, &gamma, EPSILON) } else { x.clone() };
                let mut should = product(&x, &joined, inputs);
                if behind {
                    for (at, number) in should.iter_mut().enumerate() {
                        let sum = *number + f64::from(bias[at % all]);
                        *number = f64::from(residual[at]) + 0.5 * sum;
                    }
                }
                close(
                    &format!("{tokens} {inputs} {outputs:?} {norm} {behind}"),
                    &is,
                    &should,
                    1e-5,
                );
            }
        }
    }
}

#[test]
fn a_weight_that_gates_another_is_its_formula() {
    let Some(gpu) = testkit::gpu() else { return };
    for (tokens, inputs, rows) in
        [(1, 64, 3), (4, 260, 18), (8, 32, 5), (33, 64, 48), (9, 512, 36), (9, 12, 5)]
    {
        let (x, gamma) = (numbers(1, tokens * inputs), numbers(2, inputs));
        let [gate, value] = [3, 4].map(|seed| numbers(seed, rows * inputs));
        let weights = [&gate, &value].map(|w| tensor(w, [rows, inputs], gpu.burn()));
        let gamma_there = tensor(&gamma, [inputs], gpu.burn());
        let products = DecodeProducts {
            norm: Some((&gamma_there, EPSILON)),
            weights: weights.iter().collect(),
            gated: true,
            ..DecodeProducts::default()
        };
        let is = read(products.of(&tensor(&x, [tokens, inputs], gpu.burn())).unwrap());
        let x = normed(&x, &gamma, EPSILON);
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let gates = product(&x, &gate, inputs);
        let values = product(&x, &value, inputs);
        let should: Vec<f64> = gates.iter().zip(values).map(|(g, v)| silu(*g) * v).collect();
        close(&format!("{tokens} {inputs} {rows}"), &is, &should, 1e-5);
    }
}

#[test]
fn parts_are_added_up_by_whoever_reads_them() {
    let Some(gpu) = testkit::gpu() else { return };
    let device = gpu.burn();
    // Two, four and two parts along the depth.
    for (tokens, inputs, outputs) in [(9, 512, 64), (70, 1024, 132), (64, 768, 40)] {
        let (x, weight) = (numbers(1, tokens * inputs), numbers(2, outputs * inputs));
        let (bias, residual) = (numbers(3, outputs), numbers(4, tokens * outputs));
        let gamma = numbers(5, outputs);
        let given = tensor(&x, [tokens, inputs], device);
        let weight_there = tensor(&weight, [outputs, inputs], device);
        let plain = DecodeProducts { weights: vec![&weight_there], ..DecodeProducts::default() };
        let sums = product(&x, &weight, inputs);

        let (parts, count) = plain.in_parts(&given).unwrap();
        assert!(count > 1 && parts.dims() == [count * tokens, outputs], "{:?}", parts.dims());
        let parts = read(parts);
        let added: Vec<f32> =
            (0..sums.len()).map(|at| parts.iter().skip(at).step_by(sums.len()).sum()).collect();
        close(&format!("{tokens} {inputs} {outputs} in {count}"), &added, &sums, 1e-5);

        let bias_there = tensor(&bias, [outputs], device);
        let residual_there = tensor(&residual, [tokens, outputs], device);
        let gamma_there = tensor(&gamma, [outputs], device);
        for biased in [false, true] {
            let products = DecodeProducts {
                bias: biased.then_some(&bias_there),
                residual: Some((&residual_there, 0.5)),
                ..plain.clone()
            };
            let (out, after) = products.then_norm(&given, (&gamma_there, EPSILON)).unwrap();
            let should: Vec<f64> = (0..sums.len())
                .map(|at| {
                    let bias = if biased { f64::from(bias[at % outputs]) } else { 0.0 };
                    f64::from(residual[at]) + 0.5 * (sums[at] + bias)
                })
                .collect();
            let what = format!("{tokens} {inputs} {outputs} {biased}");
            close(&what, &read(out), &should, 1e-5);
            let should: Vec<f32> = should.iter().map(|number| *number as f32).collect();
            let should: Vec<f64> =
                normed(&should, &gamma, EPSILON).iter().map(|x| f64::from(*x)).collect();
            close(&format!("norm behind {what}"), &read(after), &should, 1e-5);
        }
    }
    // Few tokens, products in one piece, and nothing to add to.
    let weight = Tensor::<2>::ones([8, 512], device);
    let plain = DecodeProducts { weights: vec![&weight], ..DecodeProducts::default() };
    let gamma = Tensor::<1>::ones([8], device);
    let tokens = |count: usize| Tensor::<2>::ones([count, 512], device);
    assert!(plain.in_parts(&tokens(8)).is_none() && plain.in_parts(&tokens(9)).is_some());
    assert!(plain.then_norm(&tokens(9), (&gamma, 0.0)).is_none());
    let small = Tensor::<2>::ones([8, 256], device);
    let plain = DecodeProducts { weights: vec![&small], ..DecodeProducts::default() };
    assert!(plain.in_parts(&Tensor::<2>::ones([9, 256], device)).is_none());
}

#[test]
fn weights_in_half_precision_multiply_rounded_tokens() {
    let Some(gpu) = testkit::gpu() else { return };
    let half = FloatDType::F16;
    if !gpu.burn().supports_dtype(half) {
        return;
    }
    for (tokens, inputs) in [(3, 260), (8, 2564), (40, 256)] {
        check_half(gpu.burn(), tokens, inputs);
    }
    // One launch for all, and a launch each, in whole tiles and in others.
    for (tokens, inputs, rows) in
        [(4, 260, 16), (33, 64, 64), (33, 64, 48), (33, 64, 36), (9, 12, 5)]
    {
        check_half_gates(gpu.burn(), tokens, inputs, rows);
    }
    for (tokens, inputs, outputs) in [(9, 512, 64), (70, 1024, 132)] {
        check_half_parts(gpu.burn(), tokens, inputs, outputs);
    }
}

/// Numbers as they are in half precision.
fn rounded(numbers: &[f32]) -> Vec<f32> {
    let cpu = tensor(numbers, [numbers.len()], &Device::flex());
    read(cpu.cast(FloatDType::F16).cast(FloatDType::F32))
}

fn in_f32(numbers: &[f64]) -> Vec<f32> {
    numbers.iter().map(|number| *number as f32).collect()
}

fn check_half_gates(device: &Device, tokens: usize, inputs: usize, rows: usize) {
    let (x, gamma) = (numbers(1, tokens * inputs), numbers(2, inputs));
    let [gate, value] = [3, 4].map(|seed| numbers(seed, rows * inputs));
    let weights = [&gate, &value].map(|w| tensor(w, [rows, inputs], device).cast(FloatDType::F16));
    let gamma_there = tensor(&gamma, [inputs], device);
    let products = DecodeProducts {
        norm: Some((&gamma_there, EPSILON)),
        weights: weights.iter().collect(),
        gated: true,
        ..DecodeProducts::default()
    };
    let is = read(products.of(&tensor(&x, [tokens, inputs], device)).unwrap());
    let x = rounded(&normed(&x, &gamma, EPSILON));
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gates = product(&x, &rounded(&gate), inputs);
    let values = product(&x, &rounded(&value), inputs);
    let should: Vec<f64> = gates.iter().zip(values).map(|(g, v)| silu(*g) * v).collect();
    let what = format!("f16 gates {tokens} {inputs} {rows}");
    close(&what, &is, &should, 3e-3);

    // For a product that rounds them anyway they may be rounded already, which changes nothing of it.
    let outputs = 40;
    let down = tensor(&numbers(5, outputs * rows), [outputs, rows], device).cast(FloatDType::F16);
    let next = DecodeProducts { weights: vec![&down], ..DecodeProducts::default() };
    if !rows.is_multiple_of(4) {
        return;
    }
    let x = tensor(&numbers(1, tokens * inputs), [tokens, inputs], device);
    let rounded = DecodeProducts { next: Some(&down), ..products.clone() }.of(&x).unwrap();
    let expected = read(next.of(&products.of(&x).unwrap()).unwrap());
    assert_eq!(read(next.of(&rounded).unwrap()), expected, "{what}, {:?}", rounded.dtype());
}

fn check_half_parts(device: &Device, tokens: usize, inputs: usize, outputs: usize) {
    let (x, weight) = (numbers(1, tokens * inputs), numbers(2, outputs * inputs));
    let (residual, gamma) = (numbers(3, tokens * outputs), numbers(4, outputs));
    let given = tensor(&x, [tokens, inputs], device);
    let weight_there = tensor(&weight, [outputs, inputs], device).cast(FloatDType::F16);
    let residual_there = tensor(&residual, [tokens, outputs], device);
    let plain = DecodeProducts { weights: vec![&weight_there], ..DecodeProducts::default() };
    let what = format!("f16 parts {tokens} {inputs} {outputs}");

    let (parts, count) = plain.in_parts(&given).unwrap();
    let parts = read(parts);
    let sums = product(&rounded(&x), &rounded(&weight), inputs);
    // Devices without matrix units make one part of it.
    assert_eq!(parts.len(), count * sums.len(), "{what}");
    let added: Vec<f32> =
        (0..sums.len()).map(|at| parts.iter().skip(at).step_by(sums.len()).sum()).collect();
    close(&what, &added, &sums, 3e-3);

    let products = DecodeProducts { residual: Some((&residual_there, 0.5)), ..plain.clone() };
    let gamma_there = tensor(&gamma, [outputs], device);
    let (out, after) = products.then_norm(&given, (&gamma_there, EPSILON)).unwrap();
    let should: Vec<f64> =
        sums.iter().zip(&residual).map(|(sum, to)| f64::from(*to) + 0.5 * sum).collect();
    close(&format!("residual behind {what}"), &read(out), &should, 3e-3);
    // In half precision where matrix units read it.
    let after = read(after.cast(FloatDType::F32));
    let should: Vec<f64> =
        normed(&in_f32(&should), &gamma, EPSILON).iter().map(|number| f64::from(*number)).collect();
    close(&format!("norm behind {what}"), &after, &should, 3e-3);
}

fn check_half(device: &Device, tokens: usize, inputs: usize) {
    let (half, rows) = (FloatDType::F16, 12);
    let (x, gamma, weight) =
        (numbers(1, tokens * inputs), numbers(2, inputs), numbers(3, rows * inputs));
    let gamma_there = tensor(&gamma, [inputs], device);
    let weight_there = tensor(&weight, [rows, inputs], device).cast(half);
    // A part of a weight, which begins elsewhere in its buffer.
    let second = weight_there.clone().narrow(0, 4, 8);
    let products = DecodeProducts {
        norm: Some((&gamma_there, EPSILON)),
        weights: vec![&weight_there, &second],
        ..DecodeProducts::default()
    };
    let is = read(products.of(&tensor(&x, [tokens, inputs], device)).unwrap());
    let x = rounded(&normed(&x, &gamma, EPSILON));
    let mut weight = rounded(&weight);
    weight.extend_from_within(4 * inputs..12 * inputs);
    close("f16", &is, &product(&x, &weight, inputs), 2e-3);
}

#[test]
fn products_that_have_no_kernel_are_left_to_the_caller() {
    let Some(gpu) = testkit::gpu() else { return };
    let of = |device: &Device, tokens: usize, inputs: usize| {
        let weight = tensor(&numbers(1, 8 * inputs), [8, inputs], device);
        let products = DecodeProducts { weights: vec![&weight], ..DecodeProducts::default() };
        products.of(&tensor(&numbers(2, tokens * inputs), [tokens, inputs], device)).is_some()
    };
    assert!(of(gpu.burn(), MOST_DECODED, 8));
    assert!(!of(gpu.burn(), MOST_DECODED + 1, 8));
    assert!(!of(gpu.burn(), 1, 6));
    assert!(!of(&Device::flex(), 1, 8));
    assert!(!of(&gpu.burn().clone().autodiff(), 1, 8));
}

/// One case of attention: its sizes, and what heads have.
#[derive(Clone, Copy, Debug)]
struct Case {
    sequences: usize,
    heads: usize,
    kv_heads: usize,
    each: usize,
    /// The first column that is seen, and the one that is written.
    from: usize,
    filled: usize,
    window: Option<usize>,
    pairs: usize,
    interleaved: bool,
    normed: bool,
    padded: bool,
    parts: usize,
    /// Numbers between the columns of the cache.
    pitch: usize,
    /// Whether all sequences are turned by the same angles.
    one_table: bool,
}

const PLAIN: Case = Case {
    sequences: 1,
    heads: 2,
    kv_heads: 1,
    each: 16,
    from: 0,
    filled: 5,
    window: None,
    pairs: 8,
    interleaved: false,
    normed: false,
    padded: false,
    parts: 1,
    pitch: 0,
    one_table: false,
};

/// So many sequences that the heads of a group share a cube.
const MANY: Case = Case { sequences: 66, heads: 8, kv_heads: 2, ..PLAIN };

const CASES: [Case; 24] = [
    PLAIN,
    MANY,
    // Rows further apart than their numbers need, as CUDA has those of heads whose sizes are no powers of two.
    Case { each: 96, pairs: 48, filled: 130, pitch: 128, ..PLAIN },
    Case { sequences: 3, heads: 4, kv_heads: 2, filled: 130, pitch: 128, padded: true, ..PLAIN },
    Case { filled: 130, pitch: 128, ..MANY },
    // The same angles for all.
    Case { sequences: 3, one_table: true, ..PLAIN },
    Case { one_table: true, ..MANY },
    // Tokens that see none of the columns before them.
    Case { sequences: 9, from: 7, padded: true, ..PLAIN },
    Case { from: 7, padded: true, ..MANY },
    Case { filled: 0, ..MANY },
    Case { parts: 4, normed: true, ..MANY },
    Case { parts: 2, sequences: 2, padded: true, ..PLAIN },
    Case { filled: 300, from: 3, padded: true, heads: 6, window: Some(150), ..MANY },
    Case { filled: 129, each: 64, pairs: 32, normed: true, interleaved: true, ..MANY },
    Case { filled: 127, each: 128, pairs: 64, heads: 16, ..MANY },
    // The first token of all.
    Case { filled: 0, ..PLAIN },
    Case { from: 3, filled: 140, heads: 4, kv_heads: 4, each: 24, pairs: 6, ..PLAIN },
    // A window that begins behind the first column, and one that begins before it.
    Case { from: 3, filled: 140, window: Some(20), ..PLAIN },
    Case { from: 3, filled: 10, window: Some(20), ..PLAIN },
    Case { filled: 300, each: 128, pairs: 64, interleaved: true, ..PLAIN },
    Case { sequences: 3, heads: 6, kv_heads: 2, filled: 128, normed: true, ..PLAIN },
    Case { sequences: 2, heads: 4, kv_heads: 2, pairs: 0, each: 64, filled: 129, ..PLAIN },
    Case { sequences: 3, filled: 150, padded: true, each: 4, pairs: 2, ..PLAIN },
    Case {
        sequences: 2,
        from: 7,
        filled: 20,
        padded: true,
        normed: true,
        each: 80,
        pairs: 40,
        ..PLAIN
    },
];

/// A head, normalised and turned.
fn turned(case: Case, x: &[f32], gamma: &[f32], angles: &[f32]) -> Vec<f64> {
    let x = if case.normed { normed(x, gamma, EPSILON) } else { x.to_vec() };
    let mut out: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for (pair, angle) in angles.iter().enumerate() {
        let places = match case.interleaved {
            true => [2 * pair, 2 * pair + 1],
            false => [pair, pair + case.pairs],
        };
        let [first, second] = places.map(|place| f64::from(x[place]));
        let (sin, cos) = f64::from(*angle).sin_cos();
        out[pair] = first * cos - second * sin;
        out[pair + case.pairs] = second * cos + first * sin;
    }
    out
}

fn check_attention(case: Case, device: &Device) {
    let Case { sequences, heads, kv_heads, each, from, filled, window, pairs, .. } = case;
    let (rows, capacity, width) = (sequences + 1, filled + 4, (heads + 2 * kv_heads) * each);
    let cache_shape = [rows, kv_heads, capacity, each];
    let mixed = numbers(1, sequences * width);
    let [keys, values] = [2, 3].map(|seed| numbers(seed, cache_shape.iter().product()));
    let [q_gamma, k_gamma] = [4, 5].map(|seed| numbers(seed, each));
    let tables = if case.one_table { 1 } else { sequences };
    let angles = numbers(6, tables * pairs.max(1));
    let firsts: Vec<f32> = (0..sequences).map(|at| (3 * at) as f32).collect();
    let [keys_there, values_there] =
        [&keys, &values].map(|cache| pitched(cache, cache_shape, case.pitch, device));
    let gammas = [&q_gamma, &k_gamma].map(|gamma| tensor(gamma, [each], device));
    let table = |of: fn(f32) -> f32| {
        let numbers: Vec<f32> = angles.iter().map(|angle| of(*angle)).collect();
        tensor(&numbers, [tables, 1, 1, pairs.max(1)], device)
    };
    let (cos, sin) = (table(f32::cos), table(f32::sin));
    let mut places = vec![filled as f32, from as f32];
    if case.padded {
        places.extend(&firsts);
    }
    let places = tensor(&places, [places.len()], device);
    let how = AppendedAttention {
        heads,
        window,
        filled,
        scale: 0.7,
        interleaved: case.interleaved,
        epsilon: EPSILON,
        parts: case.parts,
    };
    // Parts that add up to the numbers: all but the last are small.
    let mut in_parts: Vec<f32> = numbers(7, (case.parts - 1) * mixed.len());
    in_parts.iter_mut().for_each(|number| *number *= 0.125);
    let mut last = mixed.clone();
    for part in in_parts.chunks_exact(mixed.len()) {
        last.iter_mut().zip(part).for_each(|(last, number)| *last -= number);
    }
    in_parts.extend(last);
    let seen = how.attend(AppendedTensors {
        mixed: &tensor(&in_parts, [case.parts * sequences, width], device),
        keys: &keys_there,
        values: &values_there,
        rotation: (pairs > 0).then_some((&cos, &sin)),
        norms: case.normed.then_some((&gammas[0], &gammas[1])),
        places: &places,
    });
    let is = read(seen.unwrap());

    let mut should = Vec::new();
    let mut new_keys: Vec<f64> = keys.iter().map(|x| f64::from(*x)).collect();
    let mut new_values = values.clone();
    for sequence in 0..sequences {
        let row = &mixed[sequence * width..(sequence + 1) * width];
        let head = |at: usize| &row[at * each..(at + 1) * each];
        let table = sequence % tables;
        let angles = if pairs > 0 { &angles[table * pairs..(table + 1) * pairs] } else { &[][..] };
        let place =
            |kv: usize, column: usize| ((sequence * kv_heads + kv) * capacity + column) * each;
        for kv in 0..kv_heads {
            let to = place(kv, filled);
            let key = turned(case, head(heads + kv), &k_gamma, angles);
            new_keys[to..to + each].copy_from_slice(&key);
            new_values[to..to + each].copy_from_slice(head(heads + kv_heads + kv));
        }
        let first = if case.padded { from.max(firsts[sequence] as usize) } else { from };
        let first = first.max(window.map_or(0, |window| (filled + 1).saturating_sub(window)));
        // A token always sees itself.
        let first = first.min(filled);
        for own in 0..heads {
            let kv = own / (heads / kv_heads);
            let query = turned(case, head(own), &q_gamma, angles);
            let columns: Vec<usize> = (first..=filled).collect();
            let score = |column: &usize| -> f64 {
                let key = &new_keys[place(kv, *column)..];
                0.7 * query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>()
            };
            let powers: Vec<f64> = columns.iter().map(|column| score(column).exp()).collect();
            let sum: f64 = powers.iter().sum();
            should.extend((0..each).map(|at| -> f64 {
                let of = |(column, power): (&usize, &f64)| {
                    power / sum * f64::from(new_values[place(kv, *column) + at])
                };
                columns.iter().zip(&powers).map(of).sum()
            }));
        }
    }
    close(&format!("{case:?}"), &is, &should, 1e-4);
    // The new column is there, and nothing else has changed.
    close(&format!("keys {case:?}"), &read(keys_there), &new_keys, 1e-5);
    let new_values: Vec<f64> = new_values.iter().map(|x| f64::from(*x)).collect();
    close(&format!("values {case:?}"), &read(values_there), &new_values, 1e-6);
}

#[test]
fn attention_that_appends_is_its_formula_and_changes_one_column() {
    let Some(gpu) = testkit::gpu() else { return };
    for case in CASES {
        check_attention(case, gpu.burn());
    }
}
