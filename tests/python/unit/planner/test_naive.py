"""The NumPy planner against a loop per row, and what the bench makes of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from mstar_resident import Column, KVTable, RowLayout
from mstar_resident.cli import bench_plan, main
from mstar_resident.naive import NaivePlanner

LAYOUT = RowLayout(
    [KVTable("kv", 4, 60, 40), KVTable("context", 2, 60, 12, span=0)],
    [Column("position_offset", "position", "kv"), Column("recurrent_index", "index")],
)


@pytest.mark.parametrize("seed", range(5))
def test_the_numpy_planner_matches_a_loop_per_row(seed: int) -> None:
    draw, planner = random.Random(seed), NaivePlanner(LAYOUT, 9)
    streams = [(draw.sample(range(1, 61), 9), draw.sample(range(1, 61), 6)) for _ in range(9)]
    for request, (kv, context) in enumerate(streams):
        planner.set_stream(request, 0, kv, draw.randrange(30))
        planner.set_stream(request, 1, context, draw.randrange(13))
        planner.values[:, request] = (draw.randrange(-5, 5), draw.randrange(1, 9))
    for _ in range(5):
        rows = draw.sample(range(9), 5)
        before = planner.stored.copy()
        step = planner.plan(np.array(rows), 6)
        for index, request in enumerate(rows):
            stored, context = int(before[0, request]), int(before[1, request])
            offset, recurrent_index = planner.values[:, request].tolist()
            assert [lengths[index] for lengths in step.lengths] == [stored + 1, context]
            assert step.write_loc[0] is not None
            assert step.write_loc[0][index] == streams[request][0][stored // 4] * 4 + stored % 4
            assert [column[index] for column in step.columns] == [stored + offset, recurrent_index]
            assert step.tables[0][index].tolist() == streams[request][0] + [0]
        assert [out[5] for out in (*step.lengths, step.write_loc[0], *step.columns)] == [1, 1, 0, 0, 0]
        assert step.write_loc[1] is None
        assert not step.tables[0][5].any()
        planner.commit(np.array(rows))
        assert (planner.stored - before)[0].tolist() == [int(request in rows) for request in range(9)]
        assert not (planner.stored - before)[1].any()


@pytest.mark.parametrize("case", bench_plan.CASES)
def test_every_case_of_the_bench_checks_its_answer_and_does_what_it_says(case: str) -> None:
    record = bench_plan.run_case(case, 3, 20)
    assert list(record) == ["rows", "case", "core_ns_p50", "python_us_p50", "naive_us_p50", "bytes"]
    assert min(record["core_ns_p50"], record["python_us_p50"], record["naive_us_p50"]) > 0
    assert (record["bytes"] == 0) == (case == "steady")


def test_a_bench_whose_planners_differ_ends_in_exit_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(NaivePlanner, "commit", lambda self, rows: None)  # the baseline loses its advance
    assert main(["bench", "plan", "--rows", "2", "--cases", "steady", "--steps", "5"]) == 1
    assert "attention lengths of step 1 differ from the NumPy planner's" in capsys.readouterr().err


def test_the_bench_leaves_one_json_object(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert main(["bench", "plan", "--rows", "1,2", "--cases", "steady", "--steps", "5", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert set(record) == {"schema", "machine", "commit", "cases"}
    assert [(case["case"], case["rows"]) for case in record["cases"]] == [("steady", 1), ("steady", 2)]


@pytest.mark.parametrize(
    "wrong",
    ["--rows=0", "--rows=a", "--rows=", "--cases=fast", "--steps=0", "--columns=1", "--rows=513", "--steps=2001"],
)
def test_a_wrong_argument_of_the_bench_ends_in_exit_two(wrong: str) -> None:
    assert main(["bench", "plan", wrong]) == 2


def test_missed_bounds_are_named() -> None:
    slow = {"case": "steady", "core_ns_p50": 900.0, "python_us_p50": 4.0, "naive_us_p50": 50.0, "bytes": 0.0}
    cases = [{**slow, "rows": 1, "core_ns_p50": 100.0}, {**slow, "rows": 64}, {**slow, "rows": 256}]
    missed = bench_plan.missed_bounds(cases)
    assert len(missed) == 6
    assert not bench_plan.missed_bounds([{**slow, "rows": 64, "core_ns_p50": 100.0, "python_us_p50": 1.0}])
