"""Decode attention by the split-KV Triton kernel: reads pages and lengths through rows, needs no host plan."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
import triton
from torch import Tensor

from mstar_resident.attention import torch_paged
from mstar_resident.attention.mixed_rows import MixedRows
from mstar_resident.kernels import kv_write
from mstar_resident.kernels.paged_decode import PagedDecode, refusal

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV

#: Heads, KV heads, head dim, page size, most tokens of a row, dtype, device.
Shape = tuple[int, int, int, int, int, torch.dtype, torch.device]


class TritonAttention:
    """Be an :class:`~mstar_resident.attention.base.Attention` on cuda: Triton for decode, torch for prefill.

    One workspace per bucket and shape, made when a decode of that shape first runs, which is before its capture: it
    then serves every layer and both graphs of the bucket, whose replays are in order on one cuda_stream. Rows that
    decode in a step with others that prefill are decoded together with the workspaces that captures left, so that
    nothing is compiled while serving; by torch as the others where the kernel does not take the shape.
    """

    #: A bucket that decodes with this backend needs no attention plan of the host's.
    host_plan_free = True

    def __init__(self) -> None:
        self._workspaces: dict[tuple[int, Shape], PagedDecode] = {}
        self._mixed: WeakKeyDictionary[PagedKV, MixedRows] = WeakKeyDictionary()

    def backend(self, rows: int) -> str:
        """Name the backend."""
        return "triton"

    def begin(self, layer: Tensor, heads: int, paged: PagedKV) -> None:
        """Prepare nothing: every program shares the step's tiles out by itself."""

    def write(self, layer: Tensor, k: Tensor, v: Tensor, paged: PagedKV) -> None:
        """Store ``k`` and ``v``, ``[t, kv_heads, head_dim]`` each, at ``paged.write_loc``."""
        if paged.write_loc is None:
            raise ValueError("write_loc: expected int64[t], got None: a read-only pool is not written by a step")
        kv_write.write(layer, k, v, paged.write_loc)

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        """Attend with one token a row: ``q`` and the result are ``[b, heads, head_dim]``."""
        return self._decode(q.shape[0], layer, q, paged)

    def prefill(self, layer: Tensor, q: Tensor, paged: PagedKV, query_start: Tensor) -> Tensor:
        """Attend with ranges of tokens: ``q`` and the result are ``[t, heads, head_dim]``."""
        rows = self._split(paged, query_start)
        # Another backend's decode can take shapes that this one's does not.
        if rows.decode is None or refusal(q.shape[1], layer.shape[3], q.shape[2]) is not None:
            return torch_paged.prefill(q, layer, paged, query_start)
        b = rows.decode.rows.shape[0]
        bucket = self._bucket(b, _shape(layer, q, rows.decode))
        out = [
            self._decode(bucket, layer, q[i : min(i + bucket, b)], rows.decode.take(i, i + bucket))
            for i in range(0, b, bucket)
        ]
        if b < q.shape[0]:
            out.append(torch_paged.prefill(q[b:], layer, rows.rest, rows.rest_start))
        return torch.cat(out)

    def _split(self, paged: PagedKV, query_start: Tensor) -> MixedRows:
        """Return how the step's rows over a pool are split: once a step, and kept as long as its inputs are."""
        found = self._mixed.get(paged)
        if found is None or found.start is not query_start:
            found = self._mixed[paged] = MixedRows.of(paged, query_start)
        return found

    def _bucket(self, b: int, shape: Shape) -> int:
        """Return the bucket whose workspace takes so many rows of a mixed step.

        The least that holds them; else the widest that holds half of them, twice: a prompt's last token can come on
        top of as many rows as a capture decodes. A power of two where there is neither.
        """
        there = [rows for rows, of in self._workspaces if of == shape and 2 * rows >= b]
        power: int = triton.next_power_of_2(b)
        return min((rows for rows in there if rows >= b), default=max(there, default=power))

    def _decode(self, bucket: int, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        shape = _shape(layer, q, paged)
        found = self._workspaces.get((bucket, shape))
        if found is None:
            found = self._workspaces[bucket, shape] = PagedDecode(bucket, *shape)
        out = torch.empty_like(q)
        found.run(q, layer, paged.table, paged.rows, paged.lengths, out)
        return out


def _shape(layer: Tensor, q: Tensor, paged: PagedKV) -> Shape:
    """Return what a workspace is made for, beside its rows."""
    _, heads, head_dim = q.shape
    page_size, kv_heads = layer.shape[2], layer.shape[3]
    return heads, kv_heads, head_dim, page_size, paged.table.shape[1] * page_size, q.dtype, q.device
