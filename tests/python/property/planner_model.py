"""A model of what the planner knows, made of dictionaries: streams, columns, and which handles hold a slot."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from mstar_resident import Column, KVTable, ResidentPlanner, RowLayout
from mstar_resident.errors import (
    MissingPageError,
    ReleasedTokensError,
    ResidentError,
    RowOverflowError,
    UnknownHandleError,
    UnsetColumnError,
)

B = 3
KV = KVTable("kv", page_size=4, pool_pages=60, max_seq_len=24)
CONTEXT = KVTable("context", page_size=2, pool_pages=40, max_seq_len=12, span=0)
OWN = KVTable("own", page_size=3, pool_pages=24, max_seq_len=21)
COLUMNS = [Column("position_offset", "position", "kv"), Column("recurrent_index", "index"), Column("seed")]


@dataclass
class Stream:
    pages: list[int] = field(default_factory=list)
    length: int = 0
    released: bool = False
    replaced_in: int = 0  # the step that was in flight when the length was set outright


@dataclass
class Request:
    streams: dict[str, Stream]
    columns: dict[str, int] = field(default_factory=dict)
    last_step: int = 0


@dataclass
class Step:
    native: Any
    handles: list[int]
    lease: Any
    requests: list[Request]
    ran: bool = False


class PlannerModel:
    """The planner, the model of it, and the comparison of both."""

    tables: tuple[KVTable, ...] = (KV, CONTEXT, OWN)

    def build(self) -> None:
        self.planner = ResidentPlanner(RowLayout(self.tables, COLUMNS), B, debug=True)
        self.requests: dict[int, Request] = {}
        self.gone: list[int] = []
        self.stage: Step | None = None
        self.flight: Step | None = None
        self.dropped: list[Step] = []
        self.held: dict[int, tuple[int, int]] = {}  # handle: last launched step that read it, order of taking
        self.cooling = self.takes = self.seq = self.committed = 0
        self.shared: set[str] = set()
        if OWN in self.tables:
            self.planner.own_pages("own")

    def shares(self, handle: int, pages: list[int]) -> bool:
        """Whether another request's owned stream names one of the pages."""
        return any(set(pages) & set(r.streams["own"].pages) for h, r in self.requests.items() if h != handle)

    def some(self, indices: list[int]) -> list[int]:
        live = sorted(self.requests)
        return list(dict.fromkeys(live[index % len(live)] for index in indices))

    def engine_table(self, index: int) -> KVTable:
        tables = [table for table in self.tables if table is not OWN]
        return tables[index % len(tables)]

    def touch(self, *handles: int) -> None:
        if self.stage is not None and set(handles) & set(self.stage.handles):
            self.dropped.append(self.stage)
            self.stage = None

    def replace(self, stream: Stream) -> None:
        stream.replaced_in = self.flight.native.seq if self.flight else 0

    def give_up_slot(self, handle: int) -> None:
        if handle in self.held:
            last_read, _ = self.held.pop(handle)
            self.cooling += bool(self.flight and last_read == self.flight.native.seq)

    def row_errors(self, handle: int) -> set[type[ResidentError]]:
        request = self.requests.get(handle)
        if request is None:
            return {UnknownHandleError}
        errors: set[type[ResidentError]] = set()
        for table in self.tables:
            stream = request.streams[table.name]
            used = -(-(stream.length + table.span) // table.page_size)
            errors |= {ReleasedTokensError} if stream.released else set()
            errors |= {RowOverflowError} if used > table.pages else set()
            errors |= {MissingPageError} if used > len(stream.pages) else set()
        return errors | ({UnsetColumnError} if len(request.columns) < len(COLUMNS) else set())

    def new_pages(self, held: list[int], table: KVTable, count: int, seed: int) -> list[int]:
        free = sorted(set(range(1, table.pool_pages + 1)) - set(held))
        return random.Random(seed).sample(free, min(count, len(free)))

    def take_slots(self, step: Step) -> None:
        new = [handle for handle in step.handles if handle not in self.held]
        free = 2 * B - len(self.held) - self.cooling
        outside = sorted((h for h in self.held if h not in step.handles), key=self.held.__getitem__)
        for victim in outside[: max(0, len(new) - free)]:
            del self.held[victim]
        for handle in step.handles:
            if handle in new:
                self.takes += 1
            self.held[handle] = (step.native.seq, self.held[handle][1] if handle in self.held else self.takes)

    def replay(self, step: Step) -> None:
        lease, store, n = step.lease, self.planner.store, len(step.handles)
        self.planner.prologue(lease)
        step.ran = True
        slots = [self.planner.slot(handle) for handle in step.handles]
        assert lease.slots.tolist() == slots + [0] * (lease.bucket - n)
        assert not lease.cells.any()
        for index, (request, slot) in enumerate(zip(step.requests, slots, strict=True)):
            assert store.narrow[slot, len(self.tables) :].tolist() == [request.columns[c.name] for c in COLUMNS]
            for column in COLUMNS:
                offset = request.streams["kv"].length if column.kind == "position" else 0
                assert lease.columns[column.name][index] == request.columns[column.name] + offset
            for number, table in enumerate(self.tables):
                stream = request.streams[table.name]
                after, used = stream.length + table.span, -(-(stream.length + table.span) // table.page_size)
                assert store.narrow[slot, number] == after
                cells = store.tables[table.name][slot].tolist()
                assert cells == stream.pages[:used] + [0] * (table.pages - used)
                assert lease.lengths[table.name][index] == after
                if table.span:
                    page, offset = divmod(stream.length, table.page_size)
                    assert lease.write_loc[table.name][index] == stream.pages[page] * table.page_size + offset
        for out in (*lease.lengths.values(), *lease.write_loc.values(), *lease.columns.values()):
            padding = int(any(out is lengths for lengths in lease.lengths.values()))
            assert out[n:].tolist() == [padding] * (lease.bucket - n)

    def retire(self) -> None:
        self.committed, self.cooling, self.flight = self.flight.native.seq, 0, None

    def scribble(self, slots: list[int]) -> None:
        """Leave anything at all in rows, as a launch that failed half way or a write from outside does."""
        for slot in slots:
            self.planner.store.narrow[slot] = 77 + slot
            for table in self.planner.store.tables.values():
                cells = table[slot]
                cells[cells != 0] = 1 + slot

    def check_books(self) -> None:
        self.planner.check()
        assert self.planner.store.trash_row_is_zero()
        for handle, request in self.requests.items():
            assert bool(self.planner.slot(handle)) == (handle in self.held)
            staged = self.stage is not None and handle in self.stage.handles
            assert self.planner.last_step(handle) == (self.stage.native.seq if staged else request.last_step)
            assert [self.planner.column(handle, c.name) for c in COLUMNS] == [
                request.columns.get(c.name) for c in COLUMNS
            ]
            for name, stream in request.streams.items():
                assert self.planner.length(handle, name) == stream.length
                assert self.planner.pages(handle, name) == stream.pages
        stats = self.planner.stats()
        free = 2 * B - len(self.held) - self.cooling
        assert (stats.slots_held, stats.slots_cooling, stats.slots_free) == (len(self.held), self.cooling, free)
        assert self.planner.committed_seq() == self.committed
        if OWN in self.tables and self.flight is None:
            owned = {page for request in self.requests.values() for page in request.streams["own"].pages}
            assert self.planner.free_pages("own") == OWN.pool_pages - len(owned)
