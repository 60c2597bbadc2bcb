"""A decoder of the Llama family that several ranks share: heads and MLP columns each, sums over all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from mstar_resident.errors import LayoutError
from mstar_resident.models.checkpoint import Init, SeededWeights, WeightSource
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.llama import Llama

if TYPE_CHECKING:
    from mstar_resident.models.kernels import Kernels

#: Which dimension of a weight the ranks share, by the end of its module's name; the others are whole on every rank.
SHARED = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "gate_proj": 0, "up_proj": 0, "o_proj": 1, "down_proj": 1}


#: By its newer name, where torch has that.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class Shard(Protocol):
    """Be one rank's place among those that share a model, and what it exchanges with them."""

    @property
    def rank(self) -> int:
        """This rank, 0 to ``size - 1``."""

    @property
    def size(self) -> int:
        """How many ranks share the model."""

    def sum(self, part: Tensor) -> Tensor:
        """Return the sum of every rank's ``part``, the same bits on all; it may be written to."""

    def gather(self, part: Tensor) -> Tensor:
        """Return every rank's ``part [n, d]`` side by side, ``[n, size * d]``."""


class TorchShard:
    """Be a :class:`Shard` over ``torch.distributed``'s default group: gloo on a CPU, NCCL on CUDA devices."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def sum(self, part: Tensor) -> Tensor:
        """Return the sum of every rank's ``part``, in place; a graph can record it over NCCL."""
        part = part.contiguous()
        dist.all_reduce(part)
        return part

    def gather(self, part: Tensor) -> Tensor:
        """Return every rank's ``part`` side by side; a graph can record it over NCCL."""
        n, d = part.shape
        parts = part.new_empty(self.size * n, d)
        _all_gather(parts, part.contiguous())
        return parts.view(self.size, n, d).transpose(0, 1).reshape(n, self.size * d)


class SharedWeights:
    """Give a rank its part of every weight that the ranks share, out of a source of whole ones."""

    def __init__(self, whole: WeightSource, shard: Shard) -> None:
        self._whole = whole
        self._shard = shard

    def get(self, name: str, shape: tuple[int, ...], init: Init = "matrix") -> Tensor:
        """Return a part of ``shape``."""
        dimension = SHARED.get(name.split(".")[-2]) if "." in name else None
        if dimension is None or dimension >= len(shape):
            return self._whole.get(name, shape, init)
        part = shape[dimension]
        whole = (*shape[:dimension], part * self._shard.size, *shape[dimension + 1 :])
        return self._whole.get(name, whole, init).narrow(dimension, part * self._shard.rank, part).contiguous()

    def has(self, name: str) -> bool:
        """Return whether the source can give ``name``."""
        return self._whole.has(name)


class ShardedLlama(Llama):
    """Be one rank's part of a Llama: its heads, its KV pool of their keys and values, its MLP columns, its logits.

    Each layer sums over the ranks twice, after attention and after the MLP; the logits are gathered once.

    Raises:
        LayoutError: heads, kv heads, MLP columns or vocabulary are not a multiple of the ranks.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: WeightSource,
        shard: Shard,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        kernels: Kernels | None = None,
    ) -> None:
        for name in ("heads", "kv_heads", "intermediate_size", "vocab_size"):
            if getattr(config, name) % shard.size:
                raise LayoutError.of(name, expected=f"a multiple of {shard.size} ranks", got=getattr(config, name))
        part = replace(
            config,
            heads=config.heads // shard.size,
            kv_heads=config.kv_heads // shard.size,
            intermediate_size=config.intermediate_size // shard.size,
        )
        super().__init__(part, SharedWeights(weights, shard), device=device, dtype=dtype, kernels=kernels)
        self._shard = shard
        rows = config.vocab_size // shard.size
        self._head = self._head[rows * shard.rank : rows * (shard.rank + 1)].clone()

    @classmethod
    def seeded_part(cls, config: LlamaConfig, shard: Shard, seed: int = 0, device: str = "cpu") -> ShardedLlama:
        """Return this rank's part of what :meth:`Llama.seeded` draws."""
        return cls(config, SeededWeights(seed, device), shard, device=device)

    def _whole(self, part: Tensor) -> Tensor:
        return self._shard.sum(part)

    def _all_logits(self, part: Tensor) -> Tensor:
        return self._shard.gather(part)
