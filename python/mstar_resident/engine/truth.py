"""The engine's own streams, as the row check asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mstar_resident.engine.seats import Seats
from mstar_resident.engine.streams import Streams
from mstar_resident.engine.view import POSITION, RECURRENT, SEAT
from mstar_resident.errors import LayoutError


class EngineTruth:
    """Answer for every handle from the engine's arrays, never from the planner's mirrors."""

    def __init__(self, seats: Seats, streams: Mapping[str, Streams]) -> None:
        self._seats = seats
        self._streams = streams

    def pages(self, handle: int, table: str) -> Sequence[int]:
        """Return the stream's pages, in order."""
        pages: list[int] = self._streams[table].pages(self._seats.of(handle)).tolist()
        return pages

    def length(self, handle: int, table: str) -> int:
        """Return the stream's stored length."""
        return int(self._streams[table].length[self._seats.of(handle)])

    def column(self, handle: int, name: str) -> int:
        """Return the value of a named column.

        Raises:
            LayoutError: the engine has no such column.
        """
        seat = self._seats.of(handle)
        match name:
            case _ if name == POSITION:
                return int(self._seats.offset[seat])
            case _ if name == RECURRENT:
                return int(self._seats.recurrent[seat])
            case _ if name == SEAT:
                return seat
        raise LayoutError.of("column", expected=f"one of {[POSITION, RECURRENT, SEAT]}", got=name)
