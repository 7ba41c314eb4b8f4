"""Pages of audits and comparisons, in the style of the program's pages: one file that needs no network."""

from __future__ import annotations

import os
from pathlib import Path

from . import _native


def write_page(
    path: str | os.PathLike[str],
    title: str,
    verdict: str,
    summary: str,
    sites: list[tuple[str, float, float, float, bool]],
    facts: list[tuple[str, str]],
    *,
    curve: list[tuple[float, float]] | None = None,
    used: int = 0,
    alpha: float = 0.01,
    beta: float = 0.01,
) -> None:
    """Writes the page. A distance that is not finite is shown as the largest number."""
    largest = 1e300
    shown = [(name, min(distance, largest), tolerance, bits, first) for name, distance, tolerance, bits, first in sites]
    text = _native.evidence_page(
        title=title,
        verdict=verdict,
        summary=summary,
        alpha=alpha,
        beta=beta,
        curve=curve or [],
        used=used,
        sites=shown,
        facts=facts,
    )
    Path(path).write_text(text, encoding="utf-8")
