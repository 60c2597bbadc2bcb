"""Captured resident steps as CUDA graphs: flushed and launched in one call, checked row by row."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mstar_resident import Column, KVTable, Lease, ResidentPlanner, RowCheck, RowLayout
from mstar_resident.capture import CapturedWalk, capture_walk

Ints = npt.NDArray[np.int64]
LAYOUT = RowLayout(
    [KVTable("kv", 16, 400, 1024), KVTable("context", 16, 60, 64, span=0)],
    [Column("position_offset", "position", "kv"), Column("recurrent_index", "index")],
)


class Books:
    """Streams and columns by handle."""

    def __init__(self) -> None:
        self.streams: dict[tuple[int, str], tuple[list[int], int]] = {}
        self.columns: dict[tuple[int, str], int] = {}

    def pages(self, handles: Ints, table: str) -> Ints:
        rows = [self.streams[handle, table][0] for handle in handles.tolist()]
        width = max(len(row) for row in rows)
        return np.array([[*row, *[0] * (width - len(row))] for row in rows])

    def lengths(self, handles: Ints, table: str) -> Ints:
        return np.array([self.streams[handle, table][1] for handle in handles.tolist()])

    def column(self, handles: Ints, name: str) -> Ints:
        return np.array([self.columns[handle, name] for handle in handles.tolist()])


def quiet(done: int, total: int, text: str) -> None:
    """Draw no bar."""


def forward(lease: Lease) -> torch.Tensor:
    return lease.lengths["kv"] + lease.columns["position_offset"] + lease.columns["recurrent_index"]


def open_ready(planner: ResidentPlanner, books: Books, draw: random.Random) -> int:
    handle = planner.open()
    for table, held, length in (("kv", 12, draw.randrange(100)), ("context", 3, 40)):
        pages = draw.sample(range(1, LAYOUT.tables[LAYOUT.table_number(table)].pool_pages + 1), held)
        books.streams[handle, table] = (pages, length)
        planner.set_stream(handle, table, pages, length)
    for name in ("position_offset", "recurrent_index"):
        books.columns[handle, name] = draw.randrange(1, 9)
        planner.set_column(name, [handle], [books.columns[handle, name]])
    return handle


@pytest.fixture
def planner() -> ResidentPlanner:
    return ResidentPlanner(LAYOUT, 8, "cuda", debug=True)


@pytest.fixture
def walk(planner: ResidentPlanner) -> CapturedWalk[torch.Tensor]:
    return capture_walk(planner, forward, progress=quiet)


@pytest.mark.parametrize("at_once", [False, True])
def test_captured_steps_of_changing_batches_pass_the_row_check(
    planner: ResidentPlanner, walk: CapturedWalk[torch.Tensor], at_once: bool
) -> None:
    assert walk.buckets == (1, 2, 4, 8)
    assert planner.store.is_zero()
    draw, books, check = random.Random(7), Books(), RowCheck(planner)
    handles = rows = [open_ready(planner, books, draw) for _ in range(20)]
    cuda_stream = torch.cuda.current_stream()
    for number in range(60):
        if number % 3 == 0:
            rows = draw.sample(handles, draw.randrange(1, 9))
        bucket = walk.bucket(len(rows))
        assert bucket is not None
        step = walk.step(bucket, number % 2)
        stage = planner.stage(planner.batch(rows), step.lease)
        if at_once:
            step.launch(stage, cuda_stream.cuda_stream)
        else:
            planner.flush(stage, cuda_stream.cuda_stream)
            step.replay()
        planner.commit(stage)
        for handle in rows:
            pages, length = books.streams[handle, "kv"]
            books.streams[handle, "kv"] = (pages, length + 1)
        assert check.check(stage, books) == []
        columns = [sum(books.columns[handle, column.name] for column in LAYOUT.columns) for handle in rows]
        lengths = books.lengths(np.array(rows), "kv").tolist()
        assert step.output[: len(rows)].tolist() == [
            2 * length - 1 + own for length, own in zip(lengths, columns, strict=True)
        ]
    assert planner.stats().displaced > 0
    assert check.rows > 100


def test_launching_a_graph_uses_the_address_that_torch_tells(walk: CapturedWalk[torch.Tensor]) -> None:
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec"):
        pytest.skip("this torch does not tell the address of an instantiated graph")
    assert all(walk.step(bucket)._graph_exec for bucket in walk.buckets)
