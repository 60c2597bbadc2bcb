"""A decoder that ranks share gives every rank the logits that one has who has the whole model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mstar_resident.bench.shapes import NARROW, SHAPES
from mstar_resident.errors import LayoutError
from mstar_resident.models import qwen35
from mstar_resident.models.config import LlamaConfig, Qwen35Config
from mstar_resident.models.llama import Llama
from mstar_resident.models.qwen35 import Qwen35
from mstar_resident.models.rope import RopeConfig
from mstar_resident.models.shard import LoneShard, SharedWeights, even_cut, kv_heads_of
from mstar_resident.models.sharded import ShardedLlama, ShardedQwen35

LLAMA = LlamaConfig(104, 64, 3, 8, 4, 16, 96, RopeConfig(theta=1e4, rotary_dim=16))
CASES: dict[str, tuple[LlamaConfig | Qwen35Config, tuple[int, ...]]] = {
    "llama": (LLAMA, (1, 2, 4)),
    "llama, tied, head norms": (replace(LLAMA, tie_embeddings=True, head_norms=True), (1, 2, 4)),
    "llama, biases": (replace(LLAMA, qkv_bias=True), (1, 2, 4)),
    "llama, KV heads that ranks share": (replace(LLAMA, kv_heads=2, qkv_bias=True), (4,)),
    "hybrid": (NARROW, (1, 2, 4)),
    "hybrid, tied": (replace(NARROW, tie_embeddings=True), (2,)),
    "hybrid, a KV head that ranks share": (replace(NARROW, kv_heads=1), (4,)),
}


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


def whole(config: LlamaConfig | Qwen35Config, seed: int) -> Any:
    return Llama.seeded(config, seed) if isinstance(config, LlamaConfig) else Qwen35.seeded(config, seed)


def part(config: LlamaConfig | Qwen35Config, shard: Any, seed: int = 0) -> Any:
    if isinstance(config, LlamaConfig):
        return ShardedLlama.seeded_part(config, shard, seed)
    return ShardedQwen35.seeded_part(config, shard, seed)


def logits(run: Any) -> list[Tensor]:
    """Run two requests through prefill, a chunk and decode steps."""
    got = [run.prefill({"a": list(range(3, 14)), "b": [9, 8, 7]}), run.prefill({"a": [5, 6], "b": [1]})]
    return got + [run.decode({"a": 11 + i, "b": 40 - i}) for i in range(6)]


@pytest.mark.parametrize(("case", "size"), [(name, size) for name, (_, sizes) in CASES.items() for size in sizes])
def test_every_rank_has_the_logits_of_the_whole_model(
    case: str, size: int, steps: Callable[..., Any], error: Callable[..., float]
) -> None:
    config = CASES[case][0]
    expected = logits(steps(whole(config, 3)))
    meeting = Meeting(size)
    runs = [steps(part(config, ThreadShard(rank, meeting), 3)) for rank in range(size)]
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
        assert run.pools["kv"].shape[4] == max(1, config.kv_heads // size)  # each rank stores its own heads alone
        if isinstance(config, Qwen35Config):
            assert run.recurrent.ssm.shape[2] == config.value_heads // size
            assert run.recurrent.conv.shape[2] == config.conv_dim // size


@pytest.mark.parametrize("field", ["heads", "intermediate_size", "vocab_size", "key_heads", "value_heads", "kv_heads"])
@pytest.mark.parametrize("config", [LLAMA, NARROW], ids=["llama", "hybrid"])
def test_what_ranks_cannot_share_evenly_is_refused(config: Any, field: str) -> None:
    if not hasattr(config, field):
        return
    said = f"{field}: expected a multiple of 4 ranks{', or a part of them' if field == 'kv_heads' else ''}, got"
    with pytest.raises(LayoutError, match=said):
        part(replace(config, **{field: 66 if field != "kv_heads" else 3}), LoneShard(0, 4))


def test_ranks_that_share_a_kv_head_have_the_query_heads_of_its_group() -> None:
    for kv_heads, size in ((4, 4), (4, 2), (2, 4), (1, 8), (4, 8)):
        for rank in range(size):
            queries = range(rank * 24 // size, (rank + 1) * 24 // size)
            own = kv_heads_of(LoneShard(rank, size), kv_heads)
            assert {head * kv_heads // 24 for head in queries} == set(own)


def test_a_part_of_a_part_s_shape_alone_is_given() -> None:
    weights = SharedWeights(None, {"o_proj": even_cut(LoneShard(1, 4), 1, 64)})  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match=r"model\.o_proj\.weight: expected 16 in dimension 1, got \(8, 17\)"):
        weights.get("model.o_proj.weight", (8, 17))


def test_the_narrow_shape_has_the_heads_and_the_pattern_of_the_27b() -> None:
    wide = qwen35.SHAPES["27b"]
    assert SHAPES["narrow"].config is NARROW
    for field in ("heads", "kv_heads", "key_heads", "value_heads", "interval"):
        assert getattr(NARROW, field) == getattr(wide, field)
    layers = [wide.is_attention(layer) for layer in range(wide.layers)]
    assert (layers.count(False), layers.count(True)) == (48, 16)
