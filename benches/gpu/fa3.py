"""FlashAttention-3 as a yardstick of decode attention, where its package is installed; the library does not use it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from mstar_resident.attention.torch_paged import TorchAttention
from mstar_resident.engine.inputs import PagedKV

SPLITS = (0, 8, 32)
"""Splits that are tried: 0 leaves the number to its own rule, which captured lengths decide."""


class FA3Attention(TorchAttention):
    """Decode with a fixed number of splits over rows of pages that were gathered before: that copy is not timed."""

    def __init__(self, splits: int) -> None:
        from flash_attn_interface import flash_attn_with_kvcache

        self._attend, self._splits = flash_attn_with_kvcache, splits
        self._pages: Tensor | None = None

    def begin(self, layer: Tensor, heads: int, paged: PagedKV) -> None:
        """Gather the rows' pages."""
        self._pages = torch.index_select(paged.table, 0, paged.rows)

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        """Attend with one token a row: ``q`` and the result are ``[b, heads, head_dim]``."""
        keys, values = layer[:, 0], layer[:, 1]
        given = {"cache_seqlens": paged.lengths, "page_table": self._pages, "num_splits": self._splits}
        out = self._attend(q[:, None], keys, values, causal=True, **given)
        return (out[0] if isinstance(out, tuple) else out)[:, 0]


def arms() -> dict[str, Callable[[], FA3Attention]]:
    """Return the arms of a bench, none where the package is missing."""
    if find_spec("flash_attn_interface") is None:
        return {}
    return {f"fa3, {n or 'own'} splits": partial(FA3Attention, n) for n in SPLITS}
