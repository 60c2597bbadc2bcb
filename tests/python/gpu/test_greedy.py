"""Greedy tokens of both arms on the shapes of hybrid decoders, one request at a time."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch

from mstar_resident.attention.select import Backend, select_attention
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.request import Request
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.qwen35 import SHAPES, Qwen35

NEW = 128


@pytest.mark.parametrize("backend", ["triton", "flashinfer"])
@pytest.mark.parametrize("shape", ["0.8b", "2b"])
def test_hybrid_shapes_answer_the_same_in_both_arms(shape: str, backend: Backend) -> None:
    if backend == "flashinfer":
        pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    c, bf16 = SHAPES[shape], torch.bfloat16
    attention = select_attention(backend, c.heads, c.kv_heads, c.head_dim, 16, bf16, "cuda")
    model = Qwen35.seeded(c, 11, device="cuda", dtype=bf16, kernels=Kernels.triton(attention))
    draw = np.random.default_rng(4)
    prompts = [draw.integers(1, model.vocab_size, int(draw.integers(4, 60))) for _ in range(32)]
    answers = {}
    for planning in ("resident", "host"):
        config = EngineConfig(
            max_batch=1,
            max_requests=4,
            recurrent_states=4,
            pools={"kv": PoolConfig(16, 64, 512)},
            device="cuda",
            dtype=torch.bfloat16,
            planning=planning,  # type: ignore[arg-type]
            shadow=planning == "resident",
        )
        engine = Engine(model, config)
        report = engine.capture()
        requests = [Request(str(number), prompt, NEW) for number, prompt in enumerate(prompts)]
        for request in requests:
            engine.add(request)
            engine.run()
        answers[planning] = [request.outputs for request in requests]
        assert engine.counters.mismatches == []
        if planning == "resident":
            assert report.host_plan_free
            assert engine.counters.resident_steps == engine.counters.decode_steps >= 32 * (NEW - 1)
    assert answers["resident"] == answers["host"]
    assert statistics.median(len(set(tokens)) for tokens in answers["resident"]) >= 32
