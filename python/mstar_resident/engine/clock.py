"""The host's time by phase, and the same phases as NVTX ranges."""

from __future__ import annotations

import time

import torch

#: What a step's host time is made of. "admit" chooses a step's rows and reserves their pages. The attention plan is a
#: phase of buckets that are not host-plan-free; the sampler is not one, since it is part of the captured step.
PHASES = (
    "admit",
    "pre-plan stage",
    "plan",
    "fresh plan",
    "flush",
    "attention plan",
    "launch",
    "commit",
    "read",
    "rest",
)


class Clock:
    """Add up the host's time by phase, in nanoseconds; one phase ends where the next begins.

    Attributes:
        spent_ns: per phase, the time so far.
        ranges: whether phases are NVTX ranges too.
    """

    __slots__ = ("_last", "_phase", "ranges", "spent_ns")

    def __init__(self, ranges: bool = False) -> None:
        self.spent_ns: dict[str, int] = dict.fromkeys(PHASES, 0)
        self.ranges = ranges
        self._phase: str | None = None
        self._last = 0

    def enter(self, phase: str) -> None:
        """End the phase that is on, and begin another."""
        self.leave()
        self._phase = phase
        if self.ranges:
            torch.cuda.nvtx.range_push(phase)

    def leave(self) -> None:
        """End the phase that is on."""
        now = time.perf_counter_ns()
        if self._phase is not None:
            self.spent_ns[self._phase] += now - self._last
            if self.ranges:
                torch.cuda.nvtx.range_pop()
        self._phase = None
        self._last = now
