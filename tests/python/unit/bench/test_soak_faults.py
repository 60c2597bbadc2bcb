"""The soak's faults and GPU cases: what was not caught, not run or skipped ends in exit 1 and stands in the record."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mstar_resident.engine.scenarios import FAULTS

FOLDER = Path(__file__).parents[4] / "benches" / "gpu"
CAUGHT = "     caught by: row check 3\n"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("soak_faults")


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *more: Any) -> tuple[int, dict[str, Any]]:
    monkeypatch.setattr(sys, "argv", ["soak", "--json", str(folder / "record.json")])
    status = module.main(*more)
    return status, json.loads((folder / "record.json").read_text(encoding="utf-8"))["cases"][0]


@pytest.mark.parametrize(
    ("exits", "said", "good"), [(1, CAUGHT, True), (0, CAUGHT, False), (3, "", False), (1, "", False)]
)
def test_a_fault_is_caught_if_it_ends_in_exit_1_and_names_what_caught_it(
    faults: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exits: int, said: str, good: bool
) -> None:
    def ended(command: list[str], **options: Any) -> Any:
        late = command[-1] == "old-pages"
        return subprocess.CompletedProcess(command, exits if late else 1, "", said if late else CAUGHT)

    monkeypatch.setattr(faults, "subprocess", SimpleNamespace(run=ended, DEVNULL=subprocess.DEVNULL))
    status, case = run(faults, monkeypatch, tmp_path)
    assert (status, case["faults"], case["caught"]) == (int(not good), len(FAULTS), len(FAULTS) - (not good))
    assert case["kinds"] == len({fault.kind for fault in FAULTS.values()}) - (not good)


@pytest.mark.slow
def test_a_fault_is_injected_in_a_process_of_its_own(faults: ModuleType) -> None:
    found = faults.inject("stale-cell", "cpu")
    assert (found["exit"], found["caught"], found["kind"]) == (1, True, "stale")


def test_a_skipped_test_is_not_a_passed_one(
    faults: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cases = importlib.import_module("soak_cases")

    def ended(command: list[str], **options: Any) -> Any:
        report = next(part for part in command if part.startswith("--junitxml=")).partition("=")[2]
        tests = '<testcase classname="a" name="good"/><testcase classname="a" name="left"><skipped/></testcase>'
        Path(report).write_text(f"<testsuites><testsuite>{tests}</testsuite></testsuites>", encoding="utf-8")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(cases, "subprocess", SimpleNamespace(run=ended))
    status, case = run(cases, monkeypatch, tmp_path)
    assert (status, case["passed"], case["skipped"], case["unmet"]) == (1, 1, 1, ["a.left: skipped"])


def test_every_file_of_cases_is_there(faults: ModuleType) -> None:
    cases = importlib.import_module("soak_cases")
    assert all((cases.FOLDER / name).is_file() for name in cases.FILES)
