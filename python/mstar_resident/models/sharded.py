"""Decoders that several ranks share: heads, states and MLP columns each, sums over all."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from torch import Tensor

from mstar_resident.models.checkpoint import SeededWeights, WeightSource
from mstar_resident.models.config import LlamaConfig, Qwen35Config
from mstar_resident.models.llama import Llama
from mstar_resident.models.loaded import Options
from mstar_resident.models.qwen35 import Qwen35
from mstar_resident.models.shard import Cut, Shard, SharedWeights, check_even, even_cut, kv_cut, kv_heads_of


class Exchanging:
    """Sum and gather what a rank's part of a decoder makes."""

    _shard: Shard

    def _whole(self, part: Tensor) -> Tensor:
        return self._shard.sum(part)

    def _all_logits(self, part: Tensor) -> Tensor:
        return self._shard.gather(part)


class ShardedLlama(Exchanging, Llama):
    """Be one rank's part of a Llama: its heads, its KV pool of their keys and values, its MLP columns, its logits.

    Each layer sums over the ranks twice, after attention and after the MLP; the logits are gathered once. Where there
    are more ranks than KV heads, ranks that share one store it each.

    Raises:
        LayoutError: heads, KV heads, MLP columns or vocabulary cannot be shared evenly.
    """

    def __init__(self, config: LlamaConfig, weights: WeightSource, shard: Shard, **options: Unpack[Options]) -> None:
        names = ("heads", "kv_heads", "intermediate_size", "vocab_size")
        check_even(shard, {name: getattr(config, name) for name in names})
        part = replace(
            config,
            heads=config.heads // shard.size,
            kv_heads=len(kv_heads_of(shard, config.kv_heads)),
            intermediate_size=config.intermediate_size // shard.size,
        )
        cuts = _attention_and_mlp(config, shard, config.heads * config.head_dim)
        super().__init__(part, SharedWeights(weights, cuts), **options)
        self._shard = shard
        self._head = _own_logits(self._head, shard, config.tie_embeddings)

    @classmethod
    def seeded_part(cls, config: LlamaConfig, shard: Shard, seed: int = 0, **options: Unpack[Options]) -> ShardedLlama:
        """Return this rank's part of what :meth:`Llama.seeded` draws."""
        return cls(config, SeededWeights(seed, options.get("device", "cpu")), shard, **options)


class ShardedQwen35(Exchanging, Qwen35):
    """Be one rank's part of a Qwen3.5 decoder: as of a Llama, and of the delta nets its key and value heads.

    A delta net's convolution channels and states go with their heads. Each layer sums over the ranks twice, after its
    mixer and after the MLP; the logits are gathered once.

    Raises:
        LayoutError: heads of any kind, MLP columns or vocabulary cannot be shared evenly.
    """

    def __init__(self, config: Qwen35Config, weights: WeightSource, shard: Shard, **options: Unpack[Options]) -> None:
        c, n = config, shard.size
        names = ("heads", "kv_heads", "key_heads", "value_heads", "intermediate_size", "vocab_size")
        check_even(shard, {name: getattr(config, name) for name in names})
        part = replace(
            config,
            heads=c.heads // n,
            kv_heads=len(kv_heads_of(shard, c.kv_heads)),
            key_heads=c.key_heads // n,
            value_heads=c.value_heads // n,
            intermediate_size=c.intermediate_size // n,
        )
        # A checkpoint interleaves query and gate head by head, so that an even part of their rows is whole heads.
        cuts = _attention_and_mlp(config, shard, 2 * c.heads * c.head_dim) | _delta_nets(config, shard)
        super().__init__(part, SharedWeights(weights, cuts), **options)
        self._shard = shard
        self._head = _own_logits(self._head, shard, config.tie_embeddings)

    @classmethod
    def seeded_part(
        cls, config: Qwen35Config, shard: Shard, seed: int = 0, **options: Unpack[Options]
    ) -> ShardedQwen35:
        """Return this rank's part of what :meth:`Qwen35.seeded` draws."""
        return cls(config, SeededWeights(seed, options.get("device", "cpu")), shard, **options)


def _attention_and_mlp(c: LlamaConfig | Qwen35Config, shard: Shard, query_rows: int) -> dict[str, Cut]:
    kv, columns = kv_cut(shard, c.kv_heads, c.head_dim), even_cut(shard, 0, c.intermediate_size)
    return {
        "q_proj": even_cut(shard, 0, query_rows),
        "k_proj": kv,
        "v_proj": kv,
        "o_proj": even_cut(shard, 1, c.heads * c.head_dim),
        "gate_proj": columns,
        "up_proj": columns,
        "down_proj": even_cut(shard, 1, c.intermediate_size),
    }


def _delta_nets(c: Qwen35Config, shard: Shard) -> dict[str, Cut]:
    keys, values = c.key_heads * c.key_dim, c.value_heads * c.value_dim
    channels, heads = even_cut(shard, 0, keys, keys, values), even_cut(shard, 0, c.value_heads)
    return {
        "in_proj_qkv": channels,
        "conv1d": channels,
        "in_proj_z": even_cut(shard, 0, values),
        **dict.fromkeys(("in_proj_b", "in_proj_a", "A_log", "dt_bias"), heads),
        "out_proj": even_cut(shard, 1, values),
    }


def _own_logits(head: Tensor, shard: Shard, tied: bool) -> Tensor:
    """Return a rank's rows of the head: of the embeddings, which every rank has whole, or in memory of their own."""
    rows = head.shape[0] // shard.size
    own = head[rows * shard.rank : rows * (shard.rank + 1)]
    return own if tied else own.clone()
