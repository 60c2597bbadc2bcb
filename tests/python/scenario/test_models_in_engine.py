"""Real decoders, small and seeded, through the engine: both arms say the same, and every row checks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mstar_resident.attention.torch_planned import PlannedTorchAttention
from mstar_resident.engine import Engine, EngineConfig, PoolConfig, Request, Sampling
from mstar_resident.models.base import Decoder
from mstar_resident.models.config import LlamaConfig, Qwen35Config, WhisperConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.qwen35 import Qwen35
from mstar_resident.models.rope import RopeConfig
from mstar_resident.models.whisper import Whisper

LLAMA = LlamaConfig(101, 64, 2, 4, 2, 16, 96, RopeConfig(theta=1e4, rotary_dim=16))
HYBRID = Qwen35Config(
    hidden_size=64,
    layers=4,
    heads=4,
    kv_heads=2,
    intermediate_size=96,
    value_heads=8,
    vocab_size=101,
    head_dim=32,
    key_heads=4,
    key_dim=16,
    value_dim=8,
    rope=RopeConfig(theta=1e4, rotary_dim=8),
)
WHISPER = WhisperConfig(101, 64, 2, 4, 96, max_positions=160, max_context=60)

MODELS: dict[str, Callable[[], Decoder]] = {
    "llama": lambda: Llama.seeded(LLAMA),
    "hybrid": lambda: Qwen35.seeded(HYBRID),
    "whisper": lambda: Whisper.seeded(WHISPER),
}

PLANNED: dict[str, Callable[[], Decoder]] = {
    "llama": lambda: Llama.seeded(LLAMA, kernels=Kernels(attention=PlannedTorchAttention())),
    "hybrid": lambda: Qwen35.seeded(HYBRID, kernels=Kernels(attention=PlannedTorchAttention())),
    "whisper": lambda: Whisper.seeded(WHISPER, kernels=Kernels(attention=PlannedTorchAttention())),
}


def run(
    name: str, planning: str, temperature: float, pages: int = 100, models: dict[str, Callable[[], Decoder]] = MODELS
) -> tuple[Engine, list[list[int]]]:
    rng = np.random.default_rng(5)
    pools = {"kv": PoolConfig(8, pages, 160), "self": PoolConfig(8, pages, 160), "context": PoolConfig(16, 30, 60)}
    config = EngineConfig(
        max_batch=4,
        max_requests=5,
        token_budget=32,
        min_chunk=8,
        pools=pools,
        planning=planning,  # type: ignore[arg-type]
        attention_plan="verify",
        check=True,
        debug=True,
    )
    engine = Engine(models[name](), config)
    requests = []
    for number in range(7):
        request = Request(
            str(number),
            rng.integers(0, 101, int(rng.integers(1, 70)), dtype=np.int64),
            int(rng.integers(10, 60)),
            Sampling(temperature=temperature * number, top_k=20, seed=number),
            context=torch.from_numpy(rng.standard_normal((int(rng.integers(1, 60)), 64))).float()
            if name == "whisper"
            else None,
        )
        engine.add(request)
        requests.append(request)
    engine.run()
    assert engine.counters.mismatches == []
    return engine, [request.outputs for request in requests]


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("name", MODELS)
def test_both_arms_say_the_same(name: str, temperature: float) -> None:
    host, expected = run(name, "host", temperature)
    resident, outputs = run(name, "resident", temperature)
    assert outputs == expected
    assert host.planner is None
    assert resident.counters.rows_checked > 50
    assert len({token for output in outputs for token in output}) > 5


@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_offloaded_requests_come_back_and_say_the_same(name: str) -> None:
    _, expected = run(name, "host", 0.5)
    engine, outputs = run(name, "resident", 0.5, pages=30)
    assert engine.counters.offloads > 0
    assert outputs == expected


@pytest.mark.parametrize("planning", ["host", "resident"])
@pytest.mark.parametrize("name", MODELS)
def test_attention_through_host_plans_says_the_same(name: str, planning: str) -> None:
    _, expected = run(name, "host", 0.5)
    engine, outputs = run(name, planning, 0.5, models=PLANNED)
    assert not engine.node.host_plan_free
    assert sum(cache.spliced + cache.reused for cache in engine.arm.plans.caches.values()) > 20
    assert outputs == expected
