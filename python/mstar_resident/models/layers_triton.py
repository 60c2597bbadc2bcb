"""The pointwise parts of the decoders on cuda: a kernel for each, in place where that saves one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mstar_resident.kernels import fused_norm_rope

if TYPE_CHECKING:
    from mstar_resident.attention.base import Attention
    from mstar_resident.engine.inputs import PagedKV
    from mstar_resident.models.layers import Angles
    from mstar_resident.models.rope import Rope


class TritonPointwise:
    """Be a :class:`~mstar_resident.models.layers.Pointwise` of fused kernels; head dims are powers of two."""

    def embed(self, tokens: Tensor, table: Tensor) -> Tensor:
        """Return the tokens' embeddings."""
        out = torch.empty(tokens.shape[0], table.shape[1], dtype=torch.float32, device=table.device)
        fused_norm_rope.embed(tokens, table, out)
        return out

    def add_norm(
        self, x: Tensor, h: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Add ``h`` to ``x`` in place; return it and its norm."""
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        fused_norm_rope.add_rms_norm(x, h, weight, eps, out)
        return x, out

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up."""
        size = gate_up.shape[1] // 2
        out = torch.empty(gate_up.shape[0], size, dtype=gate_up.dtype, device=gate_up.device)
        fused_norm_rope.gate(gate_up[:, size:], gate_up[:, :size], out, silu=True)
        return out

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x * sigmoid(gate)."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        fused_norm_rope.gate(x, gate, out, silu=False)
        return out

    def angles(self, rope: Rope, positions: Tensor) -> Angles:
        """Return cosine and signed sine."""
        both = torch.empty(2, positions.shape[0], 1, 2 * rope.inv_freq.shape[0], device=positions.device)
        fused_norm_rope.rope_angles(positions, rope.inv_freq, both)
        return both[0], both[1]

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
        """Norm, rotate and write in one kernel, as ``attention`` would write; return the queries."""
        if paged.write_loc is None:
            raise ValueError("write_loc: expected int64[t], got None: a read-only pool is not written by a step")
        out = torch.empty(heads.shape[0], query_heads, heads.shape[2], dtype=heads.dtype, device=heads.device)
        fused_norm_rope.norm_rope_write(heads, norms, eps, angles, out, layer, paged.write_loc)
        return out
