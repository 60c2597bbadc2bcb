"""The models that the decode bench runs, by name: real shapes with weights drawn from a seed."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from mstar_resident.attention.base import Attention
from mstar_resident.attention.select import Backend, select_attention
from mstar_resident.engine.config import PoolConfig
from mstar_resident.models import qwen35
from mstar_resident.models.base import Decoder
from mstar_resident.models.config import LlamaConfig, Qwen35Config
from mstar_resident.models.kernels import Kernels
from mstar_resident.models.llama import Llama
from mstar_resident.models.qwen35 import Qwen35
from mstar_resident.models.rope import RopeConfig

QWEN3 = LlamaConfig(
    vocab_size=151_936,
    hidden_size=1024,
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    rope=RopeConfig(theta=1e6, rotary_dim=128),
    tie_embeddings=True,
    head_norms=True,
    max_positions=40_960,
)
TINY = Qwen35Config(
    hidden_size=64,
    layers=4,
    heads=4,
    kv_heads=2,
    intermediate_size=96,
    value_heads=4,
    vocab_size=509,
    head_dim=64,
    key_heads=2,
    rope=RopeConfig(theta=1e4, rotary_dim=16),
    max_positions=4096,
)
#: The heads of the 27B and its pattern of layers, for as many ranks, in a width for CPUs.
NARROW = Qwen35Config(
    hidden_size=64,
    layers=4,
    heads=24,
    kv_heads=4,
    intermediate_size=96,
    value_heads=48,
    vocab_size=512,
    head_dim=16,
    key_dim=8,
    value_dim=8,
    rope=RopeConfig(theta=1e4, rotary_dim=4),
    max_positions=4096,
)
#: Columns of a table at most, one less than the pages of the pool that the shapes were measured with elsewhere.
MOST_COLUMNS = 2047


class Streamed(Decoder, Protocol):
    """Be a decoder that knows what a step reads of its weights."""

    def streamed_bytes(self) -> int:
        """Return the bytes of weights that a decode step reads."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Describe one model of the bench."""

    name: str
    config: LlamaConfig | Qwen35Config
    page_size: int = 128

    def build(self, device: str, seed: int = 0, attention: Backend = "auto") -> Streamed:
        """Return the decoder: bf16 on this package's kernels and ``attention`` on cuda, fp32 on torch's elsewhere."""
        cuda = torch.device(device).type == "cuda"
        dtype = torch.bfloat16 if cuda else torch.float32
        kernels = Kernels.triton(self.attention(attention, device)) if cuda else Kernels()
        if isinstance(self.config, LlamaConfig):
            return Llama.seeded(self.config, seed, device=device, dtype=dtype, kernels=kernels)
        return Qwen35.seeded(self.config, seed, device=device, dtype=dtype, kernels=kernels)

    def attention(self, name: Backend, device: str) -> Attention:
        """Return what the shape decodes with on cuda."""
        c = self.config
        return select_attention(name, c.heads, c.kv_heads, c.head_dim, self.page_size, torch.bfloat16, device)

    def paged(self, page_size: int | None) -> Shape:
        """Return the shape with pages of another size, or the same for None."""
        return self if page_size is None else replace(self, page_size=page_size)

    def pool(self, rows: int, tokens: int) -> PoolConfig:
        """Size the pool for so many rows of so many tokens, and its tables for the model's context."""
        columns = min(MOST_COLUMNS, -(-self.config.max_positions // self.page_size))
        pages = max(columns, rows * -(-tokens // self.page_size))
        return PoolConfig(self.page_size, pages, self.config.max_positions)


SHAPES = {
    **{name: Shape(name, qwen35.SHAPES[name]) for name in ("0.8b", "2b", "4b", "9b")},
    "qwen3-0.6b": Shape("qwen3-0.6b", QWEN3),
    "narrow": Shape("narrow", NARROW, page_size=16),
    "tiny": Shape("tiny", TINY, page_size=16),
}


def twin(model: Streamed) -> Streamed:
    """Return a decoder with the same weights, in the same memory, that can be bound to other pools."""
    return copy.copy(model)
