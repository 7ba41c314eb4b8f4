"""The state of PyTorch's random generators, so that each attempt at the same work draws the same numbers."""

from __future__ import annotations

import torch


class RandomState:
    """The generators' states at one moment: the CPU's and one device's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._other = _get(device)

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._other is not None:
            _set(self._device, self._other)


def _get(device: torch.device) -> torch.Tensor | None:
    if device.type in ("cuda", "xpu"):
        return getattr(torch, device.type).get_rng_state(device)
    if device.type == "mps":
        return torch.mps.get_rng_state()
    return None


def _set(device: torch.device, state: torch.Tensor) -> None:
    if device.type in ("cuda", "xpu"):
        getattr(torch, device.type).set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)
