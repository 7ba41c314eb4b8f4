"""What an error means and what to change, from Python: the answer of `surefoot explain`, needing neither torch nor a device."""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any

from . import _native


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What is known of an error; the fields are those of `surefoot explain --json`. Its `str()` is an answer to read."""

    kind: str
    """The kind of fault: `out_of_memory`, `device_mismatch`, …; `not_device_related` if it is none."""
    confidence: float
    """How likely the kind is right."""
    second: dict[str, Any] | None
    """The kind that is meant instead, where a second one is plausible: `kind` and `probability`."""
    decided_by: str
    """`type`, `rules` or `learned`."""
    evidence: str
    """The part of the text that decided."""
    words: list[str]
    """The single words that decided, where the learned stage did."""
    cause: str
    """What happened, in plain words."""
    advice: list[str]
    """What to change, most useful first."""
    framework: str | None
    """Where the message comes from, when it says so."""
    facts: dict[str, Any]
    """Sizes, shapes, dtypes and devices that the text holds, and `notes` on what they mean together."""
    frame: dict[str, Any] | None
    """The user's own line, where the text has a traceback: `file`, `line`, `function`, `code`."""
    guide: dict[str, Any] | None
    """For well-known errors: `causes` in order, `changes` as code, `settings` with their cost, `references`, `commands`."""
    page: str | None
    """The guide's page in the repository."""

    def __str__(self) -> str:
        lines = [f"{self.kind} ({self.confidence:.2f})", self.cause]
        if self.second is not None:
            lines.append(f"or {self.second['kind']} ({self.second['probability']:.2f})")
        if self.frame is not None:
            code = f": {self.frame['code']}" if self.frame["code"] else ""
            lines.append(f"your line: {self.frame['file']}:{self.frame['line']}{code}")
        lines += [f"sizes: {note}" for note in self.facts["notes"]]
        guide = self.guide or {"causes": [], "changes": [], "settings": [], "references": []}
        lines += [f"  {number}. {cause}" for number, cause in enumerate(guide["causes"], 1)]
        lines += [f"  - {advice}" for advice in self.advice]
        for change in guide["changes"]:
            lines.append(f"  {change['why']}")
            lines += [f"    - {line}" for line in change["before"].splitlines()]
            lines += [f"    + {line}" for line in change["after"].splitlines()]
        lines += [f"  {setting['name']}: {setting['effect']}; cost: {setting['cost']}" for setting in guide["settings"]]
        lines += [f"  {reference['says']}: {reference['address']}" for reference in guide["references"]]
        if self.page is not None:
            lines.append(f"more: {self.page}")
        return "\n".join(lines)


def explain(error: str | BaseException) -> Explanation:
    """Says what an error means: a message, the end of a log, or an exception, whose traceback names your own line.

    >>> import surefoot
    >>> found = surefoot.explain("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")
    >>> found.kind, found.page
    ('out_of_memory', 'docs/errors/cublas-status-alloc-failed.md')
    >>> surefoot.explain("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.").facts["requested_bytes"]
    2147483648
    """
    if isinstance(error, BaseException):
        from ._install import kind_of_chain

        text = "".join(traceback.format_exception(error))
        kind = kind_of_chain(error)
        # A type that says nothing leaves the words to decide.
        found = _native.explain(text, None if kind == "not_device_related" else kind)
    elif isinstance(error, str):
        if not error.strip():
            raise ValueError("there is nothing to explain: the text is empty")
        found = _native.explain(error)
    else:
        raise TypeError(f"explain needs a message or an exception, not a {type(error).__name__}")
    return Explanation(**{field.name: found[field.name] for field in dataclasses.fields(Explanation)})
