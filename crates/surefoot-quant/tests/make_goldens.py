"""Writes tests/golden/*.bin: blocks and the numbers that the `gguf` Python package makes of them.

    pip install gguf numpy && python make_goldens.py

For each format NAME: NAME.numbers.bin (f32) and NAME.blocks.bin are numbers and what the package
quantises them to, where it can; NAME.any.blocks.bin and NAME.any.numbers.bin are blocks of random
bits (with finite scales) and what it dequantises them to.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

FOLDER = Path(__file__).parent / "golden"
# Where the half-precision scales of a block are.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}
QUANTISED = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def numbers(random: np.random.Generator) -> np.ndarray:
    """Rows of 256 of many sizes, with zeros, equal numbers, ties and outliers among them."""
    rows = random.standard_normal((12, 256)).astype(np.float32)
    rows *= 10.0 ** np.arange(-6, 6, dtype=np.float32)[:, None]
    rows[0, :32] = 0
    rows[1, :32] = rows[1, 0]
    rows[2, :64] = np.arange(-32, 32) / 4
    rows[3, 40] *= 100
    rows[4] = np.abs(rows[4])
    rows[5] = -np.abs(rows[5])
    # Halves hold up to 65504; the package makes larger scales infinite.
    return np.clip(rows, -60000, 60000)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    random = np.random.default_rng(18)
    for name in QUANTISED:
        values = numbers(random)
        blocks = gguf.quants.quantize(values, Type[name])
        values.astype("<f4").tofile(FOLDER / f"{name}.numbers.bin")
        blocks.tofile(FOLDER / f"{name}.blocks.bin")
    for name, halves in HALVES.items():
        length, size = gguf.GGML_QUANT_SIZES[Type[name]]
        blocks = random.integers(0, 256, (2048 // length, size), dtype=np.uint8)
        for at in halves:
            scale = random.standard_normal(len(blocks)).astype("<f2")
            blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
        blocks.tofile(FOLDER / f"{name}.any.blocks.bin")
        values = gguf.quants.dequantize(blocks, Type[name])
        values.astype("<f4").tofile(FOLDER / f"{name}.any.numbers.bin")


main()
