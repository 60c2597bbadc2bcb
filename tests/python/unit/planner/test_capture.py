"""Captured steps on a CPU run eagerly through the same calls; the CUDA graphs of the same are tested on a GPU."""

from __future__ import annotations

import pytest
import torch

from mstar_resident import CapturedResidentStep, CaptureRefused, Column, KVTable, Lease, ResidentPlanner, RowLayout
from mstar_resident.capture import BUCKETS, alias_walk, capture_walk
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
    node = planner()
    with pytest.raises(InvariantError, match="left cells in its inputs"):
        CapturedResidentStep(node, node.lease(1), writes_the_inputs)


def test_a_buffer_that_moved_is_found_at_the_replay_in_debug_mode() -> None:
    node = planner()
    captured = CapturedResidentStep(node, node.lease(2), forward)
    captured.lease.lengths["kv"] = captured.lease.lengths["kv"].clone()
    with pytest.raises(InvariantError, match="addresses: expected"):
        captured.replay()


def test_a_walk_that_aliases_another_shares_its_captured_steps_and_what_their_buffers_hold() -> None:
    node = ResidentPlanner(LAYOUT, 4, walks=["decode", "adapted"], debug=True)
    base = capture_walk(node, forward, buckets=[2, 4], progress=quiet)
    adapted = alias_walk(node, base, "adapted")
    assert node.lease(2, "adapted", 1) is node.lease(2, "decode", 1)
    assert adapted.step(2, 1) is base.step(2, 1)
    assert adapted.step(2).lease.key == ("decode", 2, 0)
    assert (adapted.walk, adapted.bucket(3)) == ("adapted", 4)
    handle = open_ready(node)
    batch = node.batch([handle])
    sent = []
    for walk, length in ((base, 3), (adapted, 4), (base, 5)):
        captured = walk.step(2)
        stage = node.stage(batch, node.lease(2, walk.walk))
        assert node.promote(stage, batch, captured.lease)  # whichever of the names it is asked for by
        before = node.stats().bytes
        node.flush(stage, 0)
        captured.replay()
        node.commit(stage)
        sent.append(node.stats().bytes - before)
        assert captured.output.tolist() == [length + 9, 1]
    assert sent[0] > 0
    assert sent[1] == 0  # the slots are there already, whichever walk sent them


def test_a_bucket_that_failed_is_failed_for_its_alias_too() -> None:
    def two_rows_do_not_fit(lease: Lease) -> torch.Tensor:
        if lease.bucket == 2:
            raise RuntimeError("out of memory")
        return forward(lease)

    node = ResidentPlanner(LAYOUT, 4, walks=["decode", "adapted"])
    adapted = alias_walk(node, capture_walk(node, two_rows_do_not_fit, progress=quiet), "adapted")
    assert [adapted.bucket(rows) for rows in (1, 2, 3)] == [1, None, 4]


def test_an_alias_that_cannot_be_is_refused() -> None:
    node = ResidentPlanner(LAYOUT, 4, walks=["decode", "adapted", "third"])
    node.lease(1, "third")
    for walk, of, said in (
        ("other", "decode", "walk: expected one of"),
        ("adapted", "other", "walk: expected one of"),
        ("adapted", "adapted", "a walk with captured steps of its own"),
        ("third", "decode", "a walk without leases"),
    ):
        with pytest.raises(LayoutError, match=said):
            node.alias(walk, of)
    node.alias("adapted", "decode")
    with pytest.raises(LayoutError, match="a walk with captured steps of its own"):
        node.alias("third", "adapted")


def test_a_lease_of_another_planner_is_refused() -> None:
    mine, other = planner(), planner()
    lease, theirs = mine.lease(2), other.lease(2)
    assert lease.id == theirs.id  # so that the number alone would not tell
    batch = mine.batch([open_ready(mine)])
    with pytest.raises(LayoutError, match="lease: expected one of this planner's"):
        mine.stage(batch, theirs)
    stage = mine.stage(batch, lease)
    with pytest.raises(LayoutError, match="lease: expected one of this planner's"):
        mine.promote(stage, batch, theirs)
    assert mine.promote(stage, batch, lease)  # nothing was dropped
