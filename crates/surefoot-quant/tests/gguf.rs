//! GGUF files: what the `gguf` Python package wrote, attacks, and damage; `make_gguf.py` wrote the files.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use surefoot_quant::BlockFormat;
use surefoot_quant::gguf::{Gguf, GgufError, GgufFiles, Value};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

#[test]
fn a_file_of_a_real_tool_is_read() {
    let files = GgufFiles::open(&path("files/tiny.gguf")).unwrap();
    let gguf = files.metadata();
    assert_eq!(gguf.version, 3);
    assert_eq!(gguf.text("general.architecture").unwrap(), Some("llama"));
    assert_eq!(gguf.number("llama.block_count").unwrap(), Some(2));
    assert_eq!(
        gguf.float("llama.attention.layer_norm_rms_epsilon").unwrap(),
        Some(1e-5_f32.into())
    );
    assert_eq!(gguf.truth("tiny.truth").unwrap(), Some(true));
    assert_eq!(gguf.value("tiny.negative").unwrap(), &Value::I64(-5));
    let tokens = gguf.texts("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens, ["<s>", "a", "é", "\u{2581}the"]);
    let scores = gguf.value("tokenizer.ggml.scores").unwrap().as_f32s().unwrap();
    assert_eq!(scores, [0.0, -1.0, -2.0, -3.5]);
    let expected = [
        ("t.F32", BlockFormat::F32, 3),
        ("t.F16", BlockFormat::F16, 4),
        ("t.BF16", BlockFormat::BF16, 5),
        ("t.Q8_0", BlockFormat::Q8_0, 6),
        ("t.Q4_0", BlockFormat::Q4_0, 7),
    ];
    let found: Vec<_> =
        gguf.tensors.iter().map(|it| (it.name.as_str(), it.format, it.rows())).collect();
    assert_eq!(found, expected);
    let bytes = std::fs::read(path("files/tiny.gguf")).unwrap();
    let range = &gguf.tensors[0].range;
    let first = &bytes[range.start as usize..range.end as usize];
    let numbers: Vec<f32> = first.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
    assert_eq!(numbers.len(), 3 * 64);
    // The seed of the script gives these.
    assert_eq!(numbers[..2], [0.001_230_153_4, 0.298_745_54]);
}

#[test]
fn parts_are_one_model() {
    let files = GgufFiles::open(&path("files/parts-00001-of-00003.gguf")).unwrap();
    let found: Vec<_> = files
        .tensors()
        .map(|(part, tensor)| (part.path.file_name().unwrap().to_str().unwrap(), &*tensor.name))
        .collect();
    let (first, second, third) =
        ("parts-00001-of-00003.gguf", "parts-00002-of-00003.gguf", "parts-00003-of-00003.gguf");
    let expected = [
        (first, "t.F32"),
        (first, "t.F16"),
        (second, "t.BF16"),
        (second, "t.Q8_0"),
        (third, "t.Q4_0"),
    ];
    assert_eq!(found, expected);
    assert_eq!(files.metadata().text("general.name").unwrap(), Some("tiny"));
}

#[test]
fn parts_that_are_missing_or_exchanged_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u32| format!("parts-{number:05}-of-00003.gguf");
    let copy = |from: u32, to: u32| {
        std::fs::copy(path("files").join(part(from)), folder.path().join(part(to))).unwrap();
    };
    copy(1, 1);
    let open = || match GgufFiles::open(&folder.path().join(part(1))) {
        Err(GgufError::InFile { path, source }) => (path, *source),
        other => panic!("{other:?}"),
    };
    let (path, error) = open();
    assert_eq!(path, folder.path().join(part(2)));
    assert!(matches!(error, GgufError::Io(_)), "{error}");
    copy(3, 2);
    copy(2, 3);
    let (_, error) = open();
    assert!(matches!(error, GgufError::WrongPart { part: 3, expected: 2, .. }), "{error}");
}

/// What an attack must be refused as.
fn expected(name: &str, error: &GgufError) -> bool {
    use GgufError::*;
    match name {
        "empty" | "keys-missing" | "long-text" | "long-array" => matches!(error, Truncated { .. }),
        "other" => matches!(error, NotGguf(_)),
        "version-1" => matches!(error, Version(1)),
        "big-endian" => matches!(error, BigEndian),
        "many-tensors" => matches!(error, TooMany { what: "tensors", .. }),
        "many-keys" => matches!(error, TooMany { what: "metadata keys", .. }),
        "endless-array" => matches!(error, TooMany { what: "values of an array", .. }),
        "part-of-none" => matches!(error, TooMany { what: "parts", .. }),
        "long-key" | "long-name" => matches!(error, TooLong { .. }),
        "deep-array" => matches!(error, TooDeep { most: 4, .. }),
        "unknown-type" => matches!(error, UnknownValueType { number: 13, .. }),
        "unknown-type-in-array" => matches!(error, UnknownValueType { number: 77, .. }),
        "truth" => matches!(error, NotABool { byte: 2, .. }),
        "key-twice" => matches!(error, DuplicateKey(key) if key == "a"),
        "not-text" => matches!(error, NotUtf8 { .. }),
        "alignment-0" => matches!(error, Alignment(0)),
        "alignment-48" => matches!(error, Alignment(48)),
        "alignment-huge" => matches!(error, Alignment(0x8000_0000_0000_0000)),
        "alignment-text" => matches!(error, WrongType { .. }),
        "tensor-twice" => matches!(error, DuplicateTensor(name) if name == "a"),
        "overlap" => {
            matches!(error, Overlap { first, second } if first == "a" && second == "b")
        }
        "misaligned" => matches!(error, Misaligned { offset: 4, alignment: 32, .. }),
        "outside" | "outside-by-one" | "offset-overflow" => matches!(error, OutOfFile { .. }),
        "shape-overflow" | "bytes-overflow" => matches!(error, TooLarge { .. }),
        "no-dimensions" => matches!(error, Dimensions { count: 0, .. }),
        "many-dimensions" => matches!(error, Dimensions { count: 5, .. }),
        "empty-dimension" => matches!(error, EmptyTensor { .. }),
        "half-a-block" => matches!(error, Rows { .. }),
        "format-removed" => matches!(error, UnknownFormat { format, .. } if format == "type 4"),
        "format-iq" => matches!(error, UnknownFormat { format, .. } if format == "IQ4_NL"),
        "second-part" => matches!(error, NotFirstPart { part: 2, count: 2 }),
        "unnamed-part" => matches!(error, PartName { count: 2 }),
        "tensors-short" => matches!(error, PartTensors { expected: 2, actual: 1 }),
        other => panic!("what is '{other}' to be refused as?"),
    }
}

#[test]
fn attacks_are_refused_for_what_they_are() {
    let mut count = 0;
    for entry in std::fs::read_dir(path("attacks")).unwrap() {
        let attack = entry.unwrap().path();
        let name = attack.file_stem().unwrap().to_str().unwrap().to_owned();
        let Err(GgufError::InFile { source, .. }) = GgufFiles::open(&attack) else {
            panic!("{name} was not refused")
        };
        assert!(expected(&name, &source), "{name}: {source}");
        count += 1;
    }
    assert_eq!(count, 40);
}

/// What holds for every file that is accepted.
fn check(gguf: &Gguf, size: u64) {
    let mut ranges: Vec<_> = gguf.tensors.iter().map(|tensor| tensor.range.clone()).collect();
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert!(ranges.iter().all(|range| range.start >= gguf.data_start && range.end <= size));
    for tensor in &gguf.tensors {
        let numbers = usize::try_from(tensor.rows() * tensor.cols()).expect("it was checked");
        let bytes = tensor.format.bytes_of(numbers).expect("whole blocks") as u64;
        assert_eq!(tensor.range.end - tensor.range.start, bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damage_is_refused_or_harmless(
        changes in prop::collection::vec((0_usize..1200, any::<u8>()), 1..4),
        length in 0_usize..6000,
    ) {
        let mut bytes = std::fs::read(path("files/tiny.gguf")).unwrap();
        bytes.truncate(length.max(1200));
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(gguf) = Gguf::read(&bytes[..], bytes.len() as u64) {
            check(&gguf, bytes.len() as u64);
        }
    }
}
