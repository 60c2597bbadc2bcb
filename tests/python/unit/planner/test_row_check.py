"""The row check finds every kind of wrong cell, and nothing where all is well."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from mstar_resident import Column, KVTable, Refusal, ResidentPlanner, RowCheck, RowLayout, StreamTruth
from mstar_resident.errors import LayoutError
from mstar_resident.guarded import GUARD, Guarded

Ints = npt.NDArray[np.int64]
LAYOUT = RowLayout(
    [KVTable("kv", 4, 30, 32), KVTable("context", 2, 30, 12, span=0)],
    [Column("position_offset", "position", "kv"), Column("recurrent_index", "index"), Column("seed")],
)
COLUMNS = {"position_offset": -2, "recurrent_index": 7, "seed": 11}


class Books:
    """Streams that are the same for every handle."""

    def __init__(self) -> None:
        self.kv, self.context, self.stored = [5, 9, 6], [3, 4], 4

    def pages(self, handles: Ints, table: str) -> Ints:
        return np.array([self.kv if table == "kv" else self.context] * len(handles))

    def lengths(self, handles: Ints, table: str) -> Ints:
        return np.array([self.stored if table == "kv" else 3] * len(handles))

    def column(self, handles: Ints, name: str) -> Ints:
        return np.array([COLUMNS[name]] * len(handles))


class Step:
    """One committed step of one row in a bucket of two."""

    def __init__(self) -> None:
        self.planner, self.books = ResidentPlanner(LAYOUT, 2, debug=True), Books()
        self.lease, self.handle = self.planner.lease(2), self.planner.open()
        for table in ("kv", "context"):
            one = np.array([self.handle])
            pages, (length,) = self.books.pages(one, table)[0], self.books.lengths(one, table)
            self.planner.set_stream(self.handle, table, pages, int(length))
        for name, value in COLUMNS.items():
            self.planner.set_column(name, [self.handle], [value])
        self.stage = self.planner.stage(self.planner.batch([self.handle]), self.lease)
        self.planner.flush(self.stage, 0)
        self.planner.prologue(self.lease)
        self.planner.commit(self.stage)
        self.books.stored += 1
        self.check = RowCheck(self.planner)


@pytest.fixture
def step() -> Step:
    return Step()


@pytest.mark.parametrize("wrong", [None, Refusal("kv", "no table"), LAYOUT])
def test_what_is_no_planner_cannot_be_checked(wrong: object) -> None:
    with pytest.raises(LayoutError, match="planner: expected a ResidentPlanner, got"):
        RowCheck(wrong)  # type: ignore[arg-type]


def test_a_true_step_has_no_mismatch_and_is_counted(step: Step) -> None:
    books: StreamTruth = step.books
    assert step.check.check(step.stage, books) == []
    assert step.check.check(step.planner.batch([step.handle]), books) == []
    assert (step.check.steps, step.check.rows, step.check.mismatches) == (2, 2, 0)


SPOILED: dict[str, tuple[str, str, Callable[[Step], object]]] = {
    "a stored length": ("stored length", "kv", lambda s: s.planner.store.narrow[1, 0].add_(1)),
    "a read-only pool's length": ("stored length", "context", lambda s: s.planner.store.narrow[1, 1].sub_(1)),
    "a column": ("column", "seed", lambda s: s.planner.store.narrow[1, 4].zero_()),
    "a page": ("page", "kv", lambda s: s.planner.store.tables["kv"][1, 1].fill_(31)),
    "a read-only pool's page": ("page", "context", lambda s: s.planner.store.tables["context"][1, 0].fill_(31)),
    "a tail": ("tail", "kv", lambda s: s.planner.store.tables["kv"][1, 2].fill_(6)),
    "the trash row's length": ("trash row", "narrow columns", lambda s: s.planner.store.narrow[0, 0].add_(1)),
    "the trash row's page": ("trash row", "context", lambda s: s.planner.store.tables["context"][0, 5].fill_(1)),
    "a slot": ("slot", "inputs", lambda s: s.lease.slots[0].fill_(2)),
    "a slot left in the padding": ("slot", "inputs", lambda s: s.lease.slots[1].fill_(1)),
    "a cell left": ("cell left in the inputs", "inputs", lambda s: s.lease.cells[0, 1, 0].fill_(1)),
    "an attention length": ("attention length", "kv", lambda s: s.lease.lengths["kv"][0].add_(1)),
    "padding's attention length": ("attention length", "kv", lambda s: s.lease.lengths["kv"][1].zero_()),
    "a write location": ("write location", "kv", lambda s: s.lease.write_loc["kv"][0].sub_(4)),
    "padding's write location": ("write location", "kv", lambda s: s.lease.write_loc["kv"][1].fill_(20)),
    "a position": ("position", "position_offset", lambda s: s.lease.columns["position_offset"][0].add_(1)),
    "an index": ("index", "recurrent_index", lambda s: s.lease.columns["recurrent_index"][0].zero_()),
    "padding's index": ("index", "recurrent_index", lambda s: s.lease.columns["recurrent_index"][1].fill_(7)),
    "a scalar": ("scalar", "seed", lambda s: s.lease.columns["seed"][0].add_(1)),
    "a lost slot": ("slot", "row", lambda s: s.planner.offload(s.handle)),
}


@pytest.mark.parametrize("what", SPOILED)
def test_one_wrong_cell_is_found_and_named(step: Step, what: str) -> None:
    kind, name, spoil = SPOILED[what]
    spoil(step)
    found = step.check.check(step.stage, step.books)
    assert [(mismatch.what, mismatch.name) for mismatch in found][:1] == [(kind, name)]
    assert step.check.mismatches == len(found) >= 1
    assert f"{kind} of {name}" in str(found[0])
    assert found[0].expected != found[0].got


def test_a_truth_that_differs_from_the_planner_is_found(step: Step) -> None:
    step.books.kv[0] = 8
    (mismatch,) = step.check.check(step.stage, step.books)
    layout_start = LAYOUT.table_starts[0]
    assert (mismatch.what, mismatch.column, mismatch.expected, mismatch.got) == ("page", layout_start, 8, 5)


def guarded(step: Step) -> list[Guarded]:
    return [*step.planner.store.guarded, *step.planner.stager.guarded, *step.lease.guarded]


def test_a_write_one_past_either_end_of_any_buffer_is_found_and_named() -> None:
    count = len(guarded(Step()))
    assert count == 3 + 8 + 7  # the store; the ring; the inputs, two lengths, a write location, three columns
    for number in range(count):
        for behind in (False, True):
            step = Step()
            buffer = guarded(step)[number]
            cells = buffer.tensor.numel()
            outside = buffer.tensor.as_strided((1,), (1,), buffer.tensor.storage_offset() + (cells if behind else -1))
            outside.fill_(9)
            (found,) = step.check.check(step.stage, step.books)
            assert (found.what, found.name, found.column) == ("guard cell", buffer.name, cells if behind else -1)
            assert (found.expected, found.got) == (GUARD, 9)


def test_a_planner_without_debug_has_no_guard_cells_and_nothing_to_find() -> None:
    planner = ResidentPlanner(LAYOUT, 2)
    for buffer in [*planner.store.guarded, *planner.stager.guarded, *planner.lease(2).guarded]:
        assert buffer.tensor.untyped_storage().nbytes() == buffer.tensor.nbytes
        assert buffer.written() == []
