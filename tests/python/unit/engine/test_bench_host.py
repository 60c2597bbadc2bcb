"""The bench of the host-planned arm checks what it times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mstar_resident.attention.decode_plan import DecodePlanCache
from mstar_resident.cli import bench_host, bench_plan, main
from mstar_resident.cli.bench_host import ARMS, WrongPreparation, run_case


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("rows", [1, 5, 130])
def test_every_arm_prepares_what_a_loop_over_its_rows_gives(arm: str, rows: int) -> None:
    case = run_case(arm, rows, 30)
    assert 0 < case["us_p50"] <= case["us_p99"]


def test_a_wrong_preparation_ends_in_exit_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    splice = DecodePlanCache._splice
    monkeypatch.setattr(DecodePlanCache, "_splice", lambda cache, last: splice(cache, last + 1))
    with pytest.raises(WrongPreparation, match="last page lengths"):
        run_case("kept plan", 4, 10)
    assert main(["bench", "host", "--rows", "4", "--steps", "5"]) == 1
    assert "differ from a loop over the rows" in capsys.readouterr().err


def test_the_bench_leaves_one_json_object(tmp_path: Path) -> None:
    file = tmp_path / "host.json"
    assert main(["bench", "host", "--rows", "1,3", "--steps", "5", "--json", str(file)]) == 0
    cases = json.loads(file.read_text())["cases"]
    assert [(case["arm"], case["rows"]) for case in cases] == [(arm, rows) for arm in ARMS for rows in (1, 3)]


@pytest.mark.parametrize("wrong", ["--rows=0", "--steps=0", "--device=tpu"])
def test_a_wrong_argument_ends_in_exit_two(wrong: str) -> None:
    assert main(["bench", "host", wrong]) == 2


@pytest.mark.parametrize("bench", [bench_host, bench_plan])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--json", "/nowhere/at/all.json"], "--json: cannot write /nowhere/at/all.json"),
        (["--rows", "1,4,1"], "--rows: expected comma-separated ints from 1 to 512, each once, got '1,4,1'"),
    ],
)
def test_what_is_refused_is_refused_before_anything_is_timed(
    bench: Any, wrong: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "run_case", lambda *_: pytest.fail("a case ran"))
    assert main(["bench", bench.__name__.rpartition("_")[2], *wrong]) == 2
    assert said in capsys.readouterr().err
