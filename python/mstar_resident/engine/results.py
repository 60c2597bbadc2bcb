"""The tokens of a launched step, on their way to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mstar_resident.engine.plan import StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Hold a launched step's drawn tokens until the host reads them, after the next launch.

    A decode step's ``tokens`` is its view's own buffer. It is read before the step after next fills it again, since
    two buffers take turns.
    """

    plan: StepPlan
    tokens: Tensor
    """int64[n], cpu; pinned if a cuda device writes it."""
    done: torch.cuda.Event | None

    @classmethod
    def of(cls, plan: StepPlan, sampled: Tensor, done: torch.cuda.Event | None = None) -> Pending:
        """Mark the end of a step that wrote ``sampled`` to the host, with ``done``; copy it there if it did not."""
        rows = len(plan.requests)
        if sampled.device.type != "cpu":
            tokens, done = torch.empty(rows, dtype=torch.int64, pin_memory=True), torch.cuda.Event()
            tokens.copy_(sampled[:rows], non_blocking=True)
            sampled = tokens
        if done is not None:
            done.record()
        return cls(plan, sampled[:rows], done)

    def read(self) -> list[int]:
        """Return a token per row; waits for the step."""
        if self.done is not None:
            self.done.synchronize()
        tokens: list[int] = self.tokens.tolist()
        return tokens
