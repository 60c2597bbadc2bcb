"""A hundred thousand short requests over every exit leave nothing: no slot, no handle, no memory."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from mstar_resident import Column, KVTable, ResidentPlanner, RowLayout
from mstar_resident.errors import MissingPageError

LAYOUT = RowLayout(
    [KVTable("kv", page_size=4, pool_pages=100, max_seq_len=32), KVTable("context", 4, 100, 32, span=0)],
    [Column("recurrent_index", "index")],
)
#: Bytes that allocators keep back and forth.
NOISE = 1 << 20
MANY, WARM = 100_000, 5_000

ONE = np.ones(1, np.int64)
PAGES = np.array([1, 2], np.int64)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Exits:
    """Requests on one planner, each of which leaves by the exit of its number."""

    def __init__(self) -> None:
        self.planner = ResidentPlanner(LAYOUT, 2)
        self.lease = self.planner.lease(2)

    def ready(self) -> int:
        handle = self.planner.open()
        self.planner.set_stream(handle, "kv", PAGES, 1)
        self.planner.set_stream(handle, "context", PAGES, 7)
        self.planner.set_column("recurrent_index", np.array([handle], np.int64), ONE)
        return handle

    def step(self, handle: int) -> None:
        stage = self.planner.stage(self.planner.batch(np.array([handle], np.int64)), self.lease)
        self.planner.flush(stage, 0)
        self.planner.prologue(self.lease)
        self.planner.commit(stage)

    def finished(self) -> None:
        handle = self.ready()
        self.step(handle)
        self.planner.release(handle)

    def aborted_before_its_first_plan(self) -> None:
        self.planner.release(self.ready())

    def aborted_after_a_plan_made_ahead(self) -> None:
        handle = self.ready()
        self.planner.stage(self.planner.batch(np.array([handle], np.int64)), self.lease)
        self.planner.release(handle)

    def aborted_in_flight(self) -> None:
        handle = self.ready()
        stage = self.planner.stage(self.planner.batch(np.array([handle], np.int64)), self.lease)
        self.planner.flush(stage, 0)
        self.planner.release(handle)
        self.planner.commit(stage)

    def refused_in_its_plan(self) -> None:
        handle = self.planner.open()
        with pytest.raises(MissingPageError):
            self.planner.stage(self.planner.batch(np.array([handle], np.int64)), self.lease)
        self.planner.release(handle)

    def offloaded_and_aborted(self) -> None:
        handle = self.ready()
        self.step(handle)
        self.planner.offload(handle)
        self.planner.release(handle)

    def run(self, count: int) -> None:
        exits = (
            self.finished,
            self.aborted_before_its_first_plan,
            self.aborted_after_a_plan_made_ahead,
            self.aborted_in_flight,
            self.refused_in_its_plan,
            self.offloaded_and_aborted,
        )
        for number in range(count):
            exits[number % len(exits)]()


@pytest.mark.slow
def test_a_hundred_thousand_short_requests_over_every_exit_leave_nothing() -> None:
    exits = Exits()
    exits.run(WARM)
    before = resident_bytes()
    exits.run(MANY)
    grown = resident_bytes() - before
    stats = exits.planner.stats()
    assert (stats.slots_held, stats.slots_cooling, stats.slots_free) == (0, 0, 4)
    assert exits.planner.open() & 0xFFFFFFFF == 0, "every index was given back"
    assert grown < NOISE, f"{grown} bytes for {MANY} requests"
    exits.planner.check()
