"""The engine's requests by seat, in arrays that a whole step reads at once."""

from __future__ import annotations

import numpy as np

from mstar_resident.engine.indices import Indices
from mstar_resident.engine.pages import Ints
from mstar_resident.engine.request import Request
from mstar_resident.errors import UnknownHandleError


class Seats:
    """Seat admitted requests.

    A seat is a request's index into the engine's host arrays and into the sampler's device state, from admission to
    its end; 0 is padding's. It never moves, unlike the slot, which can be displaced.

    Attributes:
        handle: int64[seats]: the planner's handle, 0 without one.
        stored: int64[seats]: tokens whose keys and values, or recurrent state, are stored.
        offset: int64[seats]: position of a new token minus its index.
        recurrent: int64[seats]: recurrent index, 0 without one.
        launched: int64[seats]: outputs sampled by launched steps, read on the host or not.
        granted: int64[seats]: outputs that the request may have.
        ran: int64[seats]: number of the last step that the seat was in.
        epoch: int64[seats]: moves on whenever steps launched before no longer concern the seat.
    """

    def __init__(self, count: int) -> None:
        self._indices = Indices("seat", count)
        self._requests: list[Request | None] = [None] * (count + 1)
        self._by_handle: dict[int, int] = {}
        self.handle, self.stored, self.offset, self.recurrent = (np.zeros(count + 1, np.int64) for _ in range(4))
        self.launched, self.granted, self.ran, self.epoch = (np.zeros(count + 1, np.int64) for _ in range(4))

    @property
    def count(self) -> int:
        """Length of every array: the seats, and seat 0."""
        return len(self._requests)

    @property
    def free(self) -> int:
        """Seats that can be taken now."""
        return self._indices.free

    def take(self, request: Request) -> bool:
        """Seat a request; return whether there was a seat."""
        if not self._indices.free:
            return False
        seat = self._indices.take()
        for array in (self.handle, self.stored, self.offset, self.recurrent, self.launched, self.granted, self.ran):
            array[seat] = 0
        self._requests[seat] = request
        request.seat = seat
        return True

    def give(self, request: Request) -> None:
        """Give a request's seat back; steps launched before no longer concern it."""
        seat = request.seat
        self._by_handle.pop(int(self.handle[seat]), None)
        self.epoch[seat] += 1
        self._requests[seat] = None
        request.seat = 0
        self._indices.give(seat)

    def name(self, seat: int, handle: int) -> None:
        """Note the planner's handle of a seat."""
        self.handle[seat] = handle
        self._by_handle[handle] = seat

    def of(self, handle: int) -> int:
        """Return the seat of a handle.

        Raises:
            UnknownHandleError: no seated request has it.
        """
        seat = self._by_handle.get(handle)
        if seat is None:
            raise UnknownHandleError.of("handle", expected="one of a seated request", got=handle)
        return seat

    def alive(self, seats: Ints, epochs: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which seats a step that noted ``epochs`` still concerns."""
        alive: np.ndarray[tuple[int], np.dtype[np.bool_]] = self.epoch[seats] == epochs
        return alive
