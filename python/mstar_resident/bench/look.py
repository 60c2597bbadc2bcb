"""Look at the steps of a run that is not timed: the device's time by marks, what the planner sent by step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mstar_resident.bench.serve import Load, Served, serve
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.host_plan import Ragged
from mstar_resident.engine.program import Runner
from mstar_resident.engine.view import DecodeView


class Stopwatch:
    """Mark points of the device's work, or of the host's where there is no other device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """Mark the end of what was launched so far on the current cuda_stream."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter_ns())

    def laps_us(self, first: int = 0) -> list[float]:
        """Wait for the device, and return the time from mark ``first`` to the next, from the second behind it, ..."""
        pairs = zip(self._marks[first::2], self._marks[first + 1 :: 2], strict=False)
        if not self._cuda:
            return [(end - begin) / 1000 for begin, end in pairs]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1000 for begin, end in pairs]


class MarkedRunner:
    """Mark the begin and the end of every decode step's replay."""

    def __init__(self, runner: Runner, watch: Stopwatch) -> None:
        self._runner = runner
        self._watch = watch

    def decode(self, view: DecodeView) -> None:
        """Run a decode step between two marks."""
        self._watch.mark()
        self._runner.decode(view)
        self._watch.mark()

    def fill(self, step: Ragged) -> Tensor:
        """Run a prefill or mixed step."""
        return self._runner.fill(step)


@dataclass(slots=True)
class Look:
    """Hold what a look at a window found.

    Attributes:
        graph_us: per step, from the mark before its replay to the one behind it.
        between_us: from the mark behind a replay to the one before the next.
        silent: in how many steps the planner sent nothing; None without one.
    """

    graph_us: list[float] = field(default_factory=list)
    between_us: list[float] = field(default_factory=list)
    silent: int | None = None

    def window(self, engine: Engine, steps: int) -> None:
        """Run the steps of a window, and look at each."""
        watch = Stopwatch(torch.device(engine.config.device))
        engine.arm.runner = MarkedRunner(engine.runner, watch)
        planner = engine.planner
        try:
            for _ in range(steps):
                sent = planner.stats().bytes if planner is not None else 0
                engine.step()
                if planner is not None:
                    self.silent = (self.silent or 0) + (planner.stats().bytes == sent)
        finally:
            engine.arm.runner = engine.runner
        self.graph_us, self.between_us = watch.laps_us(), watch.laps_us(first=1)


def look(engine: Engine, load: Load) -> tuple[Served, Look]:
    """Serve a load untimed, and look at its window."""
    found = Look()
    return serve(engine, load, found.window), found
