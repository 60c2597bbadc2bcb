"""The fixed-address buffers of one decode step, whoever fills them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mstar_resident.engine.inputs import PagedKV, StepInputs
from mstar_resident.engine.results import ReadBack

if TYPE_CHECKING:
    from mstar_resident.engine.streams import Streams
    from mstar_resident.lease import Lease
    from mstar_resident.planner import ResidentPlanner

#: Columns that the engine adds to a row, where its model has a use for them.
POSITION, RECURRENT, SEAT = "position_offset", "recurrent_index", "seat"


@dataclass(frozen=True, slots=True, eq=False)
class DecodeView:
    """Hold what a decode step reads and writes: one per bucket and buffer_idx, so that a graph can record it.

    Two buffers of one bucket take turns: step N+1 is launched while step N's sampled tokens are still unread.
    """

    bucket: int
    buffer_idx: int
    inputs: StepInputs
    """``tokens`` is filled by the step itself, from the sampler's last tokens."""
    seats: Tensor
    """int64[b]: seat of every row, 0 for padding."""
    sampled: Tensor
    """int64[b]: the step's tokens, written by the step."""
    lease: Lease | None = None
    """The lease whose prologue fills the buffers; None if the host fills them."""
    read_back: ReadBack | None = None
    """Where the host reads ``sampled``; None on a CPU, which reads it in place."""


def resident_view(planner: ResidentPlanner, lease: Lease) -> DecodeView:
    """Return the view of a lease: tables are the store's, read through the slots."""
    device = planner.device
    kv = {
        table.name: PagedKV(
            table=planner.store.tables[table.name],
            rows=lease.slots,
            lengths=lease.lengths[table.name],
            write_loc=lease.write_loc.get(table.name),
            page_size=table.page_size,
        )
        for table in planner.layout.tables
    }
    inputs = StepInputs(
        tokens=torch.zeros(lease.bucket, dtype=torch.int64, device=device),
        positions=lease.columns[POSITION]
        if POSITION in lease.columns
        else torch.zeros(lease.bucket, dtype=torch.int64, device=device),
        query_start=None,
        kv=kv,
        recurrent_index=lease.columns.get(RECURRENT),
        fresh=None,
    )
    sampled = torch.zeros(lease.bucket, dtype=torch.int64, device=device)
    read_back = ReadBack.of(lease.bucket, device)
    return DecodeView(lease.bucket, lease.buffer_idx, inputs, lease.columns[SEAT], sampled, lease, read_back)


def host_view(
    streams: Mapping[str, Streams], recurrent: bool, bucket: int, buffer_idx: int, device: torch.device
) -> DecodeView:
    """Return a view of the same shapes with tables of its own, for the host to fill."""

    def integers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    kv = {
        name: PagedKV(
            table=integers(bucket, entry.width, dtype=torch.int32),
            rows=torch.arange(bucket, device=device),
            lengths=integers(bucket, dtype=torch.int32).fill_(1),
            write_loc=integers(bucket) if entry.span else None,
            page_size=entry.pool.page_size,
        )
        for name, entry in streams.items()
    }
    inputs = StepInputs(
        tokens=integers(bucket),
        positions=integers(bucket),
        query_start=None,
        kv=kv,
        recurrent_index=integers(bucket, dtype=torch.int32) if recurrent else None,
        fresh=None,
    )
    read_back = ReadBack.of(bucket, device)
    return DecodeView(bucket, buffer_idx, inputs, integers(bucket), integers(bucket), None, read_back)
