"""The bench of ranks that share a model, small and over gloo: what it leaves, and what ends it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rank_support import torchrun

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "benches" / "gpu" / "bench_tp.py"
SMALL = [
    *("--shape", "narrow", "--device", "cpu", "--concurrency", "2", "--captures", "3", "--page-size", "16"),
    *("--prompt", "12", "--new", "14", "--rounds", "1", "--rows", "8", "--steps", "70"),
]


@pytest.mark.slow
def test_every_rank_is_timed_and_proved_and_rank_0_leaves_the_record(tmp_path: Path) -> None:
    file = tmp_path / "tp.json"
    ran = torchrun(2, str(BENCH), *SMALL, "--json", str(file))
    assert ran.returncode == 0, ran.stderr[-3000:]
    memory, host, resident, shadow, row = json.loads(file.read_text())["cases"]
    assert [of_rank["plan"]["rank"] for of_rank in memory["by_rank"]] == [0, 1]
    for case in (host, resident):
        assert case["ranks"] == 2
        assert case["tokens_equal"]
        assert case["tok_s"]["median"] > 0
        for number, of_rank in enumerate(case["by_rank"]):
            assert of_rank["rank"] == number
            assert of_rank["step_us"]["median"] >= of_rank["graph_us"]["median"] > 0
    assert resident["resident_share"] == 1
    assert resident["ratio_to"] == "host"
    for case in (shadow, row):
        assert case["proved"]
        assert [(r["resident_steps"] >= 70, r["rows_checked"] >= 560, r["mismatches"]) for r in case["by_rank"]] == [
            (True, True, 0)
        ] * 2


@pytest.mark.slow
def test_a_wrong_cell_on_one_rank_ends_the_bench_in_1(tmp_path: Path) -> None:
    file = tmp_path / "tp.json"
    ran = torchrun(2, str(BENCH), *SMALL, "--parts", "row", "--inject", "1", "--json", str(file))
    assert ran.returncode == 1
    assert "wrong: row, rank 1:" in ran.stderr
    (case,) = json.loads(file.read_text())["cases"]
    assert not case["proved"]
    assert [rank["mismatches"] > 0 for rank in case["by_rank"]] == [False, True]
    assert "kv" in case["by_rank"][1]["first_mismatches"][0]


def alone(monkeypatch: pytest.MonkeyPatch, file: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    monkeypatch.syspath_prepend(str(BENCH.parent))
    bench = importlib.import_module("bench_tp")
    options = [*SMALL, "--alone", "--ranks", "4", "--json", str(file), *more]
    monkeypatch.setattr(sys, "argv", ["bench_tp", *options])
    return bench.main(), json.loads(file.read_text())["cases"]


def test_a_share_alone_is_timed_beside_its_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, (memory, host, resident, shadow) = alone(monkeypatch, tmp_path / "share.json", "--parts", "time,shadow")
    assert status == 0
    assert memory["by_rank"][0]["plan"]["heads"] == [0, 6]
    assert (host["ranks"], host["alone"], host["graph_growth_us"]) == (4, True, None)
    assert resident["graph_growth_us"] is not None
    assert shadow["proved"]


def test_arms_that_say_other_tokens_end_the_bench_in_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH.parent))
    place = importlib.import_module("tp_ranks").Place
    build = place.engine

    def other(self: Any, model: Any, config: Any, **arguments: Any) -> Any:
        engine = build(self, model, config, **arguments)
        if config.planning == "resident":
            engine.model._head = engine.model._head.flip(0)
        return engine

    monkeypatch.setattr(place, "engine", other)
    status, cases = alone(monkeypatch, tmp_path / "share.json", "--parts", "time")
    assert status == 1
    assert [case["tokens_equal"] for case in cases[1:]] == [False, False]
    assert "wrong: resident at 2: tokens differ between runs or arms" in capsys.readouterr().err


def test_the_script_runs_what_the_machine_has_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "mstar_resident-0-py3-none-any.whl").touch()
    stub = tmp_path / "python3"
    stub.write_text('#!/bin/sh\ncase "$*" in *device_count*) echo "$DEVICES";; *bench_tp*) echo "ran $*";; esac\n')
    stub.chmod(0o755)

    def run(devices: int, **more: str) -> str:
        path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
        environment = os.environ | {"PATH": path, "DEVICES": str(devices), "RECORDS": str(tmp_path)} | more
        command = [str(ROOT / "scripts" / "gpu-bench-tp"), str(tmp_path)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    four, two, one, chosen = run(4), run(2), run(1), run(4, SHAPE="9b")
    assert "--nproc-per-node 4 benches/gpu/bench_tp.py --shape 27b --steps 5000" in four
    assert "left out: 9b on two devices" in four
    assert "--nproc-per-node 2 benches/gpu/bench_tp.py --shape 9b --steps 10000" in two
    assert "left out: 27b on four devices" in two
    assert "--alone --ranks 4 --shape 27b" in one
    assert "--alone --ranks 2 --shape 9b" in one
    assert "left out: 9b on two devices, 27b on four" in one
    assert "--shape 9b" in chosen
    assert "bench_tp.py --shape 27b" not in chosen
    with pytest.raises(subprocess.CalledProcessError) as short:
        run(2, SHAPE="27b")
    assert (short.value.returncode, "27b is for four devices, this machine has 2" in short.value.stderr) == (2, True)
