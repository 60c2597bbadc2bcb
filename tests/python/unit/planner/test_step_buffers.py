"""What a step leaves in its buffers: whose they are, when they are written, and what padding and short rows find."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mstar_resident import CapturedResidentStep, Column, KVTable, Lease, ResidentPlanner, RowCheck, RowLayout
from mstar_resident.attention.decode_plan import DecodePlanCache
from mstar_resident.errors import LayoutError
from mstar_resident.stager import RING_DEPTH

LAYOUT = RowLayout(
    [KVTable("kv", 4, 900, 64)], [Column("position_offset", "position", "kv"), Column("recurrent_index", "index")]
)


def node(max_batch: int, layout: RowLayout = LAYOUT) -> ResidentPlanner:
    return ResidentPlanner(layout, max_batch, debug=True)


def request(planner: ResidentPlanner, pages: list[int], length: int, offset: int = 0, index: int = 7) -> int:
    handle = planner.open()
    planner.set_stream(handle, "kv", pages, length)
    planner.set_column("position_offset", [handle], [offset])
    planner.set_column("recurrent_index", [handle], [index])
    return handle


def requests(planner: ResidentPlanner, count: int, length: int = 5) -> list[int]:
    return [request(planner, list(range(1 + 4 * k, 5 + 4 * k)), length, index=k + 1) for k in range(count)]


def step(planner: ResidentPlanner, handles: list[int], lease: Lease) -> None:
    stage = planner.stage(planner.batch(handles), lease)
    planner.flush(stage, 0)
    planner.prologue(lease)
    planner.commit(stage)


def device(planner: ResidentPlanner, *leases: Lease) -> list[Tensor]:
    """Copies of all that a flush may write."""
    parts = [planner.store.narrow, *planner.store.tables.values(), *(lease.inputs for lease in leases)]
    return [part.clone() for part in parts]


def unchanged(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_plan_made_ahead_touches_no_buffer_of_the_device() -> None:
    planner = node(4)
    leases = [planner.lease(4, buffer_idx=k) for k in range(2)]
    a, b = request(planner, [1, 2], 3), request(planner, [5, 6], 1)
    step(planner, [a, b], leases[0])
    before, ring = device(planner, *leases), [buffer.clone() for buffer in planner.stager.buffers]
    new = request(planner, [9], 0)
    for lease in leases:  # the other buffer's graph may be replaying
        stage = planner.stage(planner.batch([a, b, new]), lease)  # a crosses, new is written whole
        assert planner.promote(stage, planner.batch([a, b, new]), lease)
        assert unchanged(before, device(planner, *leases))
    planner.drop(stage)
    assert unchanged(before, device(planner, *leases))
    assert unchanged(ring, list(planner.stager.buffers))
    stage = planner.stage(planner.batch([a, b, new]), leases[1])
    planner.flush(stage, 0)
    assert not unchanged(before, device(planner, *leases))


def test_a_plan_made_inline_for_the_lease_of_a_dropped_one_sends_what_it_decided_itself() -> None:
    planner = node(2)
    lease, check = planner.lease(2), []
    a, b = request(planner, [1, 2], 3), request(planner, [5, 6], 3)
    step(planner, [a, b], lease)
    copies = planner.stats().copies
    planner.stage(planner.batch([b, a]), lease)  # made ahead, abandoned
    check.append(planner.stats().copies)
    planner.set_stream(b, "kv", [8, 9], 6)
    step(planner, [a, b], lease)
    assert check == [copies]  # what was abandoned issued no copy that could land late
    assert lease.slots.tolist() == [planner.slot(a), planner.slot(b)]
    assert lease.write_loc["kv"].tolist() == [2 * 4, 9 * 4 + 2]


def test_leases_share_no_memory_and_a_narrow_bucket_behind_a_wide_one_reads_its_own_rows() -> None:
    planner = node(128)
    wide, narrow, other = planner.lease(128), planner.lease(8), planner.lease(128, buffer_idx=1)
    rows = requests(planner, 128)
    for lease, members in ((wide, rows), (narrow, rows[60:68]), (other, rows), (narrow, rows[5:10]), (wide, rows)):
        step(planner, members, lease)
        assert lease.columns["recurrent_index"].tolist()[: len(members)] == [rows.index(row) + 1 for row in members]
        assert lease.slots[len(members) :].tolist() == [0] * (lease.bucket - len(members))
    spans = []
    for lease in (wide, narrow, other):
        for part in (lease.inputs, *lease.lengths.values(), *lease.write_loc.values(), *lease.columns.values()):
            assert part.shape[0] in (lease.bucket, lease.bucket * (1 + 2 * LAYOUT.cells_per_row))
            spans.append((part.data_ptr(), part.data_ptr() + part.numel() * part.element_size()))
    spans.sort()
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert [wide.write_loc["kv"].dtype, wide.lengths["kv"].dtype] == [torch.int64, torch.int32]


def is_padding(planner: ResidentPlanner, lease: Lease, row: int) -> bool:
    gathered = planner.store.tables["kv"][lease.slots[row]]
    outputs = (lease.lengths["kv"], lease.write_loc["kv"], *lease.columns.values())
    return not gathered.any() and [int(output[row]) for output in outputs] == [1, 0, 0, 0]


def test_padding_of_a_bucket_that_was_fuller_before_reads_the_sink_again() -> None:
    planner = node(4)
    lease, rows = planner.lease(4), requests(planner, 3)
    for count in (1, 3, 1):
        step(planner, rows[:count], lease)
        assert [is_padding(planner, lease, row) for row in range(4)] == [row >= count for row in range(4)]
    assert planner.store.trash_row_is_zero()


def test_a_bucket_wider_than_the_engines_limit_is_filled_with_padding_to_its_end() -> None:
    planner = node(16)
    planner.lease(8)
    lease, rows = planner.lease(16), requests(planner, 16)
    for count in (10, 16, 9, 10):  # a limit of 10 is no bucket
        step(planner, rows[:count], lease)
        assert [is_padding(planner, lease, row) for row in range(16)] == [row >= count for row in range(16)]


def test_short_rows_beside_a_long_one_name_no_page_outside_the_pool_and_none_of_before() -> None:
    planner = node(4)
    lease = planner.lease(4)
    before = [request(planner, list(range(100 + 20 * k, 116 + 20 * k)), 60) for k in range(8)]
    for members in (before[:4], before[4:]):
        step(planner, members, lease)  # every slot has held sixteen pages
    for handle in before:
        planner.release(handle)
    rows = [request(planner, list(range(1, 17)), 60), *(request(planner, [30 + k], 2) for k in range(3))]
    step(planner, rows, lease)
    gathered = planner.store.tables["kv"][lease.slots]
    assert gathered[0].tolist() == list(range(1, 17))
    assert [row.tolist() for row in gathered[1:]] == [[30 + k, *[0] * 15] for k in range(3)]


def test_the_first_use_of_a_poisoned_slot_reads_no_poison() -> None:
    planner = node(2)
    lease = planner.lease(2)
    planner.store.narrow[1:] = -77
    here = request(planner, [3, 4], 6, offset=-2, index=9)  # prefilled elsewhere: its first step here is a decode step
    step(planner, [here], lease)
    assert planner.store.narrow[planner.slot(here)].tolist() == [7, -2, 9]
    assert (lease.lengths["kv"].tolist(), lease.write_loc["kv"].tolist()) == ([7, 1], [4 * 4 + 2, 0])
    assert [column.tolist() for column in lease.columns.values()] == [[4, 0], [9, 0]]


def test_a_position_is_taken_against_the_length_that_its_own_flush_refreshed() -> None:
    planner = node(1)
    lease, a = planner.lease(1), request(planner, [1, 2, 3], 6, offset=-5)
    step(planner, [a], lease)
    assert lease.columns["position_offset"].tolist() == [1]
    planner.host_step("kv", [a], [3])  # 6 + 1 + 3 tokens
    step(planner, [a], lease)
    assert lease.columns["position_offset"].tolist() == [10 - 5]
    assert planner.stats().refreshed_lengths == 1


@pytest.mark.parametrize(("length", "last"), [(0, 1), (3, 4), (4, 1), (7, 4), (8, 1)])
def test_the_tokens_of_a_rows_last_page_count_from_1_to_the_page_size(length: int, last: int) -> None:
    planner = node(1)
    lease, a = planner.lease(1), request(planner, [9, 2, 7, 5], length)
    step(planner, [a], lease)
    attended, pages = int(lease.lengths["kv"][0]), int((planner.store.tables["kv"][lease.slots[0]] != 0).sum())
    assert attended - (pages - 1) * 4 == last
    host = DecodePlanCache(np.array([[9, 2, 7, 5]], np.int32), np.array([length]), 4, 1, 1).plan(np.array([0]), 1)
    assert (host.indptr.tolist(), host.last_page_len.tolist()) == ([0, pages], [last])


def test_replays_with_no_host_write_in_between_go_on_by_themselves() -> None:
    planner = node(1)
    captured = CapturedResidentStep(planner, planner.lease(1), lambda lease: lease.write_loc["kv"].clone())
    a = request(planner, [9, 2], 2)
    seen, copies = [], []
    for _ in range(5):
        stage = planner.stage(planner.batch([a]), captured.lease)
        copies.append(planner.flush(stage, 0))
        captured.replay()
        planner.commit(stage)
        seen.append((int(captured.lease.lengths["kv"][0]), int(captured.output[0])))
    assert seen == [(3, 38), (4, 39), (5, 8), (6, 9), (7, 10)]
    assert copies[1:] == [0, 1, 0, 0]  # the one cell of the page that it enters


def test_host_buffers_can_be_overwritten_once_their_copies_are_done() -> None:
    planner, draw = node(4), random.Random(5)
    leases = [planner.lease(bucket, buffer_idx=k) for bucket in (2, 4) for k in range(2)]
    rows = requests(planner, 12)

    class Books:
        def lengths(self, handles: np.ndarray, table: str) -> np.ndarray:
            return np.array([planner.length(handle, table) for handle in handles.tolist()])

        def pages(self, handles: np.ndarray, table: str) -> np.ndarray:
            return np.array([planner.pages(handle, table) for handle in handles.tolist()])

        def column(self, handles: np.ndarray, name: str) -> np.ndarray:
            values = [planner._core.column_value(h, LAYOUT.column_number(name)) for h in handles.tolist()]
            return np.array(values)

    check = RowCheck(planner)
    for number in range(1500):
        members, lease = draw.sample(rows, draw.randint(1, 2)), draw.choice(leases)
        for row in members:
            if planner.length(row, "kv") >= 15:
                planner.truncate("kv", row, draw.randint(0, 8), 4)
            planner.set_column("position_offset", [row], [number])
        stage = planner.stage(planner.batch(members), lease)
        planner.flush(stage, 0)
        for buffer in planner.stager.buffers:
            buffer.fill_(-77)
        planner.prologue(lease)
        planner.commit(stage)
        assert check.check(stage, Books()) == []
    assert planner.stats().displaced > 100


def test_buffers_keep_their_addresses_whatever_a_step_sends_and_whoever_takes_a_lease() -> None:
    planner = node(128)
    leases = [planner.lease(bucket) for bucket in (128, 64, 8, 1)]
    before = [planner.store.addresses(), planner.stager.addresses(), *(lease.addresses() for lease in leases)]
    rows = requests(planner, 128, length=0)
    step(planner, rows, leases[0])
    for number in range(RING_DEPTH + 2):
        planner.mark_stale(rows)  # every row whole: the largest flush
        step(planner, rows if number % 2 else rows[::-1], leases[0])
    more = planner.lease(32, buffer_idx=1)
    step(planner, rows[:20], more)
    node(64)  # another node's planner
    after = [planner.store.addresses(), planner.stager.addresses(), *(lease.addresses() for lease in leases)]
    assert after == before


def test_planners_with_other_delays_and_one_history_displace_the_same_requests() -> None:
    held: list[list[list[bool]]] = [[], []]

    def run(rank: int, delay: Callable[[], float]) -> None:
        planner = node(2)
        lease, rows, draw = planner.lease(2), requests(planner, 9), random.Random(3)
        for _ in range(60):
            members = draw.sample(rows, 2)
            for row in members:
                if planner.length(row, "kv") >= 15:
                    planner.truncate("kv", row, 1, 4)
            time.sleep(delay())
            step(planner, members, lease)
            held[rank].append([planner.slot(row) != 0 for row in rows])

    clocks = [random.Random(rank) for rank in range(2)]
    threads = [
        threading.Thread(target=run, args=(rank, lambda clock=clock: clock.random() / 1000))
        for rank, clock in enumerate(clocks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held[0]) == 60
    assert held[0] == held[1]


def test_buffers_that_lie_side_by_side_share_no_byte() -> None:
    for bucket in (1, 3, 16):
        lease = ResidentPlanner(LAYOUT, 16).lease(bucket)
        buffers = [lease.inputs, *lease.lengths.values(), *lease.write_loc.values(), *lease.columns.values()]
        spans = sorted((b.data_ptr(), b.data_ptr() + b.numel() * b.element_size()) for b in buffers)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert all(begin % 16 == 0 for begin, _ in spans)
        assert lease.lengths["kv"].tolist() == [1] * bucket
        assert not any(b.any() for b in (lease.inputs, *lease.write_loc.values(), *lease.columns.values()))


def test_a_prologue_looks_up_what_a_rows_column_points_to() -> None:
    planner = node(4)
    handles = requests(planner, 3)
    lease = planner.lease(4)
    by_state, out = torch.tensor([-5, 10, 20, 30]), torch.zeros(4, dtype=torch.int64)
    lease.look_up("recurrent_index", by_state, out)
    assert {by_state.data_ptr(), out.data_ptr()} <= set(lease.addresses())
    for rows, expected in (([0, 1, 2], [10, 20, 30, -5]), ([2, 0], [30, 10, -5, -5])):
        stage = planner.stage(planner.batch([handles[row] for row in rows]), lease)
        planner.flush(stage, 0)
        planner.prologue(lease)
        planner.commit(stage)
        assert out.tolist() == expected
    planner.set_column("recurrent_index", handles[2:], [1])
    by_state[1] = 11  # the source is read when the step runs
    stage = planner.stage(planner.batch([handles[2], handles[0]]), lease)
    planner.flush(stage, 0)
    planner.prologue(lease)
    planner.commit(stage)
    assert out.tolist() == [11, 11, -5, -5]


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("column", ("position_offset", torch.zeros(9), torch.zeros(4))),
        ("column", ("seat", torch.zeros(9), torch.zeros(4))),
        ("source", ("recurrent_index", torch.zeros(9, 2), torch.zeros(4))),
        ("source", ("recurrent_index", torch.zeros(18)[::2], torch.zeros(4))),
        ("source", ("recurrent_index", torch.zeros(0), torch.zeros(4))),
        ("out", ("recurrent_index", torch.zeros(9), torch.zeros(3))),
        ("out", ("recurrent_index", torch.zeros(9), torch.zeros(4, dtype=torch.int64))),
    ],
)
def test_a_look_up_that_does_not_fit_is_refused_and_nothing_changes(
    named: str, given: tuple[str, Tensor, Tensor]
) -> None:
    lease = node(4).lease(4)
    before = lease.addresses()
    with pytest.raises(LayoutError, match=f"^{named}"):
        lease.look_up(*given)
    assert lease.addresses() == before
    assert lease.look_ups == []
