"""What one GPU can show of ranks that share a model: a captured step exchanges over NCCL, with a world of one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist

from mstar_resident.bench.shapes import TINY
from mstar_resident.engine.config import EngineConfig, PoolConfig
from mstar_resident.engine.engine import Engine
from mstar_resident.engine.ranks import Leader, TorchGroup
from mstar_resident.engine.request import Request
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.qwen35 import Qwen35
from mstar_resident.models.shard import TorchShard
from mstar_resident.models.sharded import ShardedQwen35

BF16 = torch.bfloat16


@pytest.fixture
def world_of_one() -> Iterator[None]:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


class Counted(TorchShard):
    """Count the sums that are asked for."""

    sums = 0

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        self.sums += 1
        return super().sum(part)


def tokens(engine: Engine) -> list[list[int]]:
    draw = np.random.default_rng(2)
    requests = [Request(str(n), draw.integers(1, TINY.vocab_size, 5 + 3 * n), 40) for n in range(4)]
    for request in requests:
        engine.add(request)
    engine.run()
    assert engine.counters.mismatches == []
    return [request.outputs for request in requests]


@pytest.mark.usefixtures("world_of_one")
def test_captured_steps_exchange_over_nccl_and_say_what_the_whole_model_says() -> None:
    config = EngineConfig(
        max_batch=4, pools={"kv": PoolConfig(16, 64, 256)}, device="cuda", dtype=BF16, check=True, least_resident=0.9
    )
    whole = Engine(Qwen35.seeded(TINY, 5, device="cuda", dtype=BF16, kernels=Kernels.triton()), config)
    whole.capture()
    shard = Counted()
    part = ShardedQwen35.seeded_part(TINY, shard, 5, device="cuda", dtype=BF16, kernels=Kernels.triton())
    group = TorchGroup()
    leader = Leader(part, config, group)
    leader.capture()
    assert leader.graphs is not None
    assert leader.graphs.failed == {}
    asked = shard.sums
    assert asked >= 2 * TINY.layers
    expected = tokens(whole)
    assert tokens(leader) == expected
    eager = leader.counters.steps - leader.counters.decode_steps
    assert shard.sums - asked == 2 * TINY.layers * eager  # the captured steps replay theirs
    leader.finish()
    group.leave(leader)  # which would wait for ever if it left the graphs
