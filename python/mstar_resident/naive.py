"""The planner that this package replaces, vectorised: every step rebuilds every row from host arrays.

It is the oracle of the property tests and the baseline of ``mstar-resident bench plan``. No Python loop
runs per row; a step's outputs go into buffers allocated once per bucket, as an engine would keep them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mstar_resident.layout import RowLayout

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class NaiveStep:
    """Hold what one step reads, batch index by batch index; padding attends 1 token of the sink page.

    Attributes:
        tables: per table int32[b, P], cpu: page ids, the sink beyond the used ones.
        lengths: per table int32[b], cpu: attention length.
        write_loc: per table int64[b], cpu: page * page_size + offset, None for a read-only table.
        columns: per named column int64[b] or int32[b], cpu.
    """

    tables: list[Int32]
    lengths: list[Int32]
    write_loc: list[Int64 | None]
    columns: list[npt.NDArray[np.signedinteger]]


class NaivePlanner:
    """Plan steps from host arrays that hold a row per request, rebuilding every row every step.

    Attributes:
        pages: per table int32[requests, P], cpu: page ids, the sink beyond those that the stream holds.
        stored: int64[T, requests], cpu: stored lengths.
        values: int64[columns, requests], cpu: the named columns.
    """

    def __init__(self, layout: RowLayout, requests: int) -> None:
        self.layout = layout
        self.pages: list[Int32] = [np.zeros((requests, pages), np.int32) for pages in layout.table_pages]
        self.stored: Int64 = np.zeros((len(layout.tables), requests), np.int64)
        self.values: Int64 = np.zeros((len(layout.columns), requests), np.int64)
        self._buffers: dict[int, NaiveStep] = {}

    def plan(self, rows: Int64, bucket: int) -> NaiveStep:
        """Rebuild the inputs of a step of the requests ``rows``, int64[n], padded to ``bucket`` batch indices."""
        n = len(rows)
        step = self._buffers.get(bucket) or self._allocate(bucket)
        stored = self.stored[:, rows]
        for number, table in enumerate(self.layout.tables):
            length = stored[number]
            # "clip" skips a bounds pass; every index is in range.
            self.pages[number].take(rows, axis=0, out=step.tables[number][:n], mode="clip")
            step.tables[number][n:] = 0
            np.add(length, table.span, out=step.lengths[number][:n], casting="same_kind")
            step.lengths[number][n:] = 1
            write_loc = step.write_loc[number]
            if write_loc is not None:
                page, offset = np.divmod(length, table.page_size)
                write_loc[:n] = self.pages[number][rows, page]
                write_loc[:n] *= table.page_size
                write_loc[:n] += offset
                write_loc[n:] = 0
        for number, column in enumerate(self.layout.columns):
            value = self.values[number, rows]
            if column.kind == "position":
                value += stored[self.layout.position_table(column)]
            step.columns[number][:n] = value
            step.columns[number][n:] = 0
        return step

    def commit(self, rows: Int64) -> None:
        """Advance the stored lengths of the requests of a step."""
        for number, table in enumerate(self.layout.tables):
            if table.span:
                self.stored[number, rows] += table.span

    def set_stream(self, request: int, table: int, pages: npt.ArrayLike, length: int) -> None:
        """Replace a request's stream."""
        self.pages[table][request] = 0
        self.pages[table][request, : np.size(pages)] = pages
        self.stored[table, request] = length

    def _allocate(self, bucket: int) -> NaiveStep:
        layout = self.layout
        step = NaiveStep(
            tables=[np.zeros((bucket, pages), np.int32) for pages in layout.table_pages],
            lengths=[np.ones(bucket, np.int32) for _ in layout.tables],
            write_loc=[np.zeros(bucket, np.int64) if table.span else None for table in layout.tables],
            columns=[np.zeros(bucket, np.int32 if c.kind == "index" else np.int64) for c in layout.columns],
        )
        self._buffers[bucket] = step
        return step
