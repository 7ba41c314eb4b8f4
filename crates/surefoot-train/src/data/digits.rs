//! The handwritten digits that are built in: 1,797 images of 8×8 pixels.
//!
//! The test set of the UCI "Optical Recognition of Handwritten Digits" data (E. Alpaydin and
//! C. Kaynak, 1998), CC BY 4.0: see `data/ATTRIBUTION.md`.

use std::path::Path;

use super::{DataError, Form, Pixels, Target, gzip};

const PACKED: &[u8] = include_bytes!("../../data/digits.csv.gz");
const PIXELS: usize = 64;
/// Each number is a count of dark points in a 4×4 block.
const DARKEST: u8 = 16;

pub(super) fn digits() -> Result<Pixels, DataError> {
    let place = Path::new("the built-in digits");
    let bytes = gzip::unpack(place, PACKED.to_vec())?;
    let broken = |line: usize| DataError::new(place, format!("line {} is broken", line + 1));
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    let text = String::from_utf8_lossy(&bytes);
    for (at, line) in text.lines().filter(|line| !line.trim().is_empty()).enumerate() {
        let numbers: Vec<u8> = line
            .split(',')
            .map(|number| number.trim().parse::<f32>().map(|number| number as u8))
            .collect::<Result<_, _>>()
            .map_err(|_| broken(at))?;
        if numbers.len() != PIXELS + 1 || numbers[PIXELS] > 9 {
            return Err(broken(at));
        }
        pixels.extend(numbers[..PIXELS].iter().map(|&pixel| pixel.min(DARKEST)));
        labels.push(numbers[PIXELS]);
    }
    let form = Form::Dense { channels: 1, height: 8, width: 8, target: Target::Classes(10) };
    Ok(Pixels::new("the built-in digits", form, pixels, labels, f32::from(DARKEST)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Label, Sample, Source};

    #[test]
    fn all_1797_digits_are_there_and_every_class_is() {
        let digits = digits().unwrap();
        assert_eq!(digits.len(), 1797);
        let mut seen = [0; 10];
        for at in 0..digits.len() {
            let Sample::Dense { values, label } = digits.read(at).unwrap() else { panic!() };
            assert!(values.len() == 64 && values.iter().all(|v| (0.0..=1.0).contains(v)));
            let Label::Class(class) = label else { panic!() };
            seen[class] += 1;
        }
        assert!(seen.iter().all(|&count| count > 150), "{seen:?}");
    }
}
