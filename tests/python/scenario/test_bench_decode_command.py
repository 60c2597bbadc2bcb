"""The decode bench: what it leaves behind, what it refuses to measure, and one clear sentence for bad input."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from mstar_resident.bench.decode import DecodeBench
from mstar_resident.bench.growth import measure_growth
from mstar_resident.bench.serve import OUTSIDE, Load, TooShortError, serve
from mstar_resident.bench.shapes import SHAPES
from mstar_resident.cli import main
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.plan import StepPlan

COMMAND = ["bench", "decode", "--shape", "tiny", "--device", "cpu", "--prompt", "12"]
KEYS = [
    "shape",
    "arm",
    "concurrency",
    "bucket",
    "attention",
    "host_plan_free",
    "prompt",
    "new",
    "rounds",
    "device",
    "dtype",
    "page_size",
    "columns",
    "weight_bytes",
    "weight_floor_us",
    "tok_s",
    "ratio",
    "ratio_to",
    "served_tok_s",
    "itl_us_p50",
    "itl_us_mean",
    "itl_us_p99",
    "ttft_us_p50",
    "step_us",
    "window_steps",
    "host_us",
    "prepare_us",
    "phases_us",
    "resident_share",
    "graph_us",
    "between_us",
    "replay_us",
    "bare_replay_us",
    "graph_growth_us",
    "planner_copies_per_step",
    "planner_bytes_per_step",
    "silent_share",
    "whole_rows",
    "crossings",
    "displaced",
    "distinct_tokens",
    "profiled_steps",
    "graph_span_us",
    "idle_us",
    "idle_busy_us",
    "h2d_copies_per_step",
    "h2d_bytes_per_step",
]
#: Read off a profile of a device, which a CPU's run has not.
PROFILED = {"graph_span_us", "idle_us", "idle_busy_us", "h2d_copies_per_step", "h2d_bytes_per_step"}
#: Only the resident arm has a planner that counts.
PLANNED = {
    "replay_us",
    "bare_replay_us",
    "graph_growth_us",
    "planner_copies_per_step",
    "planner_bytes_per_step",
    "silent_share",
    "whole_rows",
    "crossings",
    "displaced",
}


@pytest.fixture
def tiny() -> DecodeBench:
    return DecodeBench(SHAPES["tiny"], ["resident"], [3], 12, 24, "cpu")


def test_a_run_leaves_a_case_per_concurrency_and_arm_a_plot_and_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {kind: tmp_path / f"decode.{kind}" for kind in ("json", "svg", "trace")}
    arguments = ["--json", str(files["json"]), "--plot", str(files["svg"]), "--trace", str(files["trace"])]
    assert main([*COMMAND, "--concurrency", "1,3", "--new", "24", "--rounds", "2", *arguments]) == 0
    record = json.loads(files["json"].read_text())
    assert record["schema"] == "mstar-resident/bench-decode/1"
    arms = ["host", "resident", "off"]
    assert [(c["concurrency"], c["arm"]) for c in record["cases"]] == [(n, arm) for n in (1, 3) for arm in arms]
    for case in record["cases"]:
        _check_case(case)
    said = capsys.readouterr().out
    assert "tiny on cpu: prompt 12, 24 new, 2 rounds; pages of 16, 256 columns" in said
    ElementTree.fromstring(files["svg"].read_text())
    _check_trace(json.loads(files["trace"].read_text())["traceEvents"])


def _check_case(case: dict[str, Any]) -> None:
    assert list(case) == KEYS
    resident = case["arm"] == "resident"
    assert {key for key, value in case.items() if value is None} == PROFILED | (set() if resident else PLANNED)
    assert case["resident_share"] == (1.0 if resident else 0.0)
    for value in case.values():
        if isinstance(value, dict) and "median" in value:
            assert value["min"] <= value["median"] <= value["max"]
    assert case["step_us"]["min"] <= case["itl_us_mean"]["median"] <= case["step_us"]["max"]
    # A token a request and step: the rate and the step's time are two sides of one measurement.
    assert case["tok_s"]["max"] * case["step_us"]["min"] == pytest.approx(1e6 * case["concurrency"])
    assert case["graph_us"]["min"] > 0
    assert case["between_us"]["min"] > 0
    assert 0 < case["prepare_us"]["median"] <= case["host_us"]["max"]
    assert case["distinct_tokens"] > 8
    if resident:
        assert case["whole_rows"] == case["concurrency"]
        assert case["displaced"] == 0
        assert case["crossings"] == case["concurrency"] * 2  # tokens 16 and 32
        assert case["silent_share"] > 0.5
        assert {"plan", "flush", "launch", "commit"} <= set(case["phases_us"])
        assert "fresh plan" not in case["phases_us"]  # every step of the window was staged ahead
    if case["arm"] == "host":
        assert case["ratio"] == {"median": 1.0, "min": 1.0, "max": 1.0}


def _check_trace(events: list[dict[str, Any]]) -> None:
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(names.values()) == [f"tiny, {arm}, 1 rows: host" for arm in ("host", "resident", "off")]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {"engine"}
    for pid, name in names.items():
        spans = [event for event in events if event["ph"] == "X" and event["pid"] == pid]
        phases = {event["name"] for event in spans}
        assert {"step", "admit", "plan", "launch", "read"} <= phases, name
        assert ("flush" in phases) == ("resident" in name)
        steps = [event for event in spans if event["name"] == "step"]
        assert len(steps) == 24 - OUTSIDE
        assert min(event["ts"] for event in spans) == 0
        launch = next(event for event in spans if event["name"] == "launch")
        assert any(s["ts"] <= launch["ts"] and launch["ts"] + launch["dur"] <= s["ts"] + s["dur"] for s in steps)


def test_what_a_profile_tells_of_the_device_is_filled_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def kernel(begin: float, launch: int) -> dict[str, Any]:
        args = {"correlation": launch}
        return {"ph": "X", "cat": "kernel", "name": "k", "ts": begin, "dur": 40.0, "pid": 0, "tid": 7, "args": args}

    def profiled(engine: Engine, load: Load) -> Any:
        idle = 60 if engine.planner is None else 5
        steps = [[kernel(n * (100 + idle), n), kernel(n * (100 + idle) + 60, n)] for n in range(1, 9)]
        return serve(engine, load), [event for step in steps for event in step]

    monkeypatch.setattr("mstar_resident.bench.decode.profile_steps", profiled)
    files = [tmp_path / "decode.json", tmp_path / "trace.json.gz"]
    arguments = ["--concurrency", "1,2", "--new", "16", "--rounds", "1", "--arms", "resident,host", "--page-size", "8"]
    arguments += ["--profile", "2"]
    assert main([*COMMAND, *arguments, "--json", str(files[0]), "--trace", str(files[1])]) == 0
    cases = json.loads(files[0].read_text())["cases"]
    assert [case["idle_us"] and case["idle_us"]["median"] for case in cases] == [None, None, 5, 60]
    assert [case["profiled_steps"] for case in cases] == [0, 0, 2, 2]
    assert cases[2]["graph_span_us"] == {"median": 100, "min": 100, "max": 100}
    assert "5.0 (5.0-5.0)" in capsys.readouterr().out
    assert {(case["page_size"], case["columns"]) for case in cases} == {(8, 512)}
    events = json.loads(gzip.decompress(files[1].read_bytes()))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"tiny, resident, 2 rows: device", "tiny, host, 2 rows: device", "cuda_stream 7"} <= names


def test_every_figure_of_a_case_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs/bench.md").read_text()
    assert [key for key in KEYS if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--shape", "80b"], "--shape: expected one of 0.8b, 2b, 4b, 9b, qwen3-0.6b, narrow, tiny"),
        (["--shape", ""], "--shape"),
        (["--arms", "host,guest"], "--arms: expected some of host, resident, off"),
        (["--arms", "host,host"], "--arms"),
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "1,,2"], "--concurrency"),
        (["--concurrency", "many"], "'many'"),
        (["--rounds", "0"], "--rounds"),
        (["--prompt", "0"], "--prompt"),
        (["--new", "-3"], "--new"),
        (["--page-size", "0"], "--page-size: expected at least 1"),
        (["--new", "5000"], "tiny has room for 4096 tokens"),
        (["--new", "4"], "--new 4 leaves no step in which all 1 requests decode"),
        (["--device", "tpu"], "--device: expected cpu or cuda, got 'tpu'"),
        (["--json", "/nowhere/at/all.json"], "--json: cannot write /nowhere/at/all.json"),
        (["--plot", "/nowhere/at/all.svg"], "--plot: cannot write"),
        (["--trace", "/nowhere/at/all.json"], "--trace: cannot write"),
        (["--profile", "2"], "--profile: expected some of 1"),
        (["--plot", "plot.png"], "--plot: expected a file that ends in .svg"),
    ],
)
def test_bad_input_ends_in_2_with_one_sentence(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "--concurrency", "1", "--rounds", "1", *arguments]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert named in said
    assert "Traceback" not in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_the_default_device_is_cuda_and_its_lack_ends_in_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode"]) == 2
    assert "--device cuda: this machine has no CUDA device" in capsys.readouterr().err


def test_every_request_gets_a_token_in_every_step_that_is_measured(tiny: DecodeBench) -> None:
    (engine,) = tiny.engines.values()
    served = serve(engine, Load(3, 12, 24))
    assert served.steps == 24 - OUTSIDE == len(served.intervals_ns)
    assert all(len(tokens) == 24 for tokens in served.outputs)
    assert 0 < min(served.ttft_ns) <= max(served.ttft_ns) < served.total_ns
    assert served.resident_steps == served.decode_steps == 23
    # The host's phases leave out no more than the calls themselves between the stamps.
    assert 0.5 * sum(served.intervals_ns) < sum(served.phases_ns.values()) <= sum(served.intervals_ns)


def test_every_step_that_is_measured_launches_and_stages_all_rows_and_writes_none_whole(
    tiny: DecodeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine,) = tiny.engines.values()
    seen: list[int] = []

    def note(name: str) -> None:
        inner = getattr(engine.arm, name)

        def noted(plan: StepPlan | None, buffer_idx: int) -> Any:
            seen.append(len(plan.requests) if plan is not None else 0)
            return inner(plan, buffer_idx)

        monkeypatch.setattr(engine.arm, name, noted)

    def window(engine: Engine, steps: int) -> None:
        note("decode")
        note("stage_ahead")
        for _ in range(steps):
            engine.step()
        monkeypatch.undo()

    served = serve(engine, Load(3, 12, 24), window)
    assert seen == [3, 3] * served.steps
    sent = served.planner_window
    assert sent["whole_rows"] == 0
    # Both buffers have the rows' slots: a crossing's cells row is all that is sent.
    assert sent["copies"] == sent["crossings"] / 3 == 2


def test_requests_that_begin_apart_shorten_the_window(tiny: DecodeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mstar_resident.bench.decode.TOKEN_BUDGET", 12)
    apart = DecodeBench(SHAPES["tiny"], ["resident"], [3], 70, 24, "cpu").engines["resident"]
    served = serve(apart, Load(3, 70, 24))
    assert served.steps < 24 - OUTSIDE
    assert len(served.intervals_ns) == served.steps
    with pytest.raises(TooShortError, match="pass between the first tokens"):
        serve(apart, Load(3, 70, OUTSIDE + 1))


def test_a_window_that_is_not_what_it_says_is_refused(tiny: DecodeBench) -> None:
    (engine,) = tiny.engines.values()
    with pytest.raises(RuntimeError, match="0 tokens in 20 steps of 3 rows"):
        serve(engine, Load(3, 12, 24), lambda engine, steps: None)


def test_pages_that_run_short_are_no_run_to_compare() -> None:
    bench = DecodeBench(SHAPES["tiny"], ["host"], [2], 12, 24, "cpu")
    engine = bench.engines["host"]
    engine.streams["kv"].pool.take(engine.streams["kv"].pool.free - 4)
    with pytest.raises((RuntimeError, TooShortError)):
        serve(engine, Load(2, 12, 24))


def test_measuring_the_prologue_leaves_the_rows_as_they_were(tiny: DecodeBench) -> None:
    (engine,) = tiny.engines.values()
    first = serve(engine, Load(3, 12, 24))
    assert engine.planner is not None
    before = engine.planner.store.narrow.clone()
    growth = measure_growth(engine, 3)
    assert growth is not None
    assert len(growth.added_us) == len(growth.resident_us) == len(growth.bare_us) > 0
    assert min(growth.resident_us + growth.bare_us) > 0
    assert torch.equal(engine.planner.store.narrow, before)
    assert serve(engine, Load(3, 12, 24)).outputs == first.outputs


def test_a_step_streams_every_weight_but_an_embedding_table_apart() -> None:
    model = SHAPES["tiny"].build("cpu")
    config = SHAPES["tiny"].config
    layers = model.streamed_bytes() - 4 * config.hidden_size * (config.vocab_size + 1)
    assert layers > 0
    assert layers % 4 == 0
    assert 4 * 64 * 509 < model.streamed_bytes() < 4 * 2_000_000
