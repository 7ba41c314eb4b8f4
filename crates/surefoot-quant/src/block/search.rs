//! Finds scales and offsets with the least squared error: a number of scales near the obvious one is
//! tried; for the integers that one gives, the best scale and offset follow from linear least squares.

/// How far the scales that are tried are from the obvious one, in steps of the inverse scale.
const TRIES: i32 = 9;
const STEP: f32 = 0.1;

fn rounded(number: f32, least: f32, most: f32) -> f32 {
    number.round_ties_even().clamp(least, most)
}

/// A scale for `scale · q` with `q` from `least` to `most`. Its sign is that of the number which is
/// farthest from 0 if that becomes `least`, the larger side.
pub(super) fn scale(numbers: &[f32], least: f32, most: f32) -> f32 {
    let farthest = numbers
        .iter()
        .fold(0.0_f32, |far, number| if number.abs() > far.abs() { *number } else { far });
    if farthest == 0.0 {
        return 0.0;
    }
    let mut best = (f32::NEG_INFINITY, 0.0);
    for attempt in -TRIES..=TRIES {
        let inverse = (least + STEP * attempt as f32) / farthest;
        if !inverse.is_finite() {
            continue;
        }
        let (mut xq, mut qq) = (0.0_f32, 0.0_f32);
        for number in numbers {
            let q = rounded(number * inverse, least, most);
            xq += number * q;
            qq += q * q;
        }
        // With the best scale, xq / qq, the squared error falls by xq² / qq.
        if qq > 0.0 && xq * xq > best.0 * qq {
            best = (xq * xq / qq, xq / qq);
        }
    }
    // Numbers so small that nothing could be tried are stored as zeros.
    if best.1.is_finite() { best.1 } else { 0.0 }
}

/// A scale and an offset, both not negative, for `scale · q − offset` with `q` from 0 to `most`.
pub(super) fn scale_and_offset(numbers: &[f32], most: f32) -> (f32, f32) {
    let least = numbers.iter().copied().fold(0.0_f32, f32::min);
    let largest = numbers.iter().copied().fold(least, f32::max);
    if largest == least {
        return (0.0, -least);
    }
    let count = numbers.len() as f32;
    let mut best = (f32::INFINITY, (largest - least) / most, -least);
    for attempt in -TRIES..=TRIES {
        let inverse = (most + STEP * attempt as f32) / (largest - least);
        if !inverse.is_finite() {
            continue;
        }
        let (mut q1, mut q2, mut x1, mut xq) = (0.0_f32, 0.0_f32, 0.0_f32, 0.0_f32);
        for number in numbers {
            let q = rounded((number - least) * inverse, 0.0, most);
            q1 += q;
            q2 += q * q;
            x1 += number;
            xq += number * q;
        }
        let determinant = count * q2 - q1 * q1;
        let (mut scale, mut offset) = match determinant > 0.0 {
            true => ((count * xq - x1 * q1) / determinant, (q1 * xq - q2 * x1) / determinant),
            false => continue,
        };
        if offset < 0.0 {
            (scale, offset) = (xq / q2, 0.0);
        }
        if scale <= 0.0 {
            continue;
        }
        let error = squared_error(numbers, scale, offset, most);
        if error < best.0 {
            best = (error, scale, offset);
        }
    }
    (best.1, best.2)
}

fn squared_error(numbers: &[f32], scale: f32, offset: f32, most: f32) -> f32 {
    let of_one = |number: &f32| {
        let q = rounded((number + offset) / scale, 0.0, most);
        (scale * q - offset - number).powi(2)
    };
    numbers.iter().map(of_one).sum()
}

/// The integer that comes nearest to `number`; a scale of 0 makes it `neutral`.
pub(super) fn nearest(number: f32, scale: f32, least: f32, most: f32, neutral: f32) -> f32 {
    let q = number / scale;
    if q.is_finite() { rounded(q, least, most) } else { neutral }
}
