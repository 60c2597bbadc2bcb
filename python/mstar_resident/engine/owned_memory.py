"""Pages for streams when the planner owns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mstar_resident.engine.memory import Memory
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.seats import Seats
from mstar_resident.engine.streams import Streams
from mstar_resident.errors import OutOfPagesError

if TYPE_CHECKING:
    from mstar_resident.engine.arm import HostArm
    from mstar_resident.planner import ResidentPlanner


class OwnedMemory(Memory):
    """Ask the planner for pages and copy its answers to the engine's streams.

    This is the second of two ways to keep the planner's mirrors true. The planner counts references and gives pages
    back when it is told of a rewind, a release or an offload; the engine's own pool stays unused. A read-only pool
    stays the engine's.
    """

    def __init__(self, seats: Seats, streams: Mapping[str, Streams], arm: HostArm, planner: ResidentPlanner) -> None:
        super().__init__(seats, streams, arm)
        self.planner = planner
        for entry in self._appending:
            planner.own_pages(entry.pool.name)

    def place(self, streams: Streams, seat: int, length: int) -> bool:
        """Reserve the pages for ``length`` tokens and tell that a host step stored them."""
        if not streams.span:
            return super().place(streams, seat, length)
        one, tokens = np.array([seat]), np.array([length])
        if length == 0:
            return True
        if not self._grow(streams, one, tokens, tokens):
            return False
        streams.length[seat] = length
        self.planner.host_step(streams.pool.name, self.seats.handle[one], tokens)
        return True

    def fork(self, streams: Streams, parent: int, child: int, tokens: int) -> None:
        """Make the child's stream the parent's first tokens, sharing its full pages."""
        self.planner.fork(streams.pool.name, int(self.seats.handle[parent]), int(self.seats.handle[child]), tokens)
        streams.length[child] = tokens
        self._copy(streams, child)

    def free(self, streams: Streams) -> int:
        """Return how many pages are free."""
        return self.planner.free_pages(streams.pool.name) if streams.span else super().free(streams)

    def _grow(self, streams: Streams, seats: Ints, tokens: Ints, missing: Ints) -> bool:
        name = streams.pool.name
        some = missing > 0
        for attempt in (0, 1):
            try:
                self.planner.reserve(name, self.seats.handle[seats[some]], tokens[some])
                break
            except OutOfPagesError:
                if attempt:
                    return False
                self._trim(streams, seats)
        for seat in seats[some].tolist():
            self._copy(streams, seat)
        return True

    def _copy(self, streams: Streams, seat: int) -> None:
        pages = self.planner.pages(int(self.seats.handle[seat]), streams.pool.name)
        streams.put(seat, np.array(pages, dtype=np.int64))

    def _give(self, streams: Streams, pages: Ints) -> None:
        """Give pages of a read-only pool back; the planner did so with its own when the arm told it."""
        if not streams.span:
            super()._give(streams, pages)
