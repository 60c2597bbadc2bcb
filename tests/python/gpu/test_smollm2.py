"""The real model on a GPU: greedy tokens of both arms, in captured graphs."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama

from ..scenario.test_greedy_equality import folder, prompts  # noqa: F401  (fixtures)

NEW = 128


@pytest.mark.parametrize("at_once", [1, 8])
def test_the_real_model_answers_the_same_in_both_arms(
    folder: Path,  # noqa: F811
    prompts: list[np.ndarray],  # noqa: F811
    at_once: int,
) -> None:
    model = Llama.from_directory(folder, device="cuda", dtype=torch.bfloat16, kernels=Kernels.triton())
    answers = {}
    for planning in ("resident", "host"):
        config = EngineConfig(
            max_batch=8,
            max_requests=at_once,
            pools={"kv": PoolConfig(16, 300, 1024)},
            device="cuda",
            dtype=torch.bfloat16,
            planning=planning,  # type: ignore[arg-type]
            shadow=planning == "resident",
        )
        engine = Engine(model, config)
        engine.capture()
        requests = [Request(str(number), prompt, NEW) for number, prompt in enumerate(prompts)]
        for request in requests:
            engine.add(request)
        engine.run()
        assert engine.counters.mismatches == []
        if planning == "resident":
            assert engine.counters.resident_steps >= 0.95 * engine.counters.decode_steps > 0
        answers[planning] = [request.outputs for request in requests]
    assert answers["resident"] == answers["host"]
    assert statistics.median(len(set(tokens)) for tokens in answers["resident"]) >= 32
