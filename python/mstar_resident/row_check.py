"""The row check: compare what a resident step left on the device with the engine's own streams."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from mstar_resident import _core
from mstar_resident.errors import LayoutError
from mstar_resident.guarded import GUARD, Guarded
from mstar_resident.layout import Column, KVTable, RowLayout
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner

Ints = npt.NDArray[np.int64]


class StreamTruth(Protocol):
    """What an engine answers from its own books, as of the commit of the step that is checked; arrays for all rows."""

    def lengths(self, handles: Ints, table: str) -> Ints:
        """Return ``int64[n]``: the stored length of each stream, the step's own token included."""
        ...

    def pages(self, handles: Ints, table: str) -> Ints:
        """Return ``int64[n, w]``: the pages of each stream in order, from column 0; anything behind the used ones."""
        ...

    def column(self, handles: Ints, name: str) -> Ints:
        """Return ``int64[n]``: the value of a named column of each request."""
        ...


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Name one cell that differs: what, where, expected and got; handle 0 is padding or the trash row."""

    what: str
    name: str
    handle: int
    batch_idx: int
    column: int
    expected: int
    got: int

    def __str__(self) -> str:
        return (
            f"{self.what} of {self.name}, handle {self.handle}, batch index {self.batch_idx}, column {self.column}: "
            f"expected {self.expected}, got {self.got}"
        )


class RowCheck:
    """Check resident steps cell by cell; every check waits for the device.

    Attributes:
        steps: steps checked so far.
        rows: rows checked so far.
        mismatches: mismatches found so far.

    Raises:
        LayoutError: it is given no planner, such as the refusal of a node that stays host-planned.
    """

    def __init__(self, planner: ResidentPlanner) -> None:
        if not isinstance(planner, ResidentPlanner):
            raise LayoutError.of("planner", expected="a ResidentPlanner", got=planner)
        self.planner = planner
        self.steps = 0
        self.rows = 0
        self.mismatches = 0

    def check(self, step: _core.Stage | _core.Batch, truth: StreamTruth) -> list[Mismatch]:
        """Compare every row of a committed step with ``truth``.

        A stage is checked with the buffers that its replay filled (attention lengths, write locations,
        columns, padding, cleared cells); a batch only with the store. Of a row: every table's stored
        length, its used cells, a tail of sink pages, its columns. Of the store: the trash row. Of a debug planner:
        the guard cells of the store and the ring, and of the stage's lease.

        Returns:
            The mismatches, none if all is well.
        """
        handles = np.array(step.handles(), dtype=np.int64)
        found = _Found()
        if self.planner.device.type == "cuda":
            torch.cuda.synchronize(self.planner.device)
        slots = np.array([self.planner.slot(handle) for handle in handles.tolist()], dtype=np.int64)
        self._check_store(found, handles, slots, truth)
        found.guards(self.planner.store.guarded)
        found.guards(self.planner.stager.guarded)
        if isinstance(step, _core.Stage):
            self._check_lease(found, handles, slots, self.planner.lease_by_id(step.lease), truth)
        self.steps += 1
        self.rows += len(handles)
        self.mismatches += len(found.mismatches)
        return found.mismatches

    def _check_store(self, found: _Found, handles: Ints, slots: Ints, truth: StreamTruth) -> None:
        layout, store = self.planner.layout, self.planner.store
        rows = torch.from_numpy(np.concatenate([[0], slots])).to(store.narrow.device)
        narrow = store.narrow[rows].cpu().numpy()
        tables = {name: table[rows].cpu().numpy() for name, table in store.tables.items()}
        trash = np.zeros(1, np.int64)
        found.cells("trash row", "narrow columns", trash, 0, np.zeros((1, layout.narrow_cells)), narrow[:1])
        for table, start in zip(layout.tables, layout.table_starts, strict=True):
            found.cells("trash row", table.name, trash, start, np.zeros((1, table.pages)), tables[table.name][:1])
        found.cells("slot", "row", handles, 0, np.zeros((len(slots), 1)), (slots == 0)[:, None])
        for number, table in enumerate(layout.tables):
            lengths = truth.lengths(handles, table.name)
            found.cells("stored length", table.name, handles, number, lengths[:, None], narrow[1:, number, None])
            start, got = layout.table_starts[number], tables[table.name][1:]
            expected, used = used_cells(table, lengths, truth.pages(handles, table.name), table.pages)
            found.cells("page", table.name, handles, start, expected, np.where(used, got, 0))
            found.cells("tail", table.name, handles, start, np.zeros_like(expected), np.where(used, 0, got))
        for column in layout.columns:
            number = layout.column_number(column.name)
            values = truth.column(handles, column.name)
            found.cells("column", column.name, handles, number, values[:, None], narrow[1:, number, None])

    def _check_lease(self, found: _Found, handles: Ints, slots: Ints, lease: Lease, truth: StreamTruth) -> None:
        layout, b = self.planner.layout, lease.bucket
        found.guards(lease.guarded)

        def batch(what: str, name: str, rows: npt.ArrayLike, padding: int, got: torch.Tensor) -> None:
            expected = np.full(b, padding, np.int64)
            expected[: len(handles)] = rows
            of = np.zeros(b, np.int64)
            of[: len(handles)] = handles
            found.cells(what, name, of, -1, expected[:, None], got.cpu().numpy()[:, None])

        batch("slot", "inputs", slots, 0, lease.slots)
        batch("cell left in the inputs", "inputs", 0, 0, lease.cells[..., 0].any(dim=1))
        for table in layout.tables:
            lengths = truth.lengths(handles, table.name)
            batch("attention length", table.name, lengths, 1, lease.lengths[table.name])
            if table.span:
                locations = write_locations(table, lengths, truth.pages(handles, table.name))
                batch("write location", table.name, locations, 0, lease.write_loc[table.name])
        for column in layout.columns:
            values = column_values(layout, column, handles, truth)
            batch(column.kind, column.name, values, 0, lease.columns[column.name])


def used_cells(table: KVTable, lengths: Ints, pages: Ints, width: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return ``int64[n, width]``, the pages that rows use and the sink behind them, and where they use one.

    Raises:
        LayoutError: a stream's length needs more pages than the truth or the table gives.
    """
    used = -(-lengths // table.page_size)
    if used.max(initial=0) > min(width, pages.shape[1]):
        raise LayoutError.of(
            "pages of the truth", expected=f"at least {used.max()}", got=min(width, pages.shape[1]), table=table.name
        )
    inside = np.arange(width) < used[:, None]
    cells = np.zeros((len(lengths), width), np.int64)
    cells[:, : pages.shape[1]] = pages[:, :width]
    return np.where(inside, cells, 0), inside


def write_locations(table: KVTable, lengths: Ints, pages: Ints) -> Ints:
    """Return ``int64[n]``: page * page_size + offset of each stream's last token, the step's own."""
    column, offset = np.divmod(lengths - table.span, table.page_size)
    locations: Ints = np.take_along_axis(pages, column[:, None], axis=1)[:, 0] * table.page_size + offset
    return locations


def column_values(layout: RowLayout, column: Column, handles: Ints, truth: StreamTruth) -> Ints:
    """Return ``int64[n]``: what the prologue makes of a column: for a position, the stored length before is added."""
    values = truth.column(handles, column.name)
    if column.kind == "position":
        table = layout.tables[layout.position_table(column)]
        values = values + truth.lengths(handles, table.name) - table.span
    return values


class _Found:
    """Collect mismatches."""

    def __init__(self) -> None:
        self.mismatches: list[Mismatch] = []

    def guards(self, buffers: Iterable[Guarded]) -> None:
        """Find guard cells that were written; their column counts from the buffer's first cell."""
        for buffer in buffers:
            for cell, got in buffer.written():
                self.mismatches.append(Mismatch("guard cell", buffer.name, 0, -1, cell, GUARD, got))

    def cells(
        self, what: str, name: str, handles: Ints, first: int, expected: npt.ArrayLike, got: npt.ArrayLike
    ) -> None:
        """Compare ``[n, w]`` cells of n rows, the first at column ``first``; -1: no cell of the store."""
        wanted, found = np.asarray(expected, np.int64), np.asarray(got, np.int64)
        for row, cell in np.argwhere(wanted != found).tolist():
            column = -1 if first < 0 else first + cell
            values = int(wanted[row, cell]), int(found[row, cell])
            self.mismatches.append(Mismatch(what, name, int(handles[row]), row, column, *values))
