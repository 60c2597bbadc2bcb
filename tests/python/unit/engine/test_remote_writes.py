"""A stream that something outside the engine moved: told, its row is written whole; untold, the row check sees it."""

from __future__ import annotations

from collections.abc import Callable

from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request

Make = Callable[..., Engine]
Submit = Callable[..., Request]


def move(engine: Engine, request: Request, tell: bool) -> None:
    """Put a decoding request's stream on other pages, contents and all, as a transfer from another node does."""
    engine.read()
    entry, kv, seat = engine.streams["kv"], engine.node.kv["kv"], request.seat
    old = entry.pages(seat)
    new = entry.pool.take(len(old))
    kv[:, new] = kv[:, old]
    kv[:, old] = -1  # nobody may read them again
    entry.put(seat, new)
    if tell:
        entry.pool.give(old)
        engine.arm.replaced("kv", seat, new, int(entry.length[seat]))


def run(make: Make, submit: Submit, tell: bool | None) -> tuple[Engine, list[list[int]]]:
    engine = make(least_resident=0.0)
    requests = [submit(engine, prompt, 40) for prompt in (5, 9, 14)]
    for step in range(30):
        engine.step()
        if tell is not None and step in (8, 9, 17):
            move(engine, requests[step % 3], tell)
    engine.run()
    return engine, [request.outputs for request in requests]


def test_a_stream_that_a_transfer_replaced_is_written_whole(make: Make, submit: Submit) -> None:
    undisturbed, expected = run(make, submit, None)
    moved, outputs = run(make, submit, True)
    assert moved.counters.mismatches == []
    assert outputs == expected
    assert moved.planner is not None
    assert undisturbed.planner is not None
    assert moved.planner.stats().whole_rows == undisturbed.planner.stats().whole_rows + 3


def test_a_transfer_that_nobody_told_of_is_seen_by_the_row_check(make: Make, submit: Submit) -> None:
    engine, _ = run(make, submit, False)
    assert any(found.startswith("page of kv") for found in engine.counters.mismatches)
