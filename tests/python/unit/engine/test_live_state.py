"""What belongs to live requests and what a step, padding or a capture may touch."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mstar_resident.engine.clock import PHASES, Clock
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request, State
from mstar_resident.engine.toy import ToyModel


def belongings(engine: Engine, requests: list[Request]) -> list[Tensor]:
    """Copies of requests' rows, pages and states."""
    planner, recurrent = engine.planner, engine.node.recurrent
    assert planner is not None
    assert recurrent is not None
    parts = []
    for request in requests:
        slot = planner.slot(int(engine.seats.handle[request.seat]))
        assert slot
        parts += [planner.store.narrow[slot], planner.store.tables["kv"][slot]]
        parts += [engine.node.kv["kv"][:, engine.streams["kv"].pages(request.seat)]]
        parts += [recurrent.ssm[:, engine.seats.recurrent[request.seat]]]
    return [part.clone() for part in parts]


def test_parked_requests_keep_rows_pages_and_states_while_others_step_in_a_padded_bucket(
    make: Any, submit: Any
) -> None:
    model = ToyModel(recurrent=True)
    engine: Engine = make(model, max_batch=8)
    running = [submit(engine, 5, 60) for _ in range(5)]
    parked = [submit(engine, 6 + k, 12, keep=True) for k in range(3)]
    while any(request.state is not State.IDLE for request in parked):
        engine.step()
    engine.step()
    before = belongings(engine, parked)
    model.recording = True
    for _ in range(12):
        engine.step()
        assert [record.write_loc for record in model.records[5:]] == [0, 0, 0]  # five rows in a bucket of eight
    assert all(request.state is State.DECODE for request in running)
    for one, other in zip(before, belongings(engine, parked), strict=True):
        assert torch.equal(one, other)
    assert engine.planner is not None
    assert engine.planner.store.trash_row_is_zero()


def test_warming_up_every_bucket_touches_the_sinks_and_nothing_else(make: Any, submit: Any) -> None:
    engine: Engine = make(ToyModel(recurrent=True), pages=16)
    assert engine.planner is not None
    assert engine.node.recurrent is not None
    pool, state = engine.node.kv["kv"], engine.node.recurrent.ssm.view(-1)
    pool[:, 1:] = -3
    state[1:] = -3
    for view in engine.arm.views():  # as a capture does on a GPU, by every bucket's two buffers
        for _ in range(2):
            engine.runner.decode(view)
    assert engine.planner.store.is_zero()
    assert bool((pool[:, 1:] == -3).all())
    assert bool((state[1:] == -3).all())
    clean: Engine = make(ToyModel(recurrent=True), pages=16)
    asked = [[submit(one, 9 + k, 4) for k in range(4)] for one in (engine, clean)]
    for one, requests in zip((engine, clean), asked, strict=True):
        one.step()
        held = [one.streams["kv"].pages(request.seat).tolist() for request in requests]
        indices = [int(one.seats.recurrent[request.seat]) for request in requests]
        assert all(0 not in pages for pages in held)
        assert 0 not in indices
        assert sum(map(len, held)) >= 12
        one.run()
    assert [request.outputs for request in asked[0]] == [request.outputs for request in asked[1]]


def test_steps_of_a_bucket_that_was_not_captured_are_host_planned_and_move_their_rows(make: Any, submit: Any) -> None:
    engine: Engine = make(least_resident=0.0)
    engine.arm.host_planned = frozenset({2})
    whole: Engine = make(planning="host")
    asked = [[submit(one, 4 + k, 12 + 8 * k) for k in range(4)] for one in (engine, whole)]
    for one in (engine, whole):
        one.run()
    assert [request.outputs for request in asked[0]] == [request.outputs for request in asked[1]]
    assert 0 < engine.counters.resident_steps < engine.counters.decode_steps
    assert engine.counters.mismatches == []
    assert engine.planner is not None
    stats = engine.planner.stats()
    assert stats.refreshed_lengths + stats.whole_rows > 4


def test_with_planning_off_no_step_gathers_anything(make: Any) -> None:
    engine: Engine = make(planning="off")
    assert engine.planner is None
    views = engine.arm.views()
    assert all(view.lease is None for view in views)
    own = engine.streams["kv"].device_table(torch.device("cpu"))
    assert all(view.inputs.kv["kv"].table.data_ptr() == own.data_ptr() for view in views)  # there is no store


def test_a_page_that_changes_without_a_word_is_found(make: Any, submit: Any) -> None:
    engine: Engine = make()
    request = submit(engine, 7, 20)
    for _ in range(4):
        engine.step()
    assert engine.counters.mismatches == []
    engine.streams["kv"].table[request.seat, 0] = 11  # nobody told the planner
    engine.step()
    handle = int(engine.seats.handle[request.seat])
    assert any(f"page of kv, handle {handle}" in found for found in engine.counters.mismatches)


def test_time_is_counted_under_the_phase_that_spent_it(make: Any, submit: Any) -> None:
    clock = Clock()
    for phase, seconds in (("plan", 0.01), ("flush", 0.03), ("plan", 0.01)):
        clock.enter(phase)
        time.sleep(seconds)
    clock.leave()
    time.sleep(0.02)  # between steps: nobody's
    assert 0.02 <= clock.spent_ns["plan"] / 1e9 < 0.03 <= clock.spent_ns["flush"] / 1e9
    assert sum(clock.spent_ns.values()) == clock.spent_ns["plan"] + clock.spent_ns["flush"]
    engine: Engine = make()
    submit(engine, 5, 30)
    engine.run()
    spent = engine.counters.clock.spent_ns
    assert set(spent) == set(PHASES)
    assert np.all([spent[phase] > 0 for phase in ("pre-plan stage", "plan", "flush", "launch", "commit", "read")])
