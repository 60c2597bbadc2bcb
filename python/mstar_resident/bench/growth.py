"""What the prologue adds to a captured step: its graph beside one of the same step that has no planner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from mstar_resident.bench.look import Stopwatch
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.graph_runner import HostPlannedGraph
from mstar_resident.engine.view import DecodeView
from mstar_resident.planner import ResidentPlanner

#: Replays back to back between two marks: few, since each moves the rows' lengths on by one.
REPLAYS = 10
#: Pairs of measurements: of graphs, and of steps without graphs, which show only that all is in place.
PAIRS, EAGER_PAIRS = 15, 2
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Growth:
    """Hold replays of a step back to back, in microseconds each, measured in pairs."""

    resident_us: list[float]
    """The resident step's graph."""
    bare_us: list[float]
    """The same step's graph without a prologue."""

    @property
    def added_us(self) -> list[float]:
        """What the prologue adds, per pair."""
        return [ours - bare for ours, bare in zip(self.resident_us, self.bare_us, strict=True)]


def measure_growth(engine: Engine, bucket: int) -> Growth | None:
    """Time a resident step's graph and the same without its prologue, in turns.

    None if the engine has no planner, or none for this bucket. Call it on an idle engine whose last run was in the
    bucket: the rows of that run are still in the store, and belong to nobody. On a CPU both run eagerly, and the time
    is the host's.
    """
    planner = engine.planner
    if planner is None or bucket in engine.arm.host_planned:
        return None
    view = next(view for view in engine.arm.views() if view.bucket == bucket and view.buffer_idx == 0)
    bare = _without_prologue(engine, view)
    lengths = planner.store.narrow.clone()
    times: dict[str, list[float]] = {"resident": [], "bare": []}
    pairs = PAIRS if engine.graphs is not None else EAGER_PAIRS
    for number in range(WARM_UP + pairs):
        # The order turns: what is measured second may find a warmer device.
        arms: list[tuple[str, Callable[[], None]]] = [("resident", lambda: engine.runner.decode(view)), ("bare", bare)]
        for name, replay in arms if number % 2 else arms[::-1]:
            times[name].append(_time(replay, planner))
            planner.store.narrow.copy_(lengths)  # the mirror knows nothing of these replays
    return Growth(times["resident"][WARM_UP:], times["bare"][WARM_UP:])


def _without_prologue(engine: Engine, view: DecodeView) -> Callable[[], None]:
    bare = replace(view, fed=False)  # without a planner a step takes its tokens itself

    def body() -> None:
        engine.program.decode(bare)

    if engine.graphs is None:
        return body
    device = torch.device(engine.config.device)
    return HostPlannedGraph(body, torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)).replay


def _time(replay: Callable[[], None], planner: ResidentPlanner) -> float:
    watch = Stopwatch(planner.device)
    replay()
    watch.mark()
    for _ in range(REPLAYS):
        replay()
    watch.mark()
    return watch.laps_us()[0] / REPLAYS
