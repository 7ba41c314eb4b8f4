"""`surefoot doctor --torch`: every device of this PyTorch, tested in child processes. Run by the program.

`python -m surefoot._doctor [DEVICE…]` prints JSON lines: the versions, then for each device its checks and whether it is
healthy. A device that is not there has a line with the reason; it counts only if it was named.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from typing import Any

import torch

from . import __version__, _devices, _probe


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _devices_to_test(named: list[str]) -> list[str]:
    if named:
        return [name.replace("mps", "metal") for name in named]
    found: list[str] = []
    for kind in _devices.PREFERRED:
        if kind not in _devices.built_in():
            _say(device=kind, unavailable=f"this PyTorch ({torch.__version__}) finds none")
            continue
        count = 1 if kind == "metal" else getattr(torch, kind).device_count()
        found += [kind if at == 0 else f"{kind}:{at}" for at in range(count)]
    return [*found, "cpu"]


def main(named: list[str]) -> None:
    """Tests the devices that were named, or all."""
    _say(python=platform.python_version(), torch=torch.__version__, surefoot=__version__, executable=sys.executable)
    for name in _devices_to_test(named):
        checks = _probe.probe(name, fresh=True)
        for check in checks:
            _say(device=name, check=dataclasses.asdict(check))
        why = _probe.why_not(checks)
        failed = [check.name for check in checks if not check.ok]
        hardware = None if why else _devices._hardware(_devices.torch_device(name))
        _say(device=name, hardware=hardware, usable=why is None, healthy=not failed, why=why, failed=failed)


if __name__ == "__main__":
    main(sys.argv[1:])
