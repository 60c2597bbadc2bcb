"""Handles, page ids and lengths at the edges of 31, 32 and 63 bits: refused by the error that names them, or right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mstar_resident import Column, KVTable, ResidentPlanner, RowLayout
from mstar_resident.errors import LayoutError, LengthError, PageError, ResidentError, UnknownHandleError

LARGEST = 2**31 - 1
LAYOUT = RowLayout(
    [KVTable("kv", page_size=16, pool_pages=LARGEST, max_seq_len=64)],
    [Column("recurrent_index", "index"), Column("seed")],
)
EDGES = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 2**200]
NEGATIVE = [-1, -(2**31), -(2**32), -(2**63), -(2**63) - 1, -(2**64)]


@pytest.fixture
def planner() -> ResidentPlanner:
    return ResidentPlanner(LAYOUT, 2, debug=True)


def ready(planner: ResidentPlanner, pages: list[int], length: int) -> int:
    handle = planner.open()
    planner.set_stream(handle, "kv", pages, length)
    planner.set_column("recurrent_index", [handle], [LARGEST])
    planner.set_column("seed", [handle], [-(2**63)])
    return handle


def step(planner: ResidentPlanner, handle: int) -> None:
    lease = planner.lease(2)
    stage = planner.stage(planner.batch([handle]), lease)
    planner.flush(stage, 0)
    planner.prologue(lease)
    planner.commit(stage)


CALLS: dict[str, Callable[[ResidentPlanner, int], object]] = {
    "release": lambda p, h: p.release(h),
    "offload": lambda p, h: p.offload(h),
    "set_stream": lambda p, h: p.set_stream(h, "kv", [1], 1),
    "truncate": lambda p, h: p.truncate("kv", h, 0, 0),
    "mark_released_tokens": lambda p, h: p.mark_released_tokens("kv", h),
    "length": lambda p, h: p.length(h, "kv"),
    "pages": lambda p, h: p.pages(h, "kv"),
    "column": lambda p, h: p.column(h, "seed"),
    "slot": lambda p, h: p.slot(h),
    "last_step": lambda p, h: p.last_step(h),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_handle_at_any_edge_is_unknown(planner: ResidentPlanner, call: str) -> None:
    ready(planner, [1], 1)
    for handle in [*EDGES, *NEGATIVE]:
        with pytest.raises(UnknownHandleError):
            CALLS[call](planner, handle)
    planner.check()


@pytest.mark.parametrize("call", ["batch", "mark_stale"])
def test_a_handle_at_any_edge_in_an_array_is_refused(planner: ResidentPlanner, call: str) -> None:
    handle = ready(planner, [1], 1)
    for other in [*EDGES, *NEGATIVE]:
        with pytest.raises((UnknownHandleError, LayoutError)):
            getattr(planner, call)([handle, other])
    planner.check()


def test_a_page_id_at_any_edge_is_refused_or_written_where_it_belongs(planner: ResidentPlanner) -> None:
    handle = ready(planner, [1], 1)
    for page in [0, *EDGES[1:], *NEGATIVE]:
        with pytest.raises((PageError, LayoutError)):
            planner.set_stream(handle, "kv", [1, page], 1)
        with pytest.raises((PageError, LayoutError)):
            planner.append_pages("kv", [handle], [1], [page])
        assert planner.pages(handle, "kv") == [1]
    for page, length, location in ((200_000_000, 5, 3_200_000_005), (LARGEST, 15, LARGEST * 16 + 15)):
        planner.set_stream(handle, "kv", [page], length)
        step(planner, handle)
        assert int(planner.lease(2).write_loc["kv"][0]) == location


def test_a_length_at_any_edge_is_refused(planner: ResidentPlanner) -> None:
    handle = ready(planner, [1, 2], 20)
    for length in [33, *EDGES, *NEGATIVE]:
        with pytest.raises(LengthError):
            planner.set_stream(handle, "kv", [1, 2], length)
        with pytest.raises(LengthError):
            planner.truncate("kv", handle, length, 2)
        with pytest.raises((LengthError, LayoutError)):
            planner.host_step("kv", [handle], [length])
    for pages in [1, 3, *EDGES, *NEGATIVE]:
        with pytest.raises(LengthError):
            planner.truncate("kv", handle, 20, pages)
    assert (planner.length(handle, "kv"), planner.pages(handle, "kv")) == (20, [1, 2])
    step(planner, handle)
    assert int(planner.lease(2).lengths["kv"][0]) == 21


def test_tokens_at_any_edge_are_refused_by_a_pool_that_the_planner_owns() -> None:
    planner = ResidentPlanner(RowLayout([KVTable("kv", 16, 8, 64)]), 2, debug=True)
    planner.own_pages("kv")
    parent, child = planner.open(), planner.open()
    planner.reserve("kv", [parent], [16])
    for tokens in [*EDGES, *NEGATIVE]:
        with pytest.raises(ResidentError):
            planner.reserve("kv", [parent], [tokens])
        with pytest.raises(LengthError):
            planner.fork("kv", parent, child, tokens)
    assert planner.free_pages("kv") == 7


def test_a_length_of_31_bits_attends_and_writes_exactly() -> None:
    page_size, pages = 2**20, 2047
    layout = RowLayout([KVTable("kv", page_size, LARGEST, pages * page_size)])
    planner = ResidentPlanner(layout, 2, debug=True)
    handle = planner.open()
    planner.set_stream(handle, "kv", list(range(LARGEST - pages + 1, LARGEST + 1)), pages * page_size - 1)
    step(planner, handle)
    lease = planner.lease(2)
    assert int(lease.lengths["kv"][0]) == pages * page_size
    assert int(lease.write_loc["kv"][0]) == LARGEST * page_size + page_size - 1


def test_an_index_is_refused_beyond_its_buffer_and_other_columns_hold_63_bits(planner: ResidentPlanner) -> None:
    handle = ready(planner, [1], 1)
    for value in (2**31, 2**32, -(2**31) - 1, 2**63 - 1):
        with pytest.raises(LayoutError, match="recurrent_index: expected values from -2147483648 to 2147483647"):
            planner.set_column("recurrent_index", [handle], [value])
    step(planner, handle)
    lease = planner.lease(2)
    assert (int(lease.columns["recurrent_index"][0]), int(lease.columns["seed"][0])) == (LARGEST, -(2**63))


def test_a_lease_or_a_bucket_at_any_edge_is_refused(planner: ResidentPlanner) -> None:
    batch, native = planner.batch([ready(planner, [1], 1)]), planner._core
    for number in [*EDGES, *NEGATIVE]:
        with pytest.raises(ResidentError):
            planner.lease(number)
        with pytest.raises(ResidentError):
            native.stage(batch, number)
        with pytest.raises(ResidentError):
            native.length(0, number)
    planner.check()
