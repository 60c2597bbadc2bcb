"""Attention that needs a host plan, beside resident rows: plans are kept, and are what a full plan would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mstar_resident.attention.decode_plan import DecodePlanCache, naive_decode_plan
from mstar_resident.attention.torch_planned import PlannedTorchAttention
from mstar_resident.engine.arm import HostArm
from mstar_resident.engine.attention_plan import AttentionPlans
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import State
from mstar_resident.engine.scenarios import SCENARIOS
from mstar_resident.engine.scenarios.attention import PlannedAttention
from mstar_resident.engine.toy import ToyModel
from mstar_resident.errors import InvariantError, LayoutError


def watched(engine: Engine) -> list[list[int]]:
    """Compare what attention gets at every decode step with a full plan; return the pages of every step."""
    seen: list[list[int]] = []
    step = engine.arm.plans.fill

    def fill(view: Any, seats: Any) -> None:
        step(view, seats)
        for name, entry in engine.streams.items():
            planned = view.inputs.kv[name].planned
            full = naive_decode_plan(entry.table, entry.length, seats, view.bucket, entry.pool.page_size, entry.span)
            assert planned.indptr.tolist() == full.indptr.tolist()
            assert planned.indices[: len(full.indices)].tolist() == full.indices.tolist()
            assert planned.last_page_len.tolist() == full.last_page_len.tolist()
            seen.append(full.indptr.tolist())

    engine.arm.plans.fill = fill  # type: ignore[method-assign]
    return seen


def test_a_bucket_is_host_plan_free_only_if_no_attention_needs_a_plan(make: Any) -> None:
    assert make(ToyModel(("x", "y"))).node.host_plan_free
    one = make(ToyModel(("x", "y"), host_plan=("y",)))
    assert not one.node.host_plan_free
    assert list(one.arm.plans.caches) == ["y"]
    view = one.arm.views()[0]
    assert view.inputs.kv["x"].planned is None
    assert view.inputs.kv["y"].planned is not None


@pytest.mark.parametrize("planning", ["resident", "host"])
@pytest.mark.parametrize("mode", ["off", "on", "verify"])
def test_a_kept_plan_hands_attention_what_a_full_one_does_crossings_included(
    make: Any, submit: Any, planning: str, mode: str
) -> None:
    engine: Engine = make(ToyModel(host_plan=("kv",)), planning=planning, attention_plan=mode)
    seen = watched(engine)
    for prompt in (3, 6, 9):
        submit(engine, prompt, 40)
    engine.run()
    cache = engine.arm.plans.caches["kv"]
    assert len(seen) > 35
    assert len({tuple(indptr) for indptr in seen}) > 20
    assert engine.counters.mismatches == []
    if mode == "off":
        assert (cache.spliced, cache.reused) == (0, 0)
    else:
        assert cache.built < 8  # when rows join and leave
        assert cache.spliced > 20
        assert cache.reused > 5


def test_tokens_are_the_same_with_and_without_plans_in_both_arms(make: Any, submit: Any) -> None:
    said = []
    for host_plan in ((), ("kv",)):
        for planning in ("host", "resident"):
            engine: Engine = make(ToyModel(host_plan=host_plan), planning=planning)
            requests = [submit(engine, prompt, 30) for prompt in (2, 7, 11, 5, 4)]
            engine.run()
            said.append([request.outputs for request in requests])
    assert all(outputs == said[0] for outputs in said)


def test_resident_steps_leave_another_planners_plan_valid_for_the_next_host_step(make: Any, submit: Any) -> None:
    engine: Engine = make()
    requests = [submit(engine, prompt, 60) for prompt in (3, 6, 9)]
    for _ in range(4):
        engine.step()
    entry, seats = engine.streams["kv"], np.array([request.seat for request in requests])
    other = DecodePlanCache(entry.table, entry.length, 4, 1, 4)
    other.plan(seats, 4)
    for steps in (1, 1, 2, 5, 13):
        before = engine.counters.resident_steps
        for _ in range(steps):
            engine.step()
        assert engine.counters.resident_steps == before + steps
        assert engine.memory.reserve(seats, np.ones(3, np.int64))  # as that step's own planning would
        full = naive_decode_plan(entry.table, entry.length, seats, 4, 4, 1)
        assert full.difference(other.plan(seats, 4)) is None
    assert other.built == 1  # nothing that those steps did made it start anew
    assert other.spliced > 0


def test_a_host_planned_bucket_between_resident_ones_finds_its_plan_true(make: Any, submit: Any) -> None:
    engine: Engine = make(ToyModel(host_plan=("kv",)), least_resident=0.1)
    engine.arm.host_planned = frozenset({2})
    seen = watched(engine)
    long, short = submit(engine, 3, 60), submit(engine, 5, 20)
    third = submit(engine, 4, 12)
    engine.run()
    assert {len(indptr) - 1 for indptr in seen} == {1, 2, 4}
    assert 0 < engine.counters.resident_steps < engine.counters.decode_steps
    alone: Engine = make()
    for request in (long, short, third):
        again = submit(alone, request.prompt.tolist(), request.max_new)
        alone.run()
        assert again.outputs == request.outputs


@pytest.mark.parametrize("untold", ["replaced", "left"])
@pytest.mark.parametrize("mode", ["on", "verify"])
def test_that_a_stream_is_another_one_must_be_told(untold: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionPlans, "left", lambda *arguments: None)
    if untold == "replaced":  # a stream is replaced where there was none: either call alone is enough
        monkeypatch.setattr(AttentionPlans, "replaced", lambda *arguments: None)
    monkeypatch.setattr(AttentionPlans, "truncated", lambda *arguments: None)
    scenario = PlannedAttention()
    scenario.attention_plan = mode  # type: ignore[assignment]
    found: list[str] = []
    for seed in range(3):
        try:
            found += scenario.run(seed, scenario.steps).found
        except InvariantError as error:
            found.append(str(error))
    said = "the kept decode plan is wrong" if mode == "verify" else "token "
    assert any(said in text for text in found)


@pytest.mark.parametrize("told", [True, False])
def test_a_rewind_must_be_told(told: bool, make: Any, submit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop read too late takes back the page that its overshoot entered; the next turn gets another one."""
    if not told:
        monkeypatch.setattr(AttentionPlans, "truncated", lambda *arguments: None)
    differ = []
    for prompt in range(3, 9):
        alone: Engine = make()
        first = submit(alone, prompt, 9)
        alone.run()
        stop = frozenset({first.outputs[6]} - set(first.outputs[:6]))
        said = []
        for host_plan in ((), ("kv",)):
            engine: Engine = make(ToyModel(host_plan=host_plan))
            request = submit(engine, prompt, 20, stop=stop, keep=True)
            while request.state is not State.IDLE:
                engine.step()
            engine.streams["kv"].pool.take(1)
            engine.extend(request, np.array([7, 8]), 6)
            engine.run()
            said.append(request.outputs)
        differ.append(said[0] != said[1])
    assert any(differ) is not told


def test_the_scenario_is_clean_in_every_mode() -> None:
    for mode in ("off", "on", "verify"):
        scenario = SCENARIOS["planned_attention"]()
        scenario.attention_plan = mode  # type: ignore[attr-defined]
        assert scenario.run(5, scenario.steps).found == []


def test_attention_without_its_plan_says_so(make: Any, submit: Any) -> None:
    engine: Engine = make()
    submit(engine, 3, 4)
    engine.step()
    paged = engine.arm.filled_view(1, 0).inputs.kv["kv"]
    with pytest.raises(LayoutError, match="planned: expected a plan of the step's pages, got None"):
        PlannedTorchAttention().decode(torch.zeros(1), torch.zeros(1, 1, 1), paged)
    with pytest.raises(LayoutError, match="attention_plan: expected one of"):
        make(attention_plan="sometimes")
    assert issubclass(type(engine.arm), HostArm)


def test_a_plan_that_is_found_wrong_ends_the_step_and_is_not_tried_again(make: Any, submit: Any) -> None:
    engine: Engine = make(ToyModel(host_plan=("kv",)), attention_plan="verify")
    requests = [submit(engine, prompt, 20) for prompt in (5, 6)]
    for _ in range(3):
        engine.step()
    engine.streams["kv"].table[requests[1].seat, 0] += 1  # and nobody tells
    with pytest.raises(InvariantError, match="the kept decode plan is wrong"):
        engine.step()
    assert engine.counters.failed_steps == 1
