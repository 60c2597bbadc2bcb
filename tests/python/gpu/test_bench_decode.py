"""The decode bench on a GPU: what only a device has."""

from __future__ import annotations

import json
from pathlib import Path

from mstar_resident.cli import main


def test_a_run_times_graphs_and_reads_idle_time_and_copies_off_a_profile(tmp_path: Path) -> None:
    files = {kind: tmp_path / f"decode.{kind}" for kind in ("json", "svg", "trace")}
    arguments = ["--json", str(files["json"]), "--plot", str(files["svg"]), "--trace", str(files["trace"])]
    load = ["--shape", "tiny", "--concurrency", "1,8", "--prompt", "40", "--new", "120", "--rounds", "2"]
    assert main(["bench", "decode", *load, *arguments]) == 0
    for case in json.loads(files["json"].read_text())["cases"]:
        assert case["device"] == "cuda"
        assert case["profiled_steps"] > 90
        assert case["graph_us"]["median"] > 0
        assert case["graph_span_us"]["median"] > 0
        assert 0 <= case["idle_busy_us"]["median"] <= case["idle_us"]["median"] + 1e-3
        if case["arm"] == "resident":
            assert case["graph_growth_us"] is not None
            assert case["h2d_bytes_per_step"] <= 2 * case["planner_bytes_per_step"] + 64
        else:
            assert case["h2d_copies_per_step"] >= 1
    events = json.loads(files["trace"].read_text())["traceEvents"]
    named = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"engine", "tiny, resident, 1 rows: host", "tiny, resident, 1 rows: device"} <= named
    assert {"flush", "launch", "commit"} <= {event["name"] for event in events if event["ph"] == "X"}
