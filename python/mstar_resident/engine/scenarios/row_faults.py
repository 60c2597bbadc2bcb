"""Faults done to the device: a cell of a row, a lease's inputs, a recorded buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from mstar_resident.engine.scenarios.fault import Fault
from mstar_resident.engine.view import POSITION, RECURRENT, SEAT
from mstar_resident.errors import MissingPageError
from mstar_resident.lease import Lease
from mstar_resident.planner import ResidentPlanner

if TYPE_CHECKING:
    from mstar_resident.engine.engine import Engine


class StaleCell(Fault):
    """Keep the last used page of a row as it was before it was sent."""

    name, kind, text = "stale-cell", "stale", "the page that a row writes to was never sent"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Lose the cell that is being sent, or put back what was there before."""
        return _set_page(planner, lease, lambda page: 0)


class WrongSlot(Fault):
    """Read another row."""

    name, kind, text = "wrong-slot", "stale", "a batch index reads another request's row"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Move the first batch index to the next slot."""
        lease.slots[0] = int(lease.slots[0]) % (2 * planner.max_batch) + 1
        return True


class DroppedStageSent(Fault):
    """Send what a dropped stage had decided."""

    name, kind, text = "dropped-stage-sent", "stale", "a step ran with the slots of a stage that was dropped"

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


class ReusedSlot(Fault):
    """Give a slot to another request while a step that reads it is in flight."""

    name, kind, text = "reused-slot", "in flight", "a row was written for another request under a step in flight"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Copy the second row of the step over the first."""
        first, second = (int(slot) for slot in lease.slots[:2]) if lease.bucket > 1 else (0, 0)
        if not second:
            return False
        for part in (planner.store.narrow, *planner.store.tables.values()):
            part[first] = part[second]
        return True


class PaddingWrite(Fault):
    """Let padding write to the row that it reads."""

    name, kind, text = "padding-write", "padding", "a padding row advanced the trash row"

    def after_program(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Advance row 0."""
        planner.store.narrow[0, 0] += 1
        return True


class OverwrittenSource(Fault):
    """Send what the host wrote for a later step."""

    name, kind, text = "overwritten-source", "staging", "a ring buffer was cleared before its copy ran"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Leave in the lease's inputs what such a copy would have."""
        lease.inputs.zero_()
        return True


class LostAdvance(Fault):
    """Take an advance back."""

    name, kind, text = "lost-advance", "length", "the device did not advance a row's stored length"

    def after_program(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Subtract the span from the first row's first appending length."""
        for number, table in enumerate(planner.layout.tables):
            if table.span:
                planner.store.narrow[lease.slots[0], number] -= table.span
                return True
        planner.store.narrow[lease.slots[0], 0] -= 1
        return True


class StaleTail(Fault):
    """Leave a page behind a row's used cells."""

    name, kind, text = "stale-tail", "width", "a cell behind the used ones names a page of somebody's"

    def after_program(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Write the row's first page behind its last."""
        slot = int(lease.slots[0])
        for number, table in enumerate(planner.layout.tables):
            cells = planner.store.tables[table.name][slot]
            used = -(-int(planner.store.narrow[slot, number]) // table.page_size)
            if 0 < used < len(cells):
                cells[used] = cells[0]
                return True
        return False


class WrongPage(Fault):
    """Take the pages of a stream for consecutive ones."""

    name, kind, text = "wrong-page", "edge", "the page that a row writes to is another request's"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Replace the page by the next by number."""
        pages = planner.layout.tables[0].pool_pages if planner.layout.tables else 1
        return _set_page(planner, lease, lambda page: page % pages + 1)


class LostState(Fault):
    """Send a row to the state that padding uses."""

    name, kind, text = "lost-state", "recurrent", "a row's recurrent index is the sink's"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Clear the index."""
        return _set_column(planner, lease, RECURRENT, lambda index: 0)


class MixedPools(Fault):
    """Read a pool through another pool's table."""

    name, kind, text = "mixed-pools", "group", "the second pool's table names a page of the first's"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Copy a page from table to table."""
        tables, slot = list(planner.store.tables.values()), int(lease.slots[0])
        if len(tables) < 2 or not int(planner.store.narrow[slot, 1]) or tables[0][slot, 0] == tables[1][slot, 0]:
            return False
        tables[1][slot, 0] = tables[0][slot, 0] % planner.layout.tables[1].pool_pages + 1
        return True


class WrongSeat(Fault):
    """Draw a row's token with the parameters of another."""

    name, kind, text = "wrong-seat", "sampler", "a row's seat, which its sampling parameters lie at, is padding's"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Clear the seat."""
        return _set_column(planner, lease, SEAT, lambda seat: 0)


class LostOffset(Fault):
    """Count positions from another offset."""

    name, kind, text = "lost-offset", "position", "a row's position offset is one too small"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Change the offset."""
        return _set_column(planner, lease, POSITION, lambda offset: offset - 1)


class MovedBuffer(Fault):
    """Put a buffer elsewhere, as one that grew would be."""

    name, kind, text = "moved-buffer", "graph", "a lease's buffer is no longer where its graph recorded it"

    def before_prologue(self, planner: ResidentPlanner, lease: Lease) -> bool:
        """Make a new buffer for the first column."""
        name = next(iter(lease.columns))
        lease.columns[name] = lease.columns[name].clone()
        return True


def _set_column(planner: ResidentPlanner, lease: Lease, name: str, change: Callable[[int], int]) -> bool:
    """Change a named column of the first row, in the store and in the cells row."""
    if name not in lease.columns:
        return False
    slot, column = int(lease.slots[0]), planner.layout.column_number(name)
    for cell in lease.cells[0]:
        if int(cell[0]) == column + 1:
            cell[1] = change(int(cell[1]))
    before = int(planner.store.narrow[slot, column])
    planner.store.narrow[slot, column] = change(before)
    return change(before) != before


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
