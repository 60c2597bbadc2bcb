"""The tokens of a launched step, on their way to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mstar_resident.engine.plan import StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class ReadBack:
    """Hold the pinned buffer and the event of one decode view: a steady step allocates neither."""

    tokens: Tensor
    """int64[b], cpu, pinned."""
    done: torch.cuda.Event

    @classmethod
    def of(cls, rows: int, device: torch.device) -> ReadBack | None:
        """Return one for a cuda device, None for a CPU."""
        if device.type == "cpu":
            return None
        return cls(torch.zeros(rows, dtype=torch.int64, pin_memory=True), torch.cuda.Event())


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Hold a launched step's drawn tokens until the host reads them, after the next launch.

    A decode step's ``tokens`` is its view's own buffer. It is read before the step after next fills it again, since
    two buffers take turns.
    """

    plan: StepPlan
    tokens: Tensor
    """int64[n]: cpu, pinned if it is a copy."""
    done: torch.cuda.Event | None

    @classmethod
    def of(cls, plan: StepPlan, sampled: Tensor, read_back: ReadBack | None = None) -> Pending:
        """Start the copy of ``sampled`` to the host, into ``read_back`` or a buffer of its own."""
        rows = len(plan.requests)
        if sampled.device.type == "cpu":
            return cls(plan, sampled[:rows], None)
        to = read_back or ReadBack.of(rows, sampled.device)
        if to is None:
            raise ValueError("a cuda step is read back through pinned memory")
        to.tokens[:rows].copy_(sampled[:rows], non_blocking=True)
        to.done.record()
        return cls(plan, to.tokens[:rows], to.done)

    def read(self) -> list[int]:
        """Return a token per row; waits for the step."""
        if self.done is not None:
            self.done.synchronize()
        tokens: list[int] = self.tokens.tolist()
        return tokens
