"""The planner's Python layer: leases, names, arrays, the store and its guards."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from mstar_resident import Column, KVTable, Lease, ResidentPlanner, RowLayout
from mstar_resident.errors import (
    BatchTooLargeError,
    DuplicateHandleError,
    InvariantError,
    LayoutError,
    ReleasedTokensError,
    ResidentError,
    RowOverflowError,
    UnknownHandleError,
)

LAYOUT = RowLayout(
    [KVTable("kv", page_size=4, pool_pages=30, max_seq_len=32)],
    [Column("position_offset", "position", "kv"), Column("recurrent_index", "index")],
)


@pytest.fixture
def planner() -> ResidentPlanner:
    return ResidentPlanner(LAYOUT, 4, debug=True)


def open_ready(planner: ResidentPlanner, pages: list[int], length: int) -> int:
    handle = planner.open()
    planner.set_stream(handle, "kv", pages, length)
    planner.set_column("position_offset", [handle], [-2])
    planner.set_column("recurrent_index", [handle], [7])
    return handle


def step(planner: ResidentPlanner, handles: list[int], lease: Lease) -> None:
    stage = planner.stage(planner.batch(handles), lease)
    planner.flush(stage, 0)
    planner.prologue(lease)
    planner.commit(stage)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "4", 2**31])
def test_a_batch_size_that_is_not_positive_is_refused(wrong: object) -> None:
    with pytest.raises(LayoutError, match="max_batch: expected"):
        ResidentPlanner(LAYOUT, wrong)  # type: ignore[arg-type]


def test_a_device_that_is_neither_cpu_nor_cuda_and_no_walks_are_refused() -> None:
    for wrong in ("meta", "foo", "cuda:-1"):
        with pytest.raises(LayoutError, match=rf"device: expected cpu or cuda\[:N\], got '{wrong}'"):
            ResidentPlanner(LAYOUT, 4, wrong)
    with pytest.raises(LayoutError, match="walks: expected at least one walk"):
        ResidentPlanner(LAYOUT, 4, walks=())
    with pytest.raises(LayoutError, match="layout: expected a RowLayout"):
        ResidentPlanner("kv", 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("devices", "device", "said"),
    [
        (0, "cuda", "device: expected cpu, as this machine has no CUDA device, got 'cuda'"),
        (0, "cuda:0", "device: expected cpu, as this machine has no CUDA device, got 'cuda:0'"),
        (2, "cuda:9", "device: expected cpu or a CUDA device below 2, got 'cuda:9'"),
    ],
)
def test_a_cuda_device_that_this_machine_lacks_is_refused(
    devices: int, device: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    for given in (device, torch.device(device)):
        with pytest.raises(LayoutError, match=re.escape(said)):
            ResidentPlanner(LAYOUT, 4, given)


def test_a_lease_is_made_once_per_walk_bucket_and_buffer(planner: ResidentPlanner) -> None:
    lease = planner.lease(2, buffer_idx=1)
    assert planner.lease(2, "decode", 1) is lease
    assert planner.lease(2).id != lease.id
    assert (lease.key, lease.inputs.shape, lease.cells.shape) == (("decode", 2, 1), (2 + 2 * 2 * 2,), (2, 2, 2))
    assert planner.lease_by_id(lease.id) is lease
    assert lease.lengths["kv"].tolist() == [1, 1]
    assert [t.dtype for t in lease.columns.values()] == [torch.int64, torch.int32]


def test_threads_that_ask_for_one_lease_get_the_same(planner: ResidentPlanner) -> None:
    found: list[Lease] = []
    threads = [threading.Thread(target=lambda: found.append(planner.lease(4))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_the_prologue_refuses_another_planners_lease_before_it_touches_anything(planner: ResidentPlanner) -> None:
    lease, handle = planner.lease(2), open_ready(planner, [5, 9], 3)
    step(planner, [handle], lease)
    others = [ResidentPlanner(LAYOUT, 4).lease(2), ResidentPlanner(RowLayout([], ["seed"]), 4).lease(2)]
    before, buffers = planner.store.narrow.clone(), [other.addresses() for other in others]
    for wrong in (*others, None):
        with pytest.raises(LayoutError, match="lease: expected one of this planner's"):
            planner.prologue(wrong)  # type: ignore[arg-type]
    assert torch.equal(planner.store.narrow, before)
    assert [other.addresses() for other in others] == buffers


def test_a_lease_of_another_walk_or_a_wider_bucket_is_refused(planner: ResidentPlanner) -> None:
    with pytest.raises(LayoutError, match=r"walk: expected one of \['decode'\], got 'prefill'"):
        planner.lease(2, "prefill")
    with pytest.raises(BatchTooLargeError, match="bucket: expected at most 4 rows, got 5"):
        planner.lease(5)
    for wrong in (0, -1):
        with pytest.raises(LayoutError, match="bucket: expected"):
            planner.lease(wrong)
    with pytest.raises(LayoutError, match="buffer_idx: expected"):
        planner.lease(2, buffer_idx=-1)
    with pytest.raises(LayoutError, match="lease: expected one of this planner's"):
        planner.lease_by_id(99)


def test_arrays_of_any_integer_type_are_taken_and_others_refused(planner: ResidentPlanner) -> None:
    handle = open_ready(planner, [5], 1)
    planner.append_pages("kv", np.array([handle], np.int32), (1,), np.array([9, 9], np.int64)[::2])
    assert planner.pages(handle, "kv") == [5, 9]
    for wrong in ([1.5], ["9"], np.array([1], np.uint64), [True]):
        with pytest.raises(LayoutError, match="pages: expected ints that fit int64"):
            planner.append_pages("kv", [handle], [1], wrong)
    with pytest.raises(LayoutError, match="handles: expected one dimension, got 2"):
        planner.mark_stale([[handle]])  # type: ignore[list-item]
    assert planner.pages(handle, "kv") == [5, 9]


def test_a_name_that_the_layout_lacks_is_refused(planner: ResidentPlanner) -> None:
    handle = planner.open()
    with pytest.raises(LayoutError, match="table: expected one of"):
        planner.set_stream(handle, "context", [1], 1)
    with pytest.raises(LayoutError, match="column: expected one of"):
        planner.set_column("kv", [handle], [1])


def test_a_handle_used_after_release_or_twice_in_a_step_is_refused(planner: ResidentPlanner) -> None:
    handle = open_ready(planner, [5], 1)
    with pytest.raises(DuplicateHandleError) as twice:
        planner.batch([handle, handle])
    assert twice.value.handle == handle
    planner.release(handle)
    with pytest.raises(UnknownHandleError) as gone:
        planner.batch([handle])
    assert gone.value.handle == handle


def test_a_write_beyond_a_buffer_is_found_by_the_guards(planner: ResidentPlanner) -> None:
    planner.check()
    flat = planner.store.guarded[1]._flat
    flat[-1] += 1
    with pytest.raises(InvariantError, match="guard cells of table kv were written"):
        planner.check()


def test_the_store_is_zero_aligned_and_of_the_size_it_says(planner: ResidentPlanner) -> None:
    store = planner.store
    assert store.is_zero()
    assert store.bytes == sum(t.numel() * t.element_size() for t in (store.narrow, *store.tables.values()))
    assert all(address % 16 == 0 for address in store.addresses())
    assert planner.stager.bytes_each >= planner._core.largest_flush_bytes()
    assert len(planner.stager.addresses()) == 8


def test_a_step_of_the_largest_flush_fits_the_ring() -> None:
    planner = ResidentPlanner(LAYOUT, 4, debug=True)
    lease = planner.lease(4)
    handles = [open_ready(planner, list(range(1, 9)), 31) for _ in range(4)]
    step(planner, handles, lease)
    assert planner.stats().whole_rows == 4
    assert lease.write_loc["kv"].tolist() == [8 * 4 + 3] * 4


def test_a_layout_without_tables_gathers_its_columns() -> None:
    planner = ResidentPlanner(RowLayout(columns=[Column("recurrent_index", "index")]), 2, debug=True)
    lease, handle = planner.lease(2), planner.open()
    planner.set_column("recurrent_index", [handle], [5])
    for _ in range(3):
        step(planner, [handle], lease)
    assert lease.columns["recurrent_index"].tolist() == [5, 0]


def test_calls_from_three_threads_leave_a_planner_that_checks() -> None:
    planner = ResidentPlanner(LAYOUT, 4, debug=True)
    lease = planner.lease(4)
    fixed = [open_ready(planner, [1, 2, 3], 1) for _ in range(3)]
    errors: list[BaseException] = []

    def churn() -> None:
        for _ in range(200):
            handle = open_ready(planner, [4], 2)
            planner.mark_stale([handle])
            planner.release(handle)

    def guarded() -> None:
        try:
            churn()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        step(planner, fixed, lease)
    for thread in threads:
        thread.join()
    assert not errors
    planner.check()
    assert lease.lengths["kv"].tolist()[:3] == [9] * 3


def test_a_failed_step_is_retired_and_its_rows_are_written_again(planner: ResidentPlanner) -> None:
    lease, handle = planner.lease(1), open_ready(planner, [5, 6], 3)
    stage = planner.stage(planner.batch([handle]), lease)
    planner.flush(stage, 0)
    with pytest.raises(ResidentError):
        planner.stage(planner.batch([handle]), lease)
    assert planner.fail(stage) == [handle]
    step(planner, [handle], lease)
    assert (planner.length(handle, "kv"), planner.stats().whole_rows, planner.stats().failed) == (4, 2, 1)


def test_threads_whose_calls_are_refused_do_not_wait_for_each_other() -> None:
    """An exception is built in Python: a mutex held meanwhile would be waited for with the interpreter lock."""
    script = (
        "import sys, threading\n"
        "from mstar_resident import KVTable, ResidentPlanner, RowLayout\n"
        "from mstar_resident.errors import UnknownHandleError\n"
        "planner = ResidentPlanner(RowLayout([KVTable('kv', page_size=4, pool_pages=30, max_seq_len=32)]), 4)\n"
        "sys.setswitchinterval(1e-6)\n"
        "def refused():\n"
        "    for _ in range(3000):\n"
        "        try:\n"
        "            planner.release(7)\n"
        "        except UnknownHandleError:\n"
        "            pass\n"
        "threads = [threading.Thread(target=refused) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_row_that_released_tokens_names_its_request_and_pool(planner: ResidentPlanner) -> None:
    handle = open_ready(planner, [3, 4], 6)
    planner.mark_released_tokens("kv", handle)
    with pytest.raises(ReleasedTokensError, match=rf"{handle}.*kv|kv.*{handle}") as raised:
        planner.stage(planner.batch([handle]), planner.lease(1))
    assert raised.value.table == "kv"


def test_a_row_of_more_pages_than_its_table_names_request_pool_and_numbers(planner: ResidentPlanner) -> None:
    handle = open_ready(planner, list(range(1, 9)), 32)
    planner.append_pages("kv", [handle], [1], [9])  # a stream may hold more than a row can name
    with pytest.raises(RowOverflowError, match="table kv: expected at most 8 pages, got a step that needs 9") as raised:
        planner.stage(planner.batch([handle]), planner.lease(1))
    assert (raised.value.handle, raised.value.table, raised.value.needed, raised.value.width) == (handle, "kv", 9, 8)
