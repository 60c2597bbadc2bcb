"""The generate command: text from the real model, a report, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mstar_resident.cli import main
from mstar_resident.models import smollm2

PROMPT = "Name three rivers and say one sentence about each."
KEYS = {
    "prompt",
    "text",
    "prompt_tokens",
    "new_tokens",
    "stopped_by",
    "steps",
    "decode_steps",
    "resident_steps",
    "whole_rows",
    "crossings",
    "bytes_sent",
    "plan_us_per_step",
    "rows_checked",
    "mismatches",
}


@pytest.fixture(scope="module", autouse=True)
def model() -> None:
    try:
        smollm2.ensure()
    except smollm2.ModelMissingError as error:
        pytest.skip(str(error))


def test_text_is_streamed_checked_and_the_same_without_planning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {mode: tmp_path / f"{mode}.json" for mode in ("auto", "off")}
    said = {}
    for mode, file in files.items():
        arguments = ["generate", PROMPT, "--planning", mode, "--check", "--max-new", "40", "--json", str(file)]
        assert main(arguments) == 0
        said[mode] = capsys.readouterr().out
    cases = {mode: json.loads(file.read_text())["cases"][0] for mode, file in files.items()}
    for mode, case in cases.items():
        assert set(case) == KEYS
        assert said[mode].startswith(case["text"] + "\n")
        assert said[mode].rstrip().endswith("mismatches: 0")
    resident, host = cases["auto"], cases["off"]
    assert resident["text"] == host["text"]
    assert len(resident["text"]) > 20
    assert resident["rows_checked"] == resident["resident_steps"] == resident["decode_steps"] > 10
    assert resident["whole_rows"] == 1
    assert resident["crossings"] >= 1
    assert resident["bytes_sent"] > 0
    assert host["resident_steps"] == host["rows_checked"] == host["bytes_sent"] == 0
    assert "host-planned, resident_planning: it is off" in said["off"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-batch", "0"], "max_batch"),
        (["--page-size", "0"], "page_size"),
        (["--max-new", "0"], "--max-new"),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--json", "no/such/folder/file.json"], "no/such/folder"),
        (["--planning", "maybe"], "maybe"),
        (["--device", "foo"], "device: expected cpu or cuda[:N], got 'foo'"),
        (["--temperature", "-1"], "temperature: expected at least 0, got -1.0"),
        (["--temperature", "nan"], "temperature: expected at least 0, got nan"),
        (["--top-p", "0"], "top_p: expected above 0 and at most 1, got 0.0"),
        (["--top-k", "-2"], "top_k: expected at least 0, got -2"),
    ],
)
def test_bad_input_ends_in_2_with_one_sentence(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "hello", *arguments]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert named in said[-1]
    assert "loading the model" not in said


def test_a_missing_model_ends_in_2_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Path:
        raise smollm2.ModelMissingError("the model's package is not installed")

    monkeypatch.setattr(smollm2, "ensure", missing)
    assert main(["generate", "hello"]) == 2
    assert capsys.readouterr().err.endswith("mstar-resident: the model's package is not installed\n")


def test_a_bad_knob_in_the_environment_ends_in_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MSTAR_RESIDENT_PLANNING", "sometimes")
    assert main(["generate", "hello"]) == 2
    assert "sometimes" in capsys.readouterr().err
