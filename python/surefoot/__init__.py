"""Surefoot makes PyTorch code survive device faults, and says what happened.

Importing it is quick and imports no torch: each name is loaded when it is first used.

>>> import surefoot, sys
>>> "torch" in sys.modules
False
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._native import __version__

if TYPE_CHECKING:
    pass

# Each public name, and the module that holds it.
_HOMES: dict[str, str] = {}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    value = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
