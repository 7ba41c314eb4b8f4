"""`surefoot bench --torch`: how fast this PyTorch is on each device, and what guarding costs. Run by the program.

`python -m surefoot._bench [--quick] [--device NAMES]` prints JSON lines: the versions, then one for each workload,
device and precision with the median of its times and a 95 % confidence interval of the median. A sample ends when the
device has finished. Guarded and bare steps are measured in turns; `guarded_ratio` is the median of the ratios of each pair.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from . import __version__, _devices
from ._footing import Footing

_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _product(device: torch.device, dtype: torch.dtype) -> tuple[Callable[[], Any], float, str]:
    size = 1024 if device.type == "cpu" else 4096
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return (lambda: a @ b), 2.0 * size**3 / 1e12, "TFLOP/s"


def _forward(device: torch.device, dtype: torch.dtype) -> tuple[Callable[[], Any], float, str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(device, dtype).eval()
    x = torch.randn(1, 256, device=device).to(dtype)

    def run() -> Any:
        with torch.no_grad():
            return model(x)

    return run, 1.0, "forwards/s"


def _convolutions() -> tuple[nn.Module, Callable[[torch.device], Any], Callable[..., Any], int]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 64, 10),
    )  # fmt: skip
    samples = 32

    def batch(device: torch.device) -> Any:
        return torch.randn(samples, 3, 32, 32, device=device), torch.randint(0, 10, (samples,), device=device)

    return model, batch, lambda m, x, y: F.cross_entropy(m(x), y), samples


def _transformer() -> tuple[nn.Module, Callable[[torch.device], Any], Callable[..., Any], int]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Embedding(96, 256), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 96))
    samples, tokens = 8, 128

    def batch(device: torch.device) -> Any:
        x = torch.randint(0, 96, (samples, tokens), device=device)
        return x, x.roll(-1, 1)

    return model, batch, lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()), samples


def _interval(values: list[float]) -> tuple[float, float, float]:
    """The median and a 95 % confidence interval of it, by the order of the values."""
    ordered = sorted(values)
    count = len(ordered)
    half = 0.98 * count**0.5
    low, high = max(0, int(count / 2 - half)), min(count - 1, int(count / 2 + half))
    return ordered[count // 2], ordered[low], ordered[high]


def _timed(run: Callable[[], Any], device: torch.device) -> float:
    name = _devices.name_of(device)
    _devices.synchronize(name)
    start = time.perf_counter()
    run()
    _devices.synchronize(name)
    return time.perf_counter() - start


def _rounds(run: Callable[[], Any], device: torch.device, seconds: float) -> int:
    """How many samples fit into the time, at least a few; warms up as well."""
    _timed(run, device)
    least = 3 if seconds < 1 else 5
    return max(least, min(200, int(seconds / max(_timed(run, device), 1e-6))))


def _tell(device: str, precision: str, workload: str, times: list[float], amount: float, unit: str, **more: Any) -> None:
    median, low, high = _interval(times)
    row = {"workload": workload, "device": device, "precision": precision, "median_ms": median * 1e3}
    row |= {"low_ms": low * 1e3, "high_ms": high * 1e3, "rate": amount / median, "unit": unit, "samples": len(times)}
    print(json.dumps(row | more), flush=True)


def _measure(name: str, precision: str, seconds: float) -> None:
    device, dtype = _devices.torch_device(name), _PRECISIONS[precision]
    for workload, make in (("matrix product", _product), ("forward, batch 1", _forward)):
        run, amount, unit = make(device, dtype)
        times = [_timed(run, device) for _ in range(_rounds(run, device, seconds))]
        _tell(name, precision, workload, times, amount, unit)
    for workload, build in (("convolutions, training step", _convolutions), ("transformer, training step", _transformer)):
        _measure_step(name, precision, seconds, workload, build)


def _measure_step(name: str, precision: str, seconds: float, workload: str, build: Callable[[], Any]) -> None:
    device, dtype = _devices.torch_device(name), _PRECISIONS[precision]
    model, make_batch, loss_fn, samples = build()
    bare, guarded = model.to(device), copy.deepcopy(model).to(device)
    batch = make_batch(device)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-4) for m in (bare, guarded)]
    foot = Footing(device=name, precision=precision)

    def bare_step() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = loss_fn(bare, *batch)
        loss.backward()
        optimizers[0].step()
        optimizers[0].zero_grad(set_to_none=True)

    def guarded_step() -> None:
        foot.step(guarded, optimizers[1], batch, loss_fn)

    times: list[float] = []
    ratios: list[float] = []
    guarded_step()
    for at in range(_rounds(bare_step, device, seconds)):
        # Which of the two comes first changes, since the first finds colder caches.
        pair = {}
        for kind in sorted(("bare", "guarded"), reverse=at % 2 == 1):
            pair[kind] = _timed(bare_step if kind == "bare" else guarded_step, device)
        times.append(pair["bare"])
        ratios.append(pair["guarded"] / pair["bare"])
    _tell(name, precision, workload, times, samples, "samples/s", guarded_ratio=_interval(ratios)[0])


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32,bf16,fp16")
    chosen = parser.parse_args(arguments)
    names = [*_devices.built_in(), "cpu"] if chosen.device == "auto" else chosen.device.replace("mps", "metal").split(",")
    versions = {"python": platform.python_version(), "torch": torch.__version__, "surefoot": __version__}
    print(json.dumps({**versions, "executable": sys.executable}), flush=True)
    for name in names:
        for precision in chosen.precision.split(","):
            if not _devices.computes_in(name, precision):
                print(json.dumps({"device": name, "precision": precision, "left_out": "it does not compute in that"}), flush=True)
                continue
            _measure(name, precision, 0.3 if chosen.quick else 2.0)


if __name__ == "__main__":
    main(sys.argv[1:])
