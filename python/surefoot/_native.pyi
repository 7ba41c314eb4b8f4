"""What the package takes from Rust. Private: use `surefoot`."""

from collections.abc import Callable, Iterator
from types import ModuleType, TracebackType
from typing import Any

__version__: str

def kind_of_text(text: str) -> str: ...
def explain(text: str, kind: str | None = None) -> dict[str, Any]: ...
def compare_sketches(
    reference: Sketches,
    candidate: Sketches,
    noise: list[tuple[str, bool, list[Sketches]]],
    *,
    rounding: bool,
    alpha: float,
    beta: float,
    delta: float,
) -> dict[str, Any]: ...
def evidence_page(
    *,
    title: str,
    verdict: str,
    summary: str,
    alpha: float,
    beta: float,
    curve: list[tuple[float, float]],
    used: int,
    sites: list[tuple[str, float, float, float, bool]],
    facts: list[tuple[str, str]],
) -> str: ...
def resident() -> int: ...
def peak_resident() -> int | None: ...
def forget_peak_resident() -> None: ...

class Sketches:
    def __init__(self) -> None: ...
    def add(self, samples: int, sites: list[bytes]) -> None: ...

class Reservation:
    def __enter__(self) -> Reservation: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

class Attempt:
    device: str
    attempt: int
    parts: int
    compute: str
    checkpointing: bool
    is_drilled: bool
    @property
    def ranges(self) -> Iterator[tuple[int, int]]: ...
    def point(self, kind: str) -> None: ...
    def admit(self, bytes: int) -> Reservation: ...

class Outcome:
    value: Any
    faults: list[str]
    rungs: list[str]
    device: str
    attempts: int
    parts: int
    seconds: float

class Footing:
    device: str
    reason: str
    budget: int | None
    def __init__(
        self,
        *,
        engine: ModuleType,
        device: str,
        candidates: list[tuple[str, str | None]],
        memory: str | None,
        journal: str | None,
        precision: str,
        allow: list[str],
        forbid: list[str],
        fail: bool,
        drill: str | None,
    ) -> None: ...
    def health(self) -> list[tuple[str, str]]: ...
    def available(self, device: str) -> int | None: ...
    def clean_up(self) -> int: ...
    def run(
        self,
        name: str,
        work: Callable[[Attempt], Any],
        samples: int | None = None,
        rungs: list[str] = ...,
        start: str | None = None,
    ) -> Outcome: ...
    def note(self, operation: str, text: str) -> None: ...
    def events(self) -> list[dict[str, Any]]: ...
