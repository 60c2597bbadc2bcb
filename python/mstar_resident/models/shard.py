"""How ranks share a decoder: a rank's place and what it exchanges, and its part of every weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from mstar_resident.errors import LayoutError
from mstar_resident.models.checkpoint import Init, WeightSource

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


@dataclass(frozen=True, slots=True)
class LoneShard:
    """Be a rank whose others are not there: its share has its true size, and what comes out means nothing.

    To measure or to size one rank's share alone.
    """

    rank: int
    size: int

    def sum(self, part: Tensor) -> Tensor:
        """Return ``part``: nothing is exchanged."""
        return part

    def gather(self, part: Tensor) -> Tensor:
        """Return ``part`` in every rank's place, ``[n, size * d]``."""
        return part.repeat(1, self.size)


@dataclass(frozen=True, slots=True)
class Cut:
    """Say which rows or columns of a weight one rank has."""

    dimension: int
    whole: int
    """Size of that dimension in the whole weight."""
    spans: tuple[tuple[int, int], ...]
    """(first, count) of what the rank has, in order."""


def even_cut(shard: Shard, dimension: int, *sections: int) -> Cut:
    """Return a cut by which a rank has an even part of each of the sections that lie one behind another."""
    starts = accumulate(sections, initial=0)
    spans = tuple(
        (start + size // shard.size * shard.rank, size // shard.size)
        for start, size in zip(starts, sections, strict=False)
    )
    return Cut(dimension, sum(sections), spans)


def kv_heads_of(shard: Shard, kv_heads: int) -> range:
    """Return which KV heads a rank has: an even part of them, or, if ranks are more, one that some ranks share."""
    if kv_heads >= shard.size:
        own = kv_heads // shard.size
        return range(own * shard.rank, own * (shard.rank + 1))
    first = shard.rank * kv_heads // shard.size
    return range(first, first + 1)


def kv_cut(shard: Shard, kv_heads: int, head_dim: int) -> Cut:
    """Return the cut of a projection to keys or values."""
    own = kv_heads_of(shard, kv_heads)
    return Cut(0, kv_heads * head_dim, ((own.start * head_dim, len(own) * head_dim),))


def check_even(shard: Shard, sizes: Mapping[str, int]) -> None:
    """Check that ranks can share what there are so many of.

    Raises:
        LayoutError: a size is not a multiple of the ranks; of ``kv_heads`` the ranks may be a multiple too.
    """
    for name, size in sizes.items():
        if size % shard.size and not (name == "kv_heads" and shard.size % size == 0):
            or_part = ", or a part of them" if name == "kv_heads" else ""
            raise LayoutError.of(name, expected=f"a multiple of {shard.size} ranks{or_part}", got=size)


class SharedWeights:
    """Give a rank its part of every weight that the ranks share, out of a source of whole ones.

    One whole weight at a time is in memory beside the parts.

    Args:
        whole: the source.
        cuts: by the name of a weight's module, or of the weight itself; the others are whole on every rank.
    """

    def __init__(self, whole: WeightSource, cuts: Mapping[str, Cut]) -> None:
        self._whole = whole
        self._cuts = cuts

    def get(self, name: str, shape: tuple[int, ...], init: Init = "matrix") -> Tensor:
        """Return a part of ``shape``. Raises LayoutError: the rank's part has another."""
        parts = name.removesuffix(".weight").removesuffix(".bias").split(".")
        cut = self._cuts.get(parts[-1])
        if cut is None:
            return self._whole.get(name, shape, init)
        at = cut.dimension
        own = sum(count for _, count in cut.spans)
        if shape[at] != own:
            raise LayoutError.of(name, expected=f"{own} in dimension {at}", got=shape)
        whole = self._whole.get(name, (*shape[:at], cut.whole, *shape[at + 1 :]), init)
        return torch.cat([whole.narrow(at, first, count) for first, count in cut.spans], dim=at)

    def has(self, name: str) -> bool:
        """Return whether the source can give ``name``."""
        return self._whole.has(name)
