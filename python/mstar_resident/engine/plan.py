"""What the scheduler decided for one step."""

from __future__ import annotations

from dataclasses import dataclass

from mstar_resident.engine.pages import Ints
from mstar_resident.engine.request import Request


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """Name the rows of a step, in batch order: decode rows first, then prefill chunks.

    The object is reused while the rows stay the same, so that the planner's batch can be too.
    """

    requests: tuple[Request, ...]
    seats: Ints
    """int64[n]: seat of every row."""
    tokens: Ints
    """int64[n]: tokens that every row feeds."""
    epochs: Ints
    """int64[n]: epoch of every seat; another one later says that the step no longer concerns it."""
    samples: Ints
    """int64[n]: 1 for rows whose sampled token is an output, 0 for chunks that leave tokens to fill."""
    decode_rows: int

    @property
    def walk(self) -> str:
        """The walk that runs it: ``decode``, ``prefill`` or ``mixed``."""
        if self.decode_rows == len(self.requests):
            return "decode"
        return "mixed" if self.decode_rows else "prefill"
