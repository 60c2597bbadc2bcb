"""A step's course: what is sent, what is told, when tokens are read, what is undone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mstar_resident.config import PLANNING_VARIABLE
from mstar_resident.engine.counters import ResidencyError
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.host_plan import fill
from mstar_resident.engine.request import State
from mstar_resident.engine.toy import ToyModel


class Calls:
    """Be a planner that notes which of its methods are called."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._planner, name)
        if callable(value):
            self.made.append(name)
        return value


def decoding(make: Any, submit: Any, rows: int = 3, **settings: Any) -> Engine:
    """Return an engine whose requests all decode, with rows sent."""
    engine: Engine = make(**settings)
    for _ in range(rows):
        submit(engine, 5, 60)
    for _ in range(3):
        engine.step()
    return engine


def test_a_steady_step_makes_four_planner_calls_whatever_its_rows(make: Any, submit: Any) -> None:
    engine = decoding(make, submit, 4, check=False)
    calls = engine.arm.planner = Calls(engine.planner)  # type: ignore[attr-defined]
    engine.step()  # lengths 8 to 9: a crossing; pages for it were appended before
    calls.made.clear()
    engine.step()
    assert calls.made == ["promote", "flush", "commit", "stage"]


def test_a_steady_step_sends_nothing(make: Any, submit: Any) -> None:
    engine = decoding(make, submit, 4)
    planner = engine.planner
    assert planner is not None
    for _ in range(6):
        engine.step()
    sent = []
    for _ in range(8):
        before = planner.stats().bytes
        engine.step()
        sent.append(planner.stats().bytes - before)
    assert sorted(sent)[:6] == [0] * 6  # all but the two crossings of pages of 4


def test_step_n_plus_1_is_launched_before_the_tokens_of_step_n_are_read(make: Any, submit: Any) -> None:
    engine: Engine = make()
    events: list[str] = []
    engine.runner.in_flight = lambda phase: events.append("launch") if phase == "after" else None  # type: ignore[attr-defined]
    submit(engine, 3, 4, on_token=lambda token: events.append("read"))
    engine.run()
    assert events == ["launch", "launch", "read", "launch", "read", "launch", "read", "read"]


def test_without_lookahead_every_step_is_read_before_the_next(make: Any, submit: Any) -> None:
    engine: Engine = make(lookahead=False)
    events: list[str] = []
    engine.runner.in_flight = lambda phase: events.append("launch") if phase == "after" else None  # type: ignore[attr-defined]
    submit(engine, 3, 3, on_token=lambda token: events.append("read"))
    engine.run()
    assert events == ["launch", "read"] * 3
    assert engine.counters.staged_ahead == 0


def test_a_stop_read_too_late_is_undone(make: Any, submit: Any) -> None:
    engine: Engine = make()
    first = submit(engine, 5, 20)
    engine.run()
    stop = first.outputs[6]
    assert stop not in first.outputs[:6]
    again = submit(engine, 5, 20, stop=frozenset({stop}), keep=True)
    while again.state is not State.IDLE:
        engine.step()
    assert again.outputs == first.outputs[:7]
    assert again.reason == "stop"
    assert engine.counters.overshoot == 1
    stream = engine.streams["kv"]
    assert engine.planner is not None
    handle = int(engine.seats.handle[again.seat])
    assert stream.length[again.seat] == engine.planner.length(handle, "kv") == 5 + 6
    assert engine.planner.pages(handle, "kv") == stream.pages(again.seat).tolist()


def test_the_host_fills_what_the_prologue_would_have(make: Any, submit: Any) -> None:
    engine = decoding(make, submit, 3, model=ToyModel(recurrent=True))
    plan = engine.scheduler.next()
    assert plan is not None
    assert engine.memory.reserve(plan.seats, plan.tokens)
    host = engine.arm.filled_view(4, 0)
    fill(host, plan, engine.seats, engine.streams)
    view = engine.arm.decode(plan, engine.counters.steps % 2)
    assert torch.equal(view.inputs.positions, host.inputs.positions)
    assert torch.equal(view.seats, host.seats)
    assert view.inputs.recurrent_index is not None
    assert host.inputs.recurrent_index is not None
    assert torch.equal(view.inputs.recurrent_index, host.inputs.recurrent_index)
    mine, theirs = view.inputs.kv["kv"], host.inputs.kv["kv"]
    assert torch.equal(mine.lengths, theirs.lengths)
    assert mine.write_loc is not None
    assert theirs.write_loc is not None
    assert torch.equal(mine.write_loc, theirs.write_loc)
    assert torch.equal(mine.table[mine.rows], theirs.table[theirs.rows])


def test_the_toy_records_what_each_row_named(make: Any, submit: Any) -> None:
    model = ToyModel(recurrent=True)
    engine = decoding(make, submit, 3, model=model)
    model.recording = True
    engine.step()
    rows, padding = model.records[:3], model.records[3:]
    for seat, record in zip([1, 2, 3], rows, strict=True):
        length = int(engine.streams["kv"].length[seat])
        pages = engine.streams["kv"].pages(seat).tolist()
        assert record.length == length
        assert record.position == length - 1
        assert record.used_columns == tuple(pages[: -(-length // 4)])
        assert record.write_loc == pages[(length - 1) // 4] * 4 + (length - 1) % 4
        assert record.recurrent_index == engine.seats.recurrent[seat]
    (sink,) = padding
    assert (sink.write_loc, sink.length, sink.position, sink.used_columns, sink.recurrent_index) == (0, 1, 0, (0,), 0)


def test_an_abort_in_flight_leaves_the_other_rows_alone(make: Any, submit: Any) -> None:
    alone: Engine = make()
    expected = submit(alone, 7, 30)
    alone.run()
    engine: Engine = make()
    kept = submit(engine, 7, 30)
    dropped = submit(engine, [9, 8], 30)
    for _ in range(5):
        engine.step()

    def abort(phase: str) -> None:
        if phase == "prologue":
            engine.abort(dropped)

    engine.runner.in_flight = abort  # type: ignore[attr-defined]
    engine.run()
    assert kept.outputs == expected.outputs
    assert dropped.reason == "abort"
    assert engine.counters.mismatches == []
    assert engine.planner is not None
    assert engine.planner.stats().slots_held == engine.planner.stats().slots_cooling == 0
    assert engine.streams["kv"].pool.free == 100


def test_a_refused_reservation_rolls_back_and_the_retry_writes_to_the_right_page(make: Any, submit: Any) -> None:
    engine: Engine = make(ToyModel(append=("x", "y")), pages=6)
    first, second = submit(engine, 7, 12), submit(engine, 7, 12)
    for _ in range(200):
        if not engine.step():
            break
    assert engine.counters.refused > 0
    assert engine.counters.offloads > 0
    assert engine.counters.mismatches == []
    assert first.outputs == second.outputs  # same prompt, same seed
    assert engine.streams["x"].pool.free == engine.streams["y"].pool.free == 6


def test_a_step_that_keeps_failing_is_raised_and_one_that_fails_once_is_run_again(make: Any, submit: Any) -> None:
    engine = decoding(make, submit, 2)
    failures = iter([True, False, True, True, False])

    def fail(phase: str) -> None:
        if phase == "after" and next(failures, False):
            raise OSError("the device went away")

    engine.runner.in_flight = fail  # type: ignore[attr-defined]
    engine.run()
    assert engine.counters.failed_steps == 3
    assert engine.counters.mismatches == []
    broken = decoding(make, submit, 2)
    broken.runner.in_flight = lambda phase: (_ for _ in ()).throw(OSError("gone"))  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="gone"):
        broken.run()


def test_a_run_whose_decode_steps_were_not_resident_raises(make: Any, submit: Any) -> None:
    engine: Engine = make()
    engine.arm.host_planned = frozenset({1, 2, 4})
    submit(engine, 5, 20)
    with pytest.raises(ResidencyError, match="resident steps"):
        engine.run()


def test_the_environment_turns_planning_off(make: Any, submit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANNING_VARIABLE, "off")
    engine: Engine = make()
    assert engine.planner is None
    assert "it is off" in str(engine.refusal)
    request = submit(engine, 5, 10)
    engine.run()
    assert len(request.outputs) == 10
    assert engine.counters.resident_steps == 0


def test_an_argument_is_stronger_than_the_environment(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANNING_VARIABLE, "off")
    assert make(planning="resident").planner is not None
    monkeypatch.setenv(PLANNING_VARIABLE, "auto")
    assert make(planning="off").planner is None
    assert make(planning="host").planner is None
