"""Errors that explain themselves: `install` adds an explanation behind the traceback of an uncaught exception.

The hook that was there before is called first, so the traceback is what it always was. An ordinary exception (a
`KeyError`, say) gets no explanation. Whatever goes wrong while explaining is dropped: it must not hide the error.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
import types
from typing import Any, TextIO

from . import _native
from ._remedies import framework_of, remedy

# What was there before, while installed.
_before: dict[str, Any] = {}


def install() -> None:
    """Explains uncaught errors of devices behind their traceback, in scripts, threads and IPython.

    Says the kind of fault, its cause, the line of your own code, what to change, and code to do it. Can be called
    more than once; `uninstall` takes it back.

    >>> import surefoot, sys
    >>> before = sys.excepthook
    >>> surefoot.install()
    >>> surefoot.uninstall()
    >>> sys.excepthook is before
    True
    """
    if _before:
        return
    _before["sys"] = sys.excepthook
    _before["threading"] = threading.excepthook
    sys.excepthook = _excepthook
    threading.excepthook = _threading_hook
    shell = _ipython()
    if shell is not None:
        _before["ipython"] = (shell, shell.custom_exceptions, shell.CustomTB)
        shell.set_custom_exc((Exception,), _ipython_handler)


def uninstall() -> None:
    """Takes back what `install` did."""
    if not _before:
        return
    # Who hooked in after us keeps the hook, and calls ours, which then only passes on.
    if sys.excepthook is _excepthook:
        sys.excepthook = _before["sys"]
    if threading.excepthook is _threading_hook:
        threading.excepthook = _before["threading"]
    if "ipython" in _before:
        shell, exceptions, handler = _before["ipython"]
        shell.custom_exceptions, shell.CustomTB = exceptions, handler
    _before.clear()


def explanation(error: BaseException) -> str | None:
    """The text behind a traceback; None for an exception that has nothing to do with a device."""
    kind = kind_of_chain(error)
    if kind == "not_device_related":
        return None
    found = _native.explain(_words(error), kind)
    frames = _frames(error)
    lines = [f"surefoot: {kind}", f"  cause    {found['cause']}"]
    if found["evidence"]:
        lines.append(f"  because  {_one_line(found['evidence'])}")
    own = _own_frame(frames)
    if own is not None:
        name, number, function, source = own
        lines.append(f"  where    {name}:{number} in {function}" + (f": {source}" if source else ""))
    lines += [f"  sizes    {note}" for note in found["facts"]["notes"]]
    device = getattr(error, "device", None)
    if device:
        lines.append(f"  device   {device}")
    earlier = getattr(error, "earlier", None) or []
    if earlier:
        lines.append(f"  before   {len(earlier)} faults were recovered from or tried against first: see the journal")
    lines.append("  what to change:")
    advice = list(dict.fromkeys([*(getattr(error, "advice", None) or []), *found["advice"]]))
    lines += [f"    - {line}" for line in advice[:4]]
    framework = framework_of([frame.f_globals.get("__name__", "") for frame, _ in frames])
    code = remedy(kind, framework, _trains(frames))
    if code:
        lines.append(f"  in code ({framework}):")
        lines += [f"      {line}" for line in code]
    if found["page"]:
        lines.append(f"  more     {found['page']}")
    return "\n".join(lines)


def kind_of_chain(error: BaseException) -> str:
    """The kind of an exception, or of what caused it, by type and then by words."""
    if not isinstance(error, Exception):
        return "not_device_related"
    if "torch" not in sys.modules:
        # Then it can't be PyTorch's, and importing that now would take seconds.
        return "out_of_memory" if isinstance(error, MemoryError) else "not_device_related"
    from ._errors import kind_of

    # An error that was raised from another one, as libraries do, is of the other one's kind.
    link: BaseException | None = error
    while link is not None:
        kind = kind_of(link)
        if kind != "not_device_related":
            return kind
        link = link.__cause__
    return "not_device_related"


def _words(error: BaseException) -> str:
    """The words of an exception and of what caused it, the cause first, as a traceback has them."""
    words: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        words.append(f"{type(link).__name__}: {link}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n".join(reversed(words))


def _frames(error: BaseException) -> list[tuple[types.FrameType, int]]:
    """The frames of the traceback with their lines, the outermost first."""
    frames, at = [], error.__traceback__
    while at is not None:
        frames.append((at.tb_frame, at.tb_lineno))
        at = at.tb_next
    return frames


def _own_frame(frames: list[tuple[types.FrameType, int]]) -> tuple[str, int, str, str] | None:
    """The innermost frame of the user's own code: not of an installed package, nor of Python itself."""
    paths = sysconfig.get_paths()
    installed = tuple(os.path.join(paths[key], "") for key in ("stdlib", "platstdlib", "purelib", "platlib"))
    package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
    for frame, number in reversed(frames):
        name = frame.f_code.co_filename
        foreign = name.startswith((*installed, package, "<frozen")) or "site-packages" in name
        if not foreign and not frame.f_globals.get("__name__", "").startswith(("torch.", "surefoot.")):
            source = linecache.getline(name, number, frame.f_globals).strip()
            return (_shown(name), number, frame.f_code.co_name, source)
    return None


def _shown(name: str) -> str:
    """A path as the user would write it."""
    try:
        relative = os.path.relpath(name)
    except ValueError:  # another drive
        return name
    return name if name.startswith("<") or relative.startswith("..") else relative


def _trains(frames: list[tuple[types.FrameType, int]]) -> bool:
    """Whether the work at fault computes gradients."""
    if any(frame.f_code.co_name == "backward" for frame, _ in frames):
        return True
    torch = sys.modules.get("torch")
    return torch is None or torch.is_grad_enabled()


def _one_line(text: str, most: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _tell(error: BaseException | None, out: TextIO | None = None) -> None:
    if error is None or not _before:
        return
    try:
        text = explanation(error)
        stream = out or sys.stderr
        if text is not None and stream is not None:
            stream.write(f"\n{text}\n")
            stream.flush()
    except Exception:
        # The error itself has been shown; nothing here is worth another one.
        return


def _excepthook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    before = _before.get("sys", sys.__excepthook__)
    before(kind, error, trace)
    _tell(error)


def _threading_hook(args: Any) -> None:
    before = _before.get("threading", threading.__excepthook__)
    before(args)
    _tell(args.exc_value)


def _ipython() -> Any:
    """The running IPython or notebook, if this is one; it is not imported for that."""
    module = sys.modules.get("IPython")
    get = getattr(module, "get_ipython", None)
    return get() if get is not None else None


def _ipython_handler(shell: Any, kind: type[BaseException], error: BaseException, trace: Any, tb_offset: Any = None) -> None:
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    _tell(error)
