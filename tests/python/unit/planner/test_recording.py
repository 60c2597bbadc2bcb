"""Recording a CUDA graph: nothing is garbage-collected meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mstar_resident.recording import recording


class Freed:
    """Be part of a cycle that only the collector finds, as an engine and its graphs are."""

    def __init__(self, seen: list[str]) -> None:
        self.itself, self.seen = self, seen

    def __del__(self) -> None:
        self.seen.append("freed")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    events: list[str] = []

    @contextmanager
    def graph(_: Any, pool: Any, stream: Any) -> Iterator[None]:
        events.append(f"begin {pool} {stream}")
        try:
            yield
        finally:
            events.append("end")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    return events


def work() -> None:
    """Allocate until the collector would have run, if it may."""
    kept = [[[]] for _ in range(5000)]
    assert len(kept) == 5000


def test_a_graph_that_goes_out_of_use_is_not_freed_during_a_capture(seen: list[str]) -> None:
    gc.collect()
    threshold = gc.get_threshold()
    gc.set_threshold(100)
    try:
        with recording(None, "pool", None):  # type: ignore[arg-type]
            Freed(seen)
            work()
        work()
    finally:
        gc.set_threshold(*threshold)
    assert seen == ["begin pool None", "end", "freed"]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_capture_that_fails_leaves_the_collector_as_it_was(seen: list[str], enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError, match="no memory"), recording(None):  # type: ignore[arg-type]
            raise RuntimeError("no memory")
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    assert seen == ["begin None None", "end"]
