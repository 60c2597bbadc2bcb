"""What the engine asks of a model: its pools, and one forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mstar_resident.engine.inputs import PagedKV, StepInputs


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Describe one KV pool of a model.

    The engine allocates it as ``[layers, pool_pages + 1, 2, page_size, kv_heads, head_dim]``; page 0 is the sink.
    ``span`` 1: every step appends a token to it; 0: read-only, a cross-attention context.
    """

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    span: int = 1


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """Describe one recurrent-state tensor of a model.

    The engine allocates it as ``[layers, indices + 1, *shape]``; index 0 is the sink.
    """

    name: str
    layers: int
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


class Model(Protocol):
    """Run one forward of a decoder over the engine's pools."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the KV pools."""
        ...

    def kv_spec(self) -> Sequence[KVSpec]:
        """Return the KV pools that the model reads and writes."""
        ...

    def recurrent_spec(self) -> Sequence[RecurrentSpec]:
        """Return the recurrent-state tensors, none for a model without recurrent layers."""
        ...

    def bind(self, kv: Mapping[str, Tensor], recurrent: Mapping[str, Tensor]) -> None:
        """Keep the pools, which the engine allocated once and never moves."""

    def forward(self, inputs: StepInputs) -> Tensor:
        """Return ``float[b, vocab]``: the logits of each row's last token."""
        ...


class Encoder(Protocol):
    """Fill a read-only pool with a request's context; a model with such a pool implements it too."""

    def encode(self, context: Tensor, kv: Mapping[str, PagedKV]) -> None:
        """Write the context's keys and values to every read-only pool's ``write_loc``."""
