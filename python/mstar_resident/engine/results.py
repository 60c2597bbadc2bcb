"""The tokens of a launched step, on their way to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mstar_resident.engine.plan import StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Hold a launched step's drawn tokens until the host reads them, after the next launch.

    On a CPU ``tokens`` is the step's own buffer. It is read before the step after next fills it again, since two
    buffers take turns.
    """

    plan: StepPlan
    tokens: Tensor
    """int64[n]: cpu, pinned if it is a copy."""
    done: torch.cuda.Event | None

    @classmethod
    def of(cls, plan: StepPlan, sampled: Tensor) -> Pending:
        """Start the copy of ``sampled`` to the host."""
        tokens = sampled[: len(plan.requests)]
        if tokens.device.type == "cpu":
            return cls(plan, tokens, None)
        host = torch.empty(len(plan.requests), dtype=torch.int64, pin_memory=True)
        host.copy_(tokens, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return cls(plan, host, done)

    def read(self) -> list[int]:
        """Return a token per row; waits for the step."""
        if self.done is not None:
            self.done.synchronize()
        tokens: list[int] = self.tokens.tolist()
        return tokens
