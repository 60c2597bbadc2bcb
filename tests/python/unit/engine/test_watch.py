"""What scenarios watch besides their rows, each thing undone on its own."""

from __future__ import annotations

from typing import Any

import pytest

from mstar_resident.engine.engine import Engine
from mstar_resident.engine.scenarios.watch import Watch


class Stats:
    """Be a planner's counters, one of them larger."""

    def __init__(self, stats: Any, **more: int) -> None:
        self._stats = stats
        self._more = more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stats, name) + self._more.get(name, 0)


@pytest.fixture
def watched(make: Any, submit: Any) -> tuple[Engine, Watch]:
    engine: Engine = make()
    assert engine.planner is not None
    watch = Watch(engine, engine.planner)
    for prompt in (5, 6):
        submit(engine, prompt, 80)
    for _ in range(12):
        engine.step()
    assert (watch.cost, watch.addresses) == ([], [])
    return engine, watch


@pytest.mark.parametrize(("counter", "said"), [("whole_rows", "whole rows of a step"), ("bytes", "did not change")])
def test_work_that_nothing_called_for_is_seen(
    watched: tuple[Engine, Watch], counter: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, watch = watched
    planner, calls = engine.planner, iter(range(1_000))
    assert planner is not None
    stats = planner.stats
    monkeypatch.setattr(planner, "stats", lambda: Stats(stats(), **{counter: next(calls)}))
    for _ in range(4):
        engine.step()
    assert any(said in text for text in watch.cost)


def test_a_marked_row_may_be_written_whole_once(watched: tuple[Engine, Watch]) -> None:
    engine, watch = watched
    assert engine.planner is not None
    whole = engine.planner.stats().whole_rows
    watch.mark(engine.scheduler.live[0])
    engine.step()
    assert engine.planner.stats().whole_rows == whole + 1
    assert watch.cost == []
    engine.planner.mark_stale(engine.seats.handle[[engine.scheduler.live[0].seat]])  # and nobody told
    engine.step()
    assert watch.cost[0] == "whole rows of a step: expected at most 0, got 1"


@pytest.mark.parametrize("what", ["the ring", "of lease"])
def test_a_buffer_that_moved_is_seen(watched: tuple[Engine, Watch], what: str) -> None:
    engine, watch = watched
    planner = engine.planner
    assert planner is not None
    kept = planner.stager.buffers  # the native planner writes to them still
    if what == "the ring":
        planner.stager.buffers = tuple(buffer.clone() for buffer in kept)
    else:
        for buffer_idx in range(2):
            lease = planner.lease(2, "decode", buffer_idx)
            lease.lengths["kv"] = lease.lengths["kv"].clone()
    engine.step()
    assert any(what in text for text in watch.addresses)


def test_a_handle_that_was_never_released_is_counted(watched: tuple[Engine, Watch]) -> None:
    engine, watch = watched
    assert watch.open_handles() == 2
    engine.abort(engine.scheduler.live[0])
    assert watch.open_handles() == 1
