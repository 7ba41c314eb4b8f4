//! The kernels of prompts and of choosing a token give what their formulas say, which are written out here number by number.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod formulas;

use burn::tensor::{DType, Device, FloatDType, Tensor};
use formulas::{EPSILON, close, normed, numbers, pitched, read, tensor};
use surefoot_ops::{
    AppendedPromptTensors, AppendedPrompts, PromptAttention, first_largest, largest_of_rows,
};

/// One case of attention of prompts.
#[derive(Clone, Copy, Debug)]
struct Prompt {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    each: usize,
    width: usize,
    past: usize,
    causal: bool,
    window: Option<usize>,
    padded: bool,
}

const PROMPT: Prompt = Prompt {
    batch: 1,
    heads: 2,
    kv_heads: 1,
    each: 16,
    width: 5,
    past: 0,
    causal: true,
    window: None,
    padded: false,
};

const PROMPTS: [Prompt; 7] = [
    PROMPT,
    // More queries and keys than are taken at once, behind others.
    Prompt { width: 70, past: 37, heads: 4, kv_heads: 2, each: 64, ..PROMPT },
    Prompt { batch: 2, width: 40, each: 128, padded: true, ..PROMPT },
    Prompt { batch: 3, width: 33, past: 9, each: 36, padded: true, kv_heads: 2, ..PROMPT },
    Prompt { width: 50, past: 20, window: Some(7), ..PROMPT },
    Prompt { batch: 2, width: 35, causal: false, padded: true, each: 12, ..PROMPT },
    Prompt { width: 1, past: 100, each: 80, ..PROMPT },
];

fn check_prompt(case: Prompt, device: &Device) {
    let Prompt { batch, heads, kv_heads, each, width, past, causal, window, padded } = case;
    let (seen, capacity) = (past + width, past + width + 3);
    let query = numbers(1, batch * heads * width * each);
    let cache_shape = [batch, kv_heads, capacity, each];
    let [keys, values] = [2, 3].map(|seed| numbers(seed, cache_shape.iter().product()));
    let pads: Vec<f32> = (0..batch).map(|sample| (3 * sample) as f32).collect();
    let [keys_there, values_there] =
        [&keys, &values].map(|cache| tensor(cache, cache_shape, device).narrow(2, 0, seen));
    let pads_there = tensor(&pads, [batch], device);
    let how = PromptAttention { scale: 0.3, past, causal, window };
    let is = how.attend(
        &tensor(&query, [batch, heads, width, each], device),
        &keys_there,
        &values_there,
        padded.then_some(&pads_there),
    );
    let is = read(is.unwrap());
    let mut should = Vec::new();
    for (sample, pad) in pads.iter().enumerate() {
        let first = if padded { *pad as usize } else { 0 };
        for head in 0..heads {
            let line = |cache: &[f32], key: usize| -> Vec<f64> {
                let start =
                    ((sample * kv_heads + head / (heads / kv_heads)) * capacity + key) * each;
                cache[start..start + each].iter().map(|x| f64::from(*x)).collect()
            };
            for row in 0..width {
                let start = ((sample * heads + head) * width + row) * each;
                let own = &query[start..start + each];
                let position = past + row;
                let sees = |key: &usize| {
                    *key >= first
                        && (!causal || *key <= position)
                        && window.is_none_or(|window| key + window > position)
                };
                let columns: Vec<usize> = (0..seen).filter(sees).collect();
                let score = |key: &usize| -> f64 {
                    0.3 * own
                        .iter()
                        .zip(line(&keys, *key))
                        .map(|(q, k)| f64::from(*q) * k)
                        .sum::<f64>()
                };
                let powers: Vec<f64> = columns.iter().map(|key| score(key).exp()).collect();
                let sum: f64 = powers.iter().sum();
                should.extend((0..each).map(|at| -> f64 {
                    let of = |(key, power): (&usize, &f64)| power / sum * line(&values, *key)[at];
                    // A query that sees nothing gets zeros.
                    columns.iter().zip(&powers).map(of).sum()
                }));
            }
        }
    }
    close(&format!("{case:?}"), &is, &should, 1e-4);
}

#[test]
fn attention_of_prompts_is_its_formula() {
    let Some(gpu) = testkit::gpu() else { return };
    for case in PROMPTS {
        check_prompt(case, gpu.burn());
    }
    let wide = tensor(&numbers(1, 132), [1, 1, 1, 132], gpu.burn());
    let how = PromptAttention { scale: 1.0, past: 0, causal: true, window: None };
    assert!(how.attend(&wide, &wide, &wide, None).is_none());
}

/// One case of prompts that are written into a cache: its sizes, and what heads have.
#[derive(Clone, Copy, Debug)]
struct Appended {
    sequences: usize,
    heads: usize,
    kv_heads: usize,
    each: usize,
    width: usize,
    first_row: usize,
    start: usize,
    filled: usize,
    stale: usize,
    window: Option<usize>,
    pairs: usize,
    interleaved: bool,
    normed: bool,
    padded: bool,
    most_scores: usize,
    /// Numbers between the columns of the cache.
    pitch: usize,
    /// Whether all sequences are turned by the same angles.
    one_table: bool,
    /// What factors of products may be rounded to.
    compute: DType,
}

const APPENDED: Appended = Appended {
    sequences: 1,
    heads: 2,
    kv_heads: 1,
    each: 16,
    width: 5,
    first_row: 0,
    start: 0,
    filled: 0,
    stale: 0,
    window: None,
    pairs: 8,
    interleaved: false,
    normed: false,
    padded: false,
    most_scores: 0,
    pitch: 0,
    one_table: false,
    compute: DType::F32,
};

/// A long prompt, whose attention is made of products where there is room for its scores.
const LONG: Appended =
    Appended { heads: 4, kv_heads: 2, each: 32, width: 160, most_scores: usize::MAX, ..APPENDED };

const APPENDED_CASES: [Appended; 19] = [
    LONG,
    // Rows further apart than their numbers need, as CUDA has those of heads whose sizes are no powers of two.
    Appended { each: 96, pairs: 48, pitch: 128, ..LONG },
    Appended { each: 80, pairs: 40, start: 5, filled: 37, first_row: 1, pitch: 128, ..LONG },
    Appended { width: 37, start: 4, filled: 41, pitch: 128, padded: true, ..APPENDED },
    // A window, with no columns before the prompt, over more than one tile of queries.
    Appended { window: Some(50), width: 288, ..LONG },
    Appended { window: Some(50), sequences: 2, padded: true, ..LONG },
    // The same angles for all.
    Appended { sequences: 3, one_table: true, ..APPENDED },
    // Factors of products in half precision, where the device takes it.
    Appended { compute: DType::F16, padded: true, ..LONG },
    Appended { sequences: 2, first_row: 1, padded: true, width: 128, ..LONG },
    // Behind what an earlier part of it has left.
    Appended { start: 3, filled: 67, window: Some(50), ..LONG },
    // With room for 128 queries at once, and for none.
    Appended { first_row: 1, width: 288, most_scores: 4 * 130 * 288, ..LONG },
    Appended { most_scores: 1000, ..LONG },
    APPENDED,
    // Sequences that join others, in rows behind theirs, where columns are left of earlier ones.
    Appended {
        sequences: 2,
        first_row: 3,
        start: 9,
        filled: 9,
        stale: 9,
        padded: true,
        ..APPENDED
    },
    // The second part of a prompt.
    Appended { first_row: 1, start: 4, filled: 41, width: 37, heads: 4, kv_heads: 2, ..APPENDED },
    Appended { normed: true, each: 36, pairs: 9, sequences: 2, heads: 6, kv_heads: 3, ..APPENDED },
    Appended { interleaved: true, each: 64, pairs: 16, width: 70, window: Some(11), ..APPENDED },
    Appended { pairs: 0, each: 128, width: 1, start: 2, filled: 30, first_row: 2, ..APPENDED },
    Appended { normed: true, each: 128, pairs: 64, start: 3, filled: 3, stale: 2, ..APPENDED },
];

/// A head, normalised and turned.
fn turned(case: Appended, x: &[f32], gamma: &[f32], angles: &[f32]) -> Vec<f64> {
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

fn check_appended(case: Appended, device: &Device) {
    let Appended { sequences, heads, kv_heads, each, width, first_row, start, filled, .. } = case;
    let (rows, capacity) = (first_row + sequences + 1, filled + width + 3);
    let (tokens, of_token) = (sequences * width, (heads + 2 * kv_heads) * each);
    let cache_shape = [rows, kv_heads, capacity, each];
    let mixed = numbers(1, tokens * of_token);
    let [keys, values] = [2, 3].map(|seed| numbers(seed, cache_shape.iter().product()));
    let [q_gamma, k_gamma] = [4, 5].map(|seed| numbers(seed, each));
    let tables = if case.one_table { 1 } else { sequences };
    let angles = numbers(6, tables * width * case.pairs.max(1));
    let pads: Vec<f32> = (0..sequences).map(|sequence| (2 * sequence) as f32).collect();
    let [keys_there, values_there] =
        [&keys, &values].map(|cache| pitched(cache, cache_shape, case.pitch, device));
    let gammas = [&q_gamma, &k_gamma].map(|gamma| tensor(gamma, [each], device));
    let table = |of: fn(f32) -> f32| {
        let numbers: Vec<f32> = angles.iter().map(|angle| of(*angle)).collect();
        tensor(&numbers, [tables, 1, width, case.pairs.max(1)], device)
    };
    let (cos, sin) = (table(f32::cos), table(f32::sin));
    let pads_there = tensor(&pads, [sequences], device);
    let how = AppendedPrompts {
        heads,
        window: case.window,
        scale: 0.7,
        interleaved: case.interleaved,
        epsilon: EPSILON,
        width,
        first_row,
        start,
        filled,
        stale: case.stale,
        compute: case.compute,
        most_scores: case.most_scores,
    };
    let seen = how.attend(AppendedPromptTensors {
        mixed: &tensor(&mixed, [tokens, of_token], device),
        keys: &keys_there,
        values: &values_there,
        rotation: (case.pairs > 0).then_some((&cos, &sin)),
        norms: case.normed.then_some((&gammas[0], &gammas[1])),
        pads: case.padded.then_some(&pads_there),
    });
    let is = read(seen.unwrap());

    let head = |token: usize, at: usize| &mixed[token * of_token + at * each..][..each];
    let angles_of = |token: usize| match case.pairs {
        0 => &[][..],
        pairs => &angles[token % (tables * width) * pairs..][..pairs],
    };
    let mut new_keys: Vec<f64> = keys.iter().map(|x| f64::from(*x)).collect();
    let mut new_values: Vec<f64> = values.iter().map(|x| f64::from(*x)).collect();
    let place = |sequence: usize, kv: usize, column: usize| {
        (((first_row + sequence) * kv_heads + kv) * capacity + column) * each
    };
    for (sequence, kv) in (0..sequences).flat_map(|one| (0..kv_heads).map(move |kv| (one, kv))) {
        for column in start - case.stale..start {
            let to = place(sequence, kv, column);
            new_keys[to..to + each].fill(0.0);
            new_values[to..to + each].fill(0.0);
        }
        for at in 0..width {
            let (token, to) = (sequence * width + at, place(sequence, kv, filled + at));
            let key = turned(case, head(token, heads + kv), &k_gamma, angles_of(token));
            new_keys[to..to + each].copy_from_slice(&key);
            for (new, value) in new_values[to..].iter_mut().zip(head(token, heads + kv_heads + kv))
            {
                *new = f64::from(*value);
            }
        }
    }
    let mut should = Vec::new();
    for token in 0..tokens {
        let (sequence, last) = (token / width, filled + token % width);
        let first = start + if case.padded { pads[sequence] as usize } else { 0 };
        let first = first.max(case.window.map_or(0, |window| (last + 1).saturating_sub(window)));
        for own in 0..heads {
            let kv = own / (heads / kv_heads);
            let query = turned(case, head(token, own), &q_gamma, angles_of(token));
            let columns: Vec<usize> = (first..=last).collect();
            let score = |column: &usize| -> f64 {
                let key = &new_keys[place(sequence, kv, *column)..];
                0.7 * query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>()
            };
            let powers: Vec<f64> = columns.iter().map(|column| score(column).exp()).collect();
            let sum: f64 = powers.iter().sum();
            should.extend((0..each).map(|at| -> f64 {
                let of = |(column, power): (&usize, &f64)| {
                    power / sum * new_values[place(sequence, kv, *column) + at]
                };
                columns.iter().zip(&powers).map(of).sum()
            }));
        }
    }
    // What is rounded to 10 bits is off by 2⁻¹¹ of its size, and scores by as much as their factors.
    let tolerance = if case.compute == DType::F32 { 1e-4 } else { 4e-3 };
    close(&format!("{case:?}"), &is, &should, tolerance);
    // The new columns are there, those that were stale are zero, and nothing else has changed.
    close(&format!("keys {case:?}"), &read(keys_there), &new_keys, 1e-5);
    close(&format!("values {case:?}"), &read(values_there), &new_values, 0.0);
}

#[test]
fn prompts_are_written_into_their_rows_of_a_cache_and_attend_to_them() {
    let Some(gpu) = testkit::gpu() else { return };
    let halves = gpu.burn().supports_dtype(FloatDType::F16);
    for case in APPENDED_CASES.into_iter().filter(|case| halves || case.compute == DType::F32) {
        check_appended(case, gpu.burn());
    }
}

#[test]
fn prompts_that_do_not_fit_into_the_cache_are_left_to_the_caller() {
    let Some(gpu) = testkit::gpu() else { return };
    let device = gpu.burn();
    let mixed = Tensor::<2>::ones([6, 12], device);
    let cache = || Tensor::<4>::zeros([3, 1, 8, 4], device);
    let (keys, values) = (cache(), cache());
    let (rotation, norms, pads) = (None, None, None);
    let tensors = AppendedPromptTensors {
        mixed: &mixed,
        keys: &keys,
        values: &values,
        rotation,
        norms,
        pads,
    };
    let fits = AppendedPrompts {
        heads: 1,
        window: None,
        scale: 1.0,
        interleaved: false,
        epsilon: 0.0,
        width: 3,
        first_row: 1,
        start: 5,
        filled: 5,
        stale: 5,
        compute: DType::F32,
        most_scores: 0,
    };
    let refused = [
        AppendedPrompts { first_row: 2, ..fits },
        AppendedPrompts { start: 6, filled: 6, ..fits },
        AppendedPrompts { stale: 6, ..fits },
        AppendedPrompts { start: 4, stale: 4, ..fits },
        AppendedPrompts { width: 4, ..fits },
        AppendedPrompts { window: Some(0), ..fits },
    ];
    for how in refused {
        assert!(how.attend(tensors).is_none(), "{how:?}");
    }
    assert!(fits.attend(tensors).is_some());
}

#[test]
fn the_first_of_the_largest_logits_is_found_and_what_is_not_finite_is_told() {
    let Some(gpu) = testkit::gpu() else { return };
    for (rows, width) in [(1, 1), (3, 7), (2, 300), (9, 5000), (2, 32_003)] {
        let logits = numbers(1, rows * width);
        let found = |logits: &[f32], factor: f64| -> Vec<Option<u32>> {
            let parts =
                largest_of_rows(&tensor(logits, [rows, width], gpu.burn()), factor).unwrap();
            let each = parts.dims()[1];
            read(parts).chunks_exact(each).map(first_largest).collect()
        };
        let largest = |row: &[f32]| {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            Some(row.iter().position(|number| *number == most).unwrap() as u32)
        };
        let expected: Vec<Option<u32>> = logits.chunks_exact(width).map(largest).collect();
        assert_eq!(found(&logits, 1.0), expected, "{rows} {width}");
        assert_eq!(found(&logits, 0.5), expected, "{rows} {width}");
        // Of several that are alike the first, also in a part of its own.
        let mut alike = logits.clone();
        for row in alike.chunks_exact_mut(width) {
            (row[width / 3], row[width - 1], row[2 * width / 3]) = (5.0, 5.0, 5.0);
        }
        assert_eq!(found(&alike, 1.0), vec![Some((width / 3) as u32); rows], "{rows} {width}");
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut damaged = logits.clone();
            damaged[(rows - 1) * width + width / 2] = odd;
            let found = found(&damaged, 1.0);
            assert_eq!(found[rows - 1], None, "{odd} {rows} {width}");
            assert_eq!(found[..rows - 1], expected[..rows - 1], "{odd} {rows} {width}");
        }
    }
    assert!(largest_of_rows(&Tensor::<2>::ones([1, 4], &Device::flex()), 1.0).is_none());
}
