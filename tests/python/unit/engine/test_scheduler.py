"""Which rows run: every ready decode row, then chunks under the budget."""

from __future__ import annotations

import numpy as np
import pytest

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.request import Request, State
from mstar_resident.engine.scheduler import Scheduler
from mstar_resident.engine.seats import Seats


def scheduler(decoding: int = 0, prompts: tuple[int, ...] = (), **settings: object) -> Scheduler:
    config = EngineConfig(max_requests=64, **settings)  # type: ignore[arg-type]
    seats = Seats(64)
    made = Scheduler(config, seats)
    for number in range(decoding + len(prompts)):
        length = 1 if number < decoding else prompts[number - decoding]
        request = Request(str(number), np.zeros(length, np.int64), 100)
        seats.take(request)
        seats.granted[request.seat] = 100
        request.filled = request.prompt
        request.state = State.DECODE if number < decoding else State.PREFILL
        made.live.append(request)
    return made


def rows(plan: StepPlan | None) -> list[tuple[str, int]]:
    return [] if plan is None else list(zip([r.id for r in plan.requests], plan.tokens.tolist(), strict=True))


def test_nothing_to_run_is_no_plan() -> None:
    assert scheduler().next() is None


def test_decode_rows_alone_are_a_decode_step() -> None:
    plan = scheduler(decoding=3).next()
    assert plan is not None
    assert plan.walk == "decode"
    assert rows(plan) == [("0", 1), ("1", 1), ("2", 1)]


def test_the_plan_of_an_unchanged_batch_is_the_same_object() -> None:
    made = scheduler(decoding=3)
    assert made.next() is made.next()
    made.changed()
    first = made.next()
    made._seats.launched[1] = 100  # its last output is launched
    second = made.next()
    assert second is not first
    assert rows(second) == [("1", 1), ("2", 1)]


@pytest.mark.parametrize(
    ("prompts", "chunks"),
    [
        ((50,), [50]),  # a whole prompt, however short
        ((500,), [200]),
        ((150, 500), [150]),  # 50 are left: below the least chunk
        ((150, 50), [150, 50]),
        ((150, 40, 10), [150, 40, 10]),
        ((130, 500), [130, 70]),
    ],
)
def test_chunks_fill_the_budget_but_are_never_small(prompts: tuple[int, ...], chunks: list[int]) -> None:
    plan = scheduler(prompts=prompts).next()
    assert plan is not None
    assert plan.walk == "prefill"
    assert plan.tokens.tolist() == chunks


def test_decode_rows_come_first_and_use_the_budget() -> None:
    plan = scheduler(decoding=30, prompts=(500,), max_batch=32).next()
    assert plan is not None
    assert plan.walk == "mixed"
    assert plan.decode_rows == 30
    assert plan.tokens.tolist() == [1] * 30 + [170]
    assert plan.samples.tolist() == [1] * 30 + [0]


def test_decode_rows_never_starve_prefill() -> None:
    plan = scheduler(decoding=40, prompts=(500,), max_batch=64, token_budget=40).next()
    assert plan is not None
    assert plan.tokens.tolist() == [1] * 40 + [64]


def test_arrival_order_decodes_the_oldest_to_completion() -> None:
    made = scheduler(decoding=6, max_batch=4)
    assert rows(made.next()) == rows(made.next()) == [("0", 1), ("1", 1), ("2", 1), ("3", 1)]


def test_turns_decode_those_that_ran_least_recently() -> None:
    made = scheduler(decoding=6, max_batch=4, order="turns")
    ran = []
    for step in range(1, 4):
        plan = made.next()
        assert plan is not None
        made._seats.ran[plan.seats] = step
        ran.append([request.id for request in plan.requests])
    assert ran == [["0", "1", "2", "3"], ["4", "5", "0", "1"], ["2", "3", "0", "1"]]


def test_the_oldest_request_is_never_the_victim() -> None:
    made = scheduler(decoding=3)
    made._seats.stored[1:4] = 9
    plan = made.next()
    assert plan is not None
    victim = made.victim(plan)
    assert victim is not None
    assert victim.id == "2"
    made.live = made.live[:1]
    assert made.victim(plan) is None


def test_a_request_outside_the_step_gives_way_before_one_inside() -> None:
    made = scheduler(decoding=4, max_batch=2)
    made._seats.stored[1:5] = 9
    made._seats.ran[1:5] = [8, 8, 3, 2]
    plan = made.next()
    assert plan is not None
    victim = made.victim(plan)
    assert victim is not None
    assert victim.id == "3"  # the one that ran least recently
