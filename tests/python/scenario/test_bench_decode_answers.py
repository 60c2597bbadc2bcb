"""The decode bench compares what its arms say: a difference, or an arm that is not resident, ends in 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mstar_resident.bench.serve import Load, serve
from mstar_resident.cli import main
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.node import Node
from mstar_resident.engine.program import Program
from mstar_resident.engine.view import DecodeView
from mstar_resident.refusal import Refusal

from .test_bench_decode_command import COMMAND


def test_arms_whose_tokens_differ_end_in_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    decode = Program.decode

    def wrong(program: Program, view: DecodeView) -> None:
        decode(program, view)
        if view.lease is not None:
            view.sampled[1] = (view.sampled[1] + 1) % 509

    monkeypatch.setattr(Program, "decode", wrong)
    record = tmp_path / "decode.json"
    assert main([*COMMAND, "--concurrency", "3", "--new", "16", "--rounds", "1", "--json", str(record)]) == 1
    said = capsys.readouterr().err
    assert "tiny, arm resident at concurrency 3: token 1 of request 1 is" in said
    assert not record.exists()


def test_tokens_that_a_shorter_run_drew_in_a_smaller_batch_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decode = Program.decode

    def by_bucket(program: Program, view: DecodeView) -> None:
        decode(program, view)
        if view.bucket < 4:  # as products of other shapes round otherwise
            view.sampled.add_(1).remainder_(509)

    monkeypatch.setattr(Program, "decode", by_bucket)
    monkeypatch.setattr("mstar_resident.bench.decode.UNTIMED_NEW", 8)
    monkeypatch.setattr("mstar_resident.bench.decode.TOKEN_BUDGET", 64)  # a prompt a step
    command = [*COMMAND, "--prompt", "40", "--concurrency", "4", "--new", "16", "--rounds", "1"]
    command += ["--arms", "host,resident"]
    assert main(command) == 0, capsys.readouterr().err


def test_a_token_that_differs_in_a_timed_round_alone_ends_in_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests, calls = Load.requests, []

    def other(load: Load, vocab: int) -> Any:
        calls.append(load)
        found = requests(load, vocab)
        if len(calls) == 4:  # after a look at either arm, the first round's second arm
            found[0].prompt[0] ^= 1
        return found

    monkeypatch.setattr(Load, "requests", other)
    arguments = ["--concurrency", "2", "--new", "16", "--rounds", "2", "--arms", "resident,host"]
    assert main([*COMMAND, *arguments]) == 1
    assert "arm host at concurrency 2: token 0 of request 0" in capsys.readouterr().err
    assert len(calls) == 4


def test_a_token_behind_those_of_the_untimed_runs_is_compared_among_the_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def other(engine: Engine, load: Load) -> Any:
        served = serve(engine, load)
        calls.append(load.new)
        if len(calls) == 3:
            served.outputs[1][12] += 1
        return served

    monkeypatch.setattr("mstar_resident.bench.decode.UNTIMED_NEW", 8)
    monkeypatch.setattr("mstar_resident.bench.decode.serve", other)
    arguments = ["--concurrency", "2", "--new", "16", "--rounds", "2", "--arms", "resident,host"]
    assert main([*COMMAND, *arguments]) == 1
    assert "arm host at concurrency 2: token 12 of request 1" in capsys.readouterr().err
    assert calls == [16, 16, 16]


def test_a_resident_arm_that_is_not_resident_ends_in_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*COMMAND, "--concurrency", "2", "--new", "16", "--rounds", "1", "--arms", "resident"]
    with monkeypatch.context() as patch:
        patch.setattr(Node, "planner", lambda node, config: Refusal("kv", "it is said to be refused"))
        assert main(arguments) == 1
        assert "0 of 15 decode steps were resident, at least 95% must be" in capsys.readouterr().err

    def bucket_lost(engine: Engine) -> None:
        engine.arm.host_planned = frozenset({2})

    monkeypatch.setattr(Engine, "capture", bucket_lost)
    assert main(arguments) == 1
    assert "0 of 15 decode steps were resident" in capsys.readouterr().err
