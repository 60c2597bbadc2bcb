"""The shadow's kernel: copy what a step used into one entry of a ring, inside the captured graph.

A row check waits for the device and so hides races. The shadow does not: the graph writes a record of each row, and the
host compares it whenever the copy has come back. A record is the row's slot, then per table its attention length, its
write location (append tables) and a checksum of its used cells, then its named columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from mstar_resident.layout import RowLayout

#: Weight of column c in a table's checksum: (c + 1) * WEIGHT, odd and wide, wrapping in int64.
WEIGHT = -7046029254386353131
_WEIGHT = tl.constexpr(WEIGHT)


def record_cells(layout: RowLayout) -> int:
    """Return the int64 cells of one row's record."""
    return 1 + sum(2 + bool(table.span) for table in layout.tables) + len(layout.columns)


@triton.jit
def _shadow_kernel(
    ring: tl.tensor,
    counter: tl.tensor,
    slots: tl.tensor,
    tables: tl.tuple,
    lengths: tl.tuple,
    write_loc: tl.tuple,
    columns: tl.tuple,
    depth: tl.tensor,
    rows: tl.tensor,
    CELLS: tl.constexpr,  # cells of a record
    T: tl.constexpr,  # tables
    J: tl.constexpr,  # named columns
    PAGE_SIZE: tl.constexpr,  # per table
    PAGES: tl.constexpr,  # per table: its width
    BLOCK: tl.constexpr,
) -> None:
    batch_idx = tl.program_id(0)
    entry = tl.load(counter) % depth
    out = ring + (entry * rows + batch_idx) * CELLS
    slot = tl.load(slots + batch_idx)
    tl.store(out, slot)
    out += 1
    for k in tl.static_range(T):
        length = tl.load(lengths[k] + batch_idx).to(tl.int64)
        tl.store(out, length)
        used = tl.minimum((length + PAGE_SIZE[k] - 1) // PAGE_SIZE[k], PAGES[k])
        checksum = tl.zeros((BLOCK,), dtype=tl.int64)
        for first in range(0, used, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < used
            page = tl.load(tables[k] + slot * PAGES[k] + column, mask=inside, other=0).to(tl.int64)
            checksum += tl.where(inside, (page + 1) * ((column + 1).to(tl.int64) * _WEIGHT), 0)
        tl.store(out + 1, tl.sum(checksum))
        out += 2
        if write_loc[k] is not None:
            tl.store(out, tl.load(write_loc[k] + batch_idx))
            out += 1
    for j in tl.static_range(J):
        tl.store(out + j, tl.load(columns[j] + batch_idx).to(tl.int64))


def run(
    layout: RowLayout,
    tables: Sequence[Tensor],
    slots: Tensor,
    lengths: Sequence[Tensor],
    write_loc: Sequence[Tensor | None],
    columns: Sequence[Tensor],
    ring: Tensor,
    counter: Tensor,
) -> None:
    """Write one record per batch row into entry ``counter % depth`` of the ring, then count.

    Args:
        layout: what the rows are made of.
        tables: per table int32[N, P], cuda, contiguous.
        slots: int64[b], cuda.
        lengths: per table int32[b], cuda: attention lengths as the prologue gathered them.
        write_loc: per append table int64[b], cuda; else None.
        columns: per named column int64[b] or int32[b], cuda.
        ring: int64[depth, B, record_cells], cuda, contiguous, changed in place.
        counter: int64[1], cuda: replays so far, advanced by one.
    """
    _shadow_kernel[(slots.shape[0],)](
        ring,
        counter,
        slots,
        tuple(tables),
        tuple(lengths),
        tuple(write_loc),
        tuple(columns),
        ring.shape[0],
        ring.shape[1],
        CELLS=record_cells(layout),
        T=len(layout.tables),
        J=len(layout.columns),
        PAGE_SIZE=tuple(table.page_size for table in layout.tables),
        PAGES=tuple(layout.table_pages),
        BLOCK=128,
        num_warps=4,
    )
    counter.add_(1)


def run_torch(
    layout: RowLayout,
    tables: Sequence[Tensor],
    slots: Tensor,
    lengths: Sequence[Tensor],
    write_loc: Sequence[Tensor | None],
    columns: Sequence[Tensor],
    ring: Tensor,
    counter: Tensor,
) -> None:
    """Do the same in plain torch: the oracle of the kernel, and the shadow without a GPU."""
    cells = [slots]
    for table, held, length, location in zip(layout.tables, tables, lengths, write_loc, strict=True):
        wide = held.shape[1]
        column = torch.arange(wide, device=held.device)
        used = (length.to(torch.int64) + table.page_size - 1).div(table.page_size, rounding_mode="floor")
        weighted = (held[slots].to(torch.int64) + 1) * ((column + 1) * WEIGHT)
        checksum = torch.where(column < used[:, None], weighted, 0).sum(dim=1)
        cells += [length.to(torch.int64), checksum] + ([] if location is None else [location])
    cells += [column.to(torch.int64) for column in columns]
    ring[int(counter) % ring.shape[0], : slots.shape[0]] = torch.stack(cells, dim=1)
    counter.add_(1)
