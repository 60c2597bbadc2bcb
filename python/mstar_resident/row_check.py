"""The row check: compare what a resident step left on the device with the engine's own streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from mstar_resident import _core
from mstar_resident.layout import RowLayout
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner


class StreamTruth(Protocol):
    """What an engine answers from its own books, as of the commit of the step that is checked."""

    def pages(self, handle: int, table: str) -> Sequence[int]:
        """Return the stream's pages in order; more than its length needs is allowed."""
        ...

    def length(self, handle: int, table: str) -> int:
        """Return the stream's stored length, the step's own token included."""
        ...

    def column(self, handle: int, name: str) -> int:
        """Return the value of a named column."""
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
    """

    def __init__(self, planner: ResidentPlanner) -> None:
        self.planner = planner
        self.steps = 0
        self.rows = 0
        self.mismatches = 0

    def check(self, step: _core.Stage | _core.Batch, truth: StreamTruth) -> list[Mismatch]:
        """Compare every row of a committed step with ``truth``.

        A stage is checked with the buffers that its replay filled (attention lengths, write locations,
        columns, padding, cleared cells); a batch only with the store. Of a row: every table's stored
        length, its used cells, a tail of sink pages, its columns. Of the store: the trash row.

        Returns:
            The mismatches, none if all is well.
        """
        handles = step.handles()
        found = _Found(self.planner.layout)
        if self.planner.device.type == "cuda":
            torch.cuda.synchronize(self.planner.device)
        slots = [self.planner.slot(handle) for handle in handles]
        self._check_store(found, handles, slots, truth)
        if isinstance(step, _core.Stage):
            self._check_lease(found, handles, slots, self.planner.lease_by_id(step.lease), truth)
        self.steps += 1
        self.rows += len(handles)
        self.mismatches += len(found.mismatches)
        return found.mismatches

    def _check_store(self, found: _Found, handles: list[int], slots: list[int], truth: StreamTruth) -> None:
        layout, store = self.planner.layout, self.planner.store
        rows = torch.tensor([0, *slots], dtype=torch.int64, device=store.narrow.device)
        narrow = store.narrow[rows].cpu().numpy()
        tables = {name: table[rows].cpu().numpy() for name, table in store.tables.items()}
        found.compare("trash row", "narrow columns", 0, -1, 0, np.zeros(layout.narrow_cells, np.int64), narrow[0])
        for table, start in zip(layout.tables, layout.table_starts, strict=True):
            found.compare("trash row", table.name, 0, -1, start, np.zeros(table.pages, np.int64), tables[table.name][0])
        for index, handle in enumerate(handles):
            if slots[index] == 0:
                found.add("slot", "row", handle, index, 0, 1, 0)
                continue
            row = index + 1
            for number, table in enumerate(layout.tables):
                length = truth.length(handle, table.name)
                found.compare(
                    "stored length", table.name, handle, index, number, [length], narrow[row, number : number + 1]
                )
                used = -(-length // table.page_size)
                cells = np.zeros(table.pages, np.int64)
                cells[:used] = truth.pages(handle, table.name)[:used]
                start = layout.table_starts[number]
                got = tables[table.name][row]
                found.compare("page", table.name, handle, index, start, cells[:used], got[:used])
                found.compare("tail", table.name, handle, index, start + used, cells[used:], got[used:])
            for column in layout.columns:
                number = layout.column_number(column.name)
                value = truth.column(handle, column.name)
                found.compare("column", column.name, handle, index, number, [value], narrow[row, number : number + 1])

    def _check_lease(
        self, found: _Found, handles: list[int], slots: list[int], lease: Lease, truth: StreamTruth
    ) -> None:
        layout, n, b = self.planner.layout, len(handles), lease.bucket
        of = np.zeros(b, np.int64)
        of[:n] = handles
        expected = np.zeros(b, np.int64)
        expected[:n] = slots
        found.batch("slot", "inputs", of, expected, lease.slots)
        for index in torch.nonzero(lease.cells[..., 0].any(dim=1))[:, 0].tolist():
            found.add("cell left in the inputs", "inputs", int(of[index]), index, 0, 0, 1)
        for table in layout.tables:
            lengths = [truth.length(handle, table.name) for handle in handles]
            expected = np.ones(b, np.int64)
            expected[:n] = lengths
            found.batch("attention length", table.name, of, expected, lease.lengths[table.name])
            if table.span:
                expected = np.zeros(b, np.int64)
                for index, (handle, length) in enumerate(zip(handles, lengths, strict=True)):
                    page, offset = divmod(length - 1, table.page_size)
                    expected[index] = truth.pages(handle, table.name)[page] * table.page_size + offset
                found.batch("write location", table.name, of, expected, lease.write_loc[table.name])
        for column in layout.columns:
            expected = np.zeros(b, np.int64)
            for index, handle in enumerate(handles):
                expected[index] = truth.column(handle, column.name)
                if column.kind == "position":
                    table = layout.tables[layout.position_table(column)]
                    expected[index] += truth.length(handle, table.name) - table.span
            found.batch(column.kind, column.name, of, expected, lease.columns[column.name])


class _Found:
    """Collect mismatches."""

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self.mismatches: list[Mismatch] = []

    def add(self, what: str, name: str, handle: int, batch_idx: int, column: int, expected: int, got: int) -> None:
        """Add one mismatch."""
        self.mismatches.append(Mismatch(what, name, handle, batch_idx, column, expected, got))

    def compare(
        self,
        what: str,
        name: str,
        handle: int,
        batch_idx: int,
        column: int,
        expected: npt.ArrayLike,
        got: npt.ArrayLike,
    ) -> None:
        """Compare consecutive cells of one row, the first at ``column``."""
        wanted, found = np.asarray(expected, np.int64), np.asarray(got, np.int64)
        for cell in np.flatnonzero(wanted != found):
            self.add(what, name, handle, batch_idx, column + int(cell), int(wanted[cell]), int(found[cell]))

    def batch(
        self, what: str, name: str, handles: npt.NDArray[np.int64], expected: npt.NDArray[np.int64], got: torch.Tensor
    ) -> None:
        """Compare a lease's buffer, one value per batch index."""
        found = got.cpu().numpy().astype(np.int64)
        for index in np.flatnonzero(expected != found):
            self.add(what, name, int(handles[index]), int(index), -1, int(expected[index]), int(found[index]))
