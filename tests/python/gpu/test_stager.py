"""The ring on a GPU: copies of a host that runs ahead land as they were written, in step order."""

from __future__ import annotations

import pytest
import torch

from mstar_resident import Column, KVTable, RowLayout
from mstar_resident.errors import InvariantError
from mstar_resident.stager import RING_DEPTH
from mstar_resident.step_guard import step_guard

from .held import Node, hold, warm

HYBRID = RowLayout([KVTable("kv", 128, 2047, 262_144)], [Column("state", "index"), Column("offset", "position", "kv")])


@pytest.mark.parametrize("flushes", [2, RING_DEPTH, RING_DEPTH + 1, 3 * RING_DEPTH])
def test_flushes_ahead_of_a_held_cuda_stream_land_as_they_were_written(flushes: int) -> None:
    node = warm()
    hold(node.cuda_stream)
    live = [node.admit(number) for number in range(8)]
    for number in range(flushes):
        node.planner.release(live.pop(0))  # its slot is written again while earlier steps still wait to read it
        live.append(node.admit(20 + number))
        node.step(live)
    waits = node.planner.stats().ring_waits
    assert node.mismatches() == 0
    assert (waits > 0) == (flushes > RING_DEPTH)


def test_a_ring_buffer_overwritten_before_its_copy_is_seen() -> None:
    node = warm()
    hold(node.cuda_stream)
    node.step([node.admit(number) for number in range(8)], poison=True)
    assert node.mismatches() > 0


def test_a_new_store_is_zero_for_the_first_step_on_any_cuda_stream() -> None:
    for _ in range(50):
        node = Node()
        node.step([node.admit(3)])
        node.cuda_stream.synchronize()
        assert node.planner.store.trash_row_is_zero()
        assert node.mismatches() == 0


def test_a_new_store_of_257_rows_of_2050_cells_is_zero_for_the_first_step_on_any_cuda_stream() -> None:
    assert HYBRID.width == 2050
    for number in range(200):
        node = Node(128, HYBRID)
        assert node.planner.store.rows == 257
        handle = node.request([5, 9], 130, number + 1)
        node.planner.set_column("offset", [handle], [-2])
        node.step([handle])  # at once, on a cuda_stream of its own
        assert node.mismatches() == 0
        assert node.planner.store.trash_row_is_zero()


def test_ten_thousand_steps_allocate_nothing_and_wait_for_nothing() -> None:
    node = warm()
    live = [node.admit(number) for number in range(8)]
    planner, lease = node.planner, node.lease
    handles = planner.batch(live)
    with torch.cuda.stream(node.cuda_stream):
        for number in range(10_000):
            if planner.length(live[0], "kv") > 60:
                for handle in live:
                    planner.truncate("kv", handle, 3, 20)
            if number % 1000 == 500:
                planner.mark_stale(live)  # the largest flush: every row whole
            with step_guard(planner):
                stage = planner.stage(handles, lease)
                planner.flush(stage, node.cuda_stream.cuda_stream)
                planner.prologue(lease)
                planner.commit(stage)
            if number % 4 == 3:
                node.cuda_stream.synchronize()
    assert planner.stats().ring_waits == 0


def test_the_guard_sees_device_memory_allocated() -> None:
    node = warm()
    with pytest.raises(InvariantError, match="allocations"), step_guard(node.planner):
        torch.empty(1 << 20, device="cuda")


def test_the_guard_sees_pinned_memory_allocated() -> None:
    node = warm()
    with pytest.raises(InvariantError, match="allocations"), step_guard(node.planner):
        torch.empty(1 << 22, pin_memory=True)


def test_the_guard_sees_a_wait_for_the_device() -> None:
    node = warm()
    with pytest.raises(RuntimeError, match="synchroniz"), step_guard(node.planner):
        node.planner.store.narrow[0, 0].item()


def test_the_guard_sees_a_store_that_moved() -> None:
    node = warm()
    with pytest.raises(InvariantError, match="addresses"), step_guard(node.planner):
        node.planner.stager.buffers = tuple(buffer.clone() for buffer in node.planner.stager.buffers)
