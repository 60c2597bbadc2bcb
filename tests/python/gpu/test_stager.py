"""The ring on a GPU: copies of a host that runs ahead land as they were written, in step order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mstar_resident import Column, KVTable, Lease, ResidentPlanner, RowLayout
from mstar_resident.errors import InvariantError
from mstar_resident.stager import RING_DEPTH
from mstar_resident.step_guard import step_guard

LAYOUT = RowLayout([KVTable("kv", 4, 4000, 1024)], [Column("state", "index")])
HELD_CYCLES = 200_000_000  # about 0.1 s


class Node:
    """A planner of 8 rows whose step is the prologue and a copy of what it gathered."""

    def __init__(self) -> None:
        self.planner = ResidentPlanner(LAYOUT, 8, "cuda")
        self.lease: Lease = self.planner.lease(8)
        self.cuda_stream = torch.cuda.Stream()
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.expected: list[list[tuple[int, int]]] = []

    def admit(self, number: int) -> int:
        handle = self.planner.open()
        pages = np.arange(20, dtype=np.int64) + 20 * number + 1
        self.planner.set_stream(handle, "kv", pages, 7 + number % 9)
        self.planner.set_column("state", [handle], [number + 1])
        return handle

    def step(self, handles: list[int], poison: bool = False) -> None:
        """Run one step without waiting, and note what it must have used."""
        planner, lease = self.planner, self.lease
        with torch.cuda.stream(self.cuda_stream):
            stage = planner.stage(planner.batch(handles), lease)
            planner.flush(stage, self.cuda_stream.cuda_stream)
            if poison:
                for buffer in planner.stager.buffers:
                    buffer.zero_()  # slots of the trash row: wrong, and safe to read through
            planner.prologue(lease)
            planner.commit(stage)
            self.seen.append((lease.write_loc["kv"].clone(), lease.columns["state"].clone()))
        row = []
        for handle in handles:
            length, pages = planner.length(handle, "kv") - 1, planner.pages(handle, "kv")
            row.append((pages[length // 4] * 4 + length % 4, self.state(handle)))
        self.expected.append(row)

    def state(self, handle: int) -> int:
        value = self.planner._core.column_value(handle, LAYOUT.column_number("state"))
        assert value is not None
        return value

    def mismatches(self) -> int:
        self.cuda_stream.synchronize()
        wrong = 0
        for (locations, states), row in zip(self.seen, self.expected, strict=True):
            got = list(zip(locations.tolist(), states.tolist(), strict=True))[: len(row)]
            wrong += sum(a != b for a, b in zip(got, row, strict=True))
        return wrong


def hold(cuda_stream: torch.cuda.Stream) -> None:
    with torch.cuda.stream(cuda_stream):
        torch.cuda._sleep(HELD_CYCLES)


def warm() -> Node:
    """A node whose kernels are compiled: a held cuda_stream must not wait for a compiler."""
    node = Node()
    node.step([node.admit(99)])
    node.cuda_stream.synchronize()
    return node


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


def test_a_thousand_steps_allocate_nothing_and_wait_for_nothing() -> None:
    node = warm()
    live = [node.admit(number) for number in range(8)]
    planner, lease = node.planner, node.lease
    handles = planner.batch(live)
    with torch.cuda.stream(node.cuda_stream):
        for number in range(1000):
            if planner.length(live[0], "kv") > 60:
                for handle in live:
                    planner.truncate("kv", handle, 3, 20)
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
