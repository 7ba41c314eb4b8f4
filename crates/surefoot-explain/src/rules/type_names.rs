//! Pairs of type names in a message, such as `torch.cuda.HalfTensor` and `torch.FloatTensor`:
//! do they differ by place or by element type? The words around them are the same for both.

/// A type as a message spells it.
#[derive(Debug, PartialEq)]
struct Named {
    /// `cpu`, `cuda`, `mps` …; `None` where the spelling says nothing of a place.
    place: Option<String>,
    element: String,
}

/// Whether the first two types named are of different devices.
pub(super) fn places_differ(text: &str) -> bool {
    matches!(pair(text), Some((a, b)) if a.place.is_some() && b.place.is_some() && a.place != b.place)
}

/// Whether the first two types named have different elements and no different devices: a clash
/// of both is first one of devices, since moving the tensor comes before casting it.
pub(super) fn elements_differ(text: &str) -> bool {
    matches!(pair(text), Some((a, b)) if a.element != b.element) && !places_differ(text)
}

/// Whether the first two types named have the same elements.
pub(super) fn elements_agree(text: &str) -> bool {
    matches!(pair(text), Some((a, b)) if a.element == b.element)
}

/// Whether a text names two different devices, whatever else it says of them.
pub(super) fn any_places_differ(text: &str) -> bool {
    const PLACES: &[&str] = &["cpu", "cuda", "gpu", "mps", "xpu", "hpu", "npu", "metal", "host"];
    let text = text.to_ascii_lowercase();
    let mut places =
        text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| PLACES.contains(word));
    let first = places.next();
    places.any(|place| Some(place) != first)
}

fn pair(text: &str) -> Option<(Named, Named)> {
    let inside = |c: char| c.is_ascii_alphanumeric() || "_.:<>*?".contains(c);
    let mut types = text.split(|c| !inside(c)).filter_map(named);
    Some((types.next()?, types.next()?))
}

fn named(word: &str) -> Option<Named> {
    let word = word.trim_matches(['.', ':']).to_ascii_lowercase();
    let at = |place: &str, element: &str| {
        Some(Named { place: Some(place.to_owned()), element: element.to_owned() })
    };
    if let Some(name) = word.strip_prefix("torch.").and_then(|rest| rest.strip_suffix("tensor")) {
        return match name.rsplit_once('.') {
            Some((place, element)) => at(place.trim_end_matches(".sparse"), element),
            None => at("cpu", name),
        };
    }
    for place in ["mps", "cuda", "cpu", "xpu", "hip", "hpu"] {
        let element = word
            .strip_prefix(place)
            .and_then(|rest| rest.strip_suffix("type").or(rest.strip_suffix("tensor")));
        if let Some(element) = element.filter(|element| !element.is_empty()) {
            return at(place, element);
        }
    }
    let placeless = |element: &str| Some(Named { place: None, element: element.to_owned() });
    if let Some(shape) = word.strip_prefix("tensor<").and_then(|rest| rest.strip_suffix('>')) {
        return placeless(shape.rsplit('x').next().unwrap_or(shape));
    }
    let short = word.strip_prefix("c10::").or(word.strip_prefix("at::")).unwrap_or(&word);
    let short = short.strip_prefix("torch.").unwrap_or(short);
    const ELEMENTS: &[&str] = &[
        "half",
        "bfloat16",
        "float",
        "double",
        "long",
        "int",
        "short",
        "char",
        "byte",
        "bool",
        "float16",
        "float32",
        "float64",
        "int64",
        "int32",
        "int8",
        "uint8",
        "complexfloat",
        "f16",
        "f32",
        "f64",
        "bf16",
        "fp16",
        "fp32",
        "fp64",
        "i8",
        "i32",
        "i64",
        "u8",
        "u32",
        "u64",
    ];
    let short = short.strip_suffix("tensor").unwrap_or(short);
    ELEMENTS.contains(&short).then(|| placeless(short)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clash_of_devices_is_told_from_a_clash_of_elements() {
        let devices = "Input type (torch.cuda.HalfTensor) and weight type (torch.HalfTensor)";
        assert!(places_differ(devices) && !elements_differ(devices));
        let elements =
            "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor)";
        assert!(!places_differ(elements) && elements_differ(elements));
        let both = "Input type (torch.FloatTensor) and weight type (torch.cuda.HalfTensor)";
        assert!(places_differ(both) && !elements_differ(both));
    }

    #[test]
    fn other_spellings_are_read_too() {
        assert!(places_differ("Input type (MPSFloatType) and weight type (torch.FloatTensor)"));
        assert!(places_differ("Input type (CPUFloatTensor) and weight type (CUDAFloatTensor)"));
        assert!(elements_differ("Input type (c10::Half) and bias type (float)"));
        assert!(elements_differ("'tensor<1x1024xf32>' and 'tensor<1024xf16>'"));
        assert!(elements_differ("'tensor<2x1280xf32>' and 'tensor<*xf16>'"));
        assert!(elements_agree("'tensor<2x4xf32>' and 'tensor<3xf32>'"));
        assert!(!elements_differ("nothing named here") && !places_differ("nor here"));
        assert!(any_places_differ("on cuda:0, but the mask is on cpu"));
        assert!(!any_places_differ("on cuda:0 and cuda:1") && !any_places_differ("on a GPU"));
    }
}
