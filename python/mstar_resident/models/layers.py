"""The pointwise parts that the decoders share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Scale ``x [t, d]`` to unit mean square over its last dimension, times ``weight [d]``; both fp32.

    The sum of a decoder's layers stays in fp32, and each layer reads it rounded once, to ``dtype``.
    """
    return F.rms_norm(x, (x.shape[-1],), weight, eps).to(dtype)


def head_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale every head of ``x [t, heads, d]`` to unit mean square, times its own ``weight [heads, d]`` (fp32)."""
    return (F.rms_norm(x.float(), (x.shape[-1],), None, eps) * weight).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up of ``gate_up [t, 2 * d]``, gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def last_tokens(x: Tensor, query_start: Tensor | None) -> Tensor:
    """Return the rows of ``x [t, d]`` that are last in their range; all of it for a decode step."""
    if query_start is None:
        return x
    return x.index_select(0, (query_start[1:] - 1).to(device=x.device, dtype=torch.int64))
