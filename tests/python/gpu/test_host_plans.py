"""Attention that needs a host plan on a GPU: captured in both arms, planned without a wait."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mstar_resident.attention.decode_plan import PlanMode
from mstar_resident.attention.torch_planned import PlannedTorchAttention
from mstar_resident.cli.bench_host import ARMS, HostWorkload
from mstar_resident.engine import Engine, EngineConfig, PoolConfig, Request
from mstar_resident.engine.config import Planning
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig
from mstar_resident.step_guard import _set_sync_debug_mode

CONFIG = LlamaConfig(2000, 256, 2, 8, 2, 64, 512, RopeConfig(theta=1e4, rotary_dim=64))


def serve(planning: Planning, mode: PlanMode) -> tuple[Engine, list[list[int]]]:
    config = EngineConfig(
        max_batch=8,
        max_requests=12,
        pools={"kv": PoolConfig(16, 40, 256)},
        planning=planning,
        attention_plan=mode,
        check=True,
        device="cuda",
    )
    kernels = Kernels(attention=PlannedTorchAttention())
    engine = Engine(Llama.seeded(CONFIG, 3, device="cuda", kernels=kernels), config)
    engine.capture()
    draw = np.random.default_rng(5)
    requests = [
        Request(str(i), draw.integers(1, 2000, int(draw.integers(3, 90))), int(draw.integers(5, 70))) for i in range(16)
    ]
    for request in requests:
        engine.add(request)
    engine.run()
    assert engine.counters.mismatches == []
    return engine, [request.outputs for request in requests]


@pytest.mark.parametrize("mode", ["off", "on", "verify"])
def test_both_arms_give_the_same_tokens_through_kept_plans(mode: PlanMode) -> None:
    host, expected = serve("host", mode)
    resident, tokens = serve("resident", mode)
    assert tokens == expected
    assert resident.counters.resident_steps > 0
    assert host.counters.offloads > 0
    if mode != "off":
        assert resident.arm.plans.caches["kv"].spliced > 0


@pytest.mark.parametrize("arm", ARMS)
def test_preparing_a_host_planned_step_waits_for_nothing(arm: str) -> None:
    work = HostWorkload(arm, 32, 64, "cuda")
    for step in range(60):
        _set_sync_debug_mode(2)
        try:
            work.prepare(step)
        finally:
            _set_sync_debug_mode(0)
        torch.cuda.synchronize()
        work.check(step)
        work.advance()
