"""The device store: one row of narrow columns and tables per slot, at addresses that never change."""

from __future__ import annotations

import torch
from torch import Tensor

from mstar_resident.guarded import Guarded
from mstar_resident.layout import RowLayout


class Store:
    """Hold the narrow columns and the page tables of ``2 * max_batch + 1`` rows; row 0 is the trash row.

    Attributes:
        narrow: int64[N, C], cpu|cuda, contiguous, zeroed; owned by the planner.
        tables: per table int32[N, P], cpu|cuda, contiguous, zeroed; owned by the planner.
        bytes: bytes of all of them.
        guarded: the same with their guard cells, which only a debug store has.
    """

    __slots__ = ("bytes", "guarded", "layout", "narrow", "rows", "tables")

    def __init__(self, layout: RowLayout, max_batch: int, device: torch.device, debug: bool = False) -> None:
        self.layout = layout
        self.rows = layout.rows(max_batch)
        self.bytes = layout.store_bytes(max_batch)
        narrow = Guarded("narrow columns", (self.rows, layout.narrow_cells), torch.int64, device, debug)
        tables = [
            Guarded(f"table {table.name}", (self.rows, pages), torch.int32, device, debug)
            for table, pages in zip(layout.tables, layout.table_pages, strict=True)
        ]
        self.guarded = (narrow, *tables)
        self.narrow: Tensor = narrow.tensor
        self.tables: dict[str, Tensor] = {
            table.name: buffer.tensor for table, buffer in zip(layout.tables, tables, strict=True)
        }
        if device.type == "cuda":
            # The fills above ran on the current cuda_stream; the first replay may run on another.
            torch.cuda.current_stream(device).synchronize()

    def addresses(self) -> tuple[int, ...]:
        """Return the buffers' addresses: narrow columns first, then the tables in layout order."""
        return (self.narrow.data_ptr(), *(table.data_ptr() for table in self.tables.values()))

    def trash_row_is_zero(self) -> bool:
        """Return whether row 0 is all zero. Waits for the device."""
        return not bool(self.narrow[0].any()) and not any(bool(table[0].any()) for table in self.tables.values())

    def is_zero(self) -> bool:
        """Return whether every row is all zero, as before the first request. Waits for the device."""
        return not bool(self.narrow.any()) and not any(bool(table.any()) for table in self.tables.values())
