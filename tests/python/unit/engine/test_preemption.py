"""Requests that are put off and come back: on other pages, at another index, from the first token again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mstar_resident.engine.config import PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request, State
from mstar_resident.engine.toy import ToyModel
from mstar_resident.engine.view import POSITION


def alone(make: Any, submit: Any, prompt: int | list[int], max_new: int, **fields: Any) -> list[int]:
    """What a request says that nothing disturbs."""
    engine: Engine = make(ToyModel(recurrent=True), planning="host")
    request = submit(engine, prompt, max_new, **fields)
    engine.run()
    said: list[int] = request.outputs
    return said


def with_outputs(engine: Engine, request: Request, count: int) -> None:
    while len(request.outputs) < count:
        engine.step()
    engine.read()


def finished(engine: Engine, request: Request) -> list[int]:
    while request.state is not State.DONE:
        engine.step()
    return request.outputs


@pytest.mark.parametrize("index", [3, 6])
def test_a_recurrent_request_that_is_filled_again_says_what_it_would_have(make: Any, submit: Any, index: int) -> None:
    engine: Engine = make(ToyModel(recurrent=True))
    for _ in range(2):
        submit(engine, 4, 90)
    a = submit(engine, 6, 25)
    with_outputs(engine, a, 5)
    state = engine.node.recurrent.ssm.view(-1)  # type: ignore[union-attr]
    assert engine.seats.recurrent[a.seat] == 3
    if index == 6:  # its index is another's when it returns
        engine.admission.offload(a)
        assert [engine.admission.states.take() for _ in range(3)] == [3, 4, 5]
        state[3:6] = -99
        assert engine.admission.reload(a)
    assert engine.seats.recurrent[a.seat] == index
    state[index] = 12345  # the middle of a course that is given up
    engine.admission.refill(a)
    engine.scheduler.changed()
    assert finished(engine, a) == alone(make, submit, 6, 25)
    b = submit(engine, 6, 25)
    assert finished(engine, b) == a.outputs  # in the index that a left
    assert engine.counters.mismatches == []


def test_a_one_token_prompt_is_no_decode_row_until_a_host_step_has_made_its_state(make: Any, submit: Any) -> None:
    engine: Engine = make(ToyModel(recurrent=True))
    for prompt in (100, 50):
        submit(engine, prompt, 60)
    for _ in range(5):
        engine.step()
    assert engine.node.recurrent is not None
    assert engine.planner is not None
    engine.node.recurrent.ssm.view(-1)[3:] = -7  # what earlier owners left
    new = submit(engine, [9], 20)
    resident, whole = engine.counters.resident_steps, engine.planner.stats().whole_rows
    engine.step()
    assert new.state is State.DECODE
    assert engine.counters.resident_steps == resident, "its first step is host-planned"
    engine.step()
    assert engine.counters.resident_steps == resident + 1
    assert engine.planner.stats().whole_rows == whole + 1
    assert finished(engine, new) == alone(make, submit, [9], 20)
    assert engine.counters.mismatches == []


def image(length: int, offset: int) -> np.ndarray:
    """Positions of a prompt that advance by less than its tokens."""
    return np.minimum(np.arange(length), length + offset - 1).astype(np.int64)


def test_the_offset_of_an_image_prompt_is_that_of_its_last_chunk(make: Any, submit: Any) -> None:
    model = ToyModel()
    engine: Engine = make(model, token_budget=100, pools={"kv": PoolConfig(16, 100, 512)})
    request = submit(engine, 300, 10, positions=image(300, -182))
    assert engine.planner is not None
    for wrong in (-60, -120):
        engine.step()
        handle = int(engine.seats.handle[request.seat])
        engine.planner.set_column(POSITION, [handle], [wrong])  # what a chunk alone would make it
    engine.step()
    engine.arm.offset_changed(request)
    assert (engine.counters.steps, request.state) == (3, State.DECODE)
    model.recording = True
    for position in (118, 119):
        engine.step()
        assert model.records[0].position == position
    assert engine.counters.mismatches == []


def test_positions_go_on_where_they_were_when_generated_tokens_become_prompt(make: Any, submit: Any) -> None:
    model = ToyModel()
    settings: dict[str, Any] = {"pools": {"kv": PoolConfig(16, 100, 512)}, "lookahead": False}
    engine: Engine = make(model, **settings)
    request = submit(engine, 100, 40, positions=image(100, -40))
    with_outputs(engine, request, 30)
    engine.admission.refill(request)
    engine.scheduler.changed()
    engine.step()
    assert (len(request.filled), request.state) == (130, State.DECODE)
    assert engine.seats.offset[request.seat] == request.offset == -40
    model.recording = True
    for position in (90, 91, 92):
        engine.step()
        assert model.records[0].position == position
    undisturbed: Engine = make(ToyModel(), **settings)
    other = submit(undisturbed, 100, 40, positions=image(100, -40))
    assert finished(engine, request) == finished(undisturbed, other)


def test_an_offload_behind_a_step_saves_that_steps_token_before_another_takes_the_pages(make: Any, submit: Any) -> None:
    engine: Engine = make()
    a = submit(engine, 7, 20)
    engine.step()
    stream, pool = engine.streams["kv"], engine.node.kv["kv"]
    assert stream.length[a.seat] == 7
    engine.step()  # launched, its token not read yet
    pages = stream.pages(a.seat)[:2].tolist()
    before = pool[:, pages].clone()
    engine.admission.offload(a)
    copy = engine.admission._offloaded[a][0]
    assert copy.lengths == {"kv": 8}
    assert torch.equal(copy.pages["kv"], before)
    pool[:, pages] = -5  # whoever got them writes at once
    thief = engine.streams["kv"].pool.take(3)  # these two, and the one for the next step
    assert thief is not None
    assert set(pages) < set(thief.tolist())
    assert finished(engine, a) == alone_without_state(make, submit)
    assert engine.counters.mismatches == []


def alone_without_state(make: Any, submit: Any) -> list[int]:
    engine: Engine = make(planning="host")
    request = submit(engine, 7, 20)
    engine.run()
    said: list[int] = request.outputs
    return said


def test_a_raise_in_the_pre_plan_leaves_its_pages_to_the_retry(make: Any, submit: Any) -> None:
    engine: Engine = make()
    rows = [submit(engine, 7, 30), submit(engine, 3, 30)]
    for _ in range(2):
        engine.step()
    stage_ahead = engine.arm.stage_ahead

    def fail(plan: Any, buffer_idx: int) -> None:
        engine.arm.stage_ahead = stage_ahead  # type: ignore[method-assign]
        raise OSError("the plan thread died")

    engine.arm.stage_ahead = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="plan thread"):
        engine.step()
    held, free = engine.streams["kv"].held.copy(), engine.streams["kv"].pool.free
    plan = engine.scheduler.next()
    assert plan is not None
    assert engine.memory.reserve(plan.seats, plan.tokens)  # what the retry asks for is there already
    assert (engine.streams["kv"].held == held).all()
    assert engine.streams["kv"].pool.free == free
    engine.run()
    undisturbed: Engine = make(planning="host")
    others = [submit(undisturbed, 7, 30), submit(undisturbed, 3, 30)]
    undisturbed.run()
    assert [row.outputs for row in rows] == [row.outputs for row in others]
    assert engine.counters.mismatches == []
    assert engine.streams["kv"].pool.free == 100
