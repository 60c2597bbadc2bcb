"""A runner that lets a scenario act while a step is in flight."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mstar_resident.engine.host_plan import Ragged
from mstar_resident.engine.program import EagerRunner, Runner
from mstar_resident.engine.view import DecodeView


class HookRunner:
    """Run steps, and call back in between.

    Attributes:
        flushed: called with a resident step's view after its flush, before its prologue.
        ran: called with the view after its program, before its commit.
        in_flight: called with ``before``, ``prologue`` (not if a graph holds it) or ``after``, in any step; what it
            raises fails the step.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.flushed: Callable[[DecodeView], None] = lambda view: None
        self.ran: Callable[[DecodeView], None] = lambda view: None
        self.in_flight: Callable[[str], None] = lambda phase: None

    def decode(self, view: DecodeView) -> None:
        """Run a decode step."""
        self.in_flight("before")
        if view.lease is not None:
            self.flushed(view)
        if isinstance(self._runner, EagerRunner):
            if view.lease is not None and self._runner.planner is not None:
                self._runner.planner.prologue(view.lease)
            self.in_flight("prologue")
            self._runner.program.decode(view)
        else:
            self._runner.decode(view)
        if view.lease is not None:
            self.ran(view)
        self.in_flight("after")

    def fill(self, step: Ragged) -> Tensor:
        """Run a prefill or mixed step."""
        self.in_flight("before")
        drawn = self._runner.fill(step)
        self.in_flight("after")
        return drawn
