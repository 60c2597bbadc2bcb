"""Faults of a run's course: what an engine tells too late, twice, wrongly or never."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mstar_resident.engine.pages import Ints
from mstar_resident.engine.request import Request, State
from mstar_resident.engine.scenarios.fault import FIRST_STEP, Fault
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner

if TYPE_CHECKING:
    from mstar_resident.engine.engine import Engine


class SlotExchanged(Fault):
    """Put a slot number into what ranks exchange."""

    name, kind, text = "slot-exchanged", "rank", "a collective reads slot numbers, which ranks may choose differently"

    def exchanged(self, lease: Lease) -> list[int]:
        """Return the step's slots."""
        self.done = True
        slots: list[int] = lease.slots.tolist()
        return slots


class OldPages(Fault):
    """Bring a request back with a page that it had before."""

    name, kind, text = "old-pages", "offload", "a reloaded row names a page from before its offload"

    def __init__(self) -> None:
        super().__init__()
        self._engine: Engine | None = None
        self._pages: dict[Request, int] = {}
        self._away: set[Request] = set()

    def between(self, engine: Engine) -> None:
        """Note who holds which page, and who is away."""
        self._engine = engine
        for request in engine.scheduler.live:
            if request.state is State.OFFLOADED:
                self._away.add(request)
            elif request.state is State.DECODE and engine.streams and request not in self._away:
                self._pages[request] = int(next(iter(engine.streams.values())).table[request.seat, 0])

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Put the old page back under the first row that has returned."""
        table, slots = next(iter(planner.store.tables.values()), None), set(lease.slots.tolist())
        for request in self._away:
            if self._engine is None or request.state is not State.DECODE or table is None:
                continue
            slot = planner.slot(int(self._engine.seats.handle[request.seat]))
            old = self._pages.get(request, 0)
            if slot in slots and slot and old and int(table[slot, 0]) not in (0, old):
                table[slot, 0] = old
                return True
        return False


class WrappedPage(Fault):
    """Tell a page id that only 32 bits would make right."""

    name, kind, text = "wrapped-page", "integer", "a page id is told with a bit beyond the 32nd"

    def __init__(self) -> None:
        super().__init__()
        self._waits = False

    def between(self, engine: Engine) -> None:
        """Change the next pages that the engine tells."""
        if self._waits or self._steps < FIRST_STEP:
            return
        self._waits, appended = True, engine.arm.appended

        def wrapped(table: str, seats: Ints, counts: Ints, pages: Ints) -> None:
            engine.arm.appended = appended  # type: ignore[method-assign]
            self.done = True
            appended(table, seats, counts, pages + 2**32)

        engine.arm.appended = wrapped  # type: ignore[method-assign]


class ResentRows(Fault):
    """Write rows whole although nothing has changed."""

    name, kind, text = "resent-rows", "cost", "every row is written whole again before a step"

    def between(self, engine: Engine) -> None:
        """Mark every row that decodes."""
        planner = engine.planner
        decoding = [request.seat for request in engine.scheduler.live if request.state is State.DECODE]
        held = [int(handle) for handle in engine.seats.handle[decoding] if planner is not None and planner.slot(handle)]
        if planner is not None and held and self._steps >= FIRST_STEP:
            planner.mark_stale(np.array(held, dtype=np.int64))
            self.done = True


class LostRelease(Fault):
    """Never tell that a request is over."""

    name, kind, text = "lost-release", "life", "a request ends and its handle is never released"

    def __init__(self) -> None:
        super().__init__()
        self._waits = False

    def between(self, engine: Engine) -> None:
        """Swallow the next release."""
        if self._waits or self._steps < FIRST_STEP:
            return
        self._waits, released = True, engine.arm.released

        def swallowed(request: Request) -> None:
            engine.arm.released = released  # type: ignore[method-assign]
            self.done = True

        engine.arm.released = swallowed  # type: ignore[method-assign]
