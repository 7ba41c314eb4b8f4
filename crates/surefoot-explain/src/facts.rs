//! What a text says in numbers and names: sizes, shapes, element types, devices.

use std::sync::OnceLock;

use regex::Regex;
use serde::Serialize;

/// Sizes in bytes, shapes, element types and devices that a text names, each once, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Facts {
    /// How much was asked for.
    pub requested_bytes: Option<u64>,
    /// How much was free.
    pub free_bytes: Option<u64>,
    /// How much there is, or may be used.
    pub total_bytes: Option<u64>,
    /// Shapes of tensors.
    pub shapes: Vec<Vec<u64>>,
    /// Element types.
    pub dtypes: Vec<String>,
    /// Devices.
    pub devices: Vec<String>,
    /// What the numbers mean together, in words.
    pub notes: Vec<String>,
}

struct Patterns {
    requested: Regex,
    free: Regex,
    total: Regex,
    bracketed: Regex,
    product: Regex,
    dtype: Regex,
    device: Regex,
}

fn patterns() -> Option<&'static Patterns> {
    static PATTERNS: OnceLock<Option<Patterns>> = OnceLock::new();
    let size = r"(\d+(?:\.\d+)?) ?([KMGT]i?B|bytes)\b";
    let build = || -> Result<Patterns, regex::Error> {
        Ok(Patterns {
            requested: Regex::new(&format!(
                r"(?i)(?:tried to allocate|trying to allocate|failed to allocate|unable to allocate|out of memory allocating|requested buffer of size|invalid buffer size:?|buffer of size:?|reserve) {size}|(?i)requested buffer of size (\d+)"
            ))?,
            free: Regex::new(&format!(r"(?i){size} (?:is |are )?free"))?,
            total: Regex::new(&format!(
                r"(?i)(?:total capacity of|max allowed:) {size}|(?i){size} total capacity"
            ))?,
            bracketed: Regex::new(r"[\[(](\d+(?:, ?\d+)+),?[\])]")?,
            product: Regex::new(r"\b(\d+(?:x\d+)+)\b")?,
            dtype: Regex::new(
                r"(?i)\b(b?float(?:8_e[45]m[23]\w*|16|32|64)|float|double|half|complex64|complex128|u?int(?:4|8|16|32|64)|long int|long|f16|bf16|f32|f64)\b",
            )?,
            device: Regex::new(r"\b(?:(?:cuda|mps|xpu|hip|meta|npu|cpu)(?::\d+)?|[CG]PU:\d+)")?,
        })
    };
    PATTERNS.get_or_init(|| build().ok()).as_ref()
}

impl Facts {
    /// Whether the text says nothing of the kind.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn of(text: &str) -> Self {
        let Some(patterns) = patterns() else { return Self::default() };
        let size = |pattern: &Regex| {
            let found = pattern.captures(text)?;
            let mut groups = found.iter().skip(1).flatten();
            let number: f64 = groups.next()?.as_str().parse().ok()?;
            let unit = groups.next().map_or("bytes", |unit| unit.as_str());
            Some((number * unit_bytes(unit)) as u64)
        };
        let mut facts = Self {
            requested_bytes: size(&patterns.requested),
            free_bytes: size(&patterns.free),
            total_bytes: size(&patterns.total),
            ..Self::default()
        };
        let found =
            patterns.bracketed.captures_iter(text).chain(patterns.product.captures_iter(text));
        let mut shapes: Vec<(usize, Vec<u64>)> = found
            .filter_map(|found| {
                let numbers = found.get(1)?;
                let split = numbers.as_str().split([',', 'x']);
                let shape: Option<Vec<u64>> =
                    split.map(|number| number.trim().parse().ok()).collect();
                Some((numbers.start(), shape?))
            })
            .collect();
        shapes.sort();
        for (_, shape) in shapes {
            // More than eight dimensions is a list of something else.
            if shape.len() <= 8 && !facts.shapes.contains(&shape) {
                facts.shapes.push(shape);
            }
        }
        let once = |pattern: &Regex| {
            let mut names: Vec<String> = Vec::new();
            for found in pattern.find_iter(text) {
                if !names.iter().any(|name| name == found.as_str()) {
                    names.push(found.as_str().to_owned());
                }
            }
            names
        };
        facts.dtypes = once(&patterns.dtype);
        facts.devices = once(&patterns.device);
        facts.notes = facts.read_together();
        facts
    }

    fn read_together(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(requested) = self.requested_bytes {
            match self.free_bytes {
                Some(free) if free >= requested => notes.push(format!(
                    "{} were asked for and {} are free, but not in one piece: the memory is fragmented, or one buffer is over the device's limit.",
                    shown(requested),
                    shown(free)
                )),
                Some(free) => notes.push(format!(
                    "{} were asked for, {} are free.",
                    shown(requested),
                    shown(free)
                )),
                None => {}
            }
            notes.extend(self.attention_scores(requested));
        }
        notes
    }

    /// Whether the size that was asked for is that of attention scores of a shape in the text:
    /// batch × heads × length².
    fn attention_scores(&self, requested: u64) -> Option<String> {
        let shape = self.shapes.iter().find_map(|shape| {
            let &[batch, heads, length, _] = shape.as_slice() else { return None };
            let scores = batch.checked_mul(heads)?.checked_mul(length.checked_mul(length)?)?;
            let fits = |width: u64| {
                scores
                    .checked_mul(width)
                    .is_some_and(|bytes| bytes.abs_diff(requested) <= requested / 100)
            };
            [2, 4].into_iter().any(fits).then_some((batch, heads, length))
        });
        let (batch, heads, length) = shape?;
        Some(format!(
            "{} is the size of attention scores of {batch} × {heads} × {length}²: compute attention in pieces, or by a kernel that doesn't keep them.",
            shown(requested)
        ))
    }
}

fn unit_bytes(unit: &str) -> f64 {
    let power = match unit.as_bytes().first() {
        Some(b'K' | b'k') => 1,
        Some(b'M' | b'm') => 2,
        Some(b'G' | b'g') => 3,
        Some(b'T' | b't') => 4,
        _ => return 1.0,
    };
    // Frameworks write GB and mean GiB.
    f64::from(1024_u32).powi(power)
}

fn shown(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut unit = "bytes";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = next;
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{size:.2} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_shapes_types_and_devices_are_read() {
        let facts = Facts::of("mat1 and mat2 shapes cannot be multiplied (8x3 and 4x5)");
        assert_eq!(facts.shapes, [[8, 3], [4, 5]]);
        let facts =
            Facts::of("found at least two devices, cuda:0 and cpu! expected Half but found Float");
        assert_eq!(facts.devices, ["cuda:0", "cpu"]);
        assert_eq!(facts.dtypes, ["Half", "Float"]);
        let facts = Facts::of("input torch.Size([1, 4, 8, 8]) and weight [8, 3, 3, 3]");
        assert_eq!(facts.shapes, [[1, 4, 8, 8], [8, 3, 3, 3]]);
        let facts = Facts::of("RESOURCE_EXHAUSTED: Out of memory allocating 17592186044416 bytes.");
        assert_eq!(facts.requested_bytes, Some(17_592_186_044_416));
        assert!(Facts::of("KeyError: 'x'").is_empty());
    }

    #[test]
    fn the_size_of_attention_scores_is_recognised() {
        let text = "q has shape [1, 32, 12288, 128]. Tried to allocate 18.00 GiB. 3.00 GiB is free";
        let facts = Facts::of(text);
        assert_eq!(facts.notes[0], "18.00 GiB were asked for, 3.00 GiB are free.");
        assert!(facts.notes[1].contains("1 × 32 × 12288²"), "{:?}", facts.notes);
    }

    #[test]
    fn enough_free_memory_means_that_it_is_in_pieces() {
        let facts =
            Facts::of("Tried to allocate 1.00 GiB (GPU 0; 8.00 GiB total capacity; 2.00 GiB free)");
        assert_eq!(facts.total_bytes, Some(8 << 30));
        assert!(facts.notes[0].contains("not in one piece"), "{:?}", facts.notes);
    }
}
