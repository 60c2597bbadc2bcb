"""Pages for streams: reserved all or nothing, given back in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mstar_resident.engine.pages import Ints
from mstar_resident.engine.request import Request
from mstar_resident.engine.seats import Seats
from mstar_resident.engine.streams import Streams

if TYPE_CHECKING:
    from mstar_resident.engine.arm import HostArm
    from mstar_resident.engine.prefix import PrefixCache


class Memory:
    """Move pages between pools and streams, and tell the arm of every move.

    This is the first of two ways to keep the planner's mirrors true: the engine owns its streams and tells.
    """

    def __init__(self, seats: Seats, streams: Mapping[str, Streams], arm: HostArm) -> None:
        self.seats = seats
        self.streams = streams
        self.arm = arm
        self.prefix: PrefixCache | None = None
        self._appending = [entry for entry in streams.values() if entry.span]

    def reserve(self, seats: Ints, tokens: Ints) -> bool:
        """Give every seat the pages for its tokens in every appending pool, or none of them any.

        A refusal rolls back: pages that an earlier pool gave return to it, and the arm drops the stage that names
        them.
        """
        grown: list[tuple[Streams, Ints, Ints]] = []
        for streams in self._appending:
            missing = streams.missing(seats, tokens)
            if not missing.any():
                continue
            held = streams.held[seats].copy()
            if not self._grow(streams, seats, tokens, missing):
                for other, counts, before in grown:
                    self._roll_back(other, seats, counts, before)
                return False
            grown.append((streams, missing, held))
        return True

    def place(self, streams: Streams, seat: int, length: int) -> bool:
        """Give an empty stream the pages for ``length`` tokens and make that its length."""
        pages = self._take(streams, -(-length // streams.pool.page_size), keep=np.array([seat]))
        if pages is None:
            return False
        self.adopt(streams, seat, pages, length)
        return True

    def adopt(self, streams: Streams, seat: int, pages: Ints, length: int) -> None:
        """Make pages that were taken or shared an empty stream's, with a length."""
        streams.append(np.array([seat]), np.array([len(pages)]), pages)
        streams.length[seat] = length
        self.arm.replaced(streams.pool.name, seat, pages, length)

    def rewind(self, request: Request, length: int) -> None:
        """Cut every appending stream to a length, and give the pages beyond it back."""
        for streams in self._appending:
            keep = -(-length // streams.pool.page_size)
            if streams.length[request.seat] != length or streams.held[request.seat] != keep:
                self._cut(streams, request.seat, length, keep)
        self.seats.stored[request.seat] = length

    def release(self, request: Request) -> None:
        """Give all pages of a request back; the arm has released or offloaded its handle before."""
        for streams in self.streams.values():
            self._give(streams, streams.cut(request.seat, 0, 0))

    def free(self, streams: Streams) -> int:
        """Return how many pages could be had without taking any from a request."""
        return streams.pool.free + (self.prefix.evictable() if self.prefix is not None else 0)

    def check(self) -> None:
        """Check that every page is free or referenced.

        Raises:
            InvariantError: a pool's books are broken.
        """
        for streams in self.streams.values():
            streams.pool.check()

    def _grow(self, streams: Streams, seats: Ints, tokens: Ints, missing: Ints) -> bool:
        pages = self._take(streams, int(missing.sum()), keep=seats)
        if pages is None:
            return False
        some = missing > 0
        streams.append(seats[some], missing[some], pages)
        self.arm.appended(streams.pool.name, seats[some], missing[some], pages)
        return True

    def _roll_back(self, streams: Streams, seats: Ints, counts: Ints, before: Ints) -> None:
        for seat, held in zip(seats[counts > 0].tolist(), before[counts > 0].tolist(), strict=True):
            self._cut(streams, seat, int(streams.length[seat]), held)

    def _take(self, streams: Streams, count: int, keep: Ints) -> Ints | None:
        """Take pages; if there are too few, first evict the prefix cache, then trim streams outside ``keep``."""
        pool = streams.pool
        if pool.free < count and self.prefix is not None:
            self.prefix.evict(count - pool.free)
        if pool.free < count:
            self._trim(streams, keep)
        return pool.take(count)

    def _trim(self, streams: Streams, keep: Ints) -> None:
        """Take back pages that streams hold beyond their length, as an abandoned stage's reservation leaves them."""
        used = -(-streams.length // streams.pool.page_size)
        for seat in np.setdiff1d(np.flatnonzero(streams.held > used), keep).tolist():
            self._cut(streams, seat, int(streams.length[seat]), int(used[seat]))

    def _cut(self, streams: Streams, seat: int, length: int, pages: int) -> None:
        cut = streams.cut(seat, length, pages)
        self.arm.truncated(streams.pool.name, seat, length, pages)
        self._give(streams, cut)

    def _give(self, streams: Streams, pages: Ints) -> None:
        streams.pool.give(pages)
