"""The prologue in plain torch: the oracle of the fused kernel, and what a step runs without a GPU.

All three functions work on all rows of the step at once. ``slots int64[b]`` names a store row per batch index, 0 for
padding; no other slot occurs twice. ``narrow int64[N, C]`` and ``tables`` (``int32[N, P]`` each) are the store,
``cells int64[b, K, 2]`` the cells row: (column + 1, value), 0 where there is no cell, no column twice for one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mstar_resident.layout import RowLayout
    from mstar_resident.look_up import LookUp


def run(
    layout: RowLayout,
    narrow: Tensor,
    tables: Sequence[Tensor],
    inputs: Tensor,
    lengths: Sequence[Tensor],
    write_loc: Sequence[Tensor | None],
    columns: Sequence[Tensor],
    look_ups: Sequence[LookUp] = (),
) -> None:
    """Apply a step's cells, gather what its rows need, and advance their stored lengths.

    Args:
        layout: what the rows are made of.
        narrow: int64[N, C], cpu|cuda, contiguous, changed in place.
        tables: per table int32[N, P], cpu|cuda, contiguous, changed in place.
        inputs: int64[b + b*2*K], cpu|cuda, contiguous: slots, then cells; the cells are cleared.
        lengths: per table int32[b], overwritten: stored length + span, 1 for padding.
        write_loc: per append table int64[b], overwritten: page * page_size + offset, 0 for padding; else None.
        columns: per named column int64[b] or int32[b], overwritten: its value for the step, 0 for padding.
        look_ups: what is looked up by a column's value, 0 for padding.
    """
    slots, cells = split(layout, inputs)
    scatter(layout, narrow, tables, slots, cells)
    gather(layout, narrow, tables, slots, lengths, write_loc, columns)
    names = [column.name for column in layout.columns]
    for look_up in look_ups:
        torch.index_select(look_up.source, 0, columns[names.index(look_up.column)], out=look_up.out)
    advance(layout, narrow, slots)


def split(layout: RowLayout, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the views of ``inputs`` that are the slots, ``int64[b]``, and the cells, ``int64[b, K, 2]``."""
    wide = 2 * layout.cells_per_row
    b = inputs.shape[0] // (1 + wide)
    return inputs[:b], inputs[b:].view(b, layout.cells_per_row, 2)


def scatter(layout: RowLayout, narrow: Tensor, tables: Sequence[Tensor], slots: Tensor, cells: Tensor) -> None:
    """Write the cells of rows that are not padding to the store, then clear all cells."""
    found = cells[..., 0].nonzero()  # waits for the device on cuda
    if found.shape[0] == 0:
        return
    batch_idx, cell = found.unbind(1)
    slot = slots[batch_idx]
    column = cells[batch_idx, cell, 0] - 1
    value = cells[batch_idx, cell, 1]
    first = 0
    for part in (narrow, *tables):
        inside = (slot != 0) & (column >= first) & (column < first + part.shape[1])
        part[slot[inside], column[inside] - first] = value[inside].to(part.dtype)
        first += part.shape[1]
    cells.zero_()


def gather(
    layout: RowLayout,
    narrow: Tensor,
    tables: Sequence[Tensor],
    slots: Tensor,
    lengths: Sequence[Tensor],
    write_loc: Sequence[Tensor | None],
    columns: Sequence[Tensor],
) -> None:
    """Fill a step's outputs from the rows of ``slots``; the store is only read."""
    live = slots != 0
    row = narrow.index_select(0, slots)
    row *= live[:, None]
    cells = row.unbind(1)
    for k, table in enumerate(layout.tables):
        stored = cells[k]
        torch.add(stored, table.span, out=lengths[k]).masked_fill_(~live, 1)
        out = write_loc[k]
        if out is None:
            continue
        wide = tables[k].shape[1]
        page_column = stored.div(table.page_size, rounding_mode="floor")
        page = tables[k][slots, page_column.clamp(max=wide - 1)]
        page *= live & (page_column < wide)  # past the table: the sink page
        torch.add(stored.remainder(table.page_size), page, alpha=table.page_size, out=out)  # in int64
    for j, column in enumerate(layout.columns):
        value = cells[len(layout.tables) + j]
        if column.kind == "position":
            torch.add(value, cells[layout.position_table(column)], out=columns[j])
        else:
            columns[j].copy_(value)


def advance(layout: RowLayout, narrow: Tensor, slots: Tensor) -> None:
    """Add each table's span to the stored lengths of the rows of ``slots``, padding excepted."""
    live = (slots != 0).to(torch.int64)
    for k, table in enumerate(layout.tables):
        if table.span:
            narrow[:, k].index_add_(0, slots, live, alpha=table.span)
