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
    from ._audit import Audit as Audit
    from ._audit import audit as audit
    from ._batcher import Batcher as Batcher
    from ._compare import Comparison as Comparison
    from ._compare import compare as compare
    from ._errors import Fault as Fault
    from ._errors import PeerFailed as PeerFailed
    from ._errors import SurefootWarning as SurefootWarning
    from ._errors import kind_of as kind_of
    from ._explain import Explanation as Explanation
    from ._explain import explain as explain
    from ._footing import Footing as Footing
    from ._guard import guard as guard
    from ._install import install as install
    from ._install import uninstall as uninstall
    from ._lanes import Lanes as Lanes
    from ._loader import Loader as Loader
    from ._loader import loader as loader
    from ._probe import Check as Check
    from ._probe import probe as probe

# Each public name, and the module that holds it.
_HOMES: dict[str, str] = {
    "Audit": "._audit",
    "Batcher": "._batcher",
    "Check": "._probe",
    "Comparison": "._compare",
    "Explanation": "._explain",
    "Fault": "._errors",
    "Footing": "._footing",
    "Lanes": "._lanes",
    "Loader": "._loader",
    "PeerFailed": "._errors",
    "SurefootWarning": "._errors",
    "audit": "._audit",
    "compare": "._compare",
    "explain": "._explain",
    "guard": "._guard",
    "install": "._install",
    "kind_of": "._errors",
    "loader": "._loader",
    "probe": "._probe",
    "uninstall": "._install",
}

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
