"""A node whose cuda_stream can be held, so that the host runs ahead of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from mstar_resident import Column, KVTable, Lease, ResidentPlanner, RowLayout

DEVICE = "cuda"
LAYOUT = RowLayout([KVTable("kv", 4, 4000, 1024)], [Column("state", "index")])
HELD_CYCLES = 200_000_000  # about 0.1 s


class Node:
    """A planner whose step is the prologue and a copy of what it gathered."""

    def __init__(self, max_batch: int = 8, layout: RowLayout = LAYOUT) -> None:
        self.planner = ResidentPlanner(layout, max_batch, DEVICE)
        self.lease: Lease = self.planner.lease(max_batch)
        self.cuda_stream = torch.cuda.Stream()
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.expected: list[list[tuple[int, int]]] = []
        #: Run on the cuda_stream at the end of every step.
        self.after: Callable[[Lease], object] = lambda lease: None

    def admit(self, number: int) -> int:
        return self.request(range(20 * number + 1, 20 * number + 21), 7 + number % 9, number + 1)

    def request(self, pages: Sequence[int], length: int, state: int = 1) -> int:
        handle = self.planner.open()
        self.planner.set_stream(handle, "kv", np.array(pages, dtype=np.int64), length)
        self.planner.set_column("state", [handle], [state])
        return handle

    def step(self, handles: list[int], poison: bool = False) -> int:
        """Run one step without waiting, and note what it must have used; return the copies of its flush."""
        planner, lease = self.planner, self.lease
        with torch.cuda.stream(self.cuda_stream):
            stage = planner.stage(planner.batch(handles), lease)
            copies = planner.flush(stage, self.cuda_stream.cuda_stream)
            if poison:
                for buffer in planner.stager.buffers:
                    buffer.zero_()  # slots of the trash row: wrong, and safe to read through
            planner.prologue(lease)
            planner.commit(stage)
            self.seen.append((lease.write_loc["kv"].clone(), lease.columns["state"].clone()))
            self.after(lease)
        page_size = planner.layout.tables[0].page_size
        row = []
        for handle in handles:
            length, pages = planner.length(handle, "kv") - 1, planner.pages(handle, "kv")
            row.append((pages[length // page_size] * page_size + length % page_size, self.state(handle)))
        self.expected.append(row)
        return copies

    def state(self, handle: int) -> int:
        value = self.planner._core.column_value(handle, self.planner.layout.column_number("state"))
        assert value is not None
        return value

    def mismatches(self) -> int:
        """Wait for the steps since the last call, and count the rows that used something else."""
        self.cuda_stream.synchronize()
        wrong = 0
        for (locations, states), row in zip(self.seen, self.expected, strict=True):
            got = list(zip(locations.tolist(), states.tolist(), strict=True))[: len(row)]
            wrong += sum(a != b for a, b in zip(got, row, strict=True))
        self.seen.clear()
        self.expected.clear()
        return wrong


def hold(cuda_stream: torch.cuda.Stream) -> None:
    with torch.cuda.stream(cuda_stream):
        torch.cuda._sleep(HELD_CYCLES)


def warm(max_batch: int = 8, after: Callable[[Lease], object] | None = None) -> Node:
    """A node whose kernels are compiled: a held cuda_stream must not wait for a compiler."""
    node = Node(max_batch)
    node.after = after or node.after
    first = node.admit(99)
    node.step([first])
    node.planner.release(first)
    assert node.mismatches() == 0
    return node
