"""The GPU soak's runs, short and small on the CPU: each does what it is named for, and a wrong cell ends it."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "benches" / "gpu"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("soak")


def run(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, *more: str) -> int:
    steps = STEPS.get(name, 40)
    options = ["--shape", "tiny", "--device", "cpu", "--steps", str(steps), "--compare", "150"]
    monkeypatch.setattr(sys, "argv", ["soak", name, *options, *more])
    status: int = soak.main()
    return status


#: Resident steps of full rows, where a run needs other than a few for what it is named for.
STEPS = {"kv_pressure": 150, "abort_storm": 100, "wide": 20, "slot_pressure": 200}
NAMES = ["chunked_prefill", "kv_pressure", "slot_pressure", "wide", "abort_storm", "images", "prefix_off", "whisper"]
SHARING = ["prefix_on", "prefix_again"]


def test_every_run_is_tried(soak: ModuleType) -> None:
    assert sorted(NAMES + SHARING) == sorted(soak.RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_run_does_what_it_is_named_for(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert run(soak, monkeypatch, name) == 0


def record(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *more: str
) -> tuple[int, list[dict[str, Any]]]:
    """Run, and return the exit status and the cases of the record."""
    status = run(soak, monkeypatch, name, "--json", str(folder / "record.json"), *more)
    return status, json.loads((folder / "record.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.slow
def test_prompts_that_come_again_share_their_pages_and_both_arms_say_the_same(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages = {}
    for name in SHARING:
        status, cases = record(soak, monkeypatch, tmp_path, name)
        assert [case["planning"] for case in cases] == ["resident", "host"]
        assert (status, cases[0]["asked"], cases[0]["compared"], cases[0]["equal"]) == (0, 32, 32, 32)
        pages[name] = cases[0]["prefix_pages"]
    # Of 32 beginnings of twelve pages the second half finds all; the next round finds every page but a last one's.
    assert pages["prefix_on"] == 16 * 12
    assert pages["prefix_again"] >= pages["prefix_on"] + 32 * 12


def test_a_run_that_is_cut_short_says_so_and_keeps_what_it_has(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, cases = record(soak, monkeypatch, tmp_path, "images", "--compare", "0", "--steps", "9999", "--limit", "1")
    assert cases[0]["cut"]
    assert cases[0]["full_steps"] < 9999
    assert status == 0 or not cases[0]["resident_steps"]


def test_an_arm_that_says_something_else_ends_in_exit_1(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serve, arms = soak.soak, []

    def other(name: str, args: Any, model: Any, planning: str) -> Any:
        case, said = serve(name, args, model, planning)
        arms.append(planning)
        if planning == "resident":
            said.tokens[3][10] += 1
        return case, said

    monkeypatch.setattr(soak, "soak", other)
    status, cases = record(soak, monkeypatch, tmp_path, "images", "--compare", "60")
    assert arms == ["host", "resident", "host"]  # the last shows that the host-planned arm repeats itself
    assert (status, cases[0]["compared"], cases[0]["equal"]) == (1, 16, 15)
    assert cases[0]["unmet"] == ["equal answers: 15 of 16"]


def test_a_run_that_raises_leaves_a_record_that_says_what(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(traffic: object, rows: int) -> None:
        raise ValueError("no traffic")

    monkeypatch.setattr(soak, "RUNS", dict(soak.RUNS, images=replace(soak.RUNS["images"], before=broken)))
    status, cases = record(soak, monkeypatch, tmp_path, "images", "--compare", "0")
    assert (status, cases[0]["raised"]) == (1, "ValueError: no traffic")
    assert "failed: 1" in cases[0]["unmet"]


def test_a_wrong_cell_ends_a_run_in_exit_1(soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = soak.RUNS["images"].before

    def spoil(traffic: object, rows: int) -> None:
        before(traffic, rows)
        engine = traffic.engine  # type: ignore[attr-defined]
        if engine.counters.decode_steps == 20:
            engine.planner.store.tables["kv"][1:, 0] += 1

    monkeypatch.setattr(soak, "RUNS", dict(soak.RUNS, images=replace(soak.RUNS["images"], before=spoil)))
    status, cases = record(soak, monkeypatch, tmp_path, "images", "--compare", "0")
    assert status == 1
    assert any(text.startswith("mismatches") for text in cases[0]["unmet"])


@pytest.mark.parametrize(("order", "good"), [("turns", True), ("arrival", False)])
def test_the_timed_arms_displace_a_row_for_each_of_theirs_and_say_the_same(
    soak: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, order: str, good: bool
) -> None:
    speed = importlib.import_module("soak_speed")
    pressure = soak.RUNS["slot_pressure"]
    config = {**pressure.config, "order": order, "max_requests": 32}
    monkeypatch.setattr(speed, "RUNS", {"slot_pressure": replace(pressure, config=config)})
    monkeypatch.setattr(speed, "SETTLE", 8)
    file = tmp_path / "record.json"
    options = ["--shape", "tiny", "--device", "cpu", "--steps", "5", "--rounds", "2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["speed", *options])
    assert (speed.main() == 0) == good
    case = json.loads(file.read_text(encoding="utf-8"))["cases"][0]
    assert case["resident_equal"] == case["resident_checked_equal"] == 32
    assert (case["resident_displaced"] == case["resident_checked_displaced"] >= 10 * 8 * 0.99) == good
    assert len(case["resident_ratios"]) == 2
