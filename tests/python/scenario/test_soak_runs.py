"""The GPU soak's runs, short and small on the CPU: each does what it is named for, and a wrong cell ends it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "benches" / "gpu"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("soak")


def run(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, *more: str) -> int:
    steps = STEPS.get(name, 60)
    options = ["--shape", "tiny", "--device", "cpu", "--steps", str(steps), "--check", "row"]
    monkeypatch.setattr(sys, "argv", ["soak", name, *options, *more])
    status: int = soak.main()
    return status


#: Decode steps, where a run needs more than a few for what it is named for.
STEPS = {"kv_pressure": 150, "abort_storm": 150, "prefix_off": 300, "prefix_on": 300}
NAMES = [
    *("chunked_prefill", "kv_pressure", "slot_pressure", "wide", "abort_storm", "images"),
    *("prefix_off", "prefix_on", "whisper"),
]


def test_every_run_is_tried(soak: ModuleType) -> None:
    assert sorted(NAMES) == sorted(soak.RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_run_does_what_it_is_named_for(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert run(soak, monkeypatch, name) == 0


@pytest.mark.slow
def test_both_arms_say_the_same(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(soak, monkeypatch, "prefix_on", "--compare") == 0
    assert "'equal': 64" in capsys.readouterr().out


def test_a_wrong_cell_ends_a_run_in_exit_1(soak: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = soak.RUNS["images"].before

    def spoil(traffic: object, rows: int) -> None:
        before(traffic, rows)
        engine = traffic.engine  # type: ignore[attr-defined]
        if engine.counters.decode_steps == 20:
            engine.planner.store.tables["kv"][1:, 0] += 1

    spoilt = dict(soak.RUNS)
    kind = soak.RUNS["images"]
    spoilt["images"] = type(kind)(kind.text, kind.rows, spoil)
    monkeypatch.setattr(soak, "RUNS", spoilt)
    assert run(soak, monkeypatch, "images") == 1
