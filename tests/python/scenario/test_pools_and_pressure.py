"""Pools side by side, and what is short: the same tokens whatever the engine must do to serve them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mstar_resident.engine import Engine, EngineConfig, PoolConfig, Request, Sampling
from mstar_resident.engine.admission import Admission
from mstar_resident.engine.request import State
from mstar_resident.engine.scenarios import SCENARIOS
from mstar_resident.engine.scenarios.life import AbortStorm
from mstar_resident.engine.toy import ToyModel, ToyRecord, ToySampler

POOLS = {"near": PoolConfig(4, 300, 96), "far": PoolConfig(16, 120, 256)}


class Dictated:
    """Draw tokens that depend on seat and position alone, so that engines with other pools draw the same."""

    def __init__(self, seats: int, device: torch.device) -> None:
        self._seeds = torch.zeros(seats, dtype=torch.int64)

    def admit(self, seat: int, sampling: Sampling) -> None:
        self._seeds[seat] = sampling.seed

    def draw(self, logits: Tensor, seats: Tensor, positions: Tensor) -> Tensor:
        return (self._seeds[seats] * 131 + positions * 17 + 3).remainder(509)


def requests(count: int = 10) -> list[Request]:
    rng = np.random.default_rng(9)
    return [
        Request(
            str(i), rng.integers(0, 509, int(rng.integers(1, 40))), int(rng.integers(5, 40)), Sampling(seed=int(i + 1))
        )
        for i in range(count)
    ]


def engine_of(model: ToyModel, sampler: Any = None, **settings: Any) -> Engine:
    settings = {
        "max_batch": 4,
        "max_requests": 6,
        "recurrent_states": 6,
        "token_budget": 40,
        "min_chunk": 8,
        "pools": POOLS,
        "check": True,
        "debug": True,
        "dtype": torch.int64,
        "state_dtype": torch.int64,
    } | settings
    sampler = sampler or (lambda seats, device: ToySampler(509, seats, device))
    return Engine(model, EngineConfig(**settings), sampler=sampler)


def serve(engine: Engine, asked: list[Request] | None = None) -> list[list[int]]:
    asked = asked or requests()
    for request in asked:
        engine.add(request)
    engine.run()
    assert engine.counters.mismatches == []
    assert engine.counters.rows_checked > 50
    return [request.outputs for request in asked]


def recorded(*append: str) -> list[list[ToyRecord]]:
    """Serve with these pools and return what every step read of them."""
    model = ToyModel(append)
    model.recording = True
    engine = engine_of(model, Dictated)
    steps: list[list[ToyRecord]] = []
    forward = model.forward

    def note(inputs: Any) -> Tensor:
        logits = forward(inputs)
        steps.append(model.records)
        return logits

    model.forward = note  # type: ignore[method-assign]
    serve(engine)
    assert engine.planner is not None
    assert engine.planner.stats().crossings > 5
    return steps


def test_two_pools_are_each_what_they_are_alone() -> None:
    """Pages, write locations, lengths and positions of every row of every step, in pools of pages of 4 and of 16."""
    both, alone = recorded("near", "far"), {name: recorded(name) for name in POOLS}
    for name, steps in alone.items():
        assert [[record for record in step if record.pool == name] for step in both] == steps
    assert alone["near"] != alone["far"]


@pytest.mark.parametrize("owner", ["engine", "planner"])
def test_a_prefix_cache_changes_no_token(owner: str) -> None:
    said, pages = [], []
    for prefix_cache in (False, True):
        rng = np.random.default_rng(3)
        beginning = rng.integers(0, 509, 23)
        asked = [
            Request(str(i), np.concatenate([beginning[: 23 - i], rng.integers(0, 9, i)]), 20, Sampling(seed=i))
            for i in range(8)
        ]
        engine = engine_of(ToyModel(("near",)), prefix_cache=prefix_cache, pages_owner=owner, max_requests=3)
        said.append(serve(engine, asked))
        pages.append(engine.counters.prefix_pages)
    assert said[0] == said[1]
    assert pages[0] == 0 < pages[1]


def test_both_decode_orders_say_the_same_and_turns_displace_rows_at_nearly_every_step() -> None:
    said, displaced = [], {}
    for order in ("arrival", "turns"):
        engine = engine_of(ToyModel(("near",)), order=order, max_batch=2, max_requests=12, token_budget=400)
        said.append(serve(engine, requests(12)))
        assert engine.planner is not None
        displaced[order] = engine.planner.stats().displaced / engine.counters.resident_steps
    assert said[0] == said[1]
    assert displaced["turns"] > 1 > 0.2 > displaced["arrival"]


def test_a_full_recurrent_pool_holds_a_request_and_takes_no_other_s_state() -> None:
    engine = engine_of(ToyModel(("near",), recurrent=True), recurrent_states=2)
    asked = requests(5)
    for request in asked:
        engine.add(request)
    waited = 0
    while engine.step():
        held = [r for r in asked if r.seat]
        assert len(held) <= 2
        assert len({int(engine.seats.recurrent[r.seat]) for r in held}) == len(held)
        waited += any(r.state is State.WAITING for r in asked)
    assert waited > 20
    assert engine.counters.offloads == 0  # a state cannot be taken for want of one
    alone = engine_of(ToyModel(("near",), recurrent=True))
    assert [request.outputs for request in asked] == serve(alone, requests(5))


def test_a_storm_drops_twenty_four_and_brings_sixteen_three_times() -> None:
    storms: list[tuple[int, int]] = []

    class Counted(AbortStorm):
        def before(self, world: Any, step: int) -> None:
            ended, known = sum(r.reason == "abort" for r in world.requests), len(world.requests)
            super().before(world, step)
            dropped = sum(r.reason == "abort" for r in world.requests) - ended
            if dropped:
                storms.append((dropped, len(world.requests) - known))

    outcome = Counted().run(2, AbortStorm.steps)
    assert outcome.good
    assert storms == [(24, 16)] * 3


@pytest.mark.parametrize("name", ["memory_pressure", "recurrent_memory_pressure"])
def test_what_comes_back_comes_back_on_other_pages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    offload, reload = Admission.offload, Admission.reload
    before: dict[Request, list[int]] = {}

    def leave(admission: Admission, request: Request) -> None:
        before[request] = admission._node.streams["kv"].pages(request.seat).tolist()
        offload(admission, request)

    def come_back(admission: Admission, request: Request) -> bool:
        done = reload(admission, request)
        if done:
            moved.append(admission._node.streams["kv"].pages(request.seat).tolist() != before[request])
        return done

    monkeypatch.setattr(Admission, "offload", leave)
    monkeypatch.setattr(Admission, "reload", come_back)
    scenario = SCENARIOS[name]()
    assert scenario.run(1, scenario.steps).good
    assert sum(moved) > 3
