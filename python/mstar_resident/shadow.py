"""The shadow: check what every step used without waiting for the device on the step path.

:class:`~mstar_resident.RowCheck` synchronizes after a step and so hides races between a flush and a replay that is
still running. The shadow records inside the captured graph and compares later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mstar_resident import _core
from mstar_resident.errors import InvariantError, LayoutError
from mstar_resident.kernels import shadow as kernel
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner
from mstar_resident.row_check import Mismatch, StreamTruth, column_values, used_cells, write_locations

Records = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Copy:
    """A stretch of the ring on its way back to the host."""

    host: Tensor
    entries: int
    done: torch.cuda.Event | None


class Shadow:
    """Record what each replay used, and compare it with the engine's streams when it has come back.

    Call :meth:`record` at the end of a captured step, :meth:`expect` after each commit of a step that was replayed,
    :meth:`finish` at the end of a run. Records come back every ``depth / 2`` steps by an asynchronous copy on the
    step's own cuda_stream, so that the ring is never overwritten before it was copied.

    Attributes:
        steps: steps compared so far.
        rows: rows compared so far.
        mismatches: what differed; the first thousand.
        mismatch_count: how many differed.
    """

    def __init__(self, planner: ResidentPlanner, depth: int = 64) -> None:
        if depth < 2 or depth % 2:
            raise LayoutError.of("depth of the shadow's ring", expected="an even number of entries", got=depth)
        self.planner = planner
        self.depth = depth
        self.steps = 0
        self.rows = 0
        self.mismatches: list[Mismatch] = []
        self.mismatch_count = 0
        self._cells = kernel.record_cells(planner.layout)
        shape = (depth, planner.max_batch, self._cells)
        #: int64[depth, B, record_cells], the planner's device: record of each row of the last ``depth`` replays.
        self.ring = torch.zeros(shape, dtype=torch.int64, device=planner.device)
        #: int64[1], the planner's device: replays so far.
        self.counter = torch.zeros(1, dtype=torch.int64, device=planner.device)
        self._cuda = planner.device.type == "cuda"
        self._free = deque(
            torch.empty((depth // 2, *shape[1:]), dtype=torch.int64, pin_memory=self._cuda) for _ in "ab"
        )
        self._copies: deque[_Copy] = deque()
        self._expected: deque[tuple[tuple[int, ...], int, Records]] = deque()
        self._counted = self._brought = self._reported = 0
        self._names = self._field_names()

    def record(self, lease: Lease) -> None:
        """Record the step of a lease into the ring: a part of the captured graph."""
        tables = list(self.planner.store.tables.values())
        _, lengths, write_loc, columns, _ = lease.prologue_arguments
        run = kernel.run if self._cuda else kernel.run_torch
        run(self.planner.layout, tables, lease.slots, lengths, write_loc, columns, self.ring, self.counter)

    def start(self) -> None:
        """Begin after capture: forget the replays that warmed it up."""
        if self._cuda:
            torch.cuda.synchronize(self.planner.device)
        self.counter.zero_()
        self._counted = self._brought = 0

    def expect(self, stage: _core.Stage, truth: StreamTruth, alive: Iterable[int] | None = None) -> None:
        """Note what a committed step must have used, and compare what has come back.

        The replay must be on the current cuda_stream already. ``alive`` names the batch indices that still have a
        truth, if requests ended while the step ran; the others are not compared.
        """
        handles = list(stage.handles())
        if alive is not None:
            kept = set(alive)
            handles = [handle if index in kept else -1 for index, handle in enumerate(handles)]
        self._expected.append((tuple(handles), stage.bucket, self._records(handles, stage.bucket, truth)))
        self._counted += 1
        if self._counted - self._brought >= self.depth // 2:
            self._bring_back()
        self._compare(wait=False)

    def finish(self) -> list[Mismatch]:
        """Wait for every record, compare it, and return the mismatches found since the last call.

        Raises:
            InvariantError: the device counted other replays than the host expected.
        """
        self._bring_back()
        self._compare(wait=True)
        if int(self.counter) != self._counted:
            raise InvariantError.of("replays that the shadow saw", expected=self._counted, got=int(self.counter))
        fresh = self.mismatches[self._reported :]
        self._reported = len(self.mismatches)
        return fresh

    def _bring_back(self) -> None:
        """Start the copy of every record that is still on the device."""
        while self._brought < self._counted:
            if not self._free:
                self._compare(wait=True)
            at = self._brought % self.depth
            entries = min(self._counted - self._brought, self.depth // 2, self.depth - at)
            host = self._free.popleft()
            host[:entries].copy_(self.ring[at : at + entries], non_blocking=True)
            done = None
            if self._cuda:
                done = torch.cuda.Event()
                done.record()
            self._copies.append(_Copy(host, entries, done))
            self._brought += entries

    def _compare(self, wait: bool) -> None:
        while self._copies:
            copy = self._copies[0]
            if copy.done is not None and not copy.done.query():
                if not wait:
                    return
                copy.done.synchronize()
            for entry in copy.host[: copy.entries].numpy():
                self._compare_step(entry, *self._expected.popleft())
            self._copies.popleft()
            self._free.append(copy.host)

    def _compare_step(self, got: Records, handles: tuple[int, ...], bucket: int, expected: Records) -> None:
        self.steps += 1
        self.rows += sum(handle >= 0 for handle in handles)
        differs = got[:bucket] != expected
        differs[: len(handles)] &= np.asarray(handles)[:, None] >= 0
        for index, cell in zip(*np.nonzero(differs), strict=True):
            self.mismatch_count += 1
            if len(self.mismatches) < 1000:
                what, name = self._names[cell]
                handle = handles[index] if index < len(handles) else 0
                values = int(expected[index, cell]), int(got[index, cell])
                self.mismatches.append(Mismatch(f"shadow {what}", name, handle, int(index), -1, *values))

    def _field_names(self) -> list[tuple[str, str]]:
        names = [("slot", "inputs")]
        for table in self.planner.layout.tables:
            names += [("attention length", table.name), ("used cells", table.name)]
            names += [("write location", table.name)] if table.span else []
        return names + [(column.kind, column.name) for column in self.planner.layout.columns]

    def _records(self, handles: Sequence[int], bucket: int, truth: StreamTruth) -> Records:
        layout = self.planner.layout
        records = np.tile(np.array(self._padding(), dtype=np.int64), (bucket, 1))
        alive = [index for index, handle in enumerate(handles) if handle >= 0]
        named = np.array([handles[index] for index in alive], dtype=np.int64)
        cells = [np.array([self.planner.slot(handle) for handle in named.tolist()], dtype=np.int64)]
        for table in layout.tables:
            lengths, pages = truth.lengths(named, table.name), truth.pages(named, table.name)
            width = int(-(-lengths.max(initial=0) // table.page_size))
            used, inside = used_cells(table, lengths, pages, width)
            cells += [lengths, _checksum(used, inside)]
            if table.span:
                cells.append(write_locations(table, lengths, pages))
        cells += [column_values(layout, column, named, truth) for column in layout.columns]
        records[alive] = np.stack(cells, axis=1)
        return records

    def _padding(self) -> list[int]:
        cells = [0]
        for table in self.planner.layout.tables:
            cells += [1, kernel.WEIGHT] + ([0] if table.span else [])  # one cell, the sink page
        return cells + [0] * len(self.planner.layout.columns)


def _checksum(pages: Records, inside: npt.NDArray[np.bool_]) -> Records:
    """Return ``int64[n]``: the kernel's checksum of each row's used cells."""
    with np.errstate(over="ignore"):
        weights = np.arange(1, pages.shape[1] + 1, dtype=np.int64) * np.int64(kernel.WEIGHT)
        total: Records = np.where(inside, (pages + 1) * weights, 0).sum(axis=1, dtype=np.int64)
    return total
