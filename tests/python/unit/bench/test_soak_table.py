"""The soak's table: records that meet a line, and the same with one thing missing or wrong."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[4] / "benches" / "gpu"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("soak_table")


def enough(table: ModuleType, line: Any) -> dict[str, Any]:
    """Return a case that meets a line just so."""
    case = {"run": line.run, "shape": line.shape, "device": "cuda", "commit": "abc", "seed": 0, "unmet": []}
    case |= line.least
    if line.engine:
        case |= dict.fromkeys(table.NEVER, 0) | dict.fromkeys(table.LOOKED, 1)
    for a, b in line.equal:
        most = max(case.get(a, 0), case.get(b, 0))
        case |= {a: most, b: most}
    return case


def run(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, cases: list[dict[str, Any]], *more: str
) -> tuple[int, list[dict[str, Any]]]:
    for number, case in enumerate(cases):
        record = {
            "schema": "mstar-resident/soak/1",
            "machine": "a GPU",
            "commit": case.pop("commit"),
            "cases": [case],
        }
        (folder / f"soak_{number}.json").write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["table", str(folder), "--json", str(folder / "table.json"), *more])
    status = table.main()
    return status, json.loads((folder / "table.json").read_text(encoding="utf-8"))["cases"]


def test_records_that_meet_every_line_pass(table: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, lines = run(table, monkeypatch, tmp_path, [enough(table, line) for line in table.LINES])
    assert [line["lacks"] for line in lines] == [[]] * len(table.LINES)
    assert status == 0


def test_every_figure_of_every_line_is_needed(table: ModuleType) -> None:
    for line in table.LINES:
        assert table.verdict(line, [enough(table, line)])["met"]
        for name, least in line.least.items():
            assert not table.verdict(line, [enough(table, line) | {name: least - 0.01}])["met"], (line.run, name)
        figures = (*table.NEVER, *table.LOOKED) if line.engine else ()
        for name in figures:
            assert not table.verdict(line, [enough(table, line) | {name: None}])["met"], (line.run, name)
        for name in table.NEVER if line.engine else ():
            assert not table.verdict(line, [enough(table, line) | {name: 1}])["met"], (line.run, name)
        for _, name in line.equal:
            case = enough(table, line)
            assert not table.verdict(line, [case | {name: case[name] - 1}])["met"], (line.run, name)
        assert not table.verdict(line, [enough(table, line) | {"unmet": ["something"]}])["met"]
        assert not table.verdict(line, [enough(table, line) | {"shape": "tiny"}])["met"]
        assert not table.verdict(line, [enough(table, line) | {"device": "cpu"}])["met"]
        assert not table.verdict(line, [])["met"]


def test_volumes_add_up_over_seeds_and_one_bad_seed_is_enough_to_fail(table: ModuleType) -> None:
    line = next(line for line in table.LINES if line.run == "slot_pressure")
    halves = [enough(table, line) | {"seed": seed, "displaced": 1_000_000} for seed in (0, 1)]
    found = table.verdict(line, halves)
    assert (found["met"], found["got"]["displaced"], found["seeds"]) == (True, 2_000_000, [0, 1])
    halves[1]["mismatches"] = 1
    assert table.verdict(line, halves)["lacks"] == ["seed 1: mismatches 1"]


def test_a_ratio_is_that_of_the_worst_case(table: ModuleType) -> None:
    line = next(line for line in table.LINES if line.run == "slot_pressure_speed")
    cases = [enough(table, line) | {"resident_ratio": ratio} for ratio in (0.96, 1.02)]
    assert table.verdict(line, cases)["lacks"] == ["resident_ratio 0.96 of 0.97"]


@pytest.mark.parametrize("commits", [("abc", "abd"), ("unknown", "unknown"), ("abc+", "abc+")])
def test_a_line_of_two_commits_or_of_none_does_not_pass(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, commits: tuple[str, str]
) -> None:
    line = next(line for line in table.LINES if line.run == "slot_pressure")
    cases = [enough(table, line) | {"commit": commit} for commit in commits]
    status, lines = run(table, monkeypatch, tmp_path, cases, "--runs", "slot_pressure")
    assert (status, lines[0]["commits"]) == (1, sorted(set(commits)))


def test_lines_of_different_commits_pass_and_each_names_its_own(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cases = [enough(table, line) | {"commit": line.run} for line in table.LINES]
    status, lines = run(table, monkeypatch, tmp_path, cases)
    assert (status, [line["commits"] for line in lines]) == (0, [[line.run] for line in table.LINES])


def test_a_line_without_a_record_does_not_pass_and_the_text_says_so(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = tmp_path / "table.md"
    line = next(line for line in table.LINES if line.run == "images")
    options = ("--runs", "images whisper", "--markdown", str(text))
    assert run(table, monkeypatch, tmp_path, [enough(table, line)], *options)[0] == 1
    rows = [row for row in text.read_text(encoding="utf-8").splitlines() if row.startswith("|")][2:]
    assert [("NOT MET" in row) for row in rows] == [True, False]


def test_every_run_has_a_line(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = importlib.import_module("soak_runs").RUNS
    assert set(runs) < {line.run for line in table.LINES}
    assert all(line.shape == runs[line.run].shape for line in table.LINES if line.run in runs)
