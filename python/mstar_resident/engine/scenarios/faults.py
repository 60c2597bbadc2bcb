"""Faults of a planner, done to the device's cells or a lease's inputs, that the checks must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from mstar_resident.engine.view import DecodeView
from mstar_resident.errors import MissingPageError
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner

if TYPE_CHECKING:
    from mstar_resident.engine.engine import Engine

#: Resident steps that run unharmed before a fault acts.
FIRST_STEP = 3


class Fault:
    """Do one kind of harm, once, as soon as a step allows it.

    Attributes:
        done: whether harm was done.
    """

    name: ClassVar[str]
    text: ClassVar[str]

    def __init__(self) -> None:
        self.done = False
        self._steps = 0

    def between(self, engine: Engine) -> None:
        """Act between two steps."""

    def flushed(self, planner: ResidentPlanner, view: DecodeView) -> None:
        """Act after a flush, before the prologue reads what it sent."""
        self._steps += 1
        if not self.done and self._steps > FIRST_STEP and view.lease is not None:
            self.done = self.before_prologue(planner, view.lease)

    def ran(self, planner: ResidentPlanner, view: DecodeView) -> None:
        """Act after the program, before the commit."""
        if not self.done and self._steps > FIRST_STEP and view.lease is not None:
            self.done = self.after_program(planner, view.lease)

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Do harm before the prologue; return whether anything changed."""
        return False

    def after_program(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Do harm after the program; return whether anything changed."""
        return False


class StaleCell(Fault):
    """Keep the last used page of a row as it was before it was sent."""

    name, text = "stale-cell", "the page that a row writes to was never sent"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Lose the cell that is being sent, or put back what was there before."""
        return _set_page(planner, lease, lambda page: 0)


class WrongPage(Fault):
    """Name another page of the pool."""

    name, text = "wrong-page", "the page that a row writes to is another request's"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Replace the page."""
        pages = planner.layout.tables[0].pool_pages if planner.layout.tables else 1
        return _set_page(planner, lease, lambda page: page % pages + 1)


class WrongSlot(Fault):
    """Read another row."""

    name, text = "wrong-slot", "a batch index reads another request's row"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Move the first batch index to the next slot."""
        lease.slots[0] = int(lease.slots[0]) % (2 * planner.max_batch) + 1
        return True


class LostAdvance(Fault):
    """Take an advance back."""

    name, text = "lost-advance", "the device did not advance a row's stored length"

    def after_program(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Subtract the span from the first row's first appending length."""
        for number, table in enumerate(planner.layout.tables):
            if table.span:
                planner.store.narrow[lease.slots[0], number] -= table.span
                return True
        planner.store.narrow[lease.slots[0], 0] -= 1
        return True


class PaddingWrite(Fault):
    """Let padding write to the row that it reads."""

    name, text = "padding-write", "a padding row advanced the trash row"

    def after_program(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Advance row 0."""
        planner.store.narrow[0, 0] += 1
        return True


class DroppedStageSent(Fault):
    """Send what a dropped stage had decided."""

    name, text = "dropped-stage-sent", "a step ran with the slots of a stage that was dropped"

    def __init__(self) -> None:
        super().__init__()
        self._slots: Tensor | None = None

    def between(self, engine: Engine) -> None:
        """Stage the next step's rows in another order; the step itself then drops that stage."""
        plan = engine.scheduler.next()
        if self.done or engine.planner is None or plan is None or plan.walk != "decode" or len(plan.requests) < 2:
            return
        handles = engine.seats.handle[plan.seats][::-1].copy()
        if any(engine.planner.slot(int(handle)) == 0 for handle in handles):
            return  # not sent yet: the dropped stage's slots were never anyone's
        lease = engine.planner.lease(engine.arm.bucket(len(handles)), "decode", 0)
        try:
            engine.planner.stage(engine.planner.batch(handles), lease)
        except MissingPageError:
            return  # the engine has not reserved the next step's pages yet
        self._slots = lease.slots.new_tensor([engine.planner.slot(int(handle)) for handle in handles])

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Overwrite the step's slots with the dropped ones."""
        if self._slots is None or len(self._slots) > lease.bucket:
            return False
        slots = lease.slots[: len(self._slots)]
        changed = bool((slots != self._slots).any())
        slots.copy_(self._slots)
        return changed


FAULTS: dict[str, type[Fault]] = {
    fault.name: fault for fault in (StaleCell, WrongSlot, LostAdvance, DroppedStageSent, WrongPage, PaddingWrite)
}


def _set_page(planner: ResidentPlanner, lease: Lease, change: Callable[[int], int]) -> bool:
    """Change the page that the first row writes to, in the cells row or in the store."""
    layout, store = planner.layout, planner.store
    slot = int(lease.slots[0])
    for number, table in enumerate(layout.tables):
        if not table.span:
            continue
        cells = {int(column) - 1: k for k, (column, _) in enumerate(lease.cells[0].tolist()) if column}
        length = int(store.narrow[slot, number])
        if number in cells:
            length = int(lease.cells[0, cells[number], 1])
        used = length // table.page_size
        cell = cells.get(layout.table_starts[number] + used)
        if cell is not None:
            before = int(lease.cells[0, cell, 1])
            lease.cells[0, cell, 1] = change(before)
            return change(before) != before
        before = int(store.tables[table.name][slot, used])
        store.tables[table.name][slot, used] = change(before)
        return change(before) != before
    store.narrow[slot, len(layout.tables)] += 1  # a row without pages: harm its first column
    return True
