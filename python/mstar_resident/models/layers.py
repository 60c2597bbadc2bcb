"""The pointwise parts that the decoders share, and their implementation in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from mstar_resident.models.rope import rotate

if TYPE_CHECKING:
    from mstar_resident.attention.base import Attention
    from mstar_resident.engine.inputs import PagedKV
    from mstar_resident.models.rope import Rope

Angles = tuple[Tensor, Tensor]


class Pointwise(Protocol):
    """Do what lies between a decoder's matrix products. An object holds no state of a step."""

    def embed(self, tokens: Tensor, table: Tensor) -> Tensor:
        """Return the rows of ``table [vocab, d]`` that ``tokens int64[t]`` name, fp32 ``[t, d]``."""

    def add_norm(
        self, x: Tensor, h: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return ``x + h``, fp32 ``[t, d]``, and its RMS norm times ``weight``, fp32 ``[d]``, rounded to ``dtype``.

        The sum of a decoder's layers stays in fp32. It may be ``x`` itself, changed in place.
        """

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up of ``gate_up [t, 2 * d]``, gate first."""

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x * sigmoid(gate); both ``[t, d]``."""

    def angles(self, rope: Rope, positions: Tensor) -> Angles:
        """Return cosine and signed sine, fp32 ``[t, 1, rotary_dim]``, of ``positions int64[t]``."""

    def rotate_and_write(
        self,
        heads: Tensor,
        query_heads: int,
        norms: Tensor | None,
        eps: float,
        angles: Angles,
        layer: Tensor,
        paged: PagedKV,
        attention: Attention,
    ) -> Tensor:
        """Write a step's keys and values to their places in the pool, and return its queries ``[t, heads, head_dim]``.

        Args:
            heads: ``[t, n, head_dim]``: query, key and value heads, then any others.
            query_heads: how many of them are queries; keys and values are as many as the pool's.
            norms: fp32 ``[heads + kv_heads, head_dim]``: the norm of each query and key head; None norms nothing.
            eps: of the norm.
            angles: cosine and signed sine, fp32 ``[t, 1, rotary_dim]`` each.
            layer: one layer of the pool, ``[pages, 2, page_size, kv_heads, head_dim]``.
            paged: the pool as the step sees it.
            attention: knows how the pool is written.
        """


class TorchPointwise:
    """Be the :class:`Pointwise` of torch functions, on any device; nothing is changed in place."""

    def embed(self, tokens: Tensor, table: Tensor) -> Tensor:
        """Return the tokens' embeddings."""
        return F.embedding(tokens, table).float()

    def add_norm(
        self, x: Tensor, h: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return the sum and its norm."""
        total = x if h is None else x + h
        return total, F.rms_norm(total, (total.shape[-1],), weight, eps).to(dtype)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x * sigmoid(gate)."""
        return x * gate.sigmoid()

    def angles(self, rope: Rope, positions: Tensor) -> Angles:
        """Return the angles as ``rope`` does."""
        return rope.angles(positions)

    def rotate_and_write(
        self,
        heads: Tensor,
        query_heads: int,
        norms: Tensor | None,
        eps: float,
        angles: Angles,
        layer: Tensor,
        paged: PagedKV,
        attention: Attention,
    ) -> Tensor:
        """Norm, rotate, write; return the queries."""
        turned = query_heads + layer.shape[3]
        qk, v = heads[:, :turned], heads[:, turned : turned + layer.shape[3]]
        if norms is not None:
            qk = (F.rms_norm(qk.float(), (qk.shape[-1],), None, eps) * norms).to(qk.dtype)
        qk = rotate(qk, angles)
        attention.write(layer, qk[:, query_heads:], v, paged)
        return qk[:, :query_heads]


def last_tokens(x: Tensor, query_start: Tensor | None) -> Tensor:
    """Return the rows of ``x [t, d]`` that are last in their range; all of it for a decode step."""
    if query_start is None:
        return x
    return x.index_select(0, (query_start[1:] - 1).to(device=x.device, dtype=torch.int64))
