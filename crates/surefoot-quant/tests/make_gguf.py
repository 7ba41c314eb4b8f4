"""Writes tests/files/*.gguf with the `gguf` Python package, and tests/attacks/*.gguf by hand.

    pip install gguf numpy && python make_gguf.py

tests/files: what a real tool writes, in one file and in parts. tests/attacks: files that must be
refused; tests/gguf.rs says why each is, and they are the seeds of the fuzz target `gguf`.
"""

import struct
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

HERE = Path(__file__).parent


def real_files() -> None:
    folder = HERE / "files"
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(7)

    def write(name: str, **options: int) -> None:
        writer = gguf.GGUFWriter(folder / name, "llama", **options)
        writer.add_name("tiny")
        writer.add_block_count(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_token_list(["<s>", "a", "é", "\u2581the"])
        writer.add_token_scores([0.0, -1.0, -2.0, -3.5])
        writer.add_bool("tiny.truth", True)
        writer.add_int64("tiny.negative", -5)
        for at, form in enumerate([Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0]):
            numbers = random.standard_normal((3 + at, 64)).astype(np.float32)
            blocks = gguf.quants.quantize(numbers, form)
            raw = None if form in (Type.F32, Type.F16) else form
            writer.add_tensor(f"t.{form.name}", blocks, raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    write("tiny.gguf")
    write("parts.gguf", split_max_tensors=2)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, shape: list[int], form: int, offset: int) -> bytes:
    dims = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", form, offset)


def whole(pairs: list[bytes], tensors: list[bytes], data: int = 0, **said: int) -> bytes:
    counts = (said.get("tensor_count", len(tensors)), said.get("pair_count", len(pairs)))
    head = b"GGUF" + struct.pack("<IQQ", said.get("version", 3), *counts)
    head += b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32 + data) if data else head


def attacks() -> dict[str, bytes]:
    big = 2**63
    array = struct.pack("<IQ", 9, 1)
    row = tensor(b"a", [32], 0, 0)
    return {
        "empty": b"",
        "other": b"PK\3\4" + b"\0" * 60,
        "version-1": whole([], [], version=1),
        "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "many-tensors": whole([], [], tensor_count=2**40),
        "many-keys": whole([], [], pair_count=2**40),
        "keys-missing": whole([], [], pair_count=3),
        "long-key": whole([struct.pack("<Q", big)], []),
        "long-text": whole([pair(b"a", 8, struct.pack("<Q", 2**27))], []),
        "long-array": whole([pair(b"a", 9, struct.pack("<IQ", 4, 2**27))], []),
        "endless-array": whole([pair(b"a", 9, struct.pack("<IQ", 12, big))], []),
        "deep-array": whole([pair(b"a", 9, array * 100 + struct.pack("<IQ", 0, 0))], []),
        "unknown-type": whole([pair(b"a", 13, b"\0" * 8)], []),
        "unknown-type-in-array": whole([pair(b"a", 9, struct.pack("<IQ", 77, 0))], []),
        "truth": whole([pair(b"a", 7, b"\2")], []),
        "key-twice": whole([pair(b"a", 0, b"\0")] * 2, []),
        "not-text": whole([pair(b"\xff\xfe", 0, b"\0")], []),
        "alignment-0": whole([pair(b"general.alignment", 4, struct.pack("<I", 0))], []),
        "alignment-48": whole([pair(b"general.alignment", 4, struct.pack("<I", 48))], []),
        "alignment-huge": whole([pair(b"general.alignment", 10, struct.pack("<Q", big))], []),
        "alignment-text": whole([pair(b"general.alignment", 8, text(b"32"))], []),
        "tensor-twice": whole([], [row, tensor(b"a", [32], 0, 128)], 256),
        "overlap": whole([], [tensor(b"b", [32], 0, 96), tensor(b"a", [32], 0, 0)], 256),
        "misaligned": whole([], [tensor(b"a", [32], 0, 4)], 256),
        "outside": whole([], [row], 64),
        "outside-by-one": whole([], [row], 128)[:-1],
        "offset-overflow": whole([], [tensor(b"a", [32], 0, 2**64 - 32)], 256),
        "shape-overflow": whole([], [tensor(b"a", [2**32, 2**32], 0, 0)], 256),
        "bytes-overflow": whole([], [tensor(b"a", [2**32, 2**31], 0, 0)], 256),
        "no-dimensions": whole([], [tensor(b"a", [], 0, 0)], 256),
        "many-dimensions": whole([], [tensor(b"a", [1] * 5, 0, 0)], 256),
        "empty-dimension": whole([], [tensor(b"a", [32, 0], 0, 0)], 256),
        "half-a-block": whole([], [tensor(b"a", [48, 2], 2, 0)], 256),
        "format-removed": whole([], [tensor(b"a", [32], 4, 0)], 256),
        "format-iq": whole([], [tensor(b"a", [256], 20, 0)], 256),
        "long-name": whole([], [tensor(b"a" * 65, [32], 0, 0)], 256),
        "part-of-none": whole([pair(b"split.count", 2, b"\2\0"), pair(b"split.no", 2, b"\2\0")], []),
        "second-part": whole([pair(b"split.count", 2, b"\2\0"), pair(b"split.no", 2, b"\1\0")], []),
        "unnamed-part": whole([pair(b"split.count", 2, b"\2\0"), pair(b"split.no", 2, b"\0\0")], []),
        "tensors-short": whole([pair(b"split.tensors.count", 5, b"\2\0\0\0")], [row], 128),
    }


def main() -> None:
    real_files()
    folder = HERE / "attacks"
    folder.mkdir(exist_ok=True)
    for name, content in attacks().items():
        (folder / f"{name}.gguf").write_bytes(content)


main()
