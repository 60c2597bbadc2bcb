"""A Llama that ranks share gives every rank the logits that one has who has the whole model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mstar_resident.errors import LayoutError
from mstar_resident.models.config import LlamaConfig
from mstar_resident.models.llama import Llama
from mstar_resident.models.rope import RopeConfig
from mstar_resident.models.sharded import ShardedLlama

CONFIG = LlamaConfig(104, 64, 3, 8, 4, 16, 96, RopeConfig(theta=1e4, rotary_dim=16))


class Meeting:
    """Let threads be ranks: each lays its part down, and all go on with all parts."""

    def __init__(self, size: int) -> None:
        self.parts: list[Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def exchange(self, rank: int, part: Tensor) -> list[Tensor]:
        self.parts[rank] = part.clone()
        self.barrier.wait()
        parts = list(self.parts)
        self.barrier.wait()
        return parts


class ThreadShard:
    """Be one of the threads."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size, self.meeting = rank, len(meeting.parts), meeting

    def sum(self, part: Tensor) -> Tensor:
        return torch.stack(self.meeting.exchange(self.rank, part)).sum(0)

    def gather(self, part: Tensor) -> Tensor:
        return torch.cat(self.meeting.exchange(self.rank, part), dim=1)


def logits(run: Any) -> list[Tensor]:
    """Run two requests through prefill, a chunk and decode steps."""
    got = [run.prefill({"a": list(range(3, 14)), "b": [9, 8, 7]}), run.prefill({"a": [5, 6], "b": [1]})]
    return got + [run.decode({"a": 11 + i, "b": 40 - i}) for i in range(6)]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "config",
    [CONFIG, replace(CONFIG, tie_embeddings=True, head_norms=True), replace(CONFIG, qkv_bias=True)],
    ids=["llama", "tied, head norms", "biases"],
)
def test_every_rank_has_the_logits_of_the_whole_model(
    config: LlamaConfig, size: int, steps: Callable[..., Any], error: Callable[..., float]
) -> None:
    expected = logits(steps(Llama.seeded(config, 3)))
    meeting = Meeting(size)
    runs = [steps(ShardedLlama.seeded_part(config, ThreadShard(rank, meeting), 3)) for rank in range(size)]
    got: list[list[Tensor]] = [[] for _ in runs]

    def be(rank: int) -> None:
        got[rank] = logits(runs[rank])

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run, mine in zip(runs, got, strict=True):
        assert len(mine) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(mine, got[0], strict=True))
        assert max(error(a, b) for a, b in zip(mine, expected, strict=True)) < 1e-5
        assert run.pools["kv"].shape[4] == config.kv_heads // size  # each rank stores its own heads alone


@pytest.mark.parametrize("field", ["heads", "kv_heads", "intermediate_size", "vocab_size"])
def test_what_ranks_cannot_share_evenly_is_refused(field: str) -> None:
    odd = replace(CONFIG, **{field: 66})
    with pytest.raises(LayoutError, match="expected a multiple of 4 ranks, got"):
        ShardedLlama.seeded_part(odd, ThreadShard(0, Meeting(4)))
