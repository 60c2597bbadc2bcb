"""The fixed-address buffers of one decode step, whoever fills them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mstar_resident.engine.inputs import PagedKV, StepInputs
from mstar_resident.engine.packed import PackedBuffers
from mstar_resident.engine.planned import PlannedPages

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
    """``tokens`` is filled on the device, from the last drawn tokens."""
    seats: Tensor
    """int64[b]: seat of every row, 0 for padding."""
    sampled: Tensor
    """int64[b], cpu, pinned beside a cuda device: the step's tokens, written by the step where the host reads them."""
    done: torch.cuda.Event | None
    """Recorded behind every step of the view; None on a CPU."""
    lease: Lease | None = None
    """The lease whose prologue fills the buffers; None if the host fills them."""
    packed: PackedBuffers | None = None
    """What the host fills; None if a lease's prologue does."""
    fed: bool = False
    """Whether the prologue looks the step's tokens up, too; else the step does."""


def resident_view(planner: ResidentPlanner, lease: Lease, streams: Mapping[str, Streams], last: Tensor) -> DecodeView:
    """Return the view of a lease: tables are the store's, read through the slots; tokens are ``last`` by seat."""
    device = planner.device
    kv = {
        table.name: PagedKV(
            table=planner.store.tables[table.name],
            rows=lease.slots,
            lengths=lease.lengths[table.name],
            write_loc=lease.write_loc.get(table.name),
            page_size=table.page_size,
            planned=PlannedPages(lease.bucket, table.pages, device) if streams[table.name].host_plan else None,
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
    lease.look_up(SEAT, last, inputs.tokens)
    read = _read(lease.bucket, device)
    return DecodeView(lease.bucket, lease.buffer_idx, inputs, lease.columns[SEAT], *read, lease, fed=True)


def host_view(
    streams: Mapping[str, Streams], recurrent: bool, bucket: int, buffer_idx: int, device: torch.device
) -> DecodeView:
    """Return a view of the same shapes for the host to fill; its tables are the streams' own, read by seat."""
    whole, half = (bucket, torch.int64), (bucket, torch.int32)
    vectors = {"positions": whole, "seats": whole}
    for name, entry in streams.items():
        vectors[f"lengths {name}"] = half
        if entry.span:
            vectors[f"write_loc {name}"] = whole
    if recurrent:
        vectors["recurrent"] = half
    packed = PackedBuffers(vectors, device)
    filled = packed.tensors
    kv = {
        name: PagedKV(
            table=entry.device_table(device),
            rows=filled["seats"],
            lengths=filled[f"lengths {name}"].fill_(1),
            write_loc=filled.get(f"write_loc {name}"),
            page_size=entry.pool.page_size,
            planned=PlannedPages(bucket, entry.width, device) if entry.host_plan else None,
        )
        for name, entry in streams.items()
    }
    inputs = StepInputs(
        tokens=torch.zeros(bucket, dtype=torch.int64, device=device),
        positions=filled["positions"],
        query_start=None,
        kv=kv,
        recurrent_index=filled.get("recurrent"),
        fresh=None,
    )
    return DecodeView(bucket, buffer_idx, inputs, filled["seats"], *_read(bucket, device), packed=packed)


def _read(bucket: int, device: torch.device) -> tuple[Tensor, torch.cuda.Event | None]:
    """Return what the host reads a view's tokens from, and waits for."""
    cuda = device.type == "cuda"
    sampled, done = torch.zeros(bucket, dtype=torch.int64, pin_memory=cuda), torch.cuda.Event() if cuda else None
    if done is not None:  # torch, which gives the memory away again, knows nothing of a kernel that still writes it
        weakref.finalize(sampled, done.synchronize).atexit = False
    return sampled, done
