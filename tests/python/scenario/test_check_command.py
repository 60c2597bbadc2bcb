"""The check command: exit codes, JSON, lists, and one clear sentence for bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mstar_resident.cli import check, main
from mstar_resident.cli.exits import UsageError
from mstar_resident.engine.scenarios import FAULTS, SCENARIOS
from mstar_resident.engine.scenarios.outcome import Outcome

KEYS = [
    "scenario",
    "steps",
    "resident_steps",
    "rows_checked",
    "mismatches",
    "displaced",
    "whole_rows",
    "crossings",
    "dropped_stages",
]


def test_a_clean_run_ends_in_0_and_writes_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "check.json"
    assert main(["check", "--scenario", "steady,two_pools", "--seed", "1", "--steps", "20", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert sorted(record) == ["cases", "commit", "machine", "schema"]
    assert record["schema"] == "mstar-resident/check/1"
    assert [case["scenario"] for case in record["cases"]] == ["steady", "two_pools"]
    for case in record["cases"]:
        assert list(case) == KEYS
        assert case["mismatches"] == 0
        assert case["rows_checked"] > 0
        assert case["steps"] >= case["resident_steps"] > 0
    assert "good steady" in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["stale-cell", "dropped-stage-sent", "padding-write"])
def test_an_injected_fault_ends_in_1_with_mismatches(fault: str, tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    arguments = ["check", "--scenario", "join_leave", "--steps", "25", "--inject", fault, "--json", str(file)]
    assert main(arguments) == 1
    (case,) = json.loads(file.read_text())["cases"]
    assert case["mismatches"] >= 1


def test_list_names_scenarios_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    said = capsys.readouterr().out
    for name in [*SCENARIOS, *FAULTS]:
        assert f"  {name} " in said
    for fault in FAULTS.values():
        assert re.search(rf"^  {fault.name} +{fault.kind} +{fault.text}$", said, re.MULTILINE)


def test_several_seeds_give_several_cases(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    assert main(["check", "--scenario", "no_table", "--seed", "3,5-6", "--steps", "5", "--json", str(file)]) == 0
    assert len(json.loads(file.read_text())["cases"]) == 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--scenario", "nothing"], "nothing"),
        (["--scenario", "steady,"], None),
        (["--scenario", ""], "''"),
        ([], "--scenario"),
        (["--scenario", "steady,no_table,steady"], "--scenario: expected some of steady"),
        (["--scenario", "steady", "--inject", "nothing"], "nothing"),
        (["--scenario", "steady", "--device", "foo"], "device: expected cpu or cuda[:N], got 'foo'"),
        (["--scenario", "steady", "--steps", "0"], "--steps"),
        (["--scenario", "steady", "--steps", "many"], "--steps"),
        (["--scenario", "steady", "--seed", "first"], "first"),
        (["--scenario", "steady", "--seed", "9-3"], "9-3"),
        (["--scenario", "steady", "--json", "/nowhere/at/all.json"], "/nowhere/at/all.json"),
        (["--scenario", "steady", "--record", "/nowhere/at/all.log"], "/nowhere/at/all.log"),
        (["--replay", "/nowhere/at/all.log"], "/nowhere/at/all.log"),
        (["--replay", "/"], "--replay: / is a folder, not an operation log"),
        (["--replay", "any.log", "--scenario", "steady"], "--scenario"),
    ],
)
def test_bad_input_ends_in_2_with_one_sentence(
    arguments: list[str], named: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if named is None:
        assert main(["check", *arguments, "--steps", "2"]) == 0  # a comma at the end is no name
        return
    assert main(["check", *arguments]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert named in said
    assert "Traceback" not in said


@pytest.mark.parametrize("scenarios", ["steady", "steady,no_table"])
def test_a_fault_that_never_acted_ends_in_3_and_says_so(
    scenarios: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "check.json"
    arguments = ["--scenario", scenarios, "--seed", "0-1", "--steps", "12", "--inject", "old-pages"]
    assert main(["check", *arguments, "--json", str(file)]) == 3
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("mstar-resident: --inject old-pages: nothing was harmed")
    assert said.endswith(f", as {scenarios} had no step that it could harm")
    assert len(json.loads(file.read_text())["cases"]) == 2 * len(scenarios.split(","))


def test_a_fault_that_acted_and_was_caught_in_one_of_several_runs_ends_in_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--scenario", "no_table,steady", "--steps", "25", "--inject", "stale-tail"]) == 1
    said = capsys.readouterr().err
    assert "did not happen: a step that stale-tail could harm" in said
    assert "caught by: " in said


def test_a_fault_that_acted_and_was_not_caught_is_not_hidden_by_a_run_in_which_it_did_not_act(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(name: str, seed: int, arguments: object) -> tuple[Outcome, bool]:
        acted = name == "steady"
        return Outcome(name, rows_checked=1, unmet=[] if acted else ["a step to harm"]), acted

    monkeypatch.setattr(check, "_run", run)
    assert main(["check", "--scenario", "no_table,steady", "--inject", "stale-tail"]) == 0


def test_seeds_are_run_one_by_one_however_many_a_range_names(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(name: str, seed: int, arguments: object) -> tuple[Outcome, bool]:
        ran.append(seed)
        if len(ran) == 3:
            raise UsageError("enough")
        return Outcome(name, rows_checked=1), False

    monkeypatch.setattr(check, "_run", run)
    assert main(["check", "--scenario", "steady", "--seed", "7,0-99999999999999999999"]) == 2
    assert ran == [7, 0, 1]


def test_no_command_and_an_unknown_command_end_in_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["serve"]) == 2
    assert "serve" in capsys.readouterr().err


def test_a_run_in_which_no_row_was_checked_is_not_good() -> None:
    assert not Outcome("empty", steps=5).good


def test_a_run_in_which_its_purpose_did_not_happen_is_not_good() -> None:
    assert Outcome("busy", rows_checked=1).good
    assert not Outcome("busy", rows_checked=1, unmet=["offloads"]).good
