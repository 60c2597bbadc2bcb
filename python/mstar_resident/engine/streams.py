"""The streams of one KV pool: host truth of every request's pages and stored length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mstar_resident.engine.packed import send_rows
from mstar_resident.engine.pages import Ints, PagePool
from mstar_resident.errors import RowOverflowError


class Streams:
    """Keep pages in order and a stored length for every seat of one pool.

    Arrays rather than objects, so that a step advances and a host plan reads all its rows at once.

    Attributes:
        table: int32[seats, P]: page ids in order; the sink page 0 beyond ``held``.
        held: int64[seats]: pages that the stream holds, maybe more than its length needs.
        length: int64[seats]: stored length in tokens, as of the last committed step.
        span: tokens that a decode step appends: 1, or 0 for a read-only pool.
        host_plan: whether attention over the pool needs a host plan.
    """

    __slots__ = ("_copy", "_dirty", "held", "host_plan", "length", "pool", "span", "table")

    def __init__(self, pool: PagePool, seats: int, width: int, span: int, host_plan: bool = False) -> None:
        self.pool = pool
        self.span = span
        self.host_plan = host_plan
        self.table: npt.NDArray[np.int32] = np.zeros((seats, width), dtype=np.int32)
        self.held: Ints = np.zeros(seats, dtype=np.int64)
        self.length: Ints = np.zeros(seats, dtype=np.int64)
        self._copy: Tensor | None = None
        self._dirty = np.zeros(seats, dtype=np.bool_)  # rows that the copy does not have

    @property
    def width(self) -> int:
        """Pages that one stream can hold."""
        return int(self.table.shape[1])

    @property
    def max_tokens(self) -> int:
        """Tokens that one stream can store."""
        return self.width * self.pool.page_size

    def missing(self, seats: Ints, tokens: Ints) -> Ints:
        """Return how many pages each seat lacks to store ``tokens`` more tokens.

        Raises:
            RowOverflowError: a seat would hold more pages than its table has columns.
        """
        needed = -(-(self.length[seats] + tokens) // self.pool.page_size)
        for seat, pages in zip(seats[needed > self.width], needed[needed > self.width], strict=True):
            raise RowOverflowError.of(
                "pages", expected=f"at most {self.width}", got=int(pages), table=self.pool.name, seat=int(seat)
            )
        missing: Ints = np.maximum(needed - self.held[seats], 0)
        return missing

    def append(self, seats: Ints, counts: Ints, pages: Ints) -> None:
        """Append to each seat its count of the pages, which come seat after seat."""
        row = np.repeat(seats, counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        self.table[row, self.held[row] + np.arange(len(pages)) - first] = pages
        self.held[seats] += counts
        self._dirty[seats] = True

    def pages(self, seat: int) -> Ints:
        """Return the pages of a seat, in order."""
        return self.table[seat, : self.held[seat]].astype(np.int64)

    def used(self, seat: int) -> int:
        """Return how many pages the stored length needs."""
        return -(-int(self.length[seat]) // self.pool.page_size)

    def cut(self, seat: int, length: int, pages: int) -> Ints:
        """Rewind a seat to a length and a count of pages, and return the pages that it no longer holds."""
        cut: Ints = self.table[seat, pages : self.held[seat]].astype(np.int64)
        self.table[seat, pages : self.held[seat]] = 0
        self.held[seat] = pages
        self.length[seat] = length
        self._dirty[seat] = True
        return cut

    def put(self, seat: int, pages: Ints) -> None:
        """Make these the pages of a seat."""
        self.table[seat, : len(pages)] = pages
        self.table[seat, len(pages) :] = 0
        self.held[seat] = len(pages)
        self._dirty[seat] = True

    def locate(self, seats: Ints, index: Ints) -> Ints:
        """Return the write location of token ``index`` of each seat: page * page_size + offset."""
        size = self.pool.page_size
        location: Ints = self.table[seats, index // size].astype(np.int64) * size + index % size
        return location

    def device_table(self, device: torch.device) -> Tensor:
        """Return ``table`` as a step on ``device`` reads it: on a CPU itself, else a copy that :meth:`send` keeps."""
        if device.type == "cpu":
            return torch.from_numpy(self.table)
        if self._copy is None:
            self._copy = torch.from_numpy(self.table).to(device)
            self._dirty[:] = False
        return self._copy

    def send(self) -> None:
        """Copy the rows that changed since the last call to the device's table, on the current cuda_stream."""
        if self._copy is None or not self._dirty.any():
            return
        seats = np.flatnonzero(self._dirty)
        device = self._copy.device
        self._copy.index_copy_(0, send_rows(seats, device), send_rows(self.table[seats], device))
        self._dirty[seats] = False
