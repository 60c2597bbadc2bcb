"""What a rank's share of a hybrid decoder takes, worked out without a device and without the memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mstar_resident.engine.config import EngineConfig
from mstar_resident.engine.node import Node
from mstar_resident.models.base import RecurrentPool
from mstar_resident.models.checkpoint import Init
from mstar_resident.models.config import Qwen35Config
from mstar_resident.models.shard import LoneShard, kv_heads_of
from mstar_resident.models.sharded import ShardedQwen35
from mstar_resident.resources.base import lay_out

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Hold one rank's share: (first, count) of the whole model's heads of each kind, and bytes."""

    rank: int
    heads: Span
    kv_heads: Span
    key_heads: Span
    value_heads: Span
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_page: int
    kv_bytes: int
    """Of the pool, its sink page included."""
    state_bytes_per_request: int
    state_bytes: int
    """Of the recurrent pool, its sink included."""
    store_bytes: int

    @property
    def total_bytes(self) -> int:
        """Weights, pools and store; what a step's activations and graphs take comes on top."""
        return self.weight_bytes + self.kv_bytes + self.state_bytes + self.store_bytes

    def record(self) -> dict[str, Any]:
        """Return the figures by name."""
        return asdict(self) | {"total_bytes": self.total_bytes}


class NoWeights:
    """Be a source of weights that have a shape and no memory."""

    def get(self, name: str, shape: tuple[int, ...], init: Init = "matrix") -> Tensor:
        """Return a tensor on the meta device."""
        return torch.empty(shape, device="meta")

    def has(self, name: str) -> bool:
        """Return True."""
        return True


def memory_plan(config: Qwen35Config, ranks: int, engine: EngineConfig) -> list[RankMemory]:
    """Return what each of the ranks holds of a model in an engine of these sizes, on whatever device.

    Raises:
        LayoutError: the ranks cannot share the model evenly.
    """
    return [_rank_memory(config, LoneShard(rank, ranks), replace(engine, device="meta")) for rank in range(ranks)]


def _rank_memory(config: Qwen35Config, shard: LoneShard, engine: EngineConfig) -> RankMemory:
    part = ShardedQwen35(config, NoWeights(), shard, device="meta", dtype=engine.dtype)
    node = Node.build(part, engine)
    pool, states, kv = engine.pool("kv"), engine.recurrent_states, node.kv["kv"].nbytes
    own = kv_heads_of(shard, config.kv_heads)
    page = kv // (pool.pool_pages + 1)

    def even(heads: int) -> Span:
        return heads // shard.size * shard.rank, heads // shard.size

    recurrent = state_bytes(node.recurrent)
    return RankMemory(
        rank=shard.rank,
        heads=even(config.heads),
        kv_heads=(own.start, len(own)),
        key_heads=even(config.key_heads),
        value_heads=even(config.value_heads),
        weight_bytes=part.held_bytes(),
        kv_bytes_per_token=page // pool.page_size,
        kv_bytes_per_page=page,
        kv_bytes=kv,
        state_bytes_per_request=recurrent // (states + 1),
        state_bytes=recurrent,
        store_bytes=lay_out(node.resources).store_bytes(engine.max_batch),
    )


def state_bytes(pool: RecurrentPool | None) -> int:
    """Return the bytes of a recurrent pool."""
    return 0 if pool is None else pool.conv.nbytes + pool.ssm.nbytes
