"""Trying a device for real, in a child process, before work is given to it.

A driver that crashes takes the child with it and costs this process nothing. The child prints one JSON line per check as
soon as it is done, so a check that kills it is known: the first one without a line. Results are remembered for this
PyTorch, driver and machine.

`python -m surefoot._probe cuda` is the child.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from . import __version__, _devices

# Seconds for all checks of one device; first use of a GPU loads and compiles much.
_TIMEOUT = 180.0

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# How far a result may be from the CPU's in fp64, relative to its largest number. fp32 products may use TF32.
_TOLERANCE = {"fp32": 5e-3, "bf16": 5e-2, "fp16": 1e-2}

_OPERATIONS = ("product", "convolution", "attention")

# Without these a device is not used; the others only limit how it is used.
NEEDED = ("storage", *(f"{operation} fp32" for operation in _OPERATIONS))


@dataclasses.dataclass
class Check:
    """One check of a device: what, whether it passed, and what was found."""

    name: str
    ok: bool
    detail: str = ""
    seconds: float = 0.0


def probe(device: str | torch.device, *, fresh: bool = False) -> list[Check]:
    """Checks a device in a child process: storage, products, convolutions and attention in each dtype, threads.

    What was found before for this PyTorch, driver and machine is returned unless `fresh`.

    >>> import surefoot
    >>> checks = surefoot.probe("cpu")
    >>> all(check.ok for check in checks)
    True
    """
    name = str(device).replace("mps", "metal")
    known = _remembered()
    key = _key(name)
    if not fresh and key in known:
        return [Check(**check) for check in known[key]]
    checks = _run_child(name)
    known[key] = [dataclasses.asdict(check) for check in checks]
    _remember(known)
    return checks


def why_not(checks: list[Check]) -> str | None:
    """Why a device is not to be used; None if it is."""
    passed = {check.name for check in checks if check.ok}
    failed = [check for check in checks if not check.ok and check.name in NEEDED]
    if failed:
        return f"{failed[0].name}: {failed[0].detail}"
    missing = [name for name in NEEDED if name not in passed]
    return f"{missing[0]} was not reached" if missing else None


def candidates() -> list[tuple[str, str | None]]:
    """What `auto` considers, best first, each with why it is passed over if it is."""
    found: list[tuple[str, str | None]] = []
    for name in _devices.PREFERRED:
        if name in _devices.built_in():
            found.append((name, why_not(probe(name))))
        else:
            found.append((name, f"{name} is not available: this PyTorch ({torch.__version__}) finds none"))
    return [*found, ("cpu", None)]


def _run_child(name: str) -> list[Check]:
    command = [sys.executable, "-m", "surefoot._probe", name]
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    # A rank's child must not take itself for a rank.
    environment = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "SUREFOOT_DRILL")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, env={**environment, "PYTHONPATH": path}
        )
        output, end = done.stdout, _how_it_ended(done.returncode, done.stderr)
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace")
        end = f"did not end within {_TIMEOUT:.0f} s"
    checks = [Check(**json.loads(line)) for line in output.splitlines() if line.startswith("{")]
    if end is not None:
        done_names = {check.name for check in checks}
        at = next((check for check in _names() if check not in done_names), "end")
        checks.append(Check(at, False, end))
    return checks


def _how_it_ended(code: int, stderr: str) -> str | None:
    if code == 0:
        return None
    last = stderr.strip().splitlines()[-1:] or [""]
    return f"the process died by signal {-code}" if code < 0 else f"the process ended with {code}: {last[0]}"


def _names() -> Iterator[str]:
    yield "storage"
    for dtype in _DTYPES:
        for operation in _OPERATIONS:
            yield f"{operation} {dtype}"
    yield "threads"


def _key(name: str) -> str:
    """What a result is valid for."""
    parts = [__version__, torch.__version__, platform.node(), platform.release(), name]
    if name.startswith("cuda"):
        device = _devices.torch_device(name)
        parts += [str(torch.version.cuda or torch.version.hip), _driver(), torch.cuda.get_device_name(device)]
    return " | ".join(parts)


def _driver() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        return ""


def _file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "surefoot" / "torch-probe.json"


def _remembered() -> dict[str, Any]:
    try:
        known = json.loads(_file().read_text())
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def _remember(known: dict[str, Any]) -> None:
    """Keeps results for later processes; a folder that can't be written to costs only time."""
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=_file().parent)
        with os.fdopen(handle, "w") as file:
            json.dump(known, file)
        os.replace(temporary, _file())
    except OSError:
        pass


def _close(result: torch.Tensor, reference: torch.Tensor, dtype: str) -> str:
    distance = (result.double().cpu() - reference).abs().max() / reference.abs().max()
    if not distance <= _TOLERANCE[dtype]:
        raise ArithmeticError(f"is {distance:.1e} from the CPU's result")
    return f"{distance:.1e} from the CPU's"


def _storage(device: torch.device) -> str:
    before = torch.arange(1 << 20, dtype=torch.int32)
    if not torch.equal(before.to(device).cpu(), before):
        raise ArithmeticError("numbers came back changed")
    zeros = torch.zeros(1 << 20, device=device)
    if zeros.count_nonzero().item():
        raise ArithmeticError("zeros were not zero")
    return "4 MiB written and read back"


def _product(device: torch.device, dtype: str) -> str:
    a, b = torch.randn(192, 256, dtype=torch.float64), torch.randn(256, 160, dtype=torch.float64)
    kind = _DTYPES[dtype]
    return _close(a.to(kind).to(device) @ b.to(kind).to(device), a @ b, dtype)


def _convolution(device: torch.device, dtype: str) -> str:
    x, w = torch.randn(2, 8, 24, 24, dtype=torch.float64), torch.randn(16, 8, 3, 3, dtype=torch.float64)
    kind = _DTYPES[dtype]
    result = torch.nn.functional.conv2d(x.to(kind).to(device), w.to(kind).to(device), padding=1)
    return _close(result, torch.nn.functional.conv2d(x, w, padding=1), dtype)


def _attention(device: torch.device, dtype: str) -> str:
    q, k, v = torch.randn(3, 2, 4, 64, 32, dtype=torch.float64)
    attend = torch.nn.functional.scaled_dot_product_attention
    kind = _DTYPES[dtype]
    result = attend(*(t.to(kind).to(device) for t in (q, k, v)), is_causal=True)
    return _close(result, attend(q, k, v, is_causal=True), dtype)


def _threads(device: torch.device) -> str:
    """First use by 8 threads at once, in a shape that nothing has used before."""
    a = torch.randn(97, 131, dtype=torch.float64)
    results: list[Any] = [None] * 8
    start = threading.Barrier(8)

    def work(at: int) -> None:
        start.wait()
        try:
            results[at] = (a.float().to(device) @ a.float().to(device).T).cpu()
        except RuntimeError as error:
            results[at] = error

    workers = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for result in results:
        if isinstance(result, RuntimeError):
            raise result
        _close(result, a @ a.T, "fp32")
    return "8 threads at once"


def _check(name: str, work: Callable[[], str]) -> None:
    start = time.perf_counter()
    try:
        check = Check(name, True, work())
    except Exception as error:  # whatever it is, it is this check's result
        check = Check(name, False, str(error).splitlines()[0] if str(error) else type(error).__name__)
    check.seconds = round(time.perf_counter() - start, 4)
    print(json.dumps(dataclasses.asdict(check)), flush=True)


def main(name: str) -> None:
    """The child: prints a line per check."""
    device = _devices.torch_device(name)
    torch.manual_seed(7)
    _check("storage", lambda: _storage(device))
    operations = {"product": _product, "convolution": _convolution, "attention": _attention}
    for dtype in _DTYPES:
        for operation, run in operations.items():
            _check(f"{operation} {dtype}", lambda run=run, dtype=dtype: run(device, dtype))
    # Last, since two threads abort the process on some versions for Metal.
    _check("threads", lambda: _threads(device))


if __name__ == "__main__":
    main(sys.argv[1])
