"""Captured steps on a CPU run eagerly through the same calls; the CUDA graphs of the same are tested on a GPU."""

from __future__ import annotations

import pytest
import torch

from mstar_resident import CapturedResidentStep, CaptureRefused, Column, KVTable, Lease, ResidentPlanner, RowLayout
from mstar_resident.capture import BUCKETS, capture_walk
from mstar_resident.errors import BatchTooLargeError, InvariantError, LayoutError
from mstar_resident.resources import KVPool, WalkDeclaration

LAYOUT = RowLayout([KVTable("kv", 4, 30, 32)], [Column("recurrent_index", "index")])


def planner(max_batch: int = 4) -> ResidentPlanner:
    return ResidentPlanner(LAYOUT, max_batch, debug=True)


def forward(lease: Lease) -> torch.Tensor:
    return lease.lengths["kv"] + lease.columns["recurrent_index"]


def quiet(done: int, total: int, text: str) -> None:
    """Draw no bar."""


def open_ready(node: ResidentPlanner) -> int:
    handle = node.open()
    node.set_stream(handle, "kv", [3, 4], 2)
    node.set_column("recurrent_index", [handle], [9])
    return handle


@pytest.mark.parametrize("at_once", [False, True])
def test_a_captured_step_reads_its_row_and_leaves_the_trash_row_zero(at_once: bool) -> None:
    node = planner()
    captured = CapturedResidentStep(node, node.lease(2), forward)
    handle = open_ready(node)
    for length in (3, 4, 5):
        stage = node.stage(node.batch([handle]), captured.lease)
        if at_once:
            before = node.stats().copies
            assert captured.launch(stage, 0) == node.stats().copies - before
        else:
            node.flush(stage, 0)
            captured.replay()
        node.commit(stage)
        assert captured.output.tolist() == [length + 9, 1]
    assert node.store.trash_row_is_zero()


def test_capture_runs_the_largest_bucket_first_and_shows_progress() -> None:
    shown: list[str] = []
    node = planner()
    walk = capture_walk(node, forward, buckets=BUCKETS, progress=lambda done, total, text: shown.append(text))
    assert shown == [f"capturing decode, {rows} rows" for rows in (4, 2, 1)] + ["captured decode"]
    assert walk.buckets == (1, 2, 4)
    assert [walk.bucket(rows) for rows in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, None]
    assert walk.step(2, 1).lease is node.lease(2, buffer_idx=1)
    assert node.store.is_zero()


def test_a_bucket_that_fails_runs_host_planned_and_the_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    def two_rows_do_not_fit(lease: Lease) -> torch.Tensor:
        if lease.bucket == 2:
            raise RuntimeError("out of memory")
        return forward(lease)

    walk = capture_walk(planner(), two_rows_do_not_fit, progress=quiet)
    assert walk.failed == {2: "out of memory"}
    assert [walk.bucket(rows) for rows in (1, 2, 3)] == [1, None, 4]
    assert "bucket 2 of walk decode runs host-planned, its capture failed: out of memory" in caplog.text
    with pytest.raises(LayoutError, match="captured step: expected one of"):
        walk.step(2)


def test_a_walk_whose_declared_steps_cannot_be_resident_is_refused() -> None:
    pool = KVPool("kv", 4, 30, 32)
    forks = WalkDeclaration("decode", "kv", forks=True)
    with pytest.raises(CaptureRefused, match="walk decode cannot be captured, kv: a step forks a stream"):
        capture_walk(planner(), forward, resources=[pool], declarations=[forks], progress=quiet)


def test_a_ladder_wider_than_the_planner_and_a_walk_that_did_not_opt_in_are_refused() -> None:
    with pytest.raises(LayoutError, match="buckets: expected at least one of at most 4 rows"):
        capture_walk(planner(), forward, buckets=[8, 16], progress=quiet)
    with pytest.raises(LayoutError, match="walk: expected one of"):
        capture_walk(planner(), forward, walk="prefill", progress=quiet)
    with pytest.raises(BatchTooLargeError):
        planner().lease(8)


def test_a_lease_that_a_step_was_flushed_to_cannot_be_captured() -> None:
    node = planner()
    stage = node.stage(node.batch([open_ready(node)]), node.lease(2))
    node.flush(stage, 0)
    with pytest.raises(LayoutError, match="all zero: no step was flushed to it"):
        CapturedResidentStep(node, node.lease(2), forward)


def test_a_forward_that_writes_the_trash_row_or_the_inputs_fails_its_capture() -> None:
    node = planner()

    def writes_the_store(lease: Lease) -> torch.Tensor:
        return node.store.narrow[0, 0].add_(1)

    def writes_the_inputs(lease: Lease) -> torch.Tensor:
        return lease.slots.add_(1)

    with pytest.raises(InvariantError, match="left the store's trash row not zero"):
        CapturedResidentStep(node, node.lease(2), writes_the_store)
    with pytest.raises(InvariantError, match="left cells in its inputs"):
        CapturedResidentStep(planner(), planner().lease(1), writes_the_inputs)


def test_a_buffer_that_moved_is_found_at_the_replay_in_debug_mode() -> None:
    node = planner()
    captured = CapturedResidentStep(node, node.lease(2), forward)
    captured.lease.lengths["kv"] = captured.lease.lengths["kv"].clone()
    with pytest.raises(InvariantError, match="addresses: expected"):
        captured.replay()
