"""What a step may cost, and where its buffers must be: checks of a run that no row shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mstar_resident.engine.engine import Engine
from mstar_resident.engine.plan import StepPlan
from mstar_resident.engine.request import Request
from mstar_resident.engine.view import DecodeView
from mstar_resident.errors import UnknownHandleError
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner


class Watch:
    """Hold every resident step to what was told since its rows were read last.

    A row may be written whole only if it is new, was displaced, or something was told of it. A step whose slots its
    lease's buffer holds already, and whose rows neither changed nor crossed, sends nothing. Buffers stay where they
    were when a graph would have recorded them.

    Attributes:
        cost: work that nothing called for.
        addresses: buffers that moved.
    """

    def __init__(self, engine: Engine, planner: ResidentPlanner) -> None:
        self._engine = engine
        self._planner = planner
        self.cost: list[str] = []
        self.addresses: list[str] = []
        self._told: set[int] = set()  # seats
        self._handles: list[int] = []
        self._sent: dict[int, tuple[int, ...]] = {}  # slots by lease
        self._fixed = (*planner.store.addresses(), *planner.stager.addresses())
        arm = engine.arm
        leases = [view.lease for view in arm.views() if view.lease is not None]
        self._leased = {lease.id: lease.addresses() for lease in leases}
        for name in ("offset_changed", "offloaded"):
            _after(arm, name, self._tell)
        for name in ("truncated", "replaced"):
            _after(arm, name, lambda table, seat, *rest: self._told.add(seat))
        _after(arm, "opened", self._open)
        _after(arm, "advanced", self._advance)
        self._decode = arm.decode
        setattr(arm, "decode", self._watched)  # noqa: B010

    def mark(self, request: Request) -> None:
        """Mark a request's row stale, as whoever wrote to its stream elsewhere would."""
        self._planner.mark_stale(self._engine.seats.handle[[request.seat]])
        self._tell(request)

    def open_handles(self) -> int:
        """Return how many handles were opened and never released."""
        return sum(self._is_open(handle) for handle in self._handles)

    def _is_open(self, handle: int) -> bool:
        try:
            self._planner.slot(handle)
        except UnknownHandleError:
            return False
        return True

    def _tell(self, request: Request) -> None:
        self._told.add(request.seat)

    def _open(self, request: Request) -> None:
        self._told.add(request.seat)
        self._handles.append(int(self._engine.seats.handle[request.seat]))

    def _advance(self, plan: StepPlan, alive: Any, resident: bool) -> None:
        if not resident:
            self._told.update(plan.seats.tolist())

    def _watched(self, plan: StepPlan, buffer_idx: int) -> DecodeView:
        seats = plan.seats.tolist()
        slots = [self._planner.slot(int(handle)) for handle in self._engine.seats.handle[plan.seats]]
        due = sum(slot == 0 or seat in self._told for seat, slot in zip(seats, slots, strict=True))
        before = self._planner.stats()
        try:
            view = self._decode(plan, buffer_idx)
        except BaseException:
            self._told.update(seats)
            self._sent.clear()
            raise
        if view.lease is None:
            return view
        now, key = self._planner.stats(), view.lease.id
        whole, crossings, sent = (getattr(now, n) - getattr(before, n) for n in ("whole_rows", "crossings", "bytes"))
        if whole > due:
            self.cost.append(f"whole rows of a step: expected at most {due}, got {whole}")
        if not due and not crossings and sent and self._sent.get(key) == tuple(slots):
            self.cost.append(f"bytes of a step whose rows did not change: expected 0, got {sent}")
        self._sent[key] = tuple(slots) if all(slots) else ()
        self._told.difference_update(seats)
        self._look(view.lease)
        return view

    def _look(self, lease: Lease) -> None:
        fixed = (*self._planner.store.addresses(), *self._planner.stager.addresses())
        expected, leased = self._leased[lease.id], lease.addresses()
        if fixed != self._fixed:
            self.addresses.append(f"addresses of the store and the ring: expected {self._fixed}, got {fixed}")
        if leased != expected:
            self.addresses.append(f"addresses of lease {lease.key}: expected {expected}, got {leased}")


def _after(arm: object, name: str, note: Callable[..., None]) -> None:
    """Have ``note`` called after an arm's method, with the same arguments."""
    made = getattr(arm, name)

    def call(*arguments: Any) -> None:
        made(*arguments)
        note(*arguments)

    setattr(arm, name, call)
