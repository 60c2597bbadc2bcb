"""Paged attention in plain torch: the reference of every kernel, and the one that runs without a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mstar_resident.errors import LayoutError

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV


def write(kv_layer: Tensor, k: Tensor, v: Tensor, write_loc: Tensor) -> None:
    """Store the keys and values of a step's tokens in one layer of a pool.

    ``kv_layer [pages, 2, page_size, kv_heads, head_dim]``, contiguous; ``k, v [t, kv_heads, head_dim]``;
    ``write_loc int64[t]`` = page * page_size + offset. Locations repeat in the sink page only.
    """
    page_size = kv_layer.shape[2]
    flat = kv_layer.view(-1, *kv_layer.shape[3:])
    loc = write_loc + write_loc.div(page_size, rounding_mode="floor") * page_size
    flat.index_copy_(0, loc, k)
    flat.index_copy_(0, loc + page_size, v)


def decode(q: Tensor, kv_layer: Tensor, paged: PagedKV) -> Tensor:
    """Attend with one token a row, ``q [b, heads, head_dim]``, over ``paged.lengths`` tokens of each.

    On cpu every row is attended alone over its own length, so that its result does not depend on the other rows of
    the step. On cuda the rows are masked to one width: the longest length, or all of the table while a graph is
    captured (no wait for the device; memory b * P pages).
    """
    if q.device.type == "cpu":
        return _decode_rows(q, kv_layer, paged)
    columns = paged.table.shape[1]
    if not torch.cuda.is_current_stream_capturing():
        columns = min(columns, -(-int(paged.lengths.max()) // paged.page_size))
    return decode_masked(q, kv_layer, paged, columns)


def decode_masked(q: Tensor, kv_layer: Tensor, paged: PagedKV, columns: int) -> Tensor:
    """Attend as :func:`decode` does, over ``columns`` of every table and a mask; no value reaches the host."""
    b, heads, head_dim = q.shape
    kv_heads = kv_layer.shape[3]
    pages = paged.table[:, :columns].index_select(0, paged.rows)
    pages = pages.reshape(-1)
    k, v = (kv_layer[:, side].index_select(0, pages).view(b, -1, kv_heads, head_dim).transpose(1, 2) for side in (0, 1))
    seen = torch.arange(k.shape[2], device=q.device) < paged.lengths[:, None]
    grouped = q.reshape(b, kv_heads, heads // kv_heads, head_dim)
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=seen[:, None, None]).reshape(b, heads, head_dim)


def prefill(q: Tensor, kv_layer: Tensor, paged: PagedKV, query_start: Tensor) -> Tensor:
    """Attend with ranges of tokens, ``q [t, heads, head_dim]``; row i has tokens ``query_start[i]..query_start[i+1]``.

    Causal with the last token of a row at its length's end; of a read-only pool (no write location) every token sees
    the whole length. Rows are attended one after another. Values of ``query_start``, ``rows`` and ``lengths`` are
    read on the host: pass them there, or every call waits for the device.

    Raises LayoutError: a row without tokens, with more tokens than its length, or ranges that do not cover ``q``.
    """
    starts: list[int] = query_start.tolist()
    lengths: list[int] = paged.lengths.tolist()
    if len(starts) != len(lengths) + 1 or starts[0] != 0 or starts[-1] != q.shape[0]:
        raise LayoutError.of("query_start", expected=f"{len(lengths)} ranges of {q.shape[0]} tokens", got=starts)
    out = torch.empty_like(q)
    with _repeatable(q.device):
        for i, row in enumerate(paged.rows.tolist()):
            begin, end, length = starts[i], starts[i + 1], lengths[i]
            causal = paged.write_loc is not None
            if end <= begin or (causal and end - begin > length):
                raise LayoutError.of("query_start", expected=f"1..{length} tokens", got=end - begin, batch_idx=i)
            k, v = _gather(kv_layer, paged, row, length)
            out[begin:end] = _attend_range(q[begin:end].transpose(0, 1), k, v, causal).transpose(0, 1)
    return out


class TorchAttention:
    """Be the :class:`~mstar_resident.attention.base.Attention` made of this file's functions."""

    #: Pages are read off the tables.
    host_plan_free = True

    def backend(self, rows: int) -> str:
        """Name the backend."""
        return "torch"

    def begin(self, layer: Tensor, heads: int, paged: PagedKV) -> None:
        """Prepare nothing."""

    def write(self, layer: Tensor, k: Tensor, v: Tensor, paged: PagedKV) -> None:
        """Store the step's keys and values; see :func:`write`. Raises LayoutError: the pool is read-only."""
        if paged.write_loc is None:
            raise LayoutError.of("write_loc", expected="a tensor", got=None)
        write(layer, k, v, paged.write_loc)

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        """Attend with one token a row; see :func:`decode`."""
        return decode(q, layer, paged)

    def prefill(self, layer: Tensor, q: Tensor, paged: PagedKV, query_start: Tensor) -> Tensor:
        """Attend with ranges of tokens; see :func:`prefill`."""
        return prefill(q, layer, paged, query_start)


def _decode_rows(q: Tensor, kv_layer: Tensor, paged: PagedKV) -> Tensor:
    b, heads, head_dim = q.shape
    kv_heads = kv_layer.shape[3]
    # The heads of a group are the queries of one kv head, so that no key is repeated.
    grouped = q.reshape(b, kv_heads, heads // kv_heads, head_dim)
    out = torch.empty_like(grouped)
    rows: list[int] = paged.rows.tolist()
    lengths: list[int] = paged.lengths.tolist()
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        k, v = _gather(kv_layer, paged, row, length)
        out[i : i + 1] = F.scaled_dot_product_attention(grouped[i : i + 1], k[None], v[None])
    return out.view(b, heads, head_dim)


def _gather(kv_layer: Tensor, paged: PagedKV, row: int, length: int) -> tuple[Tensor, Tensor]:
    """Return keys and values of a row, ``[kv_heads, length, head_dim]``."""
    pages = paged.table[row, : -(-length // paged.page_size)]
    k, v = (kv_layer[:, side].index_select(0, pages).flatten(0, 1)[:length].transpose(0, 1) for side in (0, 1))
    return k, v


def _repeatable(device: torch.device) -> AbstractContextManager[None]:
    """Leave cuDNN out, whose attention gave one row of a step other bits in another run (torch 2.11 on an H200)."""
    if device.type == "cpu":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def _attend_range(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attend ``q [heads, t, head_dim]`` over ``k, v [kv_heads, length, head_dim]``."""
    (heads, tokens, _), (kv_heads, length, _) = q.shape, k.shape
    shared = heads != kv_heads
    q, k, v = q[None], k[None], v[None]
    if not causal or tokens == 1:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=shared)[0]
    if tokens == length:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)[0]
    if q.device.type == "cuda":
        from torch.nn.attention.bias import causal_lower_right  # brings all of torch's compiler along: only here

        mask: Tensor = causal_lower_right(tokens, length)
    else:
        mask = torch.ones(tokens, length, dtype=torch.bool, device=q.device).tril(length - tokens)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=shared)[0]
