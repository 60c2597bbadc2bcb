"""The engine's own streams, as the row check asks for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mstar_resident.engine.pages import Ints
from mstar_resident.engine.seats import Seats
from mstar_resident.engine.streams import Streams
from mstar_resident.engine.view import POSITION, RECURRENT, SEAT
from mstar_resident.errors import LayoutError


class EngineTruth:
    """Answer for every handle from the engine's arrays, never from the planner's mirrors."""

    def __init__(self, seats: Seats, streams: Mapping[str, Streams]) -> None:
        self._seats = seats
        self._streams = streams

    def lengths(self, handles: Ints, table: str) -> Ints:
        """Return the streams' stored lengths."""
        return self._streams[table].length[self._of(handles)]

    def pages(self, handles: Ints, table: str) -> Ints:
        """Return the streams' pages, in order; the sink page behind them."""
        entry, seats = self._streams[table], self._of(handles)
        width = int(entry.held[seats].max(initial=1))
        return entry.table[seats, :width].astype(np.int64)

    def column(self, handles: Ints, name: str) -> Ints:
        """Return the values of a named column.

        Raises:
            LayoutError: the engine has no such column.
        """
        seats = self._of(handles)
        match name:
            case _ if name == POSITION:
                return self._seats.offset[seats]
            case _ if name == RECURRENT:
                return self._seats.recurrent[seats]
            case _ if name == SEAT:
                return seats
        raise LayoutError.of("column", expected=f"one of {[POSITION, RECURRENT, SEAT]}", got=name)

    def _of(self, handles: Ints) -> Ints:
        return np.array([self._seats.of(handle) for handle in handles.tolist()], dtype=np.int64)
