"""Decode attention by FlashInfer's fa2 kernels with the host plan of whatever release is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mstar_resident.attention.fa2_plan import LEAST_TENSOR_CORE_GROUP
from mstar_resident.attention.flashinfer_fa2 import FlashInferAttention, float_workspace, plan_pages, wrapper
from mstar_resident.errors import LayoutError
from mstar_resident.kernels.fa2_planner import Fa2Buffers

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV
    from mstar_resident.engine.planned import PlannedPages


#: What FlashInfer gives a wrapper itself: another release may plan more than is known here.
INT_WORKSPACE_BYTES = 8 * 1024 * 1024


class PlannedFlashInferAttention(FlashInferAttention):
    """Be the fallback of :class:`~mstar_resident.attention.flashinfer_fa2.FlashInferAttention`.

    Every view of a decode step has a wrapper over the buffers of its plan. When the engine has filled them it tells the
    plan to the wrapper, whose own planner then runs on the host and sends its arrays, before the step is launched.
    """

    #: Every bucket that decodes with it needs a host plan.
    host_plan_free = False

    def __init__(self) -> None:
        super().__init__(gather=True)
        self._wrappers: dict[PlannedPages, Any] = {}

    def backend(self, rows: int) -> str:
        """Name the backend."""
        return "flashinfer, planned by the host"

    def begin(self, layer: Tensor, heads: int, paged: PagedKV) -> None:
        """Plan the first step of a view; later ones are planned when their buffers are filled."""
        planned = _of(paged)
        if planned in self._wrappers:
            return
        if self._float_workspace is None:
            self._float_workspace = float_workspace(layer.device)
        workspace = torch.zeros(INT_WORKSPACE_BYTES, dtype=torch.uint8, device=layer.device)
        buffers = Fa2Buffers(paged.table, planned.indptr, planned.last_page_len, planned.indices, workspace, True)
        made = wrapper(buffers, self._float_workspace, heads >= LEAST_TENSOR_CORE_GROUP * layer.shape[3])

        def plan(indptr: Tensor, last_page_len: Tensor) -> None:
            lengths = (indptr[1:] - indptr[:-1] - 1) * paged.page_size + last_page_len
            plan_pages(made, heads, layer, lengths.numpy().astype("int64"), planned.indices[:0])

        plan(planned.indptr.cpu(), planned.last_page_len.cpu())
        planned.listen(lambda told: plan(torch.from_numpy(told.indptr), torch.from_numpy(told.last_page_len)))
        self._wrappers[planned] = made

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        """Attend with one token a row: ``q`` and the result are ``[b, heads, head_dim]``."""
        out = torch.empty_like(q)
        self._wrappers[_of(paged)].run(q, layer, out=out)
        return out


def _of(paged: PagedKV) -> PlannedPages:
    if paged.planned is None:
        raise LayoutError.of("planned", expected="a plan of the step's pages", got=None)
    return paged.planned
