"""Look at the steps of a run that is not timed: graph time by events, copies by step, a profile of a hundred steps."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from mstar_resident.bench.serve import Load, Served, serve
from mstar_resident.engine.clock import Clock
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.host_plan import Ragged
from mstar_resident.engine.program import Runner
from mstar_resident.engine.view import DecodeView

PROFILED_STEPS = 100


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

    def laps_us(self) -> list[float]:
        """Wait for the device, and return the time from the first mark to the second, the third to the fourth, ..."""
        pairs = zip(self._marks[::2], self._marks[1::2], strict=True)
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


class ProfiledClock(Clock):
    """Make every phase a range of the profile."""

    def __init__(self) -> None:
        super().__init__()
        self._range: record_function | None = None

    def enter(self, phase: str) -> None:
        """End the phase that is on, and begin another."""
        super().enter(phase)
        self._range = record_function(phase)
        self._range.__enter__()

    def leave(self) -> None:
        """End the phase that is on."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        super().leave()


@dataclass(slots=True)
class Look:
    """Run the window of one load step by step, each under one instrument; see :func:`look`.

    Attributes:
        graph_us: time of every replay on the device, of the steps that are not profiled.
        silent: how many of those sent nothing through the planner, and how many there were; None without one.
        events: of the profiled steps, as in a Chrome trace.
    """

    profiled: bool
    graph_us: list[float] = field(default_factory=list)
    silent: list[int] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    def window(self, engine: Engine, steps: int) -> None:
        """Run the window: the profile in its middle, so that the marked steps are of its mean length."""
        middle = min(PROFILED_STEPS, steps // 2) if self.profiled else 0
        before = (steps - middle) // 2
        self._mark(engine, before)
        if middle:
            self._profile(engine, middle)
        self._mark(engine, steps - before - middle)

    def _mark(self, engine: Engine, steps: int) -> None:
        watch = Stopwatch(torch.device(engine.config.device))
        engine.arm.runner = MarkedRunner(engine.runner, watch)
        try:
            for _ in range(steps):
                sent = engine.planner.stats().bytes if engine.planner is not None else 0
                engine.step()
                if engine.planner is not None:
                    silent = self.silent = self.silent or [0, 0]
                    silent[0] += engine.planner.stats().bytes == sent
                    silent[1] += 1
        finally:
            engine.arm.runner = engine.runner
        self.graph_us += watch.laps_us()

    def _profile(self, engine: Engine, steps: int) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.device(engine.config.device).type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        clock = engine.counters.clock
        engine.counters.clock = ProfiledClock()
        try:
            with profile(activities=activities) as profiled:
                for _ in range(steps):
                    with record_function("step"):
                        engine.step()
        finally:
            engine.counters.clock = clock
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            profiled.export_chrome_trace(str(file))
            self.events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]


def look(engine: Engine, load: Load, profiled: bool) -> tuple[Served, Look]:
    """Serve a load untimed, and look at its steps; ``profiled`` says whether some are profiled too."""
    watched = Look(profiled)
    return serve(engine, load, watched.window), watched
