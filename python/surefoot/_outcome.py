"""What happened in guarded work."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the latest guarded work went."""

    device: str
    """The device that its result was computed on."""
    attempts: int
    """How often it was tried; 1 if nothing failed."""
    parts: int
    """In how many parts the batch was run in the end."""
    rungs: list[str]
    """The rungs of the ladder that were taken, in order."""
    faults: list[str]
    """The faults that were recovered from, oldest first."""
    seconds: float
    """From the start of the first try to the end of the last."""

    @classmethod
    def of(cls, native: Any) -> "Outcome":
        return cls(native.device, native.attempts, native.parts, native.rungs, native.faults, native.seconds)

    def followed_by(self, update: "Outcome") -> "Outcome":
        """The outcome of a training step: that of its gradients, then that of its update."""
        return dataclasses.replace(
            self,
            attempts=self.attempts + update.attempts - 1,
            rungs=self.rungs + update.rungs,
            faults=self.faults + update.faults,
            seconds=self.seconds + update.seconds,
        )
