"""What the soak watches: each harm to the step path shows in the figure that is named for it, and ends in exit 1."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request
from mstar_resident.engine.toy import ToyModel, ToySampler, toy_tokens

FOLDER = Path(__file__).parents[4] / "benches" / "gpu"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("soak_watch")


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("soak")


def toy(pages: int = 200, rows: int = 4, **more: Any) -> Engine:
    config = EngineConfig(
        max_batch=rows,
        max_requests=12,
        pools={"kv": PoolConfig(4, pages, 256)},
        dtype=torch.int64,
        state_dtype=torch.int64,
        check=True,
        shadow=True,
        **more,
    )
    return Engine(ToyModel(), config, sampler=lambda seats, device: ToySampler(509, seats, device))


def serve(engine: Engine, count: int = 6, new: int = 60) -> None:
    for number in range(count):
        engine.add(Request(str(number), toy_tokens(number, 12, 509), new))
    engine.run()


def test_full_steps_are_the_resident_ones_with_enough_rows(watch: Any) -> None:
    engine = toy()
    seen = watch.Watch(engine, 4)
    rows: list[int] = []
    decode = engine.arm.decode
    engine.arm.decode = lambda plan, at: (rows.append(len(plan.requests)), decode(plan, at))[1]  # type: ignore[method-assign]
    serve(engine)
    assert seen.full_steps == sum(count >= 4 for count in rows)
    assert 0 < seen.full_steps < len(rows) == engine.counters.resident_steps


def test_the_row_check_looks_at_some_steps_of_both_buffers_and_the_shadow_at_all(watch: Any) -> None:
    engine = toy(rows=1)
    watch.Watch(engine, 1)
    serve(engine, count=1, new=161)
    assert engine.shadow is not None
    assert engine.shadow.steps == engine.counters.resident_steps == 160
    assert engine.counters.rows_checked == -(-160 // watch.ROW_CHECK_EVERY)
    assert watch.ROW_CHECK_EVERY % 2 == watch.GUARD_EVERY % 2 == 1


def test_an_offload_gives_its_slot_up_once(watch: Any) -> None:
    engine = toy(pages=24, rows=6)
    seen = watch.Watch(engine, 1)
    given = []
    planner = engine.planner
    assert planner is not None
    offload = engine.arm.offloaded

    def noted(request: Request) -> None:
        given.append(planner.slot(int(engine.seats.handle[request.seat])) != 0)
        offload(request)

    engine.arm.offloaded = noted  # type: ignore[method-assign]
    serve(engine, count=8, new=40)
    assert seen.slot_releases == sum(given) > 0
    assert (seen.slots_kept, len(given)) == (0, engine.counters.offloads)


def test_an_offload_that_keeps_its_slot_is_seen(watch: Any) -> None:
    engine = toy(pages=24, rows=6)
    engine.arm.offloaded = lambda request: None  # type: ignore[method-assign]
    seen = watch.Watch(engine, 1)
    for number in range(3):
        engine.add(Request(str(number), toy_tokens(number, 8, 509), 20))
    for _ in range(6):
        engine.step()
    seen.offloaded(engine.scheduler.live[0])
    assert (seen.slots_kept, seen.slot_releases) == (1, 0)


def test_the_fewest_chunks_of_a_prompt_are_counted(watch: Any) -> None:
    engine = toy(token_budget=16, min_chunk=8)
    seen = watch.Watch(engine, 1)
    for number, length in enumerate((70, 50)):
        engine.add(Request(str(number), toy_tokens(number, length, 509), 5))
        engine.run()
    assert seen.least_chunks == 4


def test_a_kernel_compiled_on_the_step_path_is_counted_apart_from_others(watch: Any) -> None:
    runtime = pytest.importorskip("triton").knobs.runtime
    engine = toy()
    decode = engine.arm.decode

    def compiles(*step: Any) -> Any:
        if engine.counters.resident_steps == 5:
            runtime.jit_post_compile_hook(key="k")
        return decode(*step)

    engine.arm.decode = compiles  # type: ignore[method-assign]
    seen = watch.Watch(engine, 1)
    runtime.jit_post_compile_hook(key="elsewhere")
    serve(engine)
    seen.compilations.end()
    assert (seen.compiled, seen.compilations.count) == (1, 2)
    assert runtime.jit_post_compile_hook is None


def test_a_triton_that_tells_nobody_leaves_no_count(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pytest.importorskip("triton"), "knobs")
    assert watch.Watch(toy(), 1).compiled is None


def test_a_wait_on_the_step_path_is_counted_and_fails_its_step(watch: Any) -> None:
    engine = toy()
    decode, waited = engine.arm.decode, []

    def waits(*step: Any) -> Any:
        if engine.counters.resident_steps == 5 and not waited:
            waited.append(True)
            raise RuntimeError("called a synchronizing CUDA operation")
        return decode(*step)

    engine.arm.decode = waits  # type: ignore[method-assign]
    seen = watch.Watch(engine, 1)
    serve(engine)
    assert (seen.waits, engine.counters.failed_steps) == (1, 1)


def test_a_buffer_that_moves_on_the_step_path_is_counted(watch: Any) -> None:
    engine = toy()
    planner = engine.planner
    assert planner is not None
    decode = engine.arm.decode

    def moves(*step: Any) -> Any:
        if engine.counters.resident_steps == watch.GUARD_EVERY:
            planner.stager.buffers = tuple(buffer.clone() for buffer in planner.stager.buffers)
        return decode(*step)

    engine.arm.decode = moves  # type: ignore[method-assign]
    seen = watch.Watch(engine, 1)
    serve(engine)
    assert seen.allocations == 1


@pytest.mark.parametrize(("leak", "grown"), [(0, False), (1, True)])
def test_bytes_that_grow_with_the_steps_are_seen(
    watch: Any, monkeypatch: pytest.MonkeyPatch, leak: int, grown: bool
) -> None:
    held = iter(range(10_000))
    monkeypatch.setattr(watch, "allocated", lambda device: 1000 + leak * next(held) + 50 * (next(held) % 3))
    engine = toy()
    seen = watch.Watch(engine, 1)
    serve(engine, count=10, new=200)
    assert seen.memory.count >= 12
    assert (seen.memory.grown() > 0) == grown


def said(soak: Any, *tokens: list[int], finished: int = 40) -> Any:
    count = len(tokens)
    return soak.Said(list(tokens), [finished] * count, [True] * count, [index == 0 for index in range(count)])


def test_answers_are_compared_as_far_as_the_host_planned_arm_went(soak: Any) -> None:
    ours = said(soak, list(range(40)), list(range(50)), [1, 2])
    theirs = soak.Said(
        [list(range(40)), list(range(20)), [1, 2]], [40, 0, 40], [True, False, True], [True, False, False]
    )
    found = soak.compare(ours, theirs)
    assert (found["asked"], found["compared"], found["equal"], found["complete"]) == (3, 3, 3, 2)
    assert (found["fresh_compared"], found["fresh_equal"], found["other_schedule"]) == (1, 1, 0)
    theirs.tokens[1][19] = 7
    assert soak.compare(ours, theirs)["equal"] == 2


def test_an_answer_counts_only_where_the_host_planned_arm_repeats_itself(soak: Any) -> None:
    ours, theirs = said(soak, [1] * 20, [2] * 20), said(soak, [1] * 20, [3] * 20)
    assert soak.compare(ours, theirs)["equal"] == 1
    found = soak.compare(ours, theirs, again=said(soak, [1] * 20, [4] * 20))
    assert (found["asked"], found["compared"], found["equal"], found["host_runs"]) == (2, 1, 1, 2)
    found = soak.compare(ours, theirs, again=said(soak, [1] * 20, [3] * 20))
    assert (found["compared"], found["equal"]) == (2, 1)


def test_arms_that_ended_a_request_in_other_steps_did_not_serve_the_same(soak: Any) -> None:
    ours, theirs = said(soak, [1] * 20), said(soak, [1] * 20, finished=41)
    assert soak.compare(ours, theirs)["other_schedule"] == 1
