"""Decode attention by the trtllm-gen kernels of Blackwell GPUs, which read block tables and lengths on the device.

Not run on that hardware: these kernels need compute capability 10.0 or later. What is tested is the contract, against a
kernel in torch that takes the same arguments and checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mstar_resident.attention.torch_paged import TorchAttention
from mstar_resident.errors import LayoutError

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV

#: The kernels' scratch, zero before its first use.
WORKSPACE_BYTES = 128 * 1024 * 1024


class TrtllmGenAttention(TorchAttention):
    """Be an :class:`~mstar_resident.attention.base.Attention`: trtllm-gen for decode, torch for prefill and writes.

    The kernels take a block table per batch index, so that :meth:`begin` gathers the step's rows from the store's
    table once, inside the captured graph; all layers read that copy. Attention lengths are the prologue's, as they are.
    Buffers belong to a bucket and a table, and are made when the bucket first runs, which is before its capture.

    Args:
        kernel: FlashInfer's ``trtllm_batch_decode_with_kv_cache``, or what takes the same arguments; None imports it.
        workspace_bytes: size of the kernels' scratch.

    Raises:
        LayoutError: no kernel was given, and FlashInfer or a device of compute capability 10.0 is missing.
    """

    #: Pages are read off the tables.
    host_plan_free = True

    def __init__(self, kernel: Callable[..., Tensor] | None = None, *, workspace_bytes: int = WORKSPACE_BYTES) -> None:
        self._kernel = kernel if kernel is not None else _load()
        self._workspace_bytes = workspace_bytes
        self._workspace: Tensor | None = None
        self._tables: dict[tuple[object, ...], Tensor] = {}

    def backend(self, rows: int) -> str:
        """Name the backend."""
        return "trtllm-gen"

    def begin(self, layer: Tensor, heads: int, paged: PagedKV) -> None:
        """Gather the block tables of a decode step's rows, ``int32[b, P]``; padding rows name the sink page."""
        torch.index_select(paged.table, 0, paged.rows, out=self._table(paged))
        if self._workspace is None:
            self._workspace = torch.zeros(self._workspace_bytes, dtype=torch.uint8, device=layer.device)

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        """Attend with one token a row: ``q`` and the result are ``[b, heads, head_dim]``.

        Raises:
            LayoutError: the step did not :meth:`begin`.
        """
        table = self._table(paged)
        if self._workspace is None:
            raise LayoutError.of("decode", expected="begin before the first layer", got=None)
        out = torch.empty_like(q)
        self._kernel(
            query=q,
            kv_cache=layer,
            workspace_buffer=self._workspace,
            block_tables=table,
            seq_lens=paged.lengths,
            max_seq_len=table.shape[1] * paged.page_size,  # a step's own would be a value on the host
            bmm1_scale=q.shape[2] ** -0.5,
            bmm2_scale=1.0,
            kv_layout="NHD",
            out=out,
        )
        return out

    def _table(self, paged: PagedKV) -> Tensor:
        rows, columns = len(paged.rows), paged.table.shape[1]
        key = (rows, columns, paged.table.data_ptr())
        found = self._tables.get(key)
        if found is None:
            found = torch.zeros(rows, columns, dtype=torch.int32, device=paged.table.device)
            self._tables[key] = found
        return found


def _load() -> Callable[..., Tensor]:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 10:
        raise LayoutError.of("device", expected="compute capability 10.0 or later, for trtllm-gen", got="none")
    try:
        from flashinfer.decode import trtllm_batch_decode_with_kv_cache
    except ImportError as error:
        raise LayoutError.of("flashinfer", expected="an installed package", got=str(error)) from error
    kernel: Callable[..., Tensor] = trtllm_batch_decode_with_kv_cache
    return kernel
