"""The shadow on a CPU: it is quiet while rows are true, and names what a wrong row was used for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from mstar_resident import Column, KVTable, Lease, ResidentPlanner, RowLayout
from mstar_resident.errors import LayoutError
from mstar_resident.shadow import Shadow

Ints = npt.NDArray[np.int64]
LAYOUT = RowLayout(
    [KVTable("kv", 4, 99, 64), KVTable("context", 8, 20, 40, span=0)],
    [Column("offset", "position", "kv"), Column("state", "index")],
)


class Truth:
    """Answer from the planner's own streams."""

    def __init__(self, planner: ResidentPlanner) -> None:
        self.planner = planner

    def pages(self, handles: Ints, table: str) -> Ints:
        return np.array([self.planner.pages(handle, table) for handle in handles.tolist()])

    def lengths(self, handles: Ints, table: str) -> Ints:
        return np.array([self.planner.length(handle, table) for handle in handles.tolist()])

    def column(self, handles: Ints, name: str) -> Ints:
        return np.full(len(handles), -2) if name == "offset" else handles % 3 + 1


def run(steps: int, corrupt: int | None = None) -> Shadow:
    planner = ResidentPlanner(LAYOUT, 3, "cpu")
    shadow = Shadow(planner, depth=4)
    handles = [planner.open() for _ in range(3)]
    truth = Truth(planner)
    for number, handle in enumerate(handles):
        planner.set_stream(handle, "kv", np.arange(1, 17) + 17 * number, 3 + number)
        planner.set_stream(handle, "context", np.arange(1, 4) + number, 17)
        planner.set_column("offset", [handle], [-2])
        planner.set_column("state", [handle], [handle % 3 + 1])
    batch = planner.batch(handles[:2])
    lease: Lease = planner.lease(3)
    shadow.start()
    for step in range(steps):
        stage = planner.stage(batch, lease)
        planner.flush(stage, 0)
        if step == corrupt:
            planner.store.tables["context"][planner.slot(handles[1]), 1] = 9
        planner.prologue(lease)
        shadow.record(lease)
        planner.commit(stage)
        shadow.expect(stage, truth)
    shadow.finish()
    return shadow


def test_the_shadow_is_quiet_while_rows_are_true() -> None:
    shadow = run(23)
    assert (shadow.steps, shadow.rows, shadow.mismatch_count) == (23, 46, 0)


def test_the_shadow_names_a_wrong_used_cell() -> None:
    shadow = run(11, corrupt=9)
    assert shadow.mismatch_count == 2  # the cell stays wrong in both steps from then on
    assert {mismatch.what for mismatch in shadow.mismatches} == {"shadow used cells"}
    assert {mismatch.name for mismatch in shadow.mismatches} == {"context"}


def test_an_odd_depth_is_refused() -> None:
    with pytest.raises(LayoutError, match="even number"):
        Shadow(ResidentPlanner(LAYOUT, 1, "cpu"), depth=3)
