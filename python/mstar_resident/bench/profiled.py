"""Profile the steps of a run that is not timed: every phase of the host, every kernel of the device."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from mstar_resident.bench.serve import Load, Served, serve
from mstar_resident.engine.clock import Clock
from mstar_resident.engine.engine import Engine

PROFILED_STEPS = 100


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


def profile_steps(engine: Engine, load: Load) -> tuple[Served, list[dict[str, Any]]]:
    """Serve a load, and return the events of up to :data:`PROFILED_STEPS` steps in the middle, as in a Chrome trace.

    Whatever is timed must have been before: a profiler that has run once stays attached to the process.
    """
    events: list[dict[str, Any]] = []

    def window(engine: Engine, steps: int) -> None:
        middle = min(PROFILED_STEPS, steps)
        before = (steps - middle) // 2
        for _ in range(before):
            engine.step()
        events.extend(_profile(engine, middle))
        for _ in range(steps - before - middle):
            engine.step()

    return serve(engine, load, window), events


def _profile(engine: Engine, steps: int) -> list[dict[str, Any]]:
    activities = [ProfilerActivity.CPU]
    if torch.device(engine.config.device).type == "cuda":
        activities.append(ProfilerActivity.CUDA)
        os.environ["TEARDOWN_CUPTI"] = "0"  # a second profile after a teardown ends a process that replays graphs
    clock = engine.counters.clock
    engine.counters.clock = ProfiledClock()
    try:
        with profile(activities=activities, acc_events=True) as profiled:
            for _ in range(steps):
                with record_function("step"):
                    engine.step()
    finally:
        engine.counters.clock = clock
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return events
