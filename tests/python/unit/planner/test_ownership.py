"""What belongs to a planner: the memory it writes to, and the batches, stages and leases it made."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from mstar_resident import Column, KVTable, ResidentPlanner, RowLayout, _core
from mstar_resident.errors import LayoutError

LAYOUT = RowLayout([KVTable("kv", 4, 30, 32)], [Column("position_offset", "position", "kv")])


def staged() -> tuple[ResidentPlanner, _core.Batch, _core.Stage]:
    planner = ResidentPlanner(LAYOUT, 2)
    handle = planner.open()
    planner.set_stream(handle, "kv", [3, 1], 5)
    planner.set_column("position_offset", [handle], [0])
    batch = planner.batch([handle])
    return planner, batch, planner.stage(batch, planner.lease(2))


def test_a_bound_call_keeps_the_memory_that_it_writes_to() -> None:
    planner, _, stage = staged()
    flush = planner.flush
    tensors = [planner.store.narrow, planner.store.tables["kv"], planner.lease(2).inputs, *planner.stager.buffers]
    kept = [weakref.ref(tensor) for tensor in tensors]
    del planner, tensors
    gc.collect()
    assert all(tensor() is not None for tensor in kept)
    assert flush(stage, 0) > 0
    narrow = kept[0]()
    assert narrow is not None
    assert narrow[1, 0] == 5


def test_memory_goes_when_nothing_can_write_to_it() -> None:
    planner, batch, stage = staged()
    kept = [
        weakref.ref(tensor) for tensor in (planner.store.narrow, planner.lease(2).inputs, planner.stager.buffers[0])
    ]
    del planner, batch, stage
    gc.collect()
    assert all(tensor() is None for tensor in kept)


@pytest.mark.parametrize("call", ["stage", "promote", "reserve_step"])
def test_another_planners_batch_is_refused(call: str) -> None:
    (ours, _, stage), (_, theirs, _) = staged(), staged()
    calls: dict[str, Callable[[], object]] = {
        "stage": lambda: ours.stage(theirs, ours.lease(2)),
        "promote": lambda: ours.promote(stage, theirs, ours.lease(2)),
        "reserve_step": lambda: ours.reserve_step(theirs),
    }
    with pytest.raises(LayoutError, match="batch: expected one of this planner's, got another planner's"):
        calls[call]()
    assert ours.flush(stage, 0) > 0


@pytest.mark.parametrize("call", ["promote", "flush", "launch", "commit", "fail", "drop"])
def test_another_planners_stage_is_refused(call: str) -> None:
    (ours, batch, stage), (_, _, theirs) = staged(), staged()
    assert stage.seq == theirs.seq
    if call in ("commit", "fail"):
        ours.flush(stage, 0)
    calls: dict[str, Callable[[], object]] = {
        "promote": lambda: ours.promote(theirs, batch, ours.lease(2)),
        "flush": lambda: ours.flush(theirs, 0),
        "launch": lambda: ours.launch(theirs, 1, 0),
        "commit": lambda: ours.commit(theirs),
        "fail": lambda: ours.fail(theirs),
        "drop": lambda: ours.drop(theirs),
    }
    with pytest.raises(LayoutError, match="stage: expected one of this planner's, got another planner's"):
        calls[call]()
    if call not in ("commit", "fail"):
        ours.flush(stage, 0)
    ours.commit(stage)
    assert ours.committed_seq() == stage.seq


@pytest.mark.parametrize("call", ["stage", "promote", "prologue"])
def test_what_is_no_lease_of_this_planner_is_refused(call: str) -> None:
    (ours, batch, stage), (other, _, _) = staged(), staged()
    for lease in (None, 0, other.lease(2)):
        calls: dict[str, Callable[[], object]] = {
            "stage": lambda lease=lease: ours.stage(batch, lease),
            "promote": lambda lease=lease: ours.promote(stage, batch, lease),
            "prologue": lambda lease=lease: ours.prologue(lease),
        }
        with pytest.raises(LayoutError, match="lease: expected one of this planner's"):
            calls[call]()
    assert ours.flush(stage, 0) > 0  # the stage made before still holds


def test_an_offset_whose_position_would_wrap_is_refused() -> None:
    planner, batch, _ = staged()
    (handle,) = batch.handles()
    for offset in (2**63 - 1, 2**62, -(2**62) - 1):
        with pytest.raises(LayoutError, match="position_offset"):
            planner.set_column("position_offset", [handle], [offset])
    planner.set_column("position_offset", [handle], [2**62 - 1])
