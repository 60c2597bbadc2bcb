"""Every public operation of ResidentPlanner in any order, against a model made of dictionaries.

The model knows streams, columns and which handles hold a slot. What a resident step reads is compared with the
streams when the step reads it; the planner's own books and invariants are compared after every operation.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mstar_resident.errors import (
    BatchTooLargeError,
    DuplicateHandleError,
    LengthError,
    NotReadyError,
    OutOfPagesError,
    PageError,
    ReleasedTokensError,
    ResidentError,
    RowOverflowError,
    StageDroppedError,
    UnknownHandleError,
)
from property.planner_model import COLUMNS, KV, OWN, B, PlannerModel, Request, Step, Stream

picks = st.lists(st.integers(0, 9), min_size=1, max_size=B + 1, unique=True)
pick, number, seed = st.integers(0, 9), st.integers(0, 12), st.integers(0, 2**16)


class PlannerMachine(PlannerModel, RuleBasedStateMachine):
    @initialize()
    def build_the_planner(self) -> None:
        self.build()

    @invariant()
    def books_are_equal(self) -> None:
        self.check_books()

    # A request's life

    @rule(ready=st.booleans(), seed=seed)
    def open(self, ready: bool, seed: int) -> None:
        if len(self.requests) >= 10:
            return
        handle = self.planner.open()
        assert handle not in self.requests
        assert handle not in self.gone
        self.requests[handle] = Request({table.name: Stream() for table in self.tables})
        if ready:
            rng = random.Random(seed)
            for index, table in enumerate(self.tables):
                if table is not OWN:
                    self.set_stream(
                        handle, index, rng.randrange(2, table.pages), rng.randrange(table.page_size * 2), 0, seed
                    )
            for name in range(len(COLUMNS)):
                self.set_column(name, [sorted(self.requests).index(handle)], rng.randrange(-5, 50))

    @precondition(lambda self: self.requests)
    @rule(pick=pick)
    def release(self, pick: int) -> None:
        (handle,) = self.some([pick])
        self.touch(handle)
        assert self.planner.release(handle) == self.requests[handle].last_step
        self.give_up_slot(handle)
        del self.requests[handle]
        self.gone.append(handle)

    @precondition(lambda self: self.requests)
    @rule(pick=pick)
    def offload(self, pick: int) -> None:
        (handle,) = self.some([pick])
        self.touch(handle)
        self.planner.offload(handle)
        self.give_up_slot(handle)
        for stream in self.requests[handle].streams.values():
            stream.pages, stream.length, stream.released = [], 0, False
            self.replace(stream)

    @precondition(lambda self: self.requests)
    @rule(pick=pick, table=pick, count=number, length=number, keep=number, seed=seed)
    def reload(self, pick: int, table: int, count: int, length: int, keep: int, seed: int) -> None:
        self.set_stream(self.some([pick])[0], table, count, length, keep, seed)

    def set_stream(self, handle: int, index: int, count: int, length: int, keep: int, seed: int) -> None:
        table = self.engine_table(index)
        stream = self.requests[handle].streams[table.name]
        kept = stream.pages[:keep]
        pages = kept + self.new_pages(kept, table, count, seed)
        if length > len(pages) * table.page_size:
            with pytest.raises(LengthError):
                self.planner.set_stream(handle, table.name, pages, length)
            return
        self.touch(handle)
        self.planner.set_stream(handle, table.name, pages, length)
        stream.pages, stream.length, stream.released = list(pages), length, False
        self.replace(stream)

    @precondition(lambda self: self.requests)
    @rule(picks=picks, table=pick, counts=st.lists(st.integers(0, 3), min_size=B + 1, max_size=B + 1), seed=seed)
    def append_pages(self, picks: list[int], table: int, counts: list[int], seed: int) -> None:
        spec, handles = self.engine_table(table), self.some(picks)
        streams = [self.requests[handle].streams[spec.name] for handle in handles]
        pages = [self.new_pages(s.pages, spec, n, seed + n) for s, n in zip(streams, counts, strict=False)]
        flat = [page for own in pages for page in own]
        with pytest.raises(PageError):
            self.planner.append_pages(spec.name, handles[:1], [1], [spec.pool_pages + 1])
        self.planner.append_pages(spec.name, handles, [len(own) for own in pages], flat)
        for stream, own in zip(streams, pages, strict=True):
            stream.pages += own

    @precondition(lambda self: self.requests)
    @rule(picks=picks, table=pick, tokens=st.integers(0, 9))
    def host_step(self, picks: list[int], table: int, tokens: int) -> None:
        spec, handles = self.tables[table % len(self.tables)], self.some(picks)
        streams = [self.requests[handle].streams[spec.name] for handle in handles]
        added = [tokens + index for index in range(len(handles))]
        if any(s.length + n > len(s.pages) * spec.page_size for s, n in zip(streams, added, strict=True)):
            with pytest.raises(LengthError):
                self.planner.host_step(spec.name, handles, added)
            return
        self.touch(*handles)
        self.planner.host_step(spec.name, handles, added)
        for stream, n in zip(streams, added, strict=True):
            stream.length += n

    @precondition(lambda self: self.requests)
    @rule(pick=pick, table=pick, tokens=st.integers(0, 5), pages=st.integers(0, 2))
    def truncate(self, pick: int, table: int, tokens: int, pages: int) -> None:
        spec, (handle,) = self.tables[table % len(self.tables)], self.some([pick])
        stream = self.requests[handle].streams[spec.name]
        length, kept = max(0, stream.length - tokens), max(0, len(stream.pages) - pages)
        shared = spec is OWN and self.shares(handle, stream.pages[length // spec.page_size : kept])
        if length > kept * spec.page_size or shared:
            with pytest.raises((LengthError, PageError)):
                self.planner.truncate(spec.name, handle, length, kept)
            return
        self.touch(handle)
        self.planner.truncate(spec.name, handle, length, kept)
        stream.pages, stream.length = stream.pages[:kept], length
        self.replace(stream)

    @precondition(lambda self: self.requests)
    @rule(name=pick, picks=picks, value=st.integers(-5, 50))
    def set_column(self, name: int, picks: list[int], value: int) -> None:
        column, handles = COLUMNS[name % len(COLUMNS)].name, self.some(picks)
        self.touch(*handles)
        self.planner.set_column(column, handles, [value + index for index in range(len(handles))])
        for index, handle in enumerate(handles):
            self.requests[handle].columns[column] = value + index

    @precondition(lambda self: self.requests)
    @rule(pick=pick, name=pick)
    def unset_column(self, pick: int, name: int) -> None:
        column, (handle,) = COLUMNS[name % len(COLUMNS)].name, self.some([pick])
        self.touch(handle)
        self.planner.unset_column(column, [handle])
        self.requests[handle].columns.pop(column, None)

    @precondition(lambda self: self.requests)
    @rule(picks=picks)
    def mark_stale(self, picks: list[int]) -> None:
        handles = self.some(picks)
        self.touch(*handles)
        self.planner.mark_stale(handles)
        rows = [self.planner.slot(handle) for handle in handles if self.planner.slot(handle)]
        if self.flight is None:  # what the planner was not told of may have written anything to these rows
            self.scribble(rows)

    @precondition(lambda self: self.requests)
    @rule(pick=pick, table=pick)
    def mark_released_tokens(self, pick: int, table: int) -> None:
        spec, (handle,) = self.tables[table % len(self.tables)], self.some([pick])
        self.touch(handle)
        self.planner.mark_released_tokens(spec.name, handle)
        self.requests[handle].streams[spec.name].released = True

    @precondition(lambda self: self.gone)
    @rule(index=pick)
    def use_after_release(self, index: int) -> None:
        handle = self.gone[index % len(self.gone)]
        for call in (self.planner.release, self.planner.offload, self.planner.last_step):
            with pytest.raises(UnknownHandleError):
                call(handle)
        for handles in ([handle], [*self.some([index])[:1], handle] if self.requests else [handle]):
            with pytest.raises(UnknownHandleError):
                self.planner.mark_stale(handles)

    # Pages that the planner owns

    @precondition(lambda self: self.requests and OWN in self.tables)
    @rule(picks=picks, tokens=st.integers(0, 9))
    def reserve(self, picks: list[int], tokens: int) -> None:
        handles = self.some(picks)
        streams = [self.requests[handle].streams["own"] for handle in handles]
        missing = [max(0, -(-(s.length + tokens) // OWN.page_size) - len(s.pages)) for s in streams]
        free = self.planner.free_pages("own")
        try:
            self.planner.reserve("own", handles, [tokens] * len(handles))
        except RowOverflowError:
            assert any(s.length + tokens > OWN.pages * OWN.page_size for s in streams)
            assert self.planner.free_pages("own") == free
        except OutOfPagesError as error:
            counts = (error.needed, error.free)
            assert counts == (sum(missing), free)
            assert sum(missing) > free
        else:
            assert self.planner.free_pages("own") == free - sum(missing)
            owned = {page for request in self.requests.values() for page in request.streams["own"].pages}
            for handle, stream, count in zip(handles, streams, missing, strict=True):
                pages = self.planner.pages(handle, "own")
                assert pages[: len(stream.pages)] == stream.pages
                new = pages[len(stream.pages) :]
                assert len(new) == count
                assert not owned & set(new)
                owned |= set(new)
                stream.pages = pages

    @precondition(lambda self: self.requests and OWN in self.tables)
    @rule(parent=pick, child=pick, pages=st.integers(0, 4), odd=st.integers(0, 4))
    def fork(self, parent: int, child: int, pages: int, odd: int) -> None:
        (parent,), (child,) = self.some([parent]), self.some([child])
        source, target = self.requests[parent].streams["own"], self.requests[child].streams["own"]
        tokens = pages * OWN.page_size + (odd == 4)
        if odd == 4 or tokens > source.length or target.pages:
            with pytest.raises(LengthError):
                self.planner.fork("own", parent, child, tokens)
            return
        if source.released:
            with pytest.raises(ReleasedTokensError):
                self.planner.fork("own", parent, child, tokens)
            return
        self.touch(child)
        self.planner.fork("own", parent, child, tokens)
        target.pages, target.length, target.released = source.pages[:pages], tokens, False
        self.replace(target)

    # A step's life

    @precondition(lambda self: self.requests)
    @rule(picks=picks, bucket=st.integers(1, B), buffer_idx=st.integers(0, 1), twice=st.integers(0, 5))
    def plan(self, picks: list[int], bucket: int, buffer_idx: int, twice: int) -> None:
        handles = self.some(picks)
        if twice == 5:
            with pytest.raises(DuplicateHandleError):
                self.planner.batch([*handles[: B - 1], handles[0]])
        if len(handles) > B:
            with pytest.raises(BatchTooLargeError):
                self.planner.batch(handles)
            return
        batch, lease = self.planner.batch(handles), self.planner.lease(bucket, buffer_idx=buffer_idx)
        self.plan_batch(batch, handles, lease)

    def plan_batch(self, batch: object, handles: list[int], lease: object) -> None:
        if self.flight is not None:
            expected: set[type[ResidentError]] = {NotReadyError}
        elif len(handles) > lease.bucket:
            expected = {BatchTooLargeError}
        else:
            expected = {error for handle in handles for error in self.row_errors(handle)}
            self.touch(*(self.stage.handles if self.stage else ()))  # a new plan drops the old
        if expected:
            with pytest.raises(tuple(expected)):
                self.planner.stage(batch, lease)
            return
        native = self.planner.stage(batch, lease)
        assert native.seq > self.seq
        self.seq = native.seq
        assert (native.rows, native.bucket, native.handles()) == (len(handles), lease.bucket, handles)
        self.stage = Step(native, handles, lease, [self.requests[handle] for handle in handles])

    @precondition(lambda self: self.stage is not None)
    @rule(other=st.integers(0, 3))
    def promote(self, other: int) -> None:
        step = self.stage
        handles, lease = step.handles, step.lease
        if other == 1:
            handles = handles[::-1]
        if other == 2:
            lease = self.planner.lease(lease.bucket, buffer_idx=1 - lease.buffer_idx)
        same = handles == step.handles and lease is step.lease
        assert self.planner.promote(step.native, self.planner.batch(handles), lease) is same

    @precondition(lambda self: self.dropped)
    @rule(index=pick)
    def use_a_dropped_stage(self, index: int) -> None:
        step = self.dropped[index % len(self.dropped)]
        assert self.planner.drop(step.native) is False
        with pytest.raises(StageDroppedError):
            self.planner.flush(step.native, 0)
        if all(handle in self.requests for handle in step.handles):
            assert self.planner.promote(step.native, self.planner.batch(step.handles), step.lease) is False

    @precondition(lambda self: self.stage is not None)
    @rule()
    def drop(self) -> None:
        assert self.planner.drop(self.stage.native) is True
        self.touch(*self.stage.handles)

    @precondition(lambda self: self.stage is not None)
    @rule(replay=st.integers(0, 4))
    def launch(self, replay: int) -> None:
        step, self.stage = self.stage, None
        self.take_slots(step)
        before = self.planner.stats()
        copies = self.planner.flush(step.native, 0)
        assert self.planner.stats().copies - before.copies == copies
        self.flight = step
        for request in step.requests:
            request.last_step = step.native.seq
        if replay:
            self.replay(step)

    @precondition(lambda self: self.flight is not None and self.flight.ran)
    @rule()
    def commit(self) -> None:
        step = self.flight
        self.planner.commit(step.native)
        self.retire()
        for handle, request in zip(step.handles, step.requests, strict=True):
            if self.requests.get(handle) is request:
                for table in self.tables:
                    stream = request.streams[table.name]
                    stream.length += table.span * (stream.replaced_in != step.native.seq)
        with pytest.raises(ResidentError):
            self.planner.commit(step.native)

    @precondition(lambda self: self.flight is not None)
    @rule()
    def fail(self) -> None:
        step = self.flight
        self.scribble(self.planner._core.in_flight_slots())
        step.lease.inputs.fill_(2 * B + 1)  # no row has this slot
        assert self.planner.fail(step.native) == [handle for handle in step.handles if handle in self.requests]
        self.retire()

    @precondition(lambda self: self.requests and self.flight is None)
    @rule(picks=picks, steps=st.integers(1, 6), pages=seed)
    def run_steps(self, picks: list[int], steps: int, pages: int) -> None:
        handles = self.some(picks)[:B]
        batch, lease = self.planner.batch(handles), self.planner.lease(B)
        for _ in range(steps):
            for table in (table for table in self.tables if table is not OWN):
                for handle in handles:
                    stream = self.requests[handle].streams[table.name]
                    if stream.length + table.span > len(stream.pages) * table.page_size:
                        new = self.new_pages(stream.pages, table, 1, pages)
                        self.planner.append_pages(table.name, [handle], [1], new)
                        stream.pages += new
            if OWN in self.tables:
                try:
                    self.planner.reserve_step(batch)
                except (OutOfPagesError, RowOverflowError):
                    return
                for handle in handles:
                    self.requests[handle].streams["own"].pages = self.planner.pages(handle, "own")
            self.plan_batch(batch, handles, lease)
            if self.stage is None:
                return
            self.launch(replay=1)
            self.commit()

    # What holds after every operation


class OneTableMachine(PlannerMachine):
    tables = (KV,)


EXAMPLES = int(os.environ.get("MSTAR_RESIDENT_EXAMPLES", "60"))


def run(machine: type[PlannerMachine]) -> None:
    limits = settings(
        max_examples=EXAMPLES, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=limits)


def test_every_operation_matches_naive_with_one_table() -> None:
    run(OneTableMachine)


def test_every_operation_matches_naive_with_three_tables_one_of_them_read_only_and_one_owned() -> None:
    run(PlannerMachine)
