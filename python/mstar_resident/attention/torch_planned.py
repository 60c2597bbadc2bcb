"""Paged decode attention in plain torch that reads pages through a host plan: the reference of backends that do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mstar_resident.attention.torch_paged import TorchAttention, decode, decode_masked
from mstar_resident.errors import LayoutError

if TYPE_CHECKING:
    from mstar_resident.engine.inputs import PagedKV
    from mstar_resident.engine.planned import PlannedPages


class PlannedTorchAttention(TorchAttention):
    """Be an :class:`~mstar_resident.attention.base.Attention` whose decode knows a row's pages from its plan alone.

    FlashInfer's fa2 wrapper is one of this kind: it takes page offsets, page ids and last page lengths of every step.
    """

    #: Every bucket that decodes with it needs a host plan.
    host_plan_free = False

    def decode(self, layer: Tensor, q: Tensor, paged: PagedKV) -> Tensor:
        """Attend with one token a row, over the planned pages. Raises LayoutError: the step has no plan."""
        if paged.planned is None:
            raise LayoutError.of("planned", expected="a plan of the step's pages", got=None)
        columns = paged.table.shape[1]
        if q.device.type == "cpu":
            columns = int((paged.planned.indptr[1:] - paged.planned.indptr[:-1]).max())
        table, lengths = unplan(paged.planned, paged.page_size, columns)
        rows = torch.arange(q.shape[0], device=q.device)
        of_plan = replace(paged, table=table, rows=rows, lengths=lengths)
        return decode(q, layer, of_plan) if q.device.type == "cpu" else decode_masked(q, layer, of_plan, columns)


def unplan(planned: PlannedPages, page_size: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the table ``int32[b, columns]`` and the attention lengths ``int32[b]`` that a plan stands for."""
    indptr = planned.indptr
    counts = indptr[1:] - indptr[:-1]
    column = torch.arange(columns, device=indptr.device)
    at = (indptr[:-1, None] + column).clamp(max=len(planned.indices) - 1)
    table = torch.where(column < counts[:, None], planned.indices[at.long()], 0)
    return table, (counts - 1) * page_size + planned.last_page_len
